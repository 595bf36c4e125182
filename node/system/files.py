"""Writes files, folders and links of a machine, with the owner and the mode that their readers require.

Some of them lie in folders that users can write, such as shared disks, which outlive the machines. So a
draft's name is one that nobody can foresee, and owner and mode are set by open files: no link is followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from node.system import accounts, foreign

BEGIN, END = "# slurm-stacks: begin", "# slurm-stacks: end"
"""The lines before and after our part of a file of the distribution."""


def folder(path: Path, mode: int = 0o755, user: str | None = None) -> Path:
    """Make a folder with this mode, whatever the umask is. `user` becomes its owner, if given.

    Root takes a folder that another user has made, because its owner could exchange what is put there, and
    removes another user's link, which could lead anywhere.

    Raises:
        NotADirectoryError: A file is there, or a link that was not removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = _made(path)
    try:
        if user is not None:
            os.fchown(handle, *accounts.ids(user))
        elif os.geteuid() == 0 and os.fstat(handle).st_uid != 0:
            os.fchown(handle, 0, 0)
        os.fchmod(handle, mode)
    finally:
        os.close(handle)
    return path


def _made(path: Path) -> int:
    """Open a folder, which is made if it is not there. Root removes another user's link in its place."""
    for attempt in range(3):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            owner = path.lstat().st_uid
            if path.is_symlink() and not foreign.is_trusted(owner) and os.geteuid() == 0 and attempt < 2:
                path.unlink()
                continue
            text = f"is a link or a file of {foreign.name(owner)}, and must be a folder: remove it"
            raise NotADirectoryError(error.errno, text, str(path)) from None
    raise AssertionError("the last attempt returns or raises")


def write(
    path: Path, content: bytes, mode: int = 0o644, user: str | None = None, *, durable: bool = False
) -> bool:
    """Write a file atomically, with this mode and owner, and return whether the content was written.

    Content that is there already stays. The other arguments are those of `replacing`.
    """
    owner = None if user is None else accounts.ids(user)
    with contextlib.suppress(FileNotFoundError, foreign.UnusableError), foreign.opened(path) as handle:
        if _is(handle, content):
            _give(handle, mode, owner)
            return False
    with replacing(path, mode, user, durable=durable) as stream:
        stream.write(content)
    return True


@contextlib.contextmanager
def replacing(
    path: Path, mode: int = 0o644, user: str | None = None, *, durable: bool = False
) -> Iterator[BinaryIO]:
    """Give a draft to write, which takes the place of a file when the body ends without an error.

    The draft is in the file's folder, is private, and can be read back; its path is `Path(stream.name)`. A
    link at `path` is replaced.

    Args:
        path: The file.
        mode: The file's mode.
        user: The file's owner. `None` means the user of this process.
        durable: Whether the content is on the disk before the file has its name. Otherwise a power failure
            may leave an empty file.
    """
    owner = None if user is None else accounts.ids(user)
    draft = _draft(path)
    # The draft is private from its first moment.
    handle = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.close(handle)
    try:
        with draft.open("r+b") as stream:
            yield stream
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
            _give(stream.fileno(), mode, owner)
        draft.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None and error.errno is not None:
            # A write to a full disk names no file.
            error.filename = str(path)
        raise


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.urandom(8).hex()}")


def _is(handle: int, content: bytes) -> bool:
    if os.fstat(handle).st_size != len(content):
        return False
    with open(handle, "rb", closefd=False) as stream:
        return stream.read(len(content) + 1) == content


def _give(handle: int, mode: int, owner: tuple[int, int] | None) -> None:
    """Set the owner and the mode of an open file, where they differ: another user's file may be right.

    A new owner takes away some bits of the mode.
    """
    status = os.fstat(handle)
    if owner is not None and owner != (status.st_uid, status.st_gid):
        os.fchown(handle, *owner)
        status = os.fstat(handle)
    if stat.S_IMODE(status.st_mode) != mode:
        os.fchmod(handle, mode)


def with_part(text: str, part: str) -> str:
    """Return a file's text with our part: it replaces the former part, or is added at the end."""
    head, _, rest = text.partition(BEGIN)
    rest = rest.partition(f"{END}\n")[2]
    return f"{head.rstrip()}\n{BEGIN}\n{part}{END}\n{rest}".lstrip("\n")


def without_part(text: str) -> str:
    """Return a file's text without our part, if it has one."""
    head, begin, rest = text.partition(BEGIN)
    return head + rest.partition(f"{END}\n")[2] if begin else text


def link(path: Path, target: str) -> bool:
    """Make a symbolic link, which replaces a file or link, and return whether it was made."""
    if path.is_symlink() and str(path.readlink()) == target:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft(path)
    draft.symlink_to(target)
    draft.replace(path)
    return True


def remove(path: Path) -> None:
    """Remove a folder with all that is in it, as far as possible. There may be none.

    Jobs of an ordinary user may leave folders there that nobody may write, as Go's module cache is. What
    belongs to somebody else stays, and is no error: the caller looks at what is left.
    """
    shutil.rmtree(path, ignore_errors=True)
    if os.geteuid() == 0 or not path.is_dir():
        return
    _open(path)
    for above, folders, _ in os.walk(path):
        for inner in folders:
            _open(Path(above, inner))
    shutil.rmtree(path, ignore_errors=True)


def _open(folder: Path) -> None:
    """Let the owner write a folder, if that is this user."""
    with contextlib.suppress(PermissionError):
        if not folder.is_symlink():
            folder.chmod(0o700)
