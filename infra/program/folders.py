"""Makes a stack's folders, and checks who owns them before anything is put there.

`locations` only says where the folders are. The two are apart because `os_errors`, which explains a failure
to make one, needs the locations as well.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from infra import os_errors
from infra.errors import EXIT_REFUSED, UserError
from infra.program import locations
from infra.program.stack import Stack

RUN_MODE = 0o711
RUN_ROOT_MODE = 0o755
"""The mode of the folder of all of a user's run directories. Other users' commands find there which ports are
reserved. The names that it shows are in the command lines of the clusters' processes too."""


def make_state_dir(stack: Stack) -> Path:
    """Creates `state_dir`, readable by its owner only, and returns it.

    Raises:
        UserError: Exit 3. The folder cannot be made, or belongs to another user.
    """
    path = locations.state_dir(stack)
    try:
        for folder in (path.parent, path):
            # Root could write there anyway, and the owner could not read the result afterwards.
            if folder.exists() and (owner := folder.stat().st_uid) != os.getuid():
                raise UserError(os_errors.foreign(folder, owner), EXIT_REFUSED)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise os_errors.explain(error, path) from error
    return path


def make_run_dir(stack: Stack) -> Path:
    """Creates `run_dir` with mode 711 and its parent with mode 755, and returns it.

    Raises:
        UserError: Exit 3. One of the two exists and is a symbolic link, is not a folder, or belongs to
            someone else. In /tmp anybody may have put it there.
    """
    path = locations.run_dir(stack)
    _make_private(path.parent, RUN_ROOT_MODE)
    _make_private(path, RUN_MODE)
    locations.write_note(path, stack)
    return path


def check_run_dir(stack: Stack) -> Path:
    """Returns `run_dir` without creating it.

    Raises:
        UserError: As `make_run_dir`, for folders that exist.
    """
    path = locations.run_dir(stack)
    for folder in (path.parent, path):
        if os.path.lexists(folder):
            _check_private(folder)
    return path


def _make_private(folder: Path, mode: int) -> None:
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise os_errors.explain(error, folder) from error
    else:
        # The mode is set by chmod, because the umask limits mkdir's mode, and others must be able to enter.
        folder.chmod(mode)
        return
    _check_private(folder)
    if stat.S_IMODE(folder.lstat().st_mode) != mode:
        folder.chmod(mode)


def _check_private(folder: Path) -> None:
    info = folder.lstat()
    if stat.S_ISLNK(info.st_mode):
        problem = "is a symbolic link"
    elif not stat.S_ISDIR(info.st_mode):
        problem = "is not a folder"
    elif info.st_uid != os.getuid():
        problem = (
            f"belongs to {os_errors.user_name(info.st_uid)}, and you are {os_errors.user_name(os.getuid())}"
        )
    else:
        return
    raise UserError(
        f"{folder} {problem}. The cluster's sockets and keys will not be put there. "
        f"Remove it, or have it removed (as root: rm -r {folder}), and run the command again.",
        EXIT_REFUSED,
    )
