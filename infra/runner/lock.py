"""One operation at a time on a stack: an advisory lock in the stack's state folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.errors import EXIT_REFUSED, UserError
from infra.runner import folders, locations


@contextmanager
def held(project_dir: Path, stack: str, operation: str) -> Iterator[None]:
    """Hold the stack's lock for the body; the kernel releases it however the process ends.

    Args:
        operation: what the holder does (`up`, `down`), for the message of whoever comes second.

    Raises:
        UserError: exit 3; another process holds it. The message names its pid.
    """
    path = locations.state_dir(project_dir, stack) / "lock"
    descriptor = _acquire(project_dir, stack, path, operation)
    try:
        yield
    finally:
        # A folder in which nothing else is left has served its purpose: a destroyed stack leaves no trace.
        with contextlib.suppress(FileNotFoundError):  # somebody has removed it already
            if {entry.name for entry in path.parent.iterdir()} == {"lock"}:
                path.unlink()
                path.parent.rmdir()
        os.close(descriptor)


def _acquire(project_dir: Path, stack: str, path: Path, operation: str) -> int:
    while True:
        folders.make_state_dir(project_dir, stack)
        try:
            # Python's descriptors are not inherited: a daemon left behind by a command cannot keep the lock.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:  # the last holder removed the folder just now
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").split()
            os.close(descriptor)
            raise UserError(_refusal(stack, holder), EXIT_REFUSED) from None
        # The last holder may have removed the file between our open and our lock: nlink is then 0.
        if os.fstat(descriptor).st_nlink:
            with contextlib.suppress(OSError):  # a full disk: the lock holds without its holder's name
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
