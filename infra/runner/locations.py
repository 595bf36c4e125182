"""Where a stack's state and its running cluster live: outside the checkout, keyed by checkout and stack.

Two clones never meet, because the key is a hash of the checkout's real path. A cluster's run directory lies
under /tmp with a short name: munge refuses sockets over 108 bytes and parents that others cannot enter, and
slurm.conf values take no spaces, wherever the checkout lies.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from infra.errors import EXIT_REFUSED, UserError

APPLICATION = "slurm-stacks"
KEY_LENGTH = 10
RUN_MODE = 0o711


def key(project_dir: Path, stack: str) -> str:
    """A short hash of the checkout's real path and the stack: 10 hexadecimal digits."""
    text = f"{project_dir.resolve()}\0{stack}"
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


def state_root() -> Path:
    """The user's folder for the state of all checkouts; not created here."""
    # The specification says that a relative $XDG_STATE_HOME is to be ignored.
    base = os.environ.get("XDG_STATE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state"  # noqa: PTH117
    return root / APPLICATION


def state_dir(project_dir: Path, stack: str) -> Path:
    """The folder of this checkout's stack: state, lock, and the fallback backend. Not created here."""
    return state_root() / key(project_dir, stack)


def make_state_dir(project_dir: Path, stack: str) -> Path:
    """Create `state_dir` readable by its owner alone, and return it.

    Raises:
        UserError: exit 3; that folder cannot be made.
    """
    path = state_dir(project_dir, stack)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot keep the stack's state in {path}: {error.strerror}. "
            "Set XDG_STATE_HOME to a folder that you can write.",
            EXIT_REFUSED,
        ) from error
    return path


def run_root() -> Path:
    """This user's parent of all run directories; not created here."""
    return Path(f"/tmp/{APPLICATION}-{os.getuid()}")


def run_dir(project_dir: Path, stack: str) -> Path:
    """The folder of the running cluster: sockets, logs, slurm.conf. Not created here."""
    return run_root() / key(project_dir, stack)


def make_run_dir(project_dir: Path, stack: str) -> Path:
    """Create `run_dir` (it and its parent mode 711) and return it.

    Raises:
        UserError: exit 3; one of the two exists and is a symbolic link, not a folder, or someone else's.
            In /tmp anybody may have put it there.
    """
    path = run_dir(project_dir, stack)
    for folder in (path.parent, path):
        _make_private(folder)
    return path


def check_run_dir(project_dir: Path, stack: str) -> Path:
    """Return `run_dir` without creating it.

    Raises:
        UserError: as `make_run_dir`, for what exists.
    """
    path = run_dir(project_dir, stack)
    for folder in (path.parent, path):
        if os.path.lexists(folder):
            _check_private(folder)
    return path


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
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
        problem = f"belongs to user {info.st_uid}, and you are user {os.getuid()}"
    else:
        return
    raise UserError(
        f"{folder} {problem}. The cluster's sockets and keys will not be put there. "
        "Remove it (or have its owner remove it), and run the command again.",
        EXIT_REFUSED,
    )
