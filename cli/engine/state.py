"""A stack's state: the embedded runner's record of resources, and the lock for one operation at a time.

The record is one JSON file, which is replaced after every step, so a kill loses nothing.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from infra import os_errors
from infra.errors import EXIT_REFUSED, UserError
from infra.program import folders, locations
from infra.program.stack import Stack
from node.system import locks
from node.system.processes import ProcessId

STATE_FILE = "state.json"
VERSION = 1

Status = Literal["creating", "created", "updating", "deleting"]
"""The last operation that began. Any status but `created` was interrupted or failed, and is done again."""


@dataclass(slots=True)
class Record:
    """One resource, as it was last recorded.

    Attributes:
        process: Pid and start time of the running command, so that a later run can end it after a kill.
    """

    urn: str
    type: str
    name: str
    custom: bool
    parent: str = ""
    id: str = ""
    status: Status = "created"
    inputs: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    dependencies: list[str] = field(default_factory=list)
    property_dependencies: dict[str, list[str]] = field(default_factory=dict)
    deleted_with: str = ""
    process: tuple[int, str] | None = None

    @property
    def edges(self) -> set[str]:
        """URNs of the resources that must be deleted after this one."""
        edges = {self.parent, self.deleted_with, *self.dependencies}
        edges.update(urn for urns in self.property_dependencies.values() for urn in urns)
        return edges - {"", self.urn}


class DamagedStateError(UserError):
    """The state cannot be read, so it does not say which resources exist.

    Attributes:
        path: The state's file.
    """

    def __init__(self, path: Path, stack: str, problem: str) -> None:
        name = stack or "…"
        super().__init__(
            f"{path}, the state of the stack, is damaged ({problem}). `./cluster down --stack {name}` ends "
            f"the cluster without it; then `./cluster up --stack {name}` makes a new one.",
            code="state.damaged",
        )
        self.path = path


class State:
    """The resources of one stack.

    Every method that changes something writes the file before it returns, and raises a `UserError` if that
    fails.
    """

    def __init__(self, path: Path, project: str, stack: str) -> None:
        self.path = path
        self.project = project
        self.stack = stack
        self.boot = boot_id()
        self.records: dict[str, Record] = {}
        """Resources by URN, in the order of creation."""
        self.to_delete: list[Record] = []
        """Replaced resources that must still be deleted."""
        self.ignore_full_disk = False
        """Whether to ignore a full disk: a destroy must end, and deleting a resource twice does no harm."""
        self.outputs: dict[str, Any] = {}
        self._lock = threading.Lock()

    @classmethod
    def load(cls, path: Path, project: str = "", stack: str = "") -> State:
        """Read the file; return an empty state if there is none.

        Raises:
            DamagedStateError: The file does not hold a state.
            UserError: Another version of this program wrote it.
        """
        state = cls(path, project, stack)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return state
        except OSError as error:
            raise os_errors.explain(error, path) from error
        except UnicodeDecodeError as error:
            raise DamagedStateError(path, stack, repr(error)) from error
        try:
            data = json.loads(text)
            if data["version"] != VERSION:
                raise UserError(
                    f"{path} was written by another version of this program (state version "
                    f"{data['version']}, and this one reads {VERSION}): use that version.",
                    code="state.version",
                )
            state.project, state.stack = data["project"], data["stack"]
            state.boot = data["boot"]
            state.records = {r["urn"]: _record(r) for r in data["resources"]}
            state.to_delete = [_record(r) for r in data["to_delete"]]
            state.outputs = data["outputs"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedStateError(path, stack, repr(error)) from error
        return state

    @property
    def empty(self) -> bool:
        return not self.records and not self.to_delete

    def put(self, record: Record) -> None:
        """Record a resource under its URN."""
        with self._lock:
            self.records[record.urn] = record
            self._save()

    def remove(self, record: Record) -> None:
        """Remove the record of a resource, current or replaced."""
        with self._lock:
            if self.records.get(record.urn) is record:
                del self.records[record.urn]
            self.to_delete = [other for other in self.to_delete if other is not record]
            self._save()

    def mark_for_deletion(self, record: Record) -> None:
        """Mark a replaced resource for deletion, which follows when its replacement is in use."""
        with self._lock:
            self.to_delete.append(record)
            self.records.pop(record.urn, None)
            self._save()

    def save(self) -> None:
        """Write changes that were made to records directly."""
        with self._lock:
            self._save()

    def _save(self) -> None:
        data = {
            "version": VERSION,
            "project": self.project,
            "stack": self.stack,
            "boot": self.boot,
            "outputs": self.outputs,
            "resources": [asdict(record) for record in self.records.values()],
            "to_delete": [asdict(record) for record in self.to_delete],
        }
        fresh = self.path.with_suffix(".new")
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(data, file, indent=1)
                file.flush()
                os.fsync(descriptor)
            fresh.replace(self.path)
        except OSError as error:
            if not (self.ignore_full_disk and error.errno in (errno.ENOSPC, errno.EDQUOT)):
                raise os_errors.explain(error, self.path) from error

    def erase(self) -> None:
        """Remove the file of a stack that has no resources."""
        self.path.unlink(missing_ok=True)
        self.path.with_suffix(".new").unlink(missing_ok=True)


def boot_id() -> str:
    """Return the kernel's id of the current boot; empty if there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _record(data: dict[str, Any]) -> Record:
    record = Record(**data)
    if record.process is not None:
        pid, started = record.process
        record.process = (pid, started)
    return record


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


def remove_unused(stack: Stack) -> None:
    """Remove the stack's folder if nothing but a lock that nobody holds is left there."""
    path = locations.state_dir(stack) / "lock"
    if path in _HELD.get():
        return
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        folders.remove_empty(path.parent)
        return
    _put_away(path, descriptor)


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
