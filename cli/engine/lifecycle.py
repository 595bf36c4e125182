"""The operations on resources: create, update, replace and delete, recorded before and after."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.console.events import (
    Message,
    OnEvent,
    Operation,
    OutputLine,
    ResourceDone,
    ResourceFailed,
    ResourceStarted,
    Stream,
    Summary,
)
from cli.engine.project import Project
from cli.engine.state import Record, State, Status
from cli.hints import HOW_TO_INSTALL
from infra import os_errors
from infra.errors import EXIT_REFUSED, UserError
from node.system.processes import CALLER_VARIABLE, ProcessId, caller
from operations import processes

WORKERS = 16
"""The most resources that are deleted at the same time."""
SIGNAL_SECONDS = 1.0
"""Longest wait, in seconds: Ctrl-C may not interrupt a wait that begins just after it."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A registration: the resource as the program declares it."""

    urn: str
    type: str
    name: str
    custom: bool
    parent: str
    inputs: dict[str, Any]
    dependencies: list[str]
    property_dependencies: dict[str, list[str]]
    deleted_with: str
    delete_before_replace: bool

    @property
    def edges(self) -> set[str]:
        """URNs of the resources that must exist before this one."""
        edges = {self.parent, *self.dependencies}
        edges.update(urn for urns in self.property_dependencies.values() for urn in urns)
        return edges - {""}


class Lifecycle:
    """The operations of one run on one stack's state. Several threads call its methods."""

    def __init__(self, project: Project, state: State, on_event: OnEvent, *, preview: bool = False) -> None:
        self.project = project
        self.state = state
        self.preview = preview
        self.processes = processes.Processes()
        self.stopping = threading.Event()
        """Set by an interrupt; no operation begins after it."""
        self.failures: list[str] = []
        self._counts: Counter[Operation] = Counter()
        self._replaced: set[str] = set()
        self._commands = Commands(project.directory, on_event, self.processes, self.stopping)
        self._on_event = on_event
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def summary(self) -> Summary:
        """Return the counts of the run so far."""
        counts = {operation: n for operation, n in self._counts.items() if n}
        return Summary(counts, len(self.failures), time.monotonic() - self._began)

    def adopt(self, wanted: Registration) -> str:
        """Record a resource that needs no work (a component, the stack, a provider), and return its id."""
        old = self.state.records.get(wanted.urn)
        record = self._record(wanted, old)
        record.inputs = wanted.inputs
        if wanted.custom:
            record.id = record.id or secrets.token_hex(8)
        if not self.preview:
            self.state.put(record)
        self._done(wanted, "unchanged" if old else "created", time.monotonic())
        return record.id

    def command(self, wanted: Registration) -> Record | None:
        """Create, update or replace a command resource as the program declares it.

        Returns:
            The record; `None` if one of its commands failed.
        """
        old = self.state.records.get(wanted.urn)
        operation = self._decide(old, wanted)
        if operation == "replaced":
            with self._lock:
                self._replaced.add(wanted.urn)
        record = self._record(wanted, None if operation == "replaced" else old)
        if operation == "unchanged":
            if not self.preview:
                self.state.put(record)
            self._done(wanted, operation, time.monotonic())
            return record
        if self.preview:
            self._done(wanted, operation, time.monotonic())
            # An empty id means unknown. Only an update keeps the id for certain.
            id_ = old.id if old is not None and operation == "updated" else ""
            return Record(wanted.urn, wanted.type, wanted.name, True, id=id_)
        with self._reported(wanted, operation):
            if operation == "replaced" and old is not None:
                self._remove_old(old, wanted)
            return self._apply(record, wanted, operation)
        return None

    def delete(self, record: Record, *, gone: bool = False, replaced: bool = False) -> bool:
        """Run a resource's delete command and remove its record.

        Args:
            gone: Whether the resource that it names in `deletedWith` is deleted, too; its own command does
                not run then.
            replaced: Whether it has a successor; the summary counts the two as one.

        Returns:
            Whether it was deleted.
        """
        text = record.inputs.get("delete")
        idle = not record.custom or gone or not text
        with self._reported(record, "deleted", quiet=idle, counted=not replaced):
            self._end_leftover_command(record)
            if not idle:
                self._raise_if_stopping()
                # Saved first: a killed run may have deleted half of it, and `up` must create it again then.
                whole = record.status == "created"
                # It was whole before an earlier try. Its successor must not begin beside what is left of it.
                needed = whole or (replaced and record.status == "deleting")
                record.status = "deleting" if whole else record.status
                self.state.save()
                self._run_delete(record, str(text), needed=needed)
            self.state.remove(record)
            return True
        return False

    def announce_deletion(self, record: Record) -> None:
        """Report, in a preview, that the resource would be deleted."""
        self._done(record, "deleted", time.monotonic())

    def _run_delete(self, record: Record, text: str, *, needed: bool) -> None:
        try:
            self._run(record, text, record.inputs)
        except CommandError as error:
            if needed or self.stopping.is_set():
                raise
            # A half-created resource may not be deletable. Repeating would block the destroy for ever.
            self._on_event(Message(f"{record.name} was only half created; deleting it: {error}", "warning"))

    def _decide(self, old: Record | None, wanted: Registration) -> Operation:
        if old is None:
            return "replaced" if wanted.urn in self._replaced else "created"
        keys = old.inputs.keys() | wanted.inputs.keys()
        changed = {k for k in keys if _text(old.inputs.get(k)) != _text(wanted.inputs.get(k))}
        # Also where the old one is half deleted, or half made and in the way: its rest must end first.
        if "triggers" in changed and (old.status != "creating" or wanted.delete_before_replace):
            return "replaced"
        if old.status in ("creating", "deleting"):
            return "created"
        return "updated" if changed or old.status == "updating" else "unchanged"

    def _remove_old(self, old: Record, wanted: Registration) -> None:
        """Mark the old resource for deletion, or delete it now if `delete_before_replace` is set."""
        if wanted.delete_before_replace:
            # Resources that this replacement would replace are deleted first, as in the real engine.
            for other in reversed(list(self.state.records.values())):
                if old.urn in other.property_dependencies.get("triggers", ()) and other.custom:
                    self._replaced.add(other.urn)
                    self._remove_old(other, wanted)
            if not self.delete(old, replaced=True):
                raise CommandError("the old one could not be deleted")
        else:
            self.state.mark_for_deletion(old)

    def _apply(self, record: Record, wanted: Registration, operation: Operation) -> Record:
        """Run `create` or `update` and record the result."""
        started: Status = "updating" if operation == "updated" else "creating"
        text = wanted.inputs.get("create")
        if started == "updating":
            text = wanted.inputs.get("update", text)
        self._end_leftover_command(record)
        self._raise_if_stopping()
        record.status = started
        # A later run needs the delete command and its environment, even if this run is killed.
        record.inputs = wanted.inputs if started == "creating" else record.inputs
        self.state.put(record)
        outputs = {key: record.outputs.get(key, "") for key in ("stdout", "stderr")}
        if text is not None:
            outputs = self._run(record, text, wanted.inputs)
        record.inputs, record.outputs = wanted.inputs, outputs
        record.status, record.process = "created", None
        if started == "creating":
            record.id = wanted.name + secrets.token_hex(4)
        self.state.put(record)
        return record

    def _record(self, wanted: Registration, old: Record | None) -> Record:
        """Return the old record, or a new one, with the registration's dependencies."""
        record = old or Record(wanted.urn, wanted.type, wanted.name, wanted.custom)
        if self.preview:
            return record
        record.parent, record.deleted_with = wanted.parent, wanted.deleted_with
        record.dependencies = wanted.dependencies
        record.property_dependencies = wanted.property_dependencies
        return record

    def _raise_if_stopping(self) -> None:
        """Prevent an operation from beginning after an interrupt.

        Raises:
            CommandError: There was an interrupt.
        """
        if self.stopping.is_set():
            raise CommandError("interrupted")

    def _run(self, record: Record, text: str, inputs: dict[str, Any]) -> dict[str, str]:
        """Run one of a resource's commands, and record its process meanwhile."""

        def note(pid: int) -> None:
            command = ProcessId.of(pid)
            record.process = (pid, str(command.started)) if command else None
            self.state.save()

        return self._commands.run(text, record.urn, record.name, inputs, note)

    def _end_leftover_command(self, record: Record) -> None:
        """End the command that a killed run left behind: it must not run beside the new one."""
        if record.process is not None:
            pid, started = record.process
            if processes.end_leftover(ProcessId(pid, int(started))):
                self._on_event(Message(f"{record.name}: ended the command that a killed run left behind"))
            record.process = None

    @contextlib.contextmanager
    def _reported(
        self,
        subject: Record | Registration,
        operation: Operation,
        *,
        quiet: bool = False,
        counted: bool = True,
    ) -> Iterator[None]:
        """Report the begin and the end of the body. A failure is recorded and not raised."""
        began = time.monotonic()
        if not quiet:
            self._on_event(ResourceStarted(subject.urn, subject.name, subject.type, operation))
        try:
            yield
        except (CommandError, UserError, OSError) as error:
            seconds = time.monotonic() - began
            text = str(os_errors.explain(error) if isinstance(error, OSError) else error)
            with self._lock:
                self.failures.append(f"{subject.name}: {text}")
            self._on_event(ResourceFailed(subject.urn, subject.name, subject.type, operation, seconds, text))
        else:
            self._done(subject, operation, began, counted=counted)

    def _done(
        self, subject: Record | Registration, operation: Operation, began: float, *, counted: bool = True
    ) -> None:
        with self._lock:
            self._counts[operation] += counted
        self._on_event(
            ResourceDone(subject.urn, subject.name, subject.type, operation, time.monotonic() - began)
        )


def delete_all(life: Lifecycle, records: Sequence[Record]) -> None:
    """Delete the records in the reverse order of their dependencies.

    A resource is deleted when no resource that needs it is left. If a deletion fails, the resources that the
    failed one needs are kept, and the others are deleted. The failures are in `life.failures`.
    """
    left = list(reversed(records))
    urns = {record.urn for record in records}
    failed: list[Record] = []
    running: dict[Future[bool], Record] = {}
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="delete") as pool:
        while True:
            holders = [*left, *running.values(), *failed]
            if not life.stopping.is_set():
                for record in _free(left, holders):
                    left.remove(record)
                    gone = record.deleted_with in urns
                    replaced = any(record is replaced_one for replaced_one in life.state.to_delete)
                    running[pool.submit(life.delete, record, gone=gone, replaced=replaced)] = record
            if not running:
                return
            # If a signal did not end this wait, its handler runs before the next one.
            done, _ = wait(running, SIGNAL_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                record = running.pop(future)
                if not future.result():
                    failed.append(record)


def _free(left: Sequence[Record], holders: Sequence[Record]) -> list[Record]:
    """Return the records of `left` that no other record needs."""
    needed: dict[str, list[Record]] = {}
    for holder in holders:
        for urn in holder.edges:
            needed.setdefault(urn, []).append(holder)
    return [r for r in left if all(holder is r for holder in needed.get(r.urn, ()))]


def _text(value: Any) -> str:
    """Return a value's JSON text, which tells 1, 1.0, True and "1" apart."""
    return json.dumps(value, sort_keys=True)


COMMAND_TYPE = "command:local:Command"
COMMAND_INPUTS = ("create", "update", "delete", "interpreter", "triggers", "environment", "stdin")
"""The inputs that the embedded runner knows, which are those that the local stack uses."""
SHELL = ("/bin/sh", "-c")
"""What runs a command that names no interpreter, as in pulumi-command."""
TAIL_LINES = 20


class CommandError(Exception):
    """A command failed; the message says how, with the end of its output."""


class Commands:
    """The commands of one project, and the way to run them.

    Args:
        stopping: Set by an interrupt; output of commands after it is not shown.
    """

    def __init__(
        self, directory: Path, on_event: OnEvent, running: processes.Processes, stopping: threading.Event
    ) -> None:
        self._directory = directory
        self._on_event = on_event
        self._processes = running
        self._stopping = stopping

    def run(
        self, text: str, urn: str, name: str, inputs: dict[str, Any], on_start: Callable[[int], None]
    ) -> dict[str, str]:
        """Run a resource's command in the project's folder, with the resource's environment and input.

        Returns:
            `stdout` and `stderr`, each without one final newline, as the provider returns them.

        Raises:
            CommandError: It could not be started, failed, or was killed.
        """

        def show(stream: Stream, line: str) -> None:
            if not self._stopping.is_set():
                self._on_event(OutputLine(urn, name, stream, line))

        env = {**os.environ, CALLER_VARIABLE: caller(os.getpid())}
        env |= {key: str(value) for key, value in (inputs.get("environment") or {}).items()}
        interpreter = inputs.get("interpreter") or SHELL
        try:
            finished = processes.run(
                [*interpreter, text],
                cwd=self._directory,
                env=env,
                stdin=inputs.get("stdin", ""),
                on_line=show,
                processes=self._processes,
                on_start=on_start,
            )
        except OSError as error:
            raise CommandError(
                f"cannot run {interpreter[0]} in {self._directory}: {error.strerror}"
            ) from error
        if finished.returncode and self._stopping.is_set():
            # The output of an interrupted command, such as a traceback, explains nothing.
            raise CommandError("interrupted")
        if finished.returncode:
            raise CommandError(f"{_status(finished.returncode)}{_tail(finished)}")
        return {
            "stdout": finished.stdout.removesuffix("\n"),
            "stderr": finished.stderr.removesuffix("\n"),
        }


def check(name: str, inputs: dict[str, Any]) -> None:
    """Refuse inputs of a Command that the embedded runner does not support.

    Raises:
        UserError: Exit 3, saying how to install Pulumi.
    """
    if unknown := sorted(inputs.keys() - set(COMMAND_INPUTS)):
        raise UserError(
            f"{name}: {', '.join(unknown)}: an input that needs the Pulumi CLI; without it a command has "
            f"{', '.join(COMMAND_INPUTS)}. {HOW_TO_INSTALL}",
            EXIT_REFUSED,
            code="runner.command-input",
        )


def _status(returncode: int) -> str:
    if returncode > 0:
        return f"exit status {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"


def _tail(finished: processes.Finished) -> str:
    lines = (finished.stderr.strip() or finished.stdout.strip()).splitlines()[-TAIL_LINES:]
    return ":\n" + "\n".join(lines) if lines else ", and it printed nothing"
