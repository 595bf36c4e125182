"""The lock of a stack in a checkout: one command at a time works on it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType

from infra import os_errors
from infra.errors import EXIT_REFUSED, UserError
from infra.program import folders, locations
from infra.program.stack import Stack
from node.system import locks
from node.system.processes import ProcessId

_HELD: ContextVar[Mapping[Path, bool]] = ContextVar("held", default=MappingProxyType({}))
"""The locks that this thread holds: file -> whether it is shared."""


@contextmanager
def locked(stack: Stack, operation: str, *, shared: bool = False) -> Iterator[None]:
    """Hold the stack's lock for the body. The kernel releases it however the process ends.

    A command takes it before it touches anything of the cluster. What the command calls may take it again,
    which does nothing.

    Args:
        operation: What the holder does (`up`, `down`), for the message to another command.
        shared: Whether others may hold the lock at the same time, if theirs is shared, too.

    Raises:
        UserError: Exit 3; another process holds the lock. The message names its pid.
    """
    path = locations.state_dir(stack) / "lock"
    if path in _HELD.get():
        assert shared or not _HELD.get()[path], f"`{operation}` needs the lock for itself from its beginning"
        yield
        return

    def busy(descriptor: int) -> None:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace").split("\n")[0].partition(" ")
        raise UserError(_refusal(stack.name, holder[0], holder[2]), EXIT_REFUSED, code="state.busy")

    descriptor = acquire_lock(path, lambda: folders.make_state_dir(stack), busy, shared=shared)
    with contextlib.suppress(OSError):  # on a full disk the lock has no holder's name
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {operation}\n".encode(), 0)
    token = _HELD.set({**_HELD.get(), path: shared})
    try:
        yield
    finally:
        _HELD.reset(token)
        _put_away(path, descriptor)


def _put_away(path: Path, descriptor: int) -> None:
    """Release the lock, and remove its folder if nothing else is left there, as after a destroy."""
    # Whoever shares the lock still needs the file.
    if locks.acquire(descriptor, wait=False):
        with contextlib.suppress(OSError):  # another process has removed it, or uses the folder above
            if {entry.name for entry in path.parent.iterdir()} <= {"lock", locations.ID}:
                path.unlink()
                folders.remove_empty(path.parent)
    os.close(descriptor)


def acquire_lock(
    path: Path, make_folder: Callable[[], object], busy: Callable[[int], None], *, shared: bool = False
) -> int:
    """Open and lock a file that its last holder may remove, with its folder, at any moment.

    Args:
        make_folder: Makes the file's folder.
        busy: Called with the open file if another process holds the lock, before waiting for it.
        shared: Whether others may hold the lock at the same time, if theirs is shared, too.

    Returns:
        The descriptor, which holds the lock until it is closed. Children do not inherit it, so a command's
        daemon cannot keep the lock.

    Raises:
        UserError: There can be no lock: the folder is read-only, a link is in the file's place, or the file
            system has no locks.
    """
    while True:
        try:
            make_folder()
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError as error:
            if path.is_symlink():  # it leads into a folder that is not there
                raise os_errors.explain(error, path) from error
            continue  # the last holder removed the folder just now
        except OSError as error:
            raise os_errors.explain(error, path) from error
        try:
            if not locks.acquire(descriptor, wait=False, shared=shared):
                busy(descriptor)
                locks.acquire(descriptor, shared=shared)
        except OSError as error:
            os.close(descriptor)
            raise os_errors.explain(error, path) from error
        except BaseException:
            os.close(descriptor)
            raise
        # The file may have been removed between our open and our lock: it then has no links.
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)


def _refusal(stack: str, pid: str, operation: str) -> str:
    # A holder that could not write its name has left that of an earlier one.
    named = operation and pid.isdigit() and ProcessId.of(int(pid)) is not None
    who = f"`{operation}` (pid {pid})" if named else "another command"
    return f"{who} is working on stack {stack} of this checkout. Wait for it to end, or interrupt it."
