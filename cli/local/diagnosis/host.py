"""This machine's facts for the checks: files of the kernel and the distribution, limits, short commands."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cli import programs

COMMAND_SECONDS = 15.0


def _run(argv: Sequence[str]) -> tuple[int, str]:
    """Run a short command. Returns its exit status (127 if it cannot run) and its output."""
    done = programs.capture(argv, seconds=COMMAND_SECONDS, merged=True)
    status = programs.CANNOT_RUN if done.status == programs.TIMED_OUT else done.status
    return status, (done.out or done.err).strip()


@dataclass(frozen=True, slots=True)
class Host:
    """The source of facts; tests pass their own.

    Attributes:
        root: the folder below which /proc, /sys and /etc are read.
        limit: returns the soft limit of a resource (`resource.RLIMIT_…`), `None` if it has no limit.
    """

    root: Path = Path("/")
    uid: int = field(default_factory=os.getuid)
    cpus: int = field(default_factory=lambda: os.cpu_count() or 1)
    run: Callable[[Sequence[str]], tuple[int, str]] = _run
    which: Callable[..., str | None] = shutil.which
    limit: Callable[[int], int | None] = lambda kind: (
        None if (soft := resource.getrlimit(kind)[0]) == resource.RLIM_INFINITY else soft
    )

    def text(self, path: str) -> str | None:
        """Return a file's text; `None` if it cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_text(errors="replace")
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """Return the number in a file; `None` if it holds none (`max`) or is missing."""
        text = (self.text(path) or "").strip()
        return int(text) if text.isdigit() else None

    def processes(self) -> list[int]:
        """Return the pids of all processes."""
        try:
            return [int(name) for name in os.listdir(self.root / "proc") if name.isdigit()]  # noqa: PTH208
        except OSError:
            return []
