"""Shows a sweep: a live table on a terminal, one line for each change elsewhere, and a summary at the end."""

from __future__ import annotations

import contextlib
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from rich.console import Console as RichConsole
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cli.commands.report import programs, runs, series, words
from cli.commands.sweep.plan import SweepRequest
from cli.console.progress import Console, clock
from cli.results import Kept
from node.system import plurals

Phase = Literal["queued", "waits", "starts", "runs", "done", "failed"]

_STYLES: dict[Phase, str] = {
    "queued": "dim",
    "waits": "yellow",
    "runs": "cyan",
    "done": "green",
    "failed": "red",
}
FRAME_LINES = 9
"""Lines of the live table that are not runs: title, head, two for runs that are left out, two for the
present run, two for an error, and the cursor's."""
OTHER_COLUMNS, NARROW_COLUMNS = 55, 35
"""Width of all columns except the state's, on a wide and on a narrow terminal. The state gets the rest, so
that a long one does not hide the numbers."""
STATE_WIDTH = 20
"""Least width of the state's column."""


@dataclass(frozen=True, slots=True)
class Row:
    """A run in the table. `None` means not known yet.

    Attributes:
        text: The run's state, short.
        detail: The run's state, at length.
        seconds: Seconds of training.
        where: The partition and the GPUs a node, if the sweep compares them.
        whole: Whether `seconds` are of a whole program, which does not say how long its training took.
    """

    number: int
    nodes: int
    repetition: int
    phase: Phase
    text: str
    detail: str = ""
    job: int | None = None
    seconds: float | None = None
    images_per_second: float | None = None
    accuracy: float | None = None
    where: str = ""
    whole: bool = False

    @property
    def over(self) -> bool:
        return self.phase in ("done", "failed")


class Board:
    """Shows the rows while they change. It is a context manager, because a live table takes the terminal.

    Args:
        console: Where to show them.
        title: The name of the sweep's stack.
        repeat: Repetitions of each number of nodes.
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
            # The table that stays on the screen has all rows.
            self._whole = True
            with contextlib.suppress(OSError):  # the terminal may be gone
                self._live.stop()
            self._live = None

    def show(self, rows: Sequence[Row], note: str = "") -> None:
        """Show the present rows.

        Args:
            rows: All rows.
            note: The error of the moment, if there is one.
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
            nodes = f"{row.nodes} node{'s' if row.nodes > 1 else ''}{row.where and f' of {row.where}'}"
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
        # Lines break between words, so the text gets a little less than two whole lines.
        return Text(textwrap.shorten(text, 2 * self._console.rich.size.width - 20, placeholder=" …"), style)

    def _table(self) -> Table:
        width, height = self._console.rich.size
        wide = width >= OTHER_COLUMNS + STATE_WIDTH
        table = Table(box=None, pad_edge=False)
        for name in ("run", "nodes", "rep.", "job"):
            table.add_column(name, justify="right", header_style="dim", no_wrap=True)
        room = max(width - (OTHER_COLUMNS if wide else NARROW_COLUMNS), STATE_WIDTH)
        table.add_column("state", header_style="dim", no_wrap=True, overflow="ellipsis", max_width=room)
        time = _time(any(row.whole for row in self._rows))
        for name in (time, "images/s", "accuracy") if wide else (time,):
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
            f"{row.nodes}{row.where and f' of {row.where}'}",
            f"{row.repetition}/{self._repeat}",
            _or_dash(row.job, "{}"),
            Text(row.text),
            _or_dash(row.seconds, "{:.1f}"),
            _or_dash(row.images_per_second, "{:.0f}"),
            _or_dash(row.accuracy, "{:.4f}"),
        ]


def tally(rows: Sequence[Row]) -> str:
    """Return, for example: 2 of 6 done, 1 failed, 3 to go."""
    done = sum(row.phase == "done" for row in rows)
    failed = sum(row.phase == "failed" for row in rows)
    parts = [f"{done} of {len(rows)} done"]
    if failed:
        parts.append(f"{failed} failed")
    if left := len(rows) - done - failed:
        parts.append(f"{left} to go")
    return ", ".join(parts)


def window(rows: Sequence[Row], room: int) -> tuple[int, Sequence[Row], int]:
    """Choose the rows that fit, around the first that is not over.

    Returns:
        How many rows are left out above, the rows, and how many are left out below.
    """
    room = max(room, 3)
    if len(rows) <= room:
        return 0, rows, 0
    current = next((index for index, row in enumerate(rows) if not row.over), len(rows) - 1)
    first = min(max(current - room // 2, 0), len(rows) - room)
    return first, rows[first : first + room], len(rows) - first - room


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the summary: the medians of the runs on one number of nodes.

    Attributes:
        seconds: Seconds of training.
        speed_up: Speed-up over one node. `None` means that no run was on one node, or that its cores were not
            alike.
        allowed: The speed-up that the one machine of local nodes allows.
        whole: Whether `seconds` are of a whole program.
        cores: Which cores the runs had, if they were local.
    """

    nodes: int
    runs: int
    seconds: float | None
    images_per_second: float | None
    accuracy: float | None
    speed_up: float | None
    allowed: float | None = None
    whole: bool = False
    cores: str = ""


def show_summary(title: str, lines: Sequence[Line], console: RichConsole) -> None:
    """Print the medians of each number of nodes."""
    # The table's own title would be folded to the table's width.
    console.print(Text(f"\n{title}", "bold"))
    table = Table(box=None, pad_edge=False)
    time = _time(any(line.whole for line in lines))
    for name in ("nodes", "runs", time, "images/s", "accuracy", "speed-up"):
        table.add_column(name, justify="right", header_style="dim")
    # On one node it is 1 and tells nothing.
    if show_allowed := any(line.allowed is not None and line.nodes > 1 for line in lines):
        table.add_column("machine allows", justify="right", header_style="dim")
    if show_cores := any(line.cores for line in lines):
        table.add_column("cores", header_style="dim")
    for line in lines:
        table.add_row(
            str(line.nodes),
            str(line.runs),
            _or_dash(line.seconds, "{:.1f}"),
            _or_dash(line.images_per_second, "{:.0f}"),
            _or_dash(line.accuracy, "{:.4f}"),
            _or_dash(line.speed_up, "{:.2f}"),
            *([_or_dash(line.allowed, "{:.2f}")] if show_allowed else []),
            *([line.cores or "–"] if show_cores else []),
        )
    console.print(table)


def _time(whole: bool) -> str:
    """Return the head of the column with the time that is compared."""
    return "run s" if whole else "train s"


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def summary_tables(kept: Iterable[Kept], stack: str) -> list[tuple[str, list[Line]]]:
    """Return a title and a line of medians for each number of nodes.

    There are several tables if the runs trained on different data.
    """
    kept = list(kept)
    trained = series.group(runs.of(result, stack) for result in kept if not result.program)
    user_programs = programs.group(programs.of(result, stack) for result in kept if result.program)
    return [
        *((_title(item), _lines(item)) for item in trained),
        *((f"Medians of {item.name} on {_nodes(item.key)}", _own_lines(item)) for item in user_programs),
    ]


def _own_lines(program: programs.ProgramSeries) -> list[Line]:
    return [
        Line(
            nodes=point.nodes,
            runs=len(point.runs),
            seconds=point.seconds.median,
            images_per_second=None,
            accuracy=None,
            speed_up=_median(program.speed_up(point)),
            whole=not program.key.timed,
        )
        for point in program.points
    ]


def _nodes(key: series.Key | programs.Key) -> str:
    """Return whose nodes a series has: cpu (m5.xlarge), or train/spot (m5.xlarge) of a pool."""
    return f"{key.partition}{f'/{key.pool}' if key.pool else ''} ({key.machine})"


def _title(trainings: series.Series) -> str:
    key = trainings.key
    data = key.data if key.data == runs.MNIST else f"{key.data} (not MNIST)"
    epochs = plurals.count(key.epochs, "epoch")
    how = words.how_cores(trainings)
    return f"Medians on {_nodes(key)}, {epochs}, {key.profile}, {data}{how and f', {how}'}"


def _lines(trainings: series.Series) -> list[Line]:
    return [
        Line(
            nodes=point.nodes,
            runs=len(point.runs),
            seconds=_median(point.spread(lambda run: run.seconds_train)),
            images_per_second=_median(point.spread(lambda run: run.images_per_second)),
            accuracy=_median(point.spread(lambda run: run.accuracy)),
            speed_up=_median(trainings.speed_up(point)),
            allowed=trainings.allowed(point),
            cores=_cores(point),
        )
        for point in trainings.points
    ]


def _cores(point: series.Point) -> str:
    """Say which cores the runs of a number of nodes had; nothing of runs on machines of their own."""
    first = point.runs[0]
    if not first.local or first.cores is None:
        return ""
    text = f"{first.cores}, shared" if first.cores_shared else f"{first.cores}"
    taken = series.spread_of(run.cores_others for run in point.runs)
    return f"{text}, {100 * taken.median:.0f} % others'" if taken is not None else text


def _median(spread: series.Spread | None) -> float | None:
    return None if spread is None else spread.median


def cost(
    wanted: SweepRequest, price_hour: float | None, like: Mapping[str, Any], earlier: Iterable[Kept]
) -> str | None:
    """Return a sentence on what the runs cost. `None` means that the machines are free.

    Args:
        wanted: The numbers of nodes and the repetitions.
        price_hour: USD for a node and hour. `None` means that the price is not known.
        like: Values of the runs' records, which an earlier result must have to estimate their time.
        earlier: Results that are kept from earlier runs.
    """
    if price_hour is None:
        return f"price of {like['machine']} unknown"
    if price_hour == 0:
        return None
    longest: dict[int, float] = {}
    for record in (kept.record for kept in earlier):
        if all(record.get(key) == value for key, value in like.items()):
            nodes = record["nodes"]
            longest[nodes] = max(longest.get(nodes, 0.0), record["seconds_total"])
    rate = f"a node costs {price_hour:.4g} USD an hour"
    if unknown := [str(nodes) for nodes in wanted.nodes if nodes not in longest]:
        return f"{rate}; no earlier result says how long a run on {', '.join(unknown)} takes"
    usd = sum(price_hour * nodes * longest[nodes] / 3600 for nodes in wanted.nodes) * wanted.repeat
    return (
        f"{rate}; if each takes as long as the longest earlier result, the runs cost {usd:.2f} USD, "
        "plus the minutes in which nodes start and wait"
    )
