"""Progress of long work: a live line on a terminal, a line a change elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import IO, Any, TextIO, cast

from rich.console import Console as RichConsole
from rich.status import Status
from rich.text import Text

from infra.node import words
from infra.runner.events import (
    Event,
    Message,
    OutputLine,
    ResourceDone,
    ResourceFailed,
    ResourceStarted,
    Summary,
)

_MARKS = {"created": "+", "updated": "~", "replaced": "±", "deleted": "-", "unchanged": " ", "read": " "}
_STYLES = {"created": "green", "updated": "yellow", "replaced": "yellow", "deleted": "red"}


class _Lasting:
    """Standard error whose reader may go (a terminal that is closed): that is no reason to stop half way."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Console:
    """Messages and progress on standard error; results belong on standard output.

    Args:
        rich: for tests; the terminal by default.
    """

    def __init__(self, rich: RichConsole | None = None) -> None:
        self._rich = rich or RichConsole(
            file=cast(IO[str], _Lasting(sys.stderr)), highlight=False, soft_wrap=True
        )
        self._status: Status | None = None
        self._label = ""
        self._shown = ""
        self._since = time.monotonic()
        self._running: dict[str, str] = {}
        self._shown_changes: Counter[str] = Counter()

    @property
    def rich(self) -> RichConsole:
        """For what draws more than a line."""
        return self._rich

    @property
    def live(self) -> bool:
        """Whether lines can be redrawn."""
        return self._rich.is_terminal

    def say(self, text: str, style: str | None = None) -> None:
        """A line that stays."""
        self._rich.print(Text(text, style=style or ""))

    @contextlib.contextmanager
    def waiting(self, label: str) -> Iterator[None]:
        """A time of waiting; `label` says what for, `now` what is seen of it."""
        self._label, self._since, self._shown = label, time.monotonic(), ""
        if not self.live:
            self.say(f"{label} …")
            yield
            return
        with self._rich.status(label) as status:
            self._status = status
            try:
                yield
            finally:
                self._status = None

    def now(self, text: str) -> None:
        """What the present wait has come to. Elsewhere than on a terminal a line appears when it changes."""
        seconds = time.monotonic() - self._since
        if self._status is not None:
            self._status.update(Text(f"{self._label}: {text} · {clock(seconds)}"))
        elif text != self._shown:
            self.say(f"  {clock(seconds)} {text}")
        self._shown = text

    def on_event(self, event: Event) -> None:
        """Render what the runner reports."""
        match event:
            case ResourceStarted(name=name, operation=operation):
                self._running[name] = operation
                self._show_running()
            case ResourceDone(name=name, operation=operation, seconds=seconds):
                self._running.pop(name, None)
                if operation != "unchanged" and event.type.startswith("command:"):
                    mark, style = _MARKS.get(operation, " "), _STYLES.get(operation)
                    self.say(f"  {mark} {name} {operation} ({seconds:.1f} s)", style)
                    self._shown_changes[operation] += 1
                self._show_running()
            case ResourceFailed(name=name, message=message):
                self._running.pop(name, None)
                self.say(f"  ! {name}: {message}", "red")
            case OutputLine(name=name, stream="stderr", line=line) if line.strip():
                self.say(f"    {name}: {line}", "dim")
            case Message(text=text, level=level):
                self.say(text, {"warning": "yellow", "error": "red"}.get(level))
            case Summary():
                self.say(f"  {_sum(event, self._shown_changes)} ({event.seconds:.1f} s)")
                self._shown_changes.clear()
            case _:
                pass

    def _show_running(self) -> None:
        if self._status is not None:
            names = ", ".join(sorted(self._running)) or "…"
            self._status.update(Text(f"{self._label}: {names}"))


def _sum(event: Summary, shown: Mapping[str, int]) -> str:
    """How many resources each operation came to, and of how many of them there is a line above."""
    parts = []
    for operation, number in event.counts.items():
        if number:
            above = shown.get(operation, 0)
            rest = f" ({above} shown)" if 0 < above < number else ""
            parts.append(f"{operation} {words.count(number, 'resource')}{rest}")
    if event.failed:
        parts.append(f"failed {event.failed}")
    return ", ".join(parts) or "nothing to do"


def clock(seconds: float) -> str:
    """Minutes and seconds: 1:05."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
