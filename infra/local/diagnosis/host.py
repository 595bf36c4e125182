"""The machine as the checks see it: files of the kernel's and the distribution's, limits, short commands."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

COMMAND_SECONDS = 15.0


def _run(argv: Sequence[str]) -> tuple[int, str]:
    """Exit status (127 where it cannot be run) and output of a command that ends at once."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except OSError as error:
        return 127, str(error)
    except subprocess.TimeoutExpired:
        return 127, f"no answer within {COMMAND_SECONDS:g} s"
    return done.returncode, done.stdout.strip()


@dataclass(frozen=True, slots=True)
class Host:
    """Where facts come from; tests give facts of their own.

    Attributes:
        root: /proc, /sys and /etc are read below it.
        limit: the soft limit of a resource (`resource.RLIMIT_…`), None without one.
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
        """A file's text; None where it cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_text(errors="replace")
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """A file that holds one number; None where it does not (`max`), or is not there."""
        text = (self.text(path) or "").strip()
        return int(text) if text.isdigit() else None

    def processes(self) -> list[int]:
        """Pids of all processes."""
        try:
            return [int(name) for name in os.listdir(self.root / "proc") if name.isdigit()]  # noqa: PTH208
        except OSError:
            return []
