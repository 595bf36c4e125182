"""A sweep as a person sees it: a live table on a terminal, elsewhere a line a change; a summary."""

from __future__ import annotations

import contextlib
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

from rich.console import Console as RichConsole
from rich.live import Live
from rich.table import Table
from rich.text import Text

from infra.console.progress import Console, clock

Phase = Literal["queued", "waits", "starts", "runs", "done", "failed"]

_STYLES: dict[Phase, str] = {
    "queued": "dim",
    "waits": "yellow",
    "runs": "cyan",
    "done": "green",
    "failed": "red",
}
FRAME_LINES = 9
"""Of the live table: title, head, what is left out above and below, two lines each on the present run and on
what is wrong, the cursor's."""
OTHER_COLUMNS, NARROW_COLUMNS = 55, 35
"""Width of all columns but the state's, and of those that a narrow terminal has: a long state takes what is
left, and does not squeeze the numbers away."""
STATE_WIDTH = 20
"""At least."""


@dataclass(frozen=True, slots=True)
class Row:
    """A run in the table; None is not known yet."""

    number: int
    nodes: int
    repetition: int
    phase: Phase
    text: str
    """Where it is, in a few words."""
    detail: str = ""
    """The same at length."""
    job: int | None = None
    seconds: float | None = None
    """Of training."""
    images_per_second: float | None = None
    accuracy: float | None = None

    @property
    def over(self) -> bool:
        return self.phase in ("done", "failed")


class Board:
    """Shows rows while they change; a context, because a live table takes the terminal.

    Args:
        title: whose sweep it is.
        repeat: repetitions of each number of nodes.
    """

    def __init__(self, console: Console, title: str, repeat: int) -> None:
        self._console = console
        self._title = title
        self._repeat = repeat
        self._rows: Sequence[Row] = ()
        self._note = ""
        self._said: dict[int, str] = {}
        self._since = time.monotonic()
        self._live: Live | None = None
        self._whole = False

    def __enter__(self) -> Board:
        self._since = time.monotonic()
        rich = self._console.rich
        # A dumb terminal cannot redraw: it would show nothing until the end.
        if rich.is_terminal and not rich.is_dumb_terminal:
            self._live = Live(get_renderable=self._draw, console=rich, refresh_per_second=2)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            # What stays on the screen is complete.
            self._whole = True
            with contextlib.suppress(OSError):  # the terminal may be gone
                self._live.stop()
            self._live = None

    def show(self, rows: Sequence[Row], note: str = "") -> None:
        """The rows as they are now.

        Args:
            note: what is wrong at the moment, if anything.
        """
        self._rows = rows
        if self._live is None:
            self._print_changes(rows, note)
        self._note = note

    def _print_changes(self, rows: Sequence[Row], note: str) -> None:
        seconds = clock(time.monotonic() - self._since)
        if note and not self._note:
            self._console.say(f"  {seconds} {note}", "yellow")
        if self._note and not note:
            self._console.say(f"  {seconds} the cluster answers again")
        for row in rows:
            text = row.detail or row.text
            if text == self._said.get(row.number) or row.phase == "queued":
                continue
            self._said[row.number] = text
            again = f", {row.repetition} of {self._repeat}" if self._repeat > 1 else ""
            job = f" job {row.job}:" if row.job is not None else ""
            nodes = f"{row.nodes} node{'s' if row.nodes > 1 else ''}"
            line = f"  {seconds} run {row.number} of {len(rows)} ({nodes}{again}){job} {text}"
            self._console.say(line, _STYLES.get(row.phase) if row.over else None)

    def _draw(self) -> Table:
        frame = Table.grid()
        seconds = clock(time.monotonic() - self._since)
        frame.add_row(Text(f"{self._title}: {tally(self._rows)} · {seconds}", "bold"))
        frame.add_row(self._table())
        if self._whole:
            return frame
        if present := next((row for row in self._rows if row.phase in ("waits", "starts", "runs")), None):
            words = f"run {present.number}, job {present.job}: {present.detail or present.text}"
            frame.add_row(self._two_lines(words, "dim"))
        if self._note:
            frame.add_row(self._two_lines(self._note, "yellow"))
        return frame

    def _two_lines(self, text: str, style: str) -> Text:
        # Folded at words, so a little less than two whole lines.
        return Text(textwrap.shorten(text, 2 * self._console.rich.size.width - 20, placeholder=" …"), style)

    def _table(self) -> Table:
        width, height = self._console.rich.size
        wide = width >= OTHER_COLUMNS + STATE_WIDTH
        table = Table(box=None, pad_edge=False)
        for name in ("run", "nodes", "rep.", "job"):
            table.add_column(name, justify="right", header_style="dim", no_wrap=True)
        room = max(width - (OTHER_COLUMNS if wide else NARROW_COLUMNS), STATE_WIDTH)
        table.add_column("state", header_style="dim", no_wrap=True, overflow="ellipsis", max_width=room)
        for name in ("train s", "images/s", "accuracy") if wide else ("train s",):
            table.add_column(name, justify="right", header_style="dim", no_wrap=True)
        above, rows, below = (0, self._rows, 0)
        if not self._whole:
            above, rows, below = window(self._rows, height - FRAME_LINES)
        if above:
            table.add_row("", "", "", "", f"… {above} more above", style="dim")
        for row in rows:
            table.add_row(*self._cells(row)[: None if wide else 6], style=_STYLES.get(row.phase, ""))
        if below:
            table.add_row("", "", "", "", f"… {below} more below", style="dim")
        return table

    def _cells(self, row: Row) -> list[str | Text]:
        return [
            str(row.number),
            str(row.nodes),
            f"{row.repetition}/{self._repeat}",
            _or_dash(row.job, "{}"),
            Text(row.text),
            _or_dash(row.seconds, "{:.1f}"),
            _or_dash(row.images_per_second, "{:.0f}"),
            _or_dash(row.accuracy, "{:.4f}"),
        ]


def tally(rows: Sequence[Row]) -> str:
    """What is done, and what is left to do: 2 of 6 done, 1 failed, 3 to go."""
    done = sum(row.phase == "done" for row in rows)
    failed = sum(row.phase == "failed" for row in rows)
    parts = [f"{done} of {len(rows)} done"]
    if failed:
        parts.append(f"{failed} failed")
    if left := len(rows) - done - failed:
        parts.append(f"{left} to go")
    return ", ".join(parts)


def window(rows: Sequence[Row], room: int) -> tuple[int, Sequence[Row], int]:
    """As many rows as there is room for, around the first that is not over; how many are above and below."""
    room = max(room, 3)
    if len(rows) <= room:
        return 0, rows, 0
    current = next((index for index, row in enumerate(rows) if not row.over), len(rows) - 1)
    first = min(max(current - room // 2, 0), len(rows) - room)
    return first, rows[first : first + room], len(rows) - first - room


@dataclass(frozen=True, slots=True)
class Line:
    """A number of nodes in the summary: medians over its runs."""

    nodes: int
    runs: int
    seconds: float | None
    """Of training."""
    images_per_second: float | None
    accuracy: float | None
    speed_up: float | None
    """Over one node; None where there is no run on one."""


def show_summary(title: str, lines: Sequence[Line], console: RichConsole) -> None:
    """Medians a number of nodes."""
    # Not the table's own title, which would be folded to the table's width.
    console.print(Text(f"\n{title}", "bold"))
    table = Table(box=None, pad_edge=False)
    for name in ("nodes", "runs", "train s", "images/s", "accuracy", "speed-up"):
        table.add_column(name, justify="right", header_style="dim")
    for line in lines:
        table.add_row(
            str(line.nodes),
            str(line.runs),
            _or_dash(line.seconds, "{:.1f}"),
            _or_dash(line.images_per_second, "{:.0f}"),
            _or_dash(line.accuracy, "{:.4f}"),
            _or_dash(line.speed_up, "{:.2f}"),
        )
    console.print(table)


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
