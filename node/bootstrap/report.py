"""The boot report: the machine's present step, the error of a failed step, and its last lines.

`./cluster status` and a failed `up` show the report, so it must exist even if the machine can no longer be
reached. Every change is written to the machine's disk and to the cluster's bucket.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from node.bootstrap import files

REPORT_VERSION = "slurm-stacks/boot/v1"
TAIL_LINES = 20
LINE_LENGTH = 200
"""The greatest length of a line in a node's reason or a job's comment."""


class BootReport:
    """A boot report, which is written as a whole at every change.

    Args:
        sinks: functions that write the report's text. The first one must work, others may fail. If the bucket
            cannot be reached, the machine's own copy says so.
        was_ready: whether an earlier boot of this machine was ready (see `was_ready`).
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
        """Gives the times of this report by the controller's clock.

        Readers compare them with the time of the launch. By a clock that is behind, the report would seem to
        be of a former machine of this name.

        Args:
            ahead: by how many seconds this machine's clock is ahead of the controller's.
        """
        self.content["started"] -= ahead

    def begin(self, step: str, timeout: float) -> None:
        self.content["steps"].append(
            {"name": step, "state": "running", "started": self._now(), "seconds": None, "timeout": timeout}
        )
        self.write()

    def end(self, state: str, seconds: float, note: str = "", tail: list[str] | None = None) -> None:
        """Records the end of the present step.

        Args:
            state: done | skipped | failed.
            seconds: how long the step took.
            note: one line on what was done, or why not.
            tail: the last lines of a failure.
        """
        step = self.content["steps"][-1]
        step.update(state=state, seconds=round(seconds, 3), note=note)
        if tail:
            step["tail"] = tail[-TAIL_LINES:]
        self.write()

    def finish(self, state: str) -> None:
        """Records the end of the boot.

        Args:
            state: ready | failed | rebooting.
        """
        self.content.update(state=state, ended=self._now())
        self.write()

    def _now(self) -> float:
        return float(self.content["started"] + time.monotonic() - self._began)

    def write(self) -> None:
        text = json.dumps(self.content, indent=1)
        for number, sink in enumerate(self._sinks):
            try:
                sink(text)
            except OSError as error:
                if number == 0:
                    raise
                self.content["facts"]["report"] = f"not published: {error}"


def was_ready(file: Path) -> bool:
    """Returns whether this boot of a machine was ready, or is one after a boot that was.

    A cluster whose controller boots again is up. One whose controller boots for the first time is not.
    """
    try:
        content = json.loads(file.read_text())
        return bool(content["state"] == "ready" or (content["state"] != "failed" and content["was_ready"]))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def failure(file: Path, since: float = 0.0) -> str | None:
    """Returns why a boot failed, from its report's file. See `failure_in`."""
    return failure_in(_text(file), since)


def notice(file: Path, since: float = 0.0) -> float | None:
    """Returns when the cloud will take a machine, from its report's file. See `notice_in`."""
    return notice_in(_text(file), since)


def _text(file: Path) -> str:
    """Returns a report's content. It is empty if there is no report yet."""
    try:
        return file.read_text()
    except (OSError, ValueError):
        return ""


def failure_in(content: str, since: float = 0.0) -> str | None:
    """Returns why a boot failed. `None` means that it has not failed, or that there is no report yet.

    Args:
        content: a report as it was written.
        since: seconds since the epoch. An earlier report belongs to a former machine of the same name.
    """
    try:
        found = json.loads(content)
        if found.get("started", since) < since:
            return None
        step = found["steps"][-1]
        if found["state"] != "failed":
            return None
        tail = [line for line in step.get("tail") or [] if str(line).strip()]
        lines = [str(step["note"]).removesuffix(":"), *tail[-1:]]
        return f"step {step['name']}: " + ": ".join(str(line)[:LINE_LENGTH] for line in lines)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None


def notice_in(content: str, since: float = 0.0) -> float | None:
    """Returns when the cloud will take the report's machine, in seconds since the epoch (UTC).

    `None` means that there is no such notice, or no report.

    Args:
        content: a report as it was written.
        since: seconds since the epoch. An earlier report belongs to a former machine of the same name.
    """
    try:
        found = json.loads(content)
        return None if found["started"] < since else float(found["notice"])
    except (ValueError, KeyError, TypeError):
        return None


def file_sink(path: Path) -> Callable[[str], None]:
    """Returns a function that writes the report to a file atomically."""

    def write(text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, text.encode())

    return write
