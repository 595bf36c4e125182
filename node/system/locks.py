"""Locks on files: one process at a time does something. The kernel ends a lock with its process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def acquire(handle: int, *, wait: bool = True, shared: bool = False) -> bool:
    """Lock an open file or folder until it is closed.

    Args:
        wait: Whether to wait for another process that has the lock.
        shared: Whether others may have the lock at the same time, if theirs is shared, too.

    Returns:
        False if another process has the lock and `wait` is false.
    """
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(
    path: Path,
    *,
    folder: int | None = None,
    wait: bool = True,
    busy: Callable[[], object] | None = None,
    mode: int = 0o644,
) -> Iterator[int]:
    """Hold the lock of a file, which is made if it is missing, and give its descriptor.

    A link in the file's place is not followed, because others may be able to write in its folder.

    Args:
        path: The file.
        folder: An open folder to which the path is relative.
        wait: Whether to wait for another process that has the lock.
        busy: Called before such a wait.
        mode: The mode of a new file.

    Raises:
        BlockingIOError: Another process has the lock, and `wait` is false.
        OSError: The file cannot be opened, for example because it is a link.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(path, flags, mode, dir_fd=folder)
    try:
        if not acquire(handle, wait=False):
            if not wait:
                raise BlockingIOError(f"another process has the lock {path}")
            if busy is not None:
                busy()
            acquire(handle)
        yield handle
    finally:
        os.close(handle)


@contextmanager
def locked_folder(path: Path) -> Iterator[None]:
    """Hold the lock of a folder, and wait for it if another process has it. The lock leaves nothing behind.

    Raises:
        OSError: There is no such folder, or it cannot be read.
    """
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        acquire(handle)
        yield
    finally:
        os.close(handle)
