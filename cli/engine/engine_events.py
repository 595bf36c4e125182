"""Translates the real engine's events (`pulumi.automation.events`) to ours."""

from __future__ import annotations

import re
import time
from typing import Any

from pulumi.automation import EngineEvent, OpType

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

OPERATIONS: dict[str, Operation] = {
    OpType.SAME: "unchanged",
    OpType.CREATE: "created",
    OpType.UPDATE: "updated",
    OpType.DELETE: "deleted",
    OpType.REPLACE: "replaced",
    OpType.CREATE_REPLACEMENT: "replaced",
    OpType.DELETE_REPLACED: "deleted",
    OpType.READ: "read",
    OpType.READ_REPLACEMENT: "read",
    OpType.IMPORT: "created",
    OpType.DISCARD: "deleted",
}
COLOR = re.compile(r"<\{%.*?%\}>")


class Translator:
    """Translates the events of one operation, and collects its errors and its summary."""

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self._began: dict[str, float] = {}
        self._start = time.monotonic()
        self._failed = 0
        self.errors: list[str] = []
        """The errors that the engine reported, for the message of the failure."""
        self.summary = Summary()

    def __call__(self, event: EngineEvent) -> None:
        """Handle an event. This is the callback for the Automation API."""
        if event.resource_pre_event is not None:
            self._started(event.resource_pre_event.metadata)
        elif event.res_outputs_event is not None:
            self._done(event.res_outputs_event.metadata)
        elif event.res_op_failed_event is not None:
            self._failure(event.res_op_failed_event.metadata)
        elif event.diagnostic_event is not None:
            self._diagnostic(event.diagnostic_event)
        elif event.summary_event is not None:
            self._sum_up(event.summary_event.resource_changes)

    def again(self, why: str) -> None:
        """Begin anew, because the operation failed for a cause that is over."""
        self.errors.clear()
        self._failed = 0
        self._on_event(Message(why, "warning"))

    def finish(self) -> None:
        """Report the summary; the last event."""
        self.summary = Summary(self.summary.counts, self._failed, time.monotonic() - self._start)
        self._on_event(self.summary)

    def _started(self, step: Any) -> None:
        operation = OPERATIONS.get(step.op)
        self._began[step.urn] = time.monotonic()
        # `replace` only says that the two steps of a replacement belong together.
        if operation not in (None, "unchanged", "read") and step.op != OpType.REPLACE:
            self._on_event(ResourceStarted(step.urn, _name(step.urn), step.type, operation))

    def _done(self, step: Any) -> None:
        operation = OPERATIONS.get(step.op)
        if operation is not None and step.op != OpType.REPLACE:
            self._on_event(
                ResourceDone(step.urn, _name(step.urn), step.type, operation, self._seconds(step.urn))
            )

    def _failure(self, step: Any) -> None:
        self._failed += 1
        # The text comes in a diagnostic event.
        self._on_event(
            ResourceFailed(
                step.urn,
                _name(step.urn),
                step.type,
                OPERATIONS.get(step.op, "updated"),
                self._seconds(step.urn),
                "",
            )
        )

    def _diagnostic(self, event: Any) -> None:
        text = COLOR.sub("", event.message).rstrip()
        name = _name(event.urn) if event.urn else ""
        severity = event.severity
        if not text or severity == "debug":
            return
        if severity == "error":
            self.errors.append(f"{name}: {text}" if name else text)
            self._on_event(Message(self.errors[-1], "error"))
        elif severity == "warning":
            self._on_event(Message(f"{name}: {text}" if name else text, "warning"))
        elif event.urn and "pulumi:pulumi:Stack" not in event.urn:
            for line in text.splitlines():
                stream: Stream = "stderr" if severity == "info#err" else "stdout"
                self._on_event(OutputLine(event.urn, name, stream, line))
        else:
            self._on_event(Message(text))

    def _sum_up(self, changes: Any) -> None:
        counts: dict[Operation, int] = {}
        for op, number in changes.items():
            # `replace` counts a replacement; its two steps are not counted again.
            if op not in (OpType.CREATE_REPLACEMENT, OpType.DELETE_REPLACED) and op in OPERATIONS:
                operation = OPERATIONS[op]
                counts[operation] = counts.get(operation, 0) + number
        self.summary = Summary(counts, self._failed)

    def _seconds(self, urn: str) -> float:
        now = time.monotonic()
        return now - self._began.get(urn, now)


def _name(urn: str) -> str:
    return urn.rpartition("::")[2]
