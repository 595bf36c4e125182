"""Where a stack's state and its running cluster live: outside the checkout, keyed by checkout and stack.

Two clones never meet, because the key is a hash of the checkout's real path. A cluster's run directory lies
under /tmp with a short name: munge refuses sockets over 108 bytes and parents that others cannot enter, and
slurm.conf values take no spaces, wherever the checkout lies.

A run directory has a note of its checkout. A checkout that is renamed while its cluster is up finds it again
by that note, and a cluster whose checkout is gone can be named and ended (`infra.local.abandoned`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from infra.errors import EXIT_REFUSED, UserError

APPLICATION = "slurm-stacks"
KEY_LENGTH = 10
NOTE = "checkout.json"
"""In a run directory: which checkout brought the cluster up."""


@dataclass(frozen=True, slots=True)
class Note:
    """Whose a run directory is.

    Attributes:
        checkout: the real path from which the cluster was brought up.
        identity: device and inode of that folder, which a rename within a file system keeps.
    """

    checkout: Path
    stack: str
    identity: tuple[int, int]

    @property
    def gone(self) -> bool:
        """Whether no checkout is at that path any more."""
        try:
            return not (self.checkout / "Pulumi.yaml").exists()
        except OSError:  # a folder above it cannot be read: nobody knows
            return False


def key(project_dir: Path, stack: str) -> str:
    """A short hash of the checkout's real path and the stack: 10 hexadecimal digits.

    For a checkout that was renamed while its cluster is up, and as long as it is, that of its old path.
    Unless another checkout is there now: then the cluster is that one's.
    """
    own = _hash(project_dir, stack)
    if os.path.lexists(run_root() / own):
        return own
    return next((run.name for run, note in notes() if note.stack == stack and _moved(note, project_dir)), own)


def _hash(project_dir: Path, stack: str) -> str:
    text = f"{project_dir.resolve()}\0{stack}"
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
        # Not ours: whatever is noted there may be anybody's invention.
        if not root.is_dir() or root.lstat().st_uid != os.getuid():
            return []
        files = sorted(root.glob(f"*/{NOTE}"))
    except FileNotFoundError:  # the last cluster has just gone, and the folder with it
        return []
    return [(file.parent, note) for file in files if (note := _read(file))]


def _read(file: Path) -> Note | None:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        device, inode = content["identity"]
        return Note(Path(content["checkout"]), str(content["stack"]), (int(device), int(inode)))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_note(run: Path, project_dir: Path, stack: str) -> None:
    """Note in a run directory that it is this checkout's."""
    if (identity := _identity(project_dir)) is None:
        return
    note, old = Note(project_dir.resolve(), stack, identity), _read(run / NOTE)
    # Only the checkout at the original path writes: one that was moved away goes on under its old key.
    if old == note or (old is not None and old.checkout != note.checkout):
        return
    draft = run / f".{NOTE}.{os.getpid()}"
    content = {"checkout": str(note.checkout), "stack": stack, "identity": note.identity}
    draft.touch(mode=0o644)  # whatever the umask: who could write here could have us end another cluster
    draft.write_text(json.dumps(content), encoding="utf-8")
    draft.replace(run / NOTE)


def mark(project_dir: Path) -> str:
    """A checkout's mark on what outlives it, and a note of whose mark that is: 10 hexadecimal digits.

    Raises:
        OSError: the note cannot be written.
    """
    path = project_dir.resolve()
    digits = hashlib.sha256(os.fsencode(path)).hexdigest()[:KEY_LENGTH]
    note, identity = _mark_file(digits), _identity(project_dir)
    if identity is not None:
        note.parent.mkdir(parents=True, exist_ok=True)
        draft = note.with_name(f".{note.name}.{os.getpid()}")
        content = {"checkout": str(path), "stack": "", "identity": identity}
        try:
            draft.write_text(json.dumps(content))
            draft.replace(note)
        except OSError:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
    return digits


def marked(digits: str, project_dir: Path | None = None) -> Path | None:
    """The checkout of a mark; None where nobody knows.

    Args:
        project_dir: the checkout that asks. Where it is the marked one, renamed since, it is the answer.
    """
    if (note := _read(_mark_file(digits))) is None:
        return None
    if project_dir is not None and _moved(note, project_dir):
        return project_dir.resolve()
    return note.checkout


def _mark_file(digits: str) -> Path:
    return state_root() / "checkouts" / f"{digits}.json"


def home() -> Path:
    """This user's home folder: $HOME, or what the user database says.

    Raises:
        UserError: exit 3; neither names one.
    """
    # Not Path.home(), which takes an empty $HOME for the root folder.
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
    """The user's folder for the state of all checkouts; not created here."""
    # The specification says that a relative $XDG_STATE_HOME is to be ignored.
    base = os.environ.get("XDG_STATE_HOME", "")
    root = Path(base) if os.path.isabs(base) else home() / ".local" / "state"  # noqa: PTH117
    return root / APPLICATION


def cache_root() -> Path:
    """What is worth keeping between clusters: training environments, archives and made data."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if Path(base).is_absolute() else home() / ".cache"
    return root / APPLICATION


def state_dir(project_dir: Path, stack: str) -> Path:
    """The folder of this checkout's stack: state, lock, and the fallback backend. Not created here."""
    return state_root() / key(project_dir, stack)


def run_root() -> Path:
    """This user's parent of all run directories; not created here."""
    return Path(f"/tmp/{APPLICATION}-{os.getuid()}")


def run_roots() -> list[Path]:
    """Each user's parent of run directories on this machine; another user's may not be readable."""
    return sorted(run_root().parent.glob(f"{APPLICATION}-[0-9]*"))


def run_dir(project_dir: Path, stack: str) -> Path:
    """The folder of the running cluster: sockets, logs, slurm.conf. Not created here."""
    return run_root() / key(project_dir, stack)
