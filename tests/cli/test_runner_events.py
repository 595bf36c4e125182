"""The translation of the real engine's events, as its event log has them."""

from __future__ import annotations

from typing import Any

import pytest
from pulumi.automation import EngineEvent

from cli.console.events import (
    Event,
    Message,
    OutputLine,
    ResourceDone,
    ResourceFailed,
    ResourceStarted,
    Summary,
)
from cli.engine.engine_events import Translator

URN = "urn:pulumi:t::p::slurm-stacks:index:Part$command:local:Command::a"
STACK = "urn:pulumi:t::p::pulumi:pulumi:Stack::p-t"


def step(kind: str, op: str, urn: str = URN) -> dict[str, Any]:
    metadata = {"op": op, "urn": urn, "type": "command:local:Command", "provider": ""}
    return {kind: {"metadata": metadata, "planning": False, "status": 0, "steps": 0}}


def diagnostic(message: str, severity: str, urn: str | None = URN) -> dict[str, Any]:
    return {"diagnosticEvent": {"message": message, "color": "never", "severity": severity, "urn": urn}}


def translated(*events: dict[str, Any]) -> tuple[Translator, list[Event]]:
    found: list[Event] = []
    translator = Translator(found.append)
    for number, event in enumerate(events):
        translator(EngineEvent.from_json({"sequence": number, "timestamp": 0, **event}))
    translator.finish()
    return translator, found


def plain(events: list[Event]) -> list[tuple[str, ...]]:
    return [
        (type(event).__name__, event.name, event.operation)
        for event in events
        if isinstance(event, ResourceStarted | ResourceDone | ResourceFailed)
    ]


@pytest.mark.parametrize(
    ("op", "operation"), [("create", "created"), ("update", "updated"), ("delete", "deleted")]
)
def test_a_step_begins_and_ends(op: str, operation: str) -> None:
    _, events = translated(step("resourcePreEvent", op), step("resOutputsEvent", op))
    assert plain(events) == [("ResourceStarted", "a", operation), ("ResourceDone", "a", operation)]


def test_what_stays_the_same_only_ends() -> None:
    _, events = translated(step("resourcePreEvent", "same"), step("resOutputsEvent", "same"))
    assert plain(events) == [("ResourceDone", "a", "unchanged")]


def test_a_replacement_is_one_thing() -> None:
    translator, events = translated(
        *(step(kind, "create-replacement") for kind in ("resourcePreEvent", "resOutputsEvent")),
        *(step(kind, "replace") for kind in ("resourcePreEvent", "resOutputsEvent")),
        *(step(kind, "delete-replaced") for kind in ("resourcePreEvent", "resOutputsEvent")),
        {
            "summaryEvent": {
                "maybeCorrupt": False,
                "durationSeconds": 1,
                "resourceChanges": {"same": 2, "replace": 1, "create-replacement": 1, "delete-replaced": 1},
                "PolicyPacks": {},
            }
        },
    )
    assert plain(events) == [
        ("ResourceStarted", "a", "replaced"),
        ("ResourceDone", "a", "replaced"),
        ("ResourceStarted", "a", "deleted"),
        ("ResourceDone", "a", "deleted"),
    ]
    assert translator.summary.counts == {"unchanged": 2, "replaced": 1}
    assert isinstance(events[-1], Summary)
    assert str(events[-1]) == "unchanged 2, replaced 1"


def test_output_and_messages_are_told_apart() -> None:
    translator, events = translated(
        diagnostic("<{%reset%}>one\ntwo<{%reset%}>\n", "info"),
        diagnostic("oops", "info#err"),
        diagnostic("careful", "warning", None),
        diagnostic("from the program", "info", STACK),
        diagnostic("internal", "debug"),
        diagnostic("   \n", "info"),
        diagnostic("it broke", "error"),
        step("resOpFailedEvent", "create"),
    )
    assert [(e.stream, e.line) for e in events if isinstance(e, OutputLine)] == [
        ("stdout", "one"),
        ("stdout", "two"),
        ("stderr", "oops"),
    ]
    assert [(e.level, e.text) for e in events if isinstance(e, Message)] == [
        ("warning", "careful"),
        ("info", "from the program"),
        ("error", "a: it broke"),
    ]
    assert translator.errors == ["a: it broke"]
    assert plain(events) == [("ResourceFailed", "a", "created")]
    assert translator.summary.failed == 1
