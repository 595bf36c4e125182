"""The boot report: which step a machine is in, what failed, and its last lines.

It is what `./cluster status` and a failing `up` show, so it must be there even when the machine can no longer
be reached: every change is written to the machine's own disk and to the cluster's bucket.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPORT_VERSION = "slurm-stacks/boot/v1"
TAIL_LINES = 20
LINE_LENGTH = 200
"""Characters of a line in a reason or a comment."""


class BootReport:
    """Written whole at every change.

    Args:
        sinks: write the report's text somewhere; the first one must work, others may fail silently (a bucket
            that cannot be reached is itself a finding, which the machine's own copy holds).
    """

    def __init__(self, host: str, role: str, sinks: list[Callable[[str], None]]) -> None:
        self._sinks = sinks
        self.content: dict[str, Any] = {
            "apiVersion": REPORT_VERSION,
            "host": host,
            "role": role,
            "state": "booting",
            "started": time.time(),
            "ended": None,
            "host_keys": [],
            "facts": {},
            "steps": [],
        }

    def begin(self, step: str, timeout: float) -> None:
        self.content["steps"].append(
            {"name": step, "state": "running", "started": time.time(), "seconds": None, "timeout": timeout}
        )
        self.write()

    def end(self, state: str, seconds: float, note: str = "", tail: list[str] | None = None) -> None:
        """Args:
        state: done | skipped | failed.
        note: what was done or why not, one line.
        tail: a failure's last lines.
        """
        step = self.content["steps"][-1]
        step.update(state=state, seconds=round(seconds, 3), note=note)
        if tail:
            step["tail"] = tail[-TAIL_LINES:]
        self.write()

    def finish(self, state: str) -> None:
        """Args:
        state: ready | failed | rebooting.
        """
        self.content.update(state=state, ended=time.time())
        self.write()

    def write(self) -> None:
        text = json.dumps(self.content, indent=1)
        for number, sink in enumerate(self._sinks):
            try:
                sink(text)
            except OSError as error:
                if number == 0:
                    raise
                self.content["facts"]["report"] = f"not published: {error}"


def failure(file: Path, since: float = 0.0) -> str | None:
    """Why the boot that this report is of has failed; None: it has not, or there is no report yet.

    Args:
        since: seconds since the epoch; a report that began before it is another machine's of the same name.
    """
    try:
        content = json.loads(file.read_text())
        if content.get("started", since) < since:
            return None
        step = content["steps"][-1]
        if content["state"] != "failed":
            return None
        said = [step["note"], *(step.get("tail") or [])[-1:]]
        return f"step {step['name']}: " + ": ".join(str(line)[:LINE_LENGTH] for line in said)
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None


def notice(file: Path, since: float = 0.0) -> float | None:
    """When the machine that this report is of will be taken, in seconds since the epoch (UTC).

    None: nobody has said so, or there is no report.

    Args:
        since: as `failure` takes it.
    """
    try:
        content = json.loads(file.read_text())
        return None if content["started"] < since else float(content["notice"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def file_sink(path: Path) -> Callable[[str], None]:
    """Writes the report to a file, whole or not at all."""

    def write(text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_text(text)
        draft.replace(path)

    return write
