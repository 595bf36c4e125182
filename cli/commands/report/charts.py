"""The content of the plots: lines of points. Pure; `cli.commands.report.draw` draws them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from cli.commands.report import words
from cli.commands.report.runs import MNIST, SYNTHETIC, Run
from cli.commands.report.series import Point, Series, Spread, ranked
from workload.result import Epoch

MOST_OURS = 4
"""The most series of ours in one plot. Further ones are in the tables only."""
MOST_CURVES = 6
LOG_OVER = 12.0
LABEL_LENGTH = 16
PREDICTED_NODES = (1, 2, 4, 8)
MARKERS = "os^Dv*"
DASHES = ((4.0, 1.5), (1.5, 1.5), (6.0, 1.5, 1.5, 1.5), (8.0, 2.0), (3.0, 3.0))

Unit = Literal["seconds", "times", "share", "cents", "fraction"]


@dataclass(frozen=True, slots=True)
class Style:
    """How a series looks on the whole page. Colour is never the only difference between two series.

    Attributes:
        colour: Name of a colour of the page: s1 to s6, or pub.
        marker: Matplotlib's name of the point's shape.
        dashes: Lengths of dashes and gaps. Empty means a solid line.
        strong: Whether the line is wide and its name bold: ours are.
    """

    colour: str
    marker: str
    dashes: tuple[float, ...] = ()
    strong: bool = True


@dataclass(frozen=True, slots=True)
class Entry:
    """A series with its label and style."""

    series: Series
    label: str
    style: Style

    @property
    def ours(self) -> bool:
        return self.series.key.origin == "ours"


@dataclass(frozen=True, slots=True)
class Dot:
    """The median of the repeats at x, with the least and the greatest value."""

    x: int
    y: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    style: Style
    dots: tuple[Dot, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """One plot.

    Attributes:
        name: Unique on the page; letters, digits and hyphens.
        title: What the plot shows, as a statement.
        measure: What is measured.
        x_label: The name of the horizontal axis.
        unit: The unit of y.
        lines: The lines to draw.
        ideal: The direction of the line of perfect scaling. `None` means no such line.
        from_zero: Whether the scale of y starts at zero.
        x_log: Whether the horizontal scale is logarithmic: numbers of machines double, epochs do not.
    """

    name: str
    title: str
    measure: str
    x_label: str
    unit: Unit
    lines: tuple[Line, ...]
    ideal: Literal["rising", "flat"] | None = None
    from_zero: bool = True
    x_log: bool = True

    @property
    def log(self) -> bool:
        """Whether y is logarithmic: always for factors, otherwise if a linear scale hides most values."""
        values = [value for line in self.lines for dot in line.dots for value in (dot.low, dot.high)]
        if self.unit == "times":
            return True
        return self.unit in ("seconds", "cents") and min(values) > 0 and max(values) > LOG_OVER * min(values)

    @property
    def caption(self) -> str:
        return " ".join(filter(None, (self.measure, "Logarithmic scale." if self.log else "")))

    @property
    def description(self) -> str:
        """Every point as text, for readers who cannot see the plot."""
        texts = []
        for line in self.lines:
            dots = "; ".join(f"{dot.x}: {UNITS[self.unit](dot.y)}" for dot in line.dots)
            texts.append(f"{line.label}, by {self.x_label}: {dots}.")
        return f"{self.caption} " + " ".join(texts)


UNITS: dict[Unit, Callable[[float], str]] = {
    "seconds": words.seconds,
    "times": words.ratio,
    "share": words.share,
    "cents": words.cents,
    "fraction": words.fraction,
}

Value = Callable[[Series, Point], Spread | None]


def entries(series: Sequence[Series]) -> tuple[list[Entry], list[Series]]:
    """Return the series of one group (CPU or GPU) with labels and styles, ours first, and those left out."""
    ours = ranked([s for s in series if s.key.origin == "ours"])
    shown, rest = ours[:MOST_OURS], ours[MOST_OURS:]
    several = {stack for stack in _stacks(ours) if _stacks(ours).count(stack) > 1}
    numbers: dict[str, int] = {}
    named = []
    for index, item in enumerate(shown):
        stack = item.key.stack
        numbers[stack] = numbers.get(stack, 0) + 1
        label = short(stack, f" {numbers[stack]}" if stack in several else "")
        named.append(Entry(item, label, Style(f"s{index + 1}", MARKERS[index])))
    for index, item in enumerate(s for s in series if s.key.origin == "published"):
        style = Style("pub", MARKERS[index % len(MARKERS)], DASHES[index % len(DASHES)], strong=False)
        named.append(Entry(item, words.published_label(item), style))
    return named, rest


def _stacks(series: Sequence[Series]) -> list[str]:
    return [s.key.stack for s in series]


def short(name: str, suffix: str = "") -> str:
    """Return a name, cut to fit beside a line."""
    room = LABEL_LENGTH - len(suffix)
    return (name if len(name) <= room else f"{name[: room - 1]}…") + suffix


def over_nodes(group: str, found: Sequence[Entry]) -> list[Chart]:
    """Return the plots of one group over the number of nodes. Plots without points are left out."""
    plots = [
        Chart(
            f"{group}-time",
            "Training time of one epoch",
            "",
            "nodes",
            "seconds",
            _lines(found, lambda _, p: p.seconds_per_epoch),
        ),
        Chart(
            f"{group}-speed-up",
            "Speed-up",
            "Over one node of the same series.",
            "nodes",
            "times",
            (*_lines(found, Series.speed_up), *_to_beat(found)),
            ideal="rising",
        ),
        Chart(
            f"{group}-efficiency",
            "Efficiency",
            "Speed-up a node.",
            "nodes",
            "share",
            _lines(found, Series.efficiency),
            ideal="flat",
        ),
        Chart(
            f"{group}-cost",
            "Price of one epoch",
            "The nodes' training time, without start-up, controller and storage.",
            "nodes",
            "cents",
            _lines(found, lambda _, p: p.spread(lambda run: run.cents_per_epoch)),
        ),
        *_accuracy(group, found),
    ]
    return [chart for chart in plots if chart.lines]


def _to_beat(found: Sequence[Entry]) -> tuple[Line, ...]:
    """Return the line to beat: the speed-up that our first series' own times of step and exchange allow.

    Of nodes on one machine it is what that machine allows.
    """
    for entry in found:
        series = entry.series
        ways = (
            ("predicted", [(nodes, series.predicted(nodes)) for nodes in PREDICTED_NODES]),
            ("machine allows", [(point.nodes, series.allowed(point)) for point in series.points]),
        )
        for name, values in ways if entry.ours else ():
            if dots := tuple(Dot(nodes, value, value, value) for nodes, value in values if value is not None):
                return (Line(name, Style(entry.style.colour, "x", DASHES[1], strong=False), dots),)
    return ()


def _accuracy(group: str, found: Sequence[Entry]) -> list[Chart]:
    """Return a plot of the published series with comparable ones of ours, and one for each other data set."""
    with_published = [e for e in found if e.series.any_run.comparable]
    charts = [
        Chart(
            f"{group}-accuracy",
            "Accuracy",
            "On the training data after eight epochs on MNIST.",
            "nodes",
            "fraction",
            _lines(with_published, _accuracy_of),
            from_zero=False,
        )
    ]
    others = [e for e in found if not e.series.any_run.comparable]
    for data in sorted({e.series.key.data for e in others}):
        alone = [e for e in others if e.series.key.data == data]
        charts.append(
            Chart(
                f"{group}-accuracy-{data}",
                f"Accuracy on {DATA.get(data, data)}",
                "On the training data: not to be compared with the published figures.",
                "nodes",
                "fraction",
                _lines(alone, _accuracy_of),
                from_zero=False,
            )
        )
    return charts


def _accuracy_of(_: Series, point: Point) -> Spread | None:
    return point.spread(lambda run: run.accuracy)


def _lines(found: Sequence[Entry], value: Value) -> tuple[Line, ...]:
    lines = []
    for entry in found:
        dots = tuple(
            Dot(point.nodes, spread.median, spread.low, spread.high)
            for point in entry.series.points
            if (spread := value(entry.series, point)) is not None
        )
        if dots:
            lines.append(Line(entry.label, entry.style, dots))
    return tuple(lines)


def over_epochs(name: str, entry: Entry) -> list[Chart]:
    """Return plots of loss and accuracy for each epoch of a series, with a line for each number of nodes.

    A series of one epoch has no such plots.
    """
    if entry.series.key.epochs < 2:
        return []
    points = _spread_out(entry.series.points)
    what: tuple[tuple[str, str, Callable[[Epoch], float]], ...] = (
        ("loss", "Loss", lambda epoch: epoch.loss),
        ("accuracy", "Accuracy", lambda epoch: epoch.accuracy),
    )
    return [
        Chart(
            f"{name}-{slug}",
            title,
            f"On the training data ({entry.series.key.data}).",
            "epoch",
            "fraction",
            tuple(
                Line(words.count(point.nodes, "node"), Style(f"s{i + 1}", MARKERS[i]), _curve(point, of))
                for i, point in enumerate(points)
            ),
            from_zero=slug == "loss",
            x_log=False,
        )
        for slug, title, of in what
    ]


def _spread_out(points: tuple[Point, ...]) -> list[Point]:
    """Choose at most as many points as there are colours, with the first and the last."""
    if len(points) <= MOST_CURVES:
        return list(points)
    step = (len(points) - 1) / (MOST_CURVES - 1)
    return [points[round(i * step)] for i in range(MOST_CURVES)]


def _curve(point: Point, of: Callable[[Epoch], float]) -> tuple[Dot, ...]:
    dots = []
    for index, epoch in enumerate(point.runs[0].history):

        def value(run: Run, at: int = index) -> float:
            return of(run.history[at])

        spread = point.spread(value)
        assert spread is not None  # every run of a series has the same number of epochs
        dots.append(Dot(epoch.epoch, spread.median, spread.low, spread.high))
    return tuple(dots)


DATA = {MNIST: "MNIST", SYNTHETIC: "synthetic digits"}
