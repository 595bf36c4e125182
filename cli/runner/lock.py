"""The lock of a stack, in its state folder, which allows one operation at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
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
    descriptor = _acquire(stack, path, operation)
    try:
        yield
    finally:
        # If only the lock is left, remove the folder, so that a destroyed stack leaves nothing.
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            if {entry.name for entry in path.parent.iterdir()} == {"lock"}:
                path.unlink()
                path.parent.rmdir()
        os.close(descriptor)


def _acquire(stack: Stack, path: Path, operation: str) -> int:
    while True:
        folders.make_state_dir(stack)
        try:
            # Children do not inherit this descriptor, so a command's daemon cannot keep the lock.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:  # the last holder removed the folder just now
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").split()
            os.close(descriptor)
            raise UserError(_refusal(stack.name, holder), EXIT_REFUSED) from None
        # The last holder may have removed the file between our open and our lock: nlink is then 0.
        if os.fstat(descriptor).st_nlink:
            with contextlib.suppress(OSError):  # on a full disk the lock has no holder's name
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()} {operation}\n".encode(), 0)
            return descriptor
        os.close(descriptor)


def _refusal(stack: str, holder: list[str]) -> str:
    match holder:
        case [pid, operation]:
            who = f"`{operation}` (pid {pid})"
        case _:
            who = "another command"
    return f"{who} is working on stack {stack} of this checkout. Wait for it to end, or interrupt it."
