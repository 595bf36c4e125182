"""The embedded runner's state: one JSON file, replaced as a whole after every step: a kill loses nothing."""

from __future__ import annotations

import errno
import json
import os
import secrets
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from infra import trouble
from infra.errors import UserError

VERSION = 1

Status = Literal["creating", "created", "updating", "deleting"]
"""What was last begun. Anything but `created` was interrupted or has failed, and is done again."""


@dataclass(slots=True)
class Record:
    """One resource as it is, as far as we know."""

    urn: str
    type: str
    name: str
    custom: bool
    parent: str = ""
    id: str = ""
    status: Status = "created"
    inputs: dict[str, Any] = field(default_factory=dict)
    """Secrets are keyed digests (`wire.fingerprinted`)."""
    outputs: dict[str, Any] = field(default_factory=dict)
    """Secrets are `[secret]`."""
    secret_outputs: list[str] = field(default_factory=list)
    dependencies: list[str] = field(default_factory=list)
    property_dependencies: dict[str, list[str]] = field(default_factory=dict)
    deleted_with: str = ""
    protect: bool = False
    retain_on_delete: bool = False
    replacement_trigger: Any = None
    timeouts: dict[str, float] = field(default_factory=dict)
    """Seconds for create, update, delete, where limits were given."""
    process: tuple[int, str] | None = None
    """Pid and birth of the command that is running, for whoever comes after a kill."""

    @property
    def edges(self) -> set[str]:
        """The URNs that must outlive this resource."""
        own = {self.parent, self.deleted_with, *self.dependencies}
        own.update(urn for urns in self.property_dependencies.values() for urn in urns)
        return own - {"", self.urn}


class DamagedStateError(UserError):
    """The state cannot be read: nobody knows from it what is up.

    Attributes:
        path: its file.
    """

    def __init__(self, path: Path, stack: str, problem: str) -> None:
        name = stack or "…"
        super().__init__(
            f"{path}, the state of the stack, is damaged ({problem}). `./cluster down --stack {name}` ends "
            f"the cluster without it; then `./cluster up --stack {name}` makes it anew."
        )
        self.path = path


class State:
    """The resources of one stack. Every method that changes something writes the file before it returns.

    Those raise a UserError where the file cannot be written.
    """

    def __init__(self, path: Path, project: str, stack: str) -> None:
        self.path = path
        self.project = project
        self.stack = stack
        self.key = secrets.token_bytes(32)
        """For the digests of secrets; it lies beside them, in a file that only its owner can read."""
        self.boot = boot_id()
        self.records: dict[str, Record] = {}
        """By URN, in the order of creation."""
        self.doomed: list[Record] = []
        """Replaced resources that still have to be deleted."""
        self.forgiving = False
        """A full disk is no error: what is deleted twice is no harm, and a destroy must come to its end."""
        self.outputs: dict[str, Any] = {}
        self._lock = threading.Lock()

    @classmethod
    def load(cls, path: Path, project: str = "", stack: str = "") -> State:
        """Read the file; an empty state where there is none.

        Raises:
            DamagedStateError: what the file holds is no state.
            UserError: it is a newer version's.
        """
        state = cls(path, project, stack)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return state
        except OSError as error:
            raise trouble.explain(error, path) from error
        try:
            data = json.loads(text)
            if data["version"] != VERSION:
                raise UserError(
                    f"{path} was written by another version of this program (state version "
                    f"{data['version']}, and this one reads {VERSION}): use that version."
                )
            state.project, state.stack = data["project"], data["stack"]
            state.key, state.boot = bytes.fromhex(data["key"]), data["boot"]
            state.records = {r["urn"]: _record(r) for r in data["resources"]}
            state.doomed = [_record(r) for r in data["doomed"]]
            state.outputs = data["outputs"]
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedStateError(path, stack, repr(error)) from error
        return state

    @property
    def empty(self) -> bool:
        return not self.records and not self.doomed

    def put(self, record: Record) -> None:
        """Record a resource under its URN."""
        with self._lock:
            self.records[record.urn] = record
            self._save()

    def remove(self, record: Record) -> None:
        """Forget a resource, current or doomed."""
        with self._lock:
            if self.records.get(record.urn) is record:
                del self.records[record.urn]
            self.doomed = [other for other in self.doomed if other is not record]
            self._save()

    def doom(self, record: Record) -> None:
        """Set a replaced resource aside, to be deleted when its replacement is in use."""
        with self._lock:
            self.doomed.append(record)
            self.records.pop(record.urn, None)
            self._save()

    def save(self) -> None:
        """Write what was changed in place."""
        with self._lock:
            self._save()

    def _save(self) -> None:
        data = {
            "version": VERSION,
            "project": self.project,
            "stack": self.stack,
            "boot": self.boot,
            "key": self.key.hex(),
            "outputs": self.outputs,
            "resources": [asdict(record) for record in self.records.values()],
            "doomed": [asdict(record) for record in self.doomed],
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
            if not (self.forgiving and error.errno in (errno.ENOSPC, errno.EDQUOT)):
                raise trouble.explain(error, self.path) from error

    def erase(self) -> None:
        """Remove the file of a stack that has nothing left."""
        self.path.unlink(missing_ok=True)
        self.path.with_suffix(".new").unlink(missing_ok=True)


def boot_id() -> str:
    """Names the machine's current boot; empty where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _record(data: dict[str, Any]) -> Record:
    record = Record(**data)
    if record.process is not None:
        pid, born = record.process
        record.process = (pid, born)
    return record
