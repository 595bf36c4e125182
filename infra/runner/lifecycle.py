"""What happens to one resource: create, update, replace, delete or nothing, recorded before and after."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from infra import trouble
from infra.errors import UserError
from infra.runner import process, wire
from infra.runner.command import Call, CommandError, Commands, for_delete
from infra.runner.events import (
    Message,
    OnEvent,
    Operation,
    ResourceDone,
    ResourceFailed,
    ResourceStarted,
    Summary,
)
from infra.runner.project import REDACTED, Project
from infra.runner.state import Record, State, Status


@dataclass(frozen=True, slots=True)
class Wanted:
    """A registration: the resource as the program wants it. Inputs carry marked secrets."""

    urn: str
    type: str
    name: str
    custom: bool
    parent: str
    inputs: dict[str, Any]
    dependencies: list[str]
    property_dependencies: dict[str, list[str]]
    deleted_with: str
    protect: bool
    retain_on_delete: bool
    delete_before_replace: bool
    ignore_changes: list[str]
    replace_on_changes: list[str]
    replace_with: list[str]
    replacement_trigger: Any
    secret_outputs: list[str]
    timeouts: dict[str, float] = field(default_factory=dict)

    @property
    def edges(self) -> set[str]:
        """The URNs that must be there first."""
        own = {self.parent, *self.dependencies}
        own.update(urn for urns in self.property_dependencies.values() for urn in urns)
        return own - {""}


class Lifecycle:
    """The operations of one run on one stack's state; its methods are called from several threads."""

    def __init__(self, project: Project, state: State, on_event: OnEvent, *, preview: bool = False) -> None:
        self.project = project
        self.state = state
        self.preview = preview
        self.processes = process.Processes()
        self.stopping = threading.Event()
        """Set by an interrupt: nothing new is begun."""
        self.failures: list[str] = []
        self._counts: Counter[Operation] = Counter()
        self._replaced: set[str] = set()
        self._commands = Commands(project.directory, on_event, self.processes, self.stopping)
        self._on_event = on_event
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def summary(self) -> Summary:
        """The run so far."""
        counts = {operation: n for operation, n in self._counts.items() if n}
        return Summary(counts, len(self.failures), time.monotonic() - self._began)

    def adopt(self, wanted: Wanted) -> str:
        """Record a resource that needs no work (a component, the stack, a provider); its id."""
        old = self.state.records.get(wanted.urn)
        record = self._record(wanted, old)
        record.inputs = wire.fingerprinted(wanted.inputs, self.state.key)
        if wanted.custom:
            record.id = record.id or secrets.token_hex(8)
        if not self.preview:
            self.state.put(record)
        self._done(wanted, "unchanged" if old else "created", time.monotonic())
        return record.id

    def command(self, wanted: Wanted) -> Record | None:
        """Bring a command resource to what the program wants.

        Returns:
            The record, its outputs carrying marked secrets; None if a command of it failed.
        """
        old = self.state.records.get(wanted.urn)
        if old is not None:
            kept = for_delete(old.inputs)
            wanted.inputs.update({k: kept[k] for k in wanted.ignore_changes if k in kept})
        inputs = wire.fingerprinted(wanted.inputs, self.state.key)
        operation = self._decide(old, wanted, inputs)
        if operation == "replaced":
            with self._lock:
                self._replaced.add(wanted.urn)
        record = self._record(wanted, None if operation == "replaced" else old)
        if operation == "unchanged":
            if not self.preview:
                self.state.put(record)
            self._done(wanted, operation, time.monotonic())
            return self._marked(record)
        if self.preview:
            self._done(wanted, operation, time.monotonic())
            # An empty id is an unknown one: only an update is sure to keep it.
            id_ = old.id if old is not None and operation == "updated" else ""
            return Record(wanted.urn, wanted.type, wanted.name, True, id=id_)
        with self._reported(wanted, operation):
            if operation == "replaced" and old is not None:
                self._make_room(old, wanted)
            return self._apply(record, wanted, inputs, operation)
        return None

    def delete(self, record: Record, *, gone: bool = False, replaced: bool = False) -> bool:
        """Delete a resource: run its delete command and forget it; whether that worked.

        Args:
            gone: what it lived on (`deletedWith`) is deleted with it, so its own command does not run.
            replaced: it has a successor, and the summary counts the two as one.
        """
        text = record.inputs.get("delete")
        operation: Operation = "retained" if record.retain_on_delete else "deleted"
        idle = not record.custom or record.retain_on_delete or gone or not text
        with self._reported(record, operation, quiet=idle, counted=not replaced):
            self._end_stray(record)
            if not idle:
                self._go_on()
                # Marked before: a killed run may have deleted half of it, and `up` must then create it anew.
                whole = record.status == "created"
                record.status = "deleting" if whole else record.status
                self.state.save()
                self._run_delete(record, str(text), whole=whole)
            self.state.remove(record)
            return True
        return False

    def announce_deletion(self, record: Record) -> None:
        """In a preview: report that the resource would be deleted."""
        self._done(record, "retained" if record.retain_on_delete else "deleted", time.monotonic())

    def _run_delete(self, record: Record, text: str, *, whole: bool) -> None:
        call = Call(
            record.urn,
            record.name,
            for_delete(record.inputs),
            *_printed(record),
            timeout=record.timeouts.get("delete"),
        )
        try:
            self._commands.run(text, call, lambda pid: self._note_process(record, pid))
        except CommandError as error:
            if whole or self.stopping.is_set():
                raise
            # What never came to be cannot be deleted; insisting would block the destroy for ever.
            self._on_event(Message(f"{record.name} was only half created; deleting it: {error}", "warning"))

    def _decide(self, old: Record | None, wanted: Wanted, inputs: dict[str, Any]) -> Operation:
        if old is None:
            return "replaced" if wanted.urn in self._replaced else "created"
        if old.status in ("creating", "deleting"):
            return "created"
        keys = old.inputs.keys() | inputs.keys()
        changed = {k for k in keys if not wire.same(old.inputs.get(k), inputs.get(k))}
        if (
            changed & {"triggers", *wanted.replace_on_changes}
            or old.replacement_trigger != wanted.replacement_trigger
            or self._replaced & set(wanted.replace_with)
        ):
            return "replaced"
        return "updated" if changed or old.status == "updating" else "unchanged"

    def _make_room(self, old: Record, wanted: Wanted) -> None:
        """Set the old resource aside, or delete it first where the program says so."""
        if old.protect:
            raise CommandError("it is protected and would have to be replaced; remove `protect` first")
        if wanted.delete_before_replace:
            # Whatever would be replaced because of this goes before it, as in the real engine.
            for other in reversed(list(self.state.records.values())):
                if old.urn in other.property_dependencies.get("triggers", ()) and other.custom:
                    self._replaced.add(other.urn)
                    self._make_room(other, wanted)
            if not self.delete(old, replaced=True):
                raise CommandError("the old one could not be deleted")
        else:
            self.state.doom(old)

    def _apply(self, record: Record, wanted: Wanted, inputs: dict[str, Any], operation: Operation) -> Record:
        """Run `create` or `update` and record what came of it."""
        values = wire.plain(wanted.inputs)
        text, status = values.get("create"), "creating"
        limit = wanted.timeouts.get("create")
        if operation == "updated":
            text, status = values.get("update", text), "updating"
            limit = wanted.timeouts.get("update")
        if any(part == REDACTED for part in wire.secret_strings(wanted.inputs)):
            raise CommandError(
                "it needs a secret that another resource printed in an earlier run, and the embedded runner "
                "keeps no secrets. Destroy the stack and bring it up again."
            )
        self._end_stray(record)
        self._go_on()
        started: Status = "updating" if status == "updating" else "creating"
        record.status = started
        # The delete command and its environment are needed even if we are killed before the end.
        record.inputs = inputs if started == "creating" else record.inputs
        self.state.put(record)
        call = Call(
            record.urn,
            record.name,
            values,
            *(_printed(record) if started == "updating" else ("", "")),
            masks=wire.secret_strings(wanted.inputs),
            timeout=limit,
        )
        outputs: dict[str, Any] = {k: record.outputs.get(k, "") for k in ("stdout", "stderr")}
        if text is not None:
            stdout, stderr = self._commands.run(text, call, lambda pid: self._note_process(record, pid))
            outputs = {"stdout": stdout, "stderr": stderr}
        hidden = {k for k, v in outputs.items() if any(word in v for word in call.masks if word)}
        hidden |= set(outputs) & set(wanted.secret_outputs)
        record.inputs = inputs
        record.outputs = {k: REDACTED if k in hidden else v for k, v in outputs.items()}
        record.secret_outputs = sorted(hidden)
        record.status, record.process = "created", None
        if started == "creating":
            record.id = wanted.name + secrets.token_hex(4)
        self.state.put(record)
        return self._marked(record, outputs)

    def _marked(self, record: Record, outputs: dict[str, Any] | None = None) -> Record:
        """A copy of the record for the program: the real outputs, the secret ones marked."""
        known = record.outputs if outputs is None else outputs
        marked = {k: wire.secret(v) if k in record.secret_outputs else v for k, v in known.items()}
        return Record(record.urn, record.type, record.name, True, id=record.id, outputs=marked)

    def _record(self, wanted: Wanted, old: Record | None) -> Record:
        """The old record, or a fresh one, with what a registration says about order and protection."""
        record = old or Record(wanted.urn, wanted.type, wanted.name, wanted.custom)
        if self.preview:
            return record
        record.parent, record.deleted_with = wanted.parent, wanted.deleted_with
        record.dependencies = wanted.dependencies
        record.property_dependencies = wanted.property_dependencies
        record.protect, record.retain_on_delete = wanted.protect, wanted.retain_on_delete
        record.replacement_trigger = wanted.replacement_trigger
        record.timeouts = wanted.timeouts
        return record

    def _go_on(self) -> None:
        """Begin nothing after an interrupt: what came before this may have taken a while.

        Raises:
            CommandError: there was one.
        """
        if self.stopping.is_set():
            raise CommandError("interrupted")

    def _note_process(self, record: Record, pid: int) -> None:
        born = process.birth(pid)
        record.process = (pid, born) if born else None
        self.state.save()

    def _end_stray(self, record: Record) -> None:
        """A command that a killed run left behind must not go on beside its successor."""
        if record.process is not None:
            if process.stop_stray(*record.process):
                self._on_event(Message(f"{record.name}: ended the command that a killed run left behind"))
            record.process = None

    @contextlib.contextmanager
    def _reported(
        self, subject: Record | Wanted, operation: Operation, *, quiet: bool = False, counted: bool = True
    ) -> Iterator[None]:
        """Report the body's begin and end; a failure is recorded here and not raised."""
        began = time.monotonic()
        if not quiet:
            self._on_event(ResourceStarted(subject.urn, subject.name, subject.type, operation))
        try:
            yield
        except (CommandError, UserError, OSError) as error:
            seconds = time.monotonic() - began
            text = str(trouble.explain(error) if isinstance(error, OSError) else error)
            with self._lock:
                self.failures.append(f"{subject.name}: {text}")
            self._on_event(ResourceFailed(subject.urn, subject.name, subject.type, operation, seconds, text))
        else:
            self._done(subject, operation, began, counted=counted)

    def _done(
        self, subject: Record | Wanted, operation: Operation, began: float, *, counted: bool = True
    ) -> None:
        with self._lock:
            self._counts[operation] += counted
        self._on_event(
            ResourceDone(subject.urn, subject.name, subject.type, operation, time.monotonic() - began)
        )


def _printed(record: Record) -> tuple[str, str]:
    """What the last run printed, as far as it was kept: the environment of the next one."""
    stdout, stderr = (
        "" if key in record.secret_outputs else str(record.outputs.get(key, ""))
        for key in ("stdout", "stderr")
    )
    return stdout, stderr
