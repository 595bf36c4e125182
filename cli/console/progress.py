"""Shows the progress of long work: a live line on a terminal, one line for each change elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import IO, Any, TextIO, cast

from rich.console import Console as RichConsole
from rich.status import Status
from rich.text import Text

from cli.console.events import (
    Event,
    Message,
    Operation,
    OutputLine,
    ResourceDone,
    ResourceFailed,
    ResourceStarted,
    Summary,
)
from cli.hints import from_here
from infra.errors import UserError

_MARKS = {"created": "+", "updated": "~", "replaced": "±", "deleted": "-"}
_STYLES = {"created": "green", "updated": "yellow", "replaced": "yellow", "deleted": "red"}
_GROUPS = ("pulumi:", "slurm-stacks:")
"""Resource types that only group others: the stack, providers, components."""


class _IgnoringErrors:
    """Standard error that ignores write errors: a closed terminal must not stop the work."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(from_here(text))
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Console:
    """Writes messages and progress to standard error. Results belong on standard output.

    Args:
        rich: Where to write; tests give their own. The terminal by default.
    """

    def __init__(self, rich: RichConsole | None = None) -> None:
        self._rich = rich or RichConsole(
            file=cast(IO[str], _IgnoringErrors(sys.stderr)), highlight=False, soft_wrap=True
        )
        self._status: Status | None = None
        self._label = ""
        self._shown = ""
        self._since = time.monotonic()
        self._running: dict[str, str] = {}
        self._changed: dict[str, Operation] = {}
        """The last operation of each resource, by URN."""
        self._replaced: set[str] = set()
        self._printed: set[str] = set()
        """The lines on the screen, for `without_repeats`."""

    @property
    def rich(self) -> RichConsole:
        """The underlying console, for callers that draw more than a line."""
        return self._rich

    @property
    def changes(self) -> dict[str, int]:
        """How many resources the last run has created, updated, replaced and deleted, as it listed them."""
        return dict(Counter(self._changed.values()))

    def changed(self, name: str) -> bool:
        """Return whether the last run has made or changed a resource whose URN ends with this name."""
        operations = {"created", "updated", "replaced"}
        return any(urn.endswith(name) and done in operations for urn, done in self._changed.items())

    @property
    def live(self) -> bool:
        """Whether lines can be redrawn."""
        return self._rich.is_terminal

    def say(self, text: str, style: str | None = None) -> None:
        """Print a line that stays on the screen."""
        self._printed.update(line.strip() for line in text.splitlines())
        self._rich.print(Text(text, style=style or ""))

    def without_repeats(self, text: str) -> str:
        """Return an error's text without the lines, after its first, that are on the screen already."""
        kept: list[str] = []
        for line in text.splitlines():
            if kept and line.strip() in self._printed:
                kept[-1] = f"{kept[-1][:-1]}; its last lines are above" if kept[-1][-1:] == ":" else kept[-1]
            else:
                kept.append(line)
        return "\n".join(kept)

    @contextlib.contextmanager
    def errors_once(self) -> Iterator[None]:
        """Take from an error of the body what is on the screen already: it is printed below."""
        try:
            yield
        except UserError as error:
            error.args = (self.without_repeats(str(error)),)
            raise

    @contextlib.contextmanager
    def waiting(self, label: str) -> Iterator[None]:
        """Show that the program waits. `label` says for what; `now` shows the progress."""
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
        """Show the progress of the present wait. Without a terminal a line appears when it changes."""
        seconds = time.monotonic() - self._since
        if self._status is not None:
            self._status.update(Text(f"{self._label}: {text} · {clock(seconds)}"))
        elif text != self._shown:
            self.say(f"  {clock(seconds)} {text}")
        self._shown = text

    def on_event(self, event: Event) -> None:
        """Show an event of the runner."""
        match event:
            case ResourceStarted(name=name, operation=operation):
                self._running[name] = operation
                if operation == "replaced":
                    self._replaced.add(event.urn)
                self._show_running()
            case ResourceDone(name=name, operation=operation, seconds=seconds):
                self._running.pop(name, None)
                if self._is_news(event):
                    self._changed[event.urn] = operation
                    mark, style = _MARKS[operation], _STYLES[operation]
                    self.say(f"  {mark} {name} {operation} ({seconds:.1f} s)", style)
                self._show_running()
            case ResourceFailed(name=name, message=message):
                self._running.pop(name, None)
                self.say(f"  ! {name}: {self.without_repeats(message)}", "red")
            case OutputLine(name=name, stream="stderr", line=line) if line.strip():
                self.say(f"    {name}: {line}", "dim")
                self._printed.add(line.strip())
            case Message(text=text, level=level):
                self.say(text, {"warning": "yellow", "error": "red"}.get(level))
            case Summary():
                # Resources that only group others are not counted: the sum matches the lines above.
                summary = Summary(dict(Counter(self._changed.values())), event.failed, event.seconds)
                self.say(f"  {summary} ({event.seconds:.1f} s)")
            case _:
                pass

    def _is_news(self, event: ResourceDone) -> bool:
        """Return whether the event gets a line and is counted. A replacement counts once."""
        if event.operation not in _STYLES or event.type.startswith(_GROUPS):
            return False
        if event.operation == "deleted" and event.urn in self._replaced:
            return False
        return self._changed.get(event.urn) != event.operation

    def _show_running(self) -> None:
        if self._status is not None:
            names = ", ".join(sorted(self._running)) or "…"
            self._status.update(Text(f"{self._label}: {names}"))


def clock(seconds: float) -> str:
    """Return minutes and seconds, as in 1:05."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
