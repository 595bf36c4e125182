"""The lock of a stack, in its state folder, which allows one operation at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.errors import EXIT_REFUSED, UserError
from infra.program import folders, locations
from infra.program.stack import Stack


@contextmanager
def held(stack: Stack, operation: str) -> Iterator[None]:
    """Hold the stack's lock for the body. The kernel releases it however the process ends.

    Args:
        operation: what the holder does (`up`, `down`), for the message to another command.

    Raises:
        UserError: exit 3; another process holds the lock. The message names its pid.
    """
    path = locations.state_dir(stack) / "lock"

    def busy(descriptor: int) -> None:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace").split()
        raise UserError(_refusal(stack.name, holder), EXIT_REFUSED)

    descriptor = acquire(path, lambda: folders.make_state_dir(stack), busy)
    with contextlib.suppress(OSError):  # on a full disk the lock has no holder's name
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {operation}\n".encode(), 0)
    try:
        yield
    finally:
        # If only the lock is left, remove it and its folder, so that a destroyed stack leaves nothing.
        with contextlib.suppress(OSError):  # another process has removed it, or uses the folder above
            if {entry.name for entry in path.parent.iterdir()} <= {"lock", locations.ID}:
                path.unlink()
                folders.remove_empty(path.parent)
        os.close(descriptor)


def acquire(path: Path, make_folder: Callable[[], object], busy: Callable[[int], None]) -> int:
    """Open and lock a file that its last holder may remove, with its folder, at any moment.

    Args:
        make_folder: makes the file's folder.
        busy: called with the open file if another process holds the lock, before waiting for it.

    Returns:
        The descriptor, which holds the lock until it is closed. Children do not inherit it, so a command's
        daemon cannot keep the lock.
    """
    while True:
        try:
            make_folder()
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:  # the last holder removed the folder just now
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                busy(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # The file may have been removed between our open and our lock: it then has no links.
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)


def _refusal(stack: str, holder: list[str]) -> str:
    match holder:
        case [pid, operation]:
            who = f"`{operation}` (pid {pid})"
        case _:
            who = "another command"
    return f"{who} is working on stack {stack} of this checkout. Wait for it to end, or interrupt it."
