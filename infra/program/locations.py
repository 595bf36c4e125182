"""Where a stack's state and its running cluster lie: outside the checkout, by a key of checkout and stack.

The key is a hash of the checkout's real path, so that two clones never share a folder. A cluster's run
directory lies under /tmp with a short name, wherever the checkout lies: a socket's path has at most 108
bytes, and values in slurm.conf have no spaces.

A run directory has a note of its checkout. A checkout that is renamed while its cluster is up finds it again
by that note, and a cluster whose checkout is gone can be named and ended (`cli.local.orphaned_clusters`).
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from infra.errors import EXIT_REFUSED, UserError
from infra.program.files import write_atomically
from infra.program.stack import Stack

APPLICATION = "slurm-stacks"
KEY_LENGTH = 10
STATE_MIB = 1
"""The least free space for the state of the stacks, in MiB."""
NOTE = "checkout.json"
"""The file in a run directory that says which checkout brought the cluster up."""


@dataclass(frozen=True, slots=True)
class Note:
    """Says which checkout a run directory belongs to.

    Attributes:
        checkout: The real path from which the cluster was brought up.
        identity: The device and the inode of that folder, which a rename within a file system keeps.
    """

    checkout: Path
    stack: str
    identity: tuple[int, int]

    @property
    def gone(self) -> bool:
        """Whether there is no checkout at that path any more."""
        try:
            return not (self.checkout / "Pulumi.yaml").exists()
        except OSError:  # a folder above it cannot be read, so this is not known
            return False


def key(stack: Stack) -> str:
    """The key of a stack: 10 hexadecimal digits, a hash of the checkout's real path and the stack.

    A checkout that was renamed while its cluster is up keeps the key of its old path until the cluster is
    down. If another checkout is now at the old path, the cluster belongs to that one instead.
    """
    own = _hash(stack)
    if os.path.lexists(run_root() / own):
        return own
    return next(
        (run.name for run, note in notes() if note.stack == stack.name and _moved(note, stack.project)), own
    )


def _hash(stack: Stack) -> str:
    text = f"{stack.project.resolve()}\0{stack.name}"
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:KEY_LENGTH]


def _moved(note: Note, project_dir: Path) -> bool:
    return _identity(project_dir) == note.identity and note.gone


def _identity(project_dir: Path) -> tuple[int, int] | None:
    try:
        info = project_dir.stat()
    except OSError:
        return None
    return info.st_dev, info.st_ino


def notes() -> list[tuple[Path, Note]]:
    """This user's run directories, each with the note of its checkout."""
    root = run_root()
    try:
        # A folder that is not ours may hold notes that somebody has made up.
        if not root.is_dir() or root.lstat().st_uid != os.getuid():
            return []
        files = sorted(root.glob(f"*/{NOTE}"))
    except FileNotFoundError:  # the last cluster has just ended, and the folder is gone
        return []
    return [(file.parent, note) for file in files if (note := _read(file))]


def _read(file: Path) -> Note | None:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        device, inode = content["identity"]
        return Note(Path(content["checkout"]), str(content["stack"]), (int(device), int(inode)))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def write_note(run: Path, stack: Stack) -> None:
    """Notes in a run directory that it belongs to this checkout."""
    if (identity := _identity(stack.project)) is None:
        return
    note, old = Note(stack.project.resolve(), stack.name, identity), _read(run / NOTE)
    # Only the checkout at the original path writes. One that was moved goes on under its old key.
    if old == note or (old is not None and old.checkout != note.checkout):
        return
    content = {"checkout": str(note.checkout), "stack": stack.name, "identity": note.identity}
    # The mode holds whatever the umask is: whoever can write here could make us end another cluster.
    write_atomically(run / NOTE, json.dumps(content), 0o644)


def mark(project_dir: Path) -> str:
    """The mark of a checkout on things that outlive it: 10 hexadecimal digits. It also notes whose mark it
    is.

    Raises:
        OSError: The note cannot be written.
    """
    path = project_dir.resolve()
    digits = hashlib.sha256(os.fsencode(path)).hexdigest()[:KEY_LENGTH]
    note, identity = _mark_file(digits), _identity(project_dir)
    if identity is not None:
        note.parent.mkdir(parents=True, exist_ok=True)
        content = {"checkout": str(path), "stack": "", "identity": identity}
        write_atomically(note, json.dumps(content))
    return digits


def marked(digits: str, project_dir: Path | None = None) -> Path | None:
    """The checkout of a mark. `None` means that it is not known.

    Args:
        project_dir: The checkout that asks. It is the answer if it is the marked checkout under a new name.
    """
    if (note := _read(_mark_file(digits))) is None:
        return None
    if project_dir is not None and _moved(note, project_dir):
        return project_dir.resolve()
    return note.checkout


def _mark_file(digits: str) -> Path:
    return state_root() / "checkouts" / f"{digits}.json"


def home() -> Path:
    """This user's home folder: $HOME, or the one in the user database.

    Raises:
        UserError: Exit 3. Neither names a folder.
    """
    # Path.home() is not used, because it takes an empty $HOME for the root folder.
    if os.path.isabs(path := os.environ.get("HOME", "")):  # noqa: PTH117
        return Path(path)
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        raise UserError(
            f"user {os.getuid()} has no home folder: $HOME is not set, and the user database has no line for "
            "this user. Set HOME to a folder that you can write.",
            EXIT_REFUSED,
        ) from None


def state_root() -> Path:
    """The user's folder for the state of all checkouts. It is not created here."""
    # The specification says that a relative $XDG_STATE_HOME must be ignored.
    base = os.environ.get("XDG_STATE_HOME", "")
    root = Path(base) if os.path.isabs(base) else home() / ".local" / "state"  # noqa: PTH117
    return root / APPLICATION


def cache_root() -> Path:
    """The user's folder for what is kept between clusters: training environments, archives and generated
    data."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if Path(base).is_absolute() else home() / ".cache"
    return root / APPLICATION


def state_dir(stack: Stack) -> Path:
    """The folder of this checkout's stack: state, lock, and the fallback backend. It is not created here."""
    return state_root() / key(stack)


def run_root() -> Path:
    """The parent of all run directories of this user. It is not created here."""
    return Path(f"/tmp/{APPLICATION}-{os.getuid()}")


def run_roots() -> list[Path]:
    """The parents of run directories of all users of this machine. Another user may have put anything
    there."""
    return sorted(run_root().parent.glob(f"{APPLICATION}-[0-9]*"))


def run_dir(stack: Stack) -> Path:
    """The folder of the running cluster: sockets, logs, slurm.conf. It is not created here."""
    return run_root() / key(stack)
