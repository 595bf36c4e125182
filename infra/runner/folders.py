"""Makes a stack's folders, and looks whose they are before anything is put there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from infra import trouble
from infra.errors import EXIT_REFUSED, UserError
from infra.runner import locations

RUN_MODE = 0o711


def make_state_dir(project_dir: Path, stack: str) -> Path:
    """Create `state_dir` readable by its owner alone, and return it.

    Raises:
        UserError: exit 3; that folder cannot be made, or is another user's.
    """
    path = locations.state_dir(project_dir, stack)
    try:
        for folder in (path.parent, path):
            # Root could write there all the same, and its owner could not read that afterwards.
            if folder.exists() and (owner := folder.stat().st_uid) != os.getuid():
                raise UserError(trouble.foreign(folder, owner), EXIT_REFUSED)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise trouble.explain(error, path) from error
    return path


def make_run_dir(project_dir: Path, stack: str) -> Path:
    """Create `run_dir` (it and its parent mode 711) and return it.

    Raises:
        UserError: exit 3; one of the two exists and is a symbolic link, not a folder, or someone else's.
            In /tmp anybody may have put it there.
    """
    path = locations.run_dir(project_dir, stack)
    for folder in (path.parent, path):
        _make_private(folder)
    locations.write_note(path, project_dir, stack)
    return path


def check_run_dir(project_dir: Path, stack: str) -> Path:
    """Return `run_dir` without creating it.

    Raises:
        UserError: as `make_run_dir`, for what exists.
    """
    path = locations.run_dir(project_dir, stack)
    for folder in (path.parent, path):
        if os.path.lexists(folder):
            _check_private(folder)
    return path


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise trouble.explain(error, folder) from error
    else:
        # By chmod, because mkdir's mode goes through the umask, and others must be able to enter.
        folder.chmod(RUN_MODE)
        return
    _check_private(folder)
    if stat.S_IMODE(folder.lstat().st_mode) != RUN_MODE:
        folder.chmod(RUN_MODE)


def _check_private(folder: Path) -> None:
    info = folder.lstat()
    if stat.S_ISLNK(info.st_mode):
        problem = "is a symbolic link"
    elif not stat.S_ISDIR(info.st_mode):
        problem = "is not a folder"
    elif info.st_uid != os.getuid():
        problem = f"belongs to {trouble.user_name(info.st_uid)}, and you are {trouble.user_name(os.getuid())}"
    else:
        return
    raise UserError(
        f"{folder} {problem}. The cluster's sockets and keys will not be put there. "
        f"Remove it, or have it removed (as root: rm -r {folder}), and run the command again.",
        EXIT_REFUSED,
    )
