"""The boot report: the machine's present step, the error of a failed step, and its last lines.

`./cluster status` and a failed `up` show the report, so it must exist even if the machine can no longer be
reached. It is written to the machine's disk and to the cluster's bucket, where people read it, whenever a
step begins, and at the end. A node also sends it to the controller (`report_server`): only what comes there
changes a node's state.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from node.system import files, foreign

REPORT_VERSION = "slurm-stacks/boot/v1"
TAIL_LINES = 20
TAIL_LENGTH = 2000
LINE_LENGTH = 200
"""The greatest length of a line in a node's reason or a job's comment."""
MOST_BYTES = 64 * 1024
"""The greatest length of a report that another machine sends (`brief`)."""
OWN_BYTES = 1024 * 1024
"""The greatest length of a report's file that is read, with the last lines of every step."""
LAST_TIME = 253402300799.0
"""The last second of the year 9999."""
STATES = ("booting", "ready", "failed", "rebooting")
SENTENCES = ("replaced", "settings", "waits", "users", "directory", "sharing")
"""The facts that are sentences for whoever runs `up`."""
NOTICE_SECONDS = 7 * 86400.0
"""The longest time between a notice and the machine's end. Compute Engine gives an hour at most."""


class BootReport:
    """A boot report, which is written as a whole each time.

    Args:
        sinks: Functions that write the report's text. The first one must work, others may fail. If the bucket
            cannot be reached, the machine's own copy says so.
        was_ready: Whether an earlier boot of this machine was ready (see `was_ready`).
    """

    def __init__(
        self, host: str, role: str, sinks: list[Callable[[str], None]], *, was_ready: bool = False
    ) -> None:
        self._sinks = sinks
        self._began = time.monotonic()
        self.content: dict[str, Any] = {
            "apiVersion": REPORT_VERSION,
            "host": host,
            "role": role,
            "state": "booting",
            "was_ready": was_ready,
            "started": time.time(),
            "ended": None,
            "host_keys": [],
            "facts": {},
            "steps": [],
        }

    def correct(self, ahead: float) -> None:
        """Give the times of this report by the controller's clock.

        Readers compare them with the time of the launch. By a clock that is behind, the report would seem to
        be of a former machine of this name.

        Args:
            ahead: By how many seconds this machine's clock is ahead of the controller's.
        """
        self.content["started"] -= ahead

    def begin(self, step: str, timeout: float) -> None:
        self.content["steps"].append(
            {"name": step, "state": "running", "started": self._now(), "seconds": None, "timeout": timeout}
        )
        self.write()

    def end(self, state: str, seconds: float, note: str = "", tail: list[str] | None = None) -> None:
        """Record the end of the present step. What comes next, `begin` or `finish`, writes it.

        Args:
            state: done | skipped | failed.
            seconds: How long the step took.
            note: One line on what was done, or why not.
            tail: The last lines of a failure.
        """
        step = self.content["steps"][-1]
        step.update(state=state, seconds=round(seconds, 3), note=note)
        if tail:
            step["tail"] = [line[:TAIL_LENGTH] for line in tail[-TAIL_LINES:]]

    def finish(self, state: str) -> None:
        """Record the end of the boot.

        Args:
            state: ready | failed | rebooting.
        """
        self.content.update(state=state, ended=self._now())
        self.write()

    def _now(self) -> float:
        return float(self.content["started"] + time.monotonic() - self._began)

    def write(self) -> None:
        text = _as_json(self.content)
        for number, sink in enumerate(self._sinks):
            try:
                sink(text)
            except OSError as error:
                if number == 0:
                    raise
                self.content["facts"]["report"] = f"not published: {error}"


def _as_json(content: dict[str, Any]) -> str:
    """Return the report's JSON with a line for each step, and for each of a failure's last lines.

    A whole text with an indent would take most of the time that a report costs a boot.
    """
    steps = [json.dumps(step, indent=1 if "tail" in step else None) for step in content["steps"]]
    head = json.dumps({key: value for key, value in content.items() if key != "steps"}).removesuffix("}")
    return "\n".join([f'{head}, "steps": [', ",\n".join(steps), "]}"])


def was_ready(file: Path) -> bool:
    """Return whether this boot of a machine was ready, or is one after a boot that was.

    A cluster whose controller boots again is up. One whose controller boots for the first time is not.
    """
    try:
        content = foreign.record(file)
        return bool(content["state"] == "ready" or (content["state"] != "failed" and content["was_ready"]))
    except (OSError, ValueError, KeyError, TypeError):
        return False


class Reported(NamedTuple):
    """What a report says of its machine, checked.

    Attributes:
        state: One of `STATES`.
        failure: Why the boot failed, as one short line of printable characters.
        notice: When the cloud will take the machine, in seconds since the epoch (UTC).
    """

    state: str
    failure: str | None = None
    notice: float | None = None


class BrokenReportError(ValueError):
    """A report is not of the form that a boot writes. The message says what is wrong."""


def checked(content: bytes, now: float, most: int = MOST_BYTES) -> Reported:
    """Check a report, whoever wrote it, and returns what it says.

    Args:
        now: Seconds since the epoch. The cloud takes no machine more than `NOTICE_SECONDS` later.
        most: The greatest length in bytes.

    Raises:
        BrokenReportError: The report is too long, is no JSON, or has a value of another kind or range.
    """
    parsed = _parsed(content, most)
    state, steps = parsed.get("state"), parsed.get("steps")
    if not isinstance(state, str) or state not in STATES:
        raise BrokenReportError(f"its state is none of {', '.join(STATES)}")
    if not isinstance(steps, list):
        raise BrokenReportError("its steps are no list")
    return Reported(state, _why(steps) if state == "failed" else None, _notice(parsed.get("notice"), now))


def _parsed(content: bytes, most: int) -> dict[str, Any]:
    if len(content) > most:
        raise BrokenReportError(f"it has more than {most} bytes")
    try:
        parsed = json.loads(content.decode(), parse_constant=_no_constant)
    except BrokenReportError:
        raise
    except RecursionError:
        raise BrokenReportError("its JSON is nested too deeply") from None
    except ValueError as error:
        raise BrokenReportError(f"it is no JSON: {_line(str(error))}") from None
    if not isinstance(parsed, dict):
        raise BrokenReportError("it is no JSON object")
    return parsed


def _no_constant(name: str) -> float:
    raise BrokenReportError(f"it holds {name}, which is no JSON")


def _why(steps: list[Any]) -> str:
    step = steps[-1] if steps else None
    if not isinstance(step, dict):
        raise BrokenReportError("it says that the boot failed, and has no step that did")
    name, note, tail = step.get("name"), step.get("note"), step.get("tail") or []
    if not isinstance(tail, list) or not all(isinstance(text, str) for text in (name, note, *tail)):
        raise BrokenReportError("its last step has no text for its name, its note or its last lines")
    lines = [_line(str(note)).removesuffix(":"), *[line for text in tail if (line := _line(text))][-1:]]
    return f"step {_line(str(name))}: " + ": ".join(lines)


def _notice(value: object, now: float) -> float | None:
    if value is None:
        return None
    try:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BrokenReportError("its notice is no number")
        at = float(value)
    except OverflowError:
        at = math.inf
    if not 0 <= at <= now + NOTICE_SECONDS:  # NaN is in no range
        raise BrokenReportError("its notice is no time from 1970 to a week from now")
    return at


def _line(text: str) -> str:
    """Return a text as one short line without control characters and half characters."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(printable.split())[:LINE_LENGTH]


def displayable(content: bytes) -> dict[str, Any] | None:
    """Return a whole report as people are shown it, whoever wrote it. `None` means that it is no report.

    It has the keys that a boot writes, each with a value of its kind. Characters that would act on a terminal
    are escaped. A report without a time of its beginning is as old as can be.
    """
    try:
        report = _parsed(content, OWN_BYTES)
    except BrokenReportError:
        return None
    if report.get("state") not in STATES:
        return None
    facts, steps = report.get("facts"), report.get("steps")
    return {
        **{key: _text(report.get(key)) for key in ("host", "role", "state")},
        "was_ready": report.get("was_ready") is True,
        "started": _number(report.get("started")) or 0.0,
        "ended": _number(report.get("ended")),
        "host_keys": _texts(report.get("host_keys")),
        "facts": {_text(k): _text(v) for k, v in facts.items()} if isinstance(facts, dict) else {},
        "steps": [_step(step) for step in steps if isinstance(step, dict)] if isinstance(steps, list) else [],
    }


def _step(step: dict[str, Any]) -> dict[str, Any]:
    return {
        **{key: _text(step.get(key)) for key in ("name", "state", "note")},
        **{key: _number(step.get(key)) for key in ("started", "seconds", "timeout")},
        **({"tail": tail} if (tail := _texts(step.get("tail"))) else {}),
    }


def _number(value: object) -> float | None:
    """Return a number that is a time, or so many seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LAST_TIME:
        return None
    return value


def _texts(value: object) -> list[str]:
    return [_text(text) for text in value] if isinstance(value, list) else []


def _text(value: object) -> str:
    if not isinstance(value, str) or value.isprintable():
        return value if isinstance(value, str) else ""
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in value)


def brief(text: str) -> bytes:
    """Return the part of a boot's report that `checked` reads. It is short, however long the report is."""
    content = json.loads(text)
    brief_report = {key: content[key] for key in ("apiVersion", "host", "state", "notice") if key in content}
    brief_report["steps"] = []
    for step in content["steps"][-1:]:
        lines = [_line(line) for line in step.get("tail") or []]
        last = {key: _line(str(step.get(key) or "")) for key in ("name", "state", "note")}
        brief_report["steps"].append({**last, "tail": [line for line in lines if line]})
    return json.dumps(brief_report).encode()


def failure(file: Path, since: float = 0.0) -> str | None:
    """Return why a boot failed, from its report's file.

    `None` means that it has not failed, or that there is no report yet.

    Args:
        since: Seconds since the epoch. A file that was written earlier is of a former machine of this name.
    """
    report = _of_file(file, since)
    return None if report is None else report.failure


def notice(file: Path) -> float | None:
    """Return when the cloud will take a machine, from its report's file. `None` means that it does not say.

    The time is in seconds since the epoch (UTC).
    """
    report = _of_file(file, 0.0)
    return None if report is None else report.notice


def _of_file(file: Path, since: float) -> Reported | None:
    try:
        with file.open("rb") as stream:
            # Readers see a file as a whole: it is replaced, not rewritten.
            if os.fstat(stream.fileno()).st_mtime < since:
                return None
            return checked(stream.read(OWN_BYTES + 1), time.time(), OWN_BYTES)
    except (OSError, BrokenReportError):
        return None


def file_sink(path: Path) -> Callable[[str], None]:
    """Return a function that writes the report to a file atomically."""

    def write(text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.replacing(path) as stream:
            stream.write(text.encode())

    return write
