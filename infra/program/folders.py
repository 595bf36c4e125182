"""A stack's folders: their creation, and the check of who owns them before anything is put there.

`locations` only says where the folders are. The two are apart because `os_errors`, which explains a failure
to make one, needs the locations as well.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from infra import os_errors
from infra.errors import EXIT_REFUSED, UserError
from infra.program import clusters, locations
from infra.program.stack import Stack

RUN_MODE = 0o700
"""The mode of a run directory. It keeps other users of this machine away from all that is in it: the munge
socket, with which one can submit jobs, the daemons' sockets, slurm.conf, logs, and jobs' files."""
RUN_ROOT_MODE = 0o755
"""The mode of the folder of all of a user's run directories. Other users' commands find there which ports are
reserved. The names that it shows are in the command lines of the clusters' processes too."""


def make_state_dir(stack: Stack) -> Path:
    """Create `state_dir`, readable by its owner only, and return it.

    Raises:
        UserError: Exit 3. The folder cannot be made, belongs to another user, or is a copy.
    """
    path = locations.state_dir(stack)
    clusters.follow(stack)
    try:
        for folder in (path.parent, path):
            # Root could write there anyway, and the owner could not read the result afterwards.
            if folder.exists() and (owner := folder.stat().st_uid) != os.getuid():
                raise UserError(os_errors.foreign(folder, owner), EXIT_REFUSED, code="folder.foreign")
        while True:
            try:
                for folder in (path.parent, path):
                    folder.mkdir(mode=0o700, exist_ok=True)
                return path
            except FileNotFoundError:
                # The last command of another stack has removed the folder above just now.
                if not stack.project.is_dir():
                    raise
    except OSError as error:
        raise os_errors.explain(error, path) from error


def remove_empty(state: Path) -> None:
    """Remove a stack's state folder, and the folder of all states, as far as they are empty."""
    with contextlib.suppress(OSError):
        state.rmdir()
        state.parent.rmdir()


def make_run_dir(stack: Stack) -> Path:
    """Create `run_dir` with mode 700 and its parent with mode 755, and return it.

    Raises:
        UserError: Exit 3. One of the two exists and is a symbolic link, is not a folder, or belongs to
            someone else (in /tmp anybody may have put it there), or others may change a folder above them.
    """
    clusters.note(stack, "local", make_state_dir(stack))
    path = locations.run_dir(stack)
    if problem := next(unsafe_parents(path), None):
        raise UserError(
            f"{problem.cause}. {problem.cure}, and run the command again.",
            EXIT_REFUSED,
            code="folder.problem",
        )
    _make_private(path.parent, RUN_ROOT_MODE)
    _make_private(path, RUN_MODE)
    return path


class Unsafe(NamedTuple):
    """Why other users could put their own folder in the place of a run directory, and what helps."""

    cause: str
    cure: str


def unsafe_parents(path: Path) -> Iterator[Unsafe]:
    """Yield what is wrong with the folders above a run directory.

    munged checks the same, but not for us: it would also insist that all users can enter them.
    """
    for folder in path.parents:
        try:
            info = folder.stat()
        except FileNotFoundError:
            continue
        mode = stat.S_IMODE(info.st_mode)
        if info.st_uid not in (0, os.geteuid()):
            owner = os_errors.user_name(info.st_uid)
            yield Unsafe(
                f"{folder} belongs to {owner}, who could exchange the cluster's sockets and keys below it",
                f"As root: chown root {folder}",
            )
        elif mode & 0o022 and not mode & stat.S_ISVTX and folder != path.parent:
            yield Unsafe(
                f"{folder} has mode {mode:o}: others could exchange the cluster's sockets and keys below it",
                f"As root: chmod +t {folder}",
            )


def check_run_dir(stack: Stack) -> Path:
    """Return `run_dir` without creating it.

    Raises:
        UserError: As `make_run_dir`, for folders that exist; or the stack's state is another user's or a
            copy.
    """
    clusters.follow(stack)
    return check_run_dir_of(locations.cluster_id(stack))


def check_run_dir_of(cluster: str) -> Path:
    """Return the run directory of a cluster's id without creating it.

    Raises:
        UserError: As `make_run_dir`, for folders that exist.
    """
    path = locations.run_root() / cluster
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
        # The mode is set by chmod, because the umask limits mkdir's mode.
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
        code="folder.unsafe",
    )


@contextlib.contextmanager
def umask() -> Iterator[None]:
    """Set the umask for what a local cluster's machines run and read.

    Others may write nothing there, whatever the user's umask is. What root makes is also for the users of
    machines that boot, who must be able to read it; those of this host cannot enter the run directory.
    """
    mask = os.umask(0o022)
    if os.geteuid() != 0:
        os.umask(mask | 0o022)
    try:
        yield
    finally:
        os.umask(mask)
