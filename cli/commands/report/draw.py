"""Draws charts as SVG elements for a page. Their colours are the page's variables, for light and dark mode.

Matplotlib computes the picture. Its global state, the user's settings and the clock have no effect, so equal
charts give equal text. Importing matplotlib takes long, so only the drawing function imports it.
"""

from __future__ import annotations

import io
import itertools
import logging
import math
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree

from cli.commands.report.charts import Chart, Line
from infra.program.locations import cache_root

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


WIDTH, HEIGHT = 400.0, 270.0
FONT_SIZE = 12.0
"""The size in units of WIDTH. It is ten pixels if the picture is as wide as a phone."""
LEFT, BOTTOM, TOP, RIGHT = 50.0, 38.0, 8.0, 12.0
"""Margins. On the right the width of the lines' names is added."""
LABEL_GAP = 6.0
LETTER = 0.58 * FONT_SIZE
TICK_ROOM = 15.0
IDEAL = "ideal"
"""The name of the line of perfect scaling."""
CURVE = 64
"""The parts of that line: it is straight only where both scales are of one kind."""
LEAST_SPAN = 0.02
"""The least range of a scale that does not begin at zero."""
DATE_FREE = {"Date": None, "Creator": None, "Format": None, "Type": None}
ROLES = ("s1", "s2", "s3", "s4", "s5", "s6", "pub", "ink", "muted", "grid", "surface")
_COLOURS = {role: f"#0000{0xA0 + index:02x}" for index, role in enumerate(ROLES)}
"""The colours that matplotlib uses. The page's variables replace them afterwards."""
_SUFFIX = {"seconds": " s", "times": "×", "share": " %", "cents": " ¢", "fraction": ""}
_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.size": FONT_SIZE,
    "font.family": ["DejaVu Sans"],
    "text.parse_math": False,
    "axes.unicode_minus": False,
    "path.simplify": False,
}
_THREAD = {
    "arrowstyle": "-",
    "color": _COLOURS["muted"],
    "linewidth": 0.7,
    "shrinkA": 0,
    "shrinkB": 4,
    "relpos": (0, 0.5),
}


def svg(chart: Chart) -> str:
    """Return the chart as one `<svg>` element. Its ids begin with the chart's name."""
    # Its caches go beside ours. Its messages about caches and unknown glyphs are of no use to the reader.
    os.environ.setdefault("MPLCONFIGDIR", str(cache_root() / "matplotlib"))
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matplotlib.rcdefaults()
        settings: Any = {**_SETTINGS, "svg.hashsalt": chart.name}
        matplotlib.rcParams.update(settings)
        figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), dpi=72)
        FigureCanvasSVG(figure)
        _draw(figure, chart)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata=DATE_FREE)
    return _for_page(buffer.getvalue(), chart)


def _draw(figure: Figure, chart: Chart) -> None:
    xs = [dot.x for line in chart.lines for dot in line.dots]
    first, last = min(xs), max(xs)
    beside = [line for line in chart.lines if line.dots[-1].x == last]
    right = RIGHT + LABEL_GAP + max(len(line.label) for line in beside) * LETTER
    axes = figure.add_axes(
        (LEFT / WIDTH, BOTTOM / HEIGHT, 1 - (LEFT + right) / WIDTH, 1 - (BOTTOM + TOP) / HEIGHT)
    )
    if chart.x_log:
        axes.set_xscale("log", base=2)
        axes.set_xlim(first / 1.1, last * 1.1) if last > first else axes.set_xlim(first / 2, last * 2)
    else:
        axes.set_xlim(first - 0.2, last + 0.2)
    if chart.log:
        axes.set_yscale("log", base=2)
    axes.set_ylim(*_range(chart))
    _frame(axes)
    _ticks_x(axes, chart, xs)
    _ticks_y(axes, chart)
    if chart.ideal is not None and last > first:
        _ideal(axes, chart, first, last)
    for number, line in enumerate(sorted(chart.lines, key=lambda item: item.style.strong)):
        _line(axes, line, 3 + number / 100)
    taken = _names(axes, chart)
    if chart.ideal is not None and last > first:
        _name_of_ideal(axes, chart, first, last, taken)


def _range(chart: Chart) -> tuple[float, float]:
    """Return the range of y: from zero, around the values, or by factors for a logarithmic scale."""
    dots = [dot for line in chart.lines for dot in line.dots]
    low, high = min(dot.low for dot in dots), max(dot.high for dot in dots)
    if chart.unit == "times":
        low, high = min(low, 0.9), max(high, 1.1)
    if chart.log:
        return low / 1.15, high * 1.25
    if chart.from_zero:
        return 0.0, max(high, 1.0 if chart.unit == "share" else 0.0) * 1.08 or 1.0
    # A scale that is too fine would make noise look important.
    pad = max((high - low) * 0.12, (LEAST_SPAN - (high - low)) / 2)
    # An accuracy cannot be above 1.
    return low - pad, min(high + pad, 1.0 + pad / 10) if high <= 1 else high + pad


def _frame(axes: Axes) -> None:
    for name, spine in axes.spines.items():
        spine.set_visible(name == "bottom")
        spine.set_color(_COLOURS["muted"])
        spine.set_linewidth(0.8)
    axes.minorticks_off()
    axes.tick_params(axis="x", length=3, color=_COLOURS["muted"], labelcolor=_COLOURS["muted"], pad=3)
    axes.tick_params(axis="y", length=0, labelcolor=_COLOURS["muted"], pad=5)
    axes.grid(axis="y", color=_COLOURS["grid"], linewidth=0.8)
    axes.set_axisbelow(True)


def _ticks_x(axes: Axes, chart: Chart, xs: list[int]) -> None:
    """Set ticks at the measured values, where their labels do not overlap."""
    ticks: list[int] = []
    for x in sorted(set(xs)):
        if not ticks or _at(axes, x, 1)[0] - _at(axes, ticks[-1], 1)[0] >= TICK_ROOM:
            ticks.append(x)
    axes.set_xticks(ticks, [f"{x:,}" for x in ticks])
    axes.minorticks_off()
    label = "number of nodes" if chart.x_label == "nodes" else chart.x_label
    axes.set_xlabel(label, color=_COLOURS["muted"], labelpad=3)


def _ticks_y(axes: Axes, chart: Chart) -> None:
    """Round numbers, each with as many digits as tells it from the next."""
    from matplotlib.ticker import MaxNLocator

    low, high = axes.get_ylim()
    if chart.log:
        ticks = _powers(low, high)
        texts = [f"{tick:,g}" for tick in ticks]
    else:
        ticks = [
            float(t)
            for t in MaxNLocator(5, steps=(1, 2, 2.5, 5, 10)).tick_values(low, high)
            if low <= t <= high
        ]
        scale = 100 if chart.unit == "share" else 1
        step = (ticks[1] - ticks[0]) * scale if len(ticks) > 1 else 1.0
        digits = next((d for d in range(7) if abs(round(step, d) - step) < 1e-9), 7)
        texts = [f"{t * scale:,.{digits}f}" if abs(t) < 1e6 else f"{t:.2g}" for t in ticks]
    axes.set_yticks(ticks, [text + _SUFFIX[chart.unit] for text in texts])
    axes.minorticks_off()


def _powers(low: float, high: float) -> list[float]:
    """Return powers of two in a range, about seven at most."""
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    step = max(1, (last - first + 6) // 7)
    return [2.0**power for power in range(first, last + 1) if power % step == 0]


def _at(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Return a point's place in the picture, from the lower left."""
    across, up = axes.transData.transform((x, y))
    return float(across), float(up)


def _perfect(chart: Chart, first: int, last: int) -> list[tuple[float, float]]:
    """Return points of the line of perfect scaling, so many that it is right on scales of any kind.

    It rises as the number of nodes does, because the speed-up is over one node, or stays at 1.
    """
    xs = [first + (last - first) * index / CURVE for index in range(CURVE + 1)]
    return [(x, x if chart.ideal == "rising" else 1.0) for x in xs]


def _ideal(axes: Axes, chart: Chart, first: int, last: int) -> None:
    """Draw the line of perfect scaling."""
    xs, ys = zip(*_perfect(chart, first, last), strict=True)
    axes.plot(xs, ys, color=_COLOURS["muted"], linewidth=1, dashes=(1, 2.5), zorder=2, gid="ideal")


def _name_of_ideal(axes: Axes, chart: Chart, first: int, last: int, taken: list[Box]) -> None:
    """Write "ideal" at its line, where it covers no other line and no other name."""
    width, half = len(IDEAL) * LETTER, LABEL_HEIGHT / 2
    seen = [_at(axes, x, y) for x, y in _perfect(chart, first, last)]
    low, high = (_at(axes, first, y)[1] for y in axes.get_ylim())
    left = _at(axes, first, 1.0)[0]
    wanted = [
        Box(x + dx, x + dx + width, y + dy - half, y + dy + half)
        for x, y in reversed(seen)
        if low <= y <= high
        # Above the line and to its left, or below it and to its right, where a line that rises leaves room.
        for dx, dy in ((-width - 3, half + 2), (3, -half - 2))
        if left <= x + dx and x + dx + width <= WIDTH and low + half <= y + dy <= high - half
    ]
    if not wanted:
        return
    paths = [[_at(axes, dot.x, dot.y) for dot in line.dots] for line in chart.lines]
    marks = [Box(x - 1, x + 1, y - 1, y + 1) for x, y in seen]
    box = clearest(wanted, paths, [*taken, *marks])
    axes.annotate(
        IDEAL,
        (box.left, (box.low + box.high) / 2),
        xycoords="figure points",
        ha="left",
        va="center",
        color=_COLOURS["muted"],
        gid="label-ideal",
    )


def _line(axes: Axes, line: Line, z: float) -> None:
    colour, strong = _COLOURS[line.style.colour], line.style.strong
    for dot in line.dots:
        if dot.high > dot.low:
            axes.plot((dot.x, dot.x), (dot.low, dot.high), color=colour, linewidth=1.2, zorder=z)
    look: dict[str, Any] = {"dashes": line.style.dashes} if line.style.dashes else {}
    axes.plot(
        [dot.x for dot in line.dots],
        [dot.y for dot in line.dots],
        color=colour,
        linewidth=2.2 if strong else 1.2,
        marker=line.style.marker,
        markersize=7 if strong else 5,
        markerfacecolor=colour if strong else _COLOURS["surface"],
        markeredgecolor=_COLOURS["surface"] if strong else colour,
        markeredgewidth=1,
        zorder=z,
        **look,
    )


def _names(axes: Axes, chart: Chart) -> list[Box]:
    """Write each line's name beside its end, in the order of the ends. Ours choose their places first.

    Returns:
        Where the names stand.
    """
    lines = sorted(chart.lines, key=lambda item: not item.style.strong)
    ends = [_at(axes, line.dots[-1].x, line.dots[-1].y) for line in lines]
    top = HEIGHT - LABEL_HEIGHT / 2
    middles = [y for _, y in ends]
    for x in {x for x, _ in ends}:
        together = sorted((i for i in range(len(lines)) if ends[i][0] == x), key=lambda i: ends[i][1])
        places = apart([middles[i] for i in together], LABEL_HEIGHT, top)
        for index, middle in zip(together, places, strict=True):
            middles[index] = middle
    half, offset = LABEL_HEIGHT / 2, LABEL_GAP + 2
    wanted = [
        Box(x + offset, x + offset + len(line.label) * LETTER, middle - half, middle + half)
        for line, (x, _), middle in zip(lines, ends, middles, strict=True)
    ]
    paths = [[_at(axes, dot.x, dot.y) for dot in line.dots] for line in lines]
    moves = place(wanted, paths, BOTTOM + half, top)
    for index, (line, move) in enumerate(zip(lines, moves, strict=True)):
        axes.annotate(
            line.label,
            (line.dots[-1].x, line.dots[-1].y),
            xytext=(offset, middles[index] + move - ends[index][1]),
            textcoords="offset points",
            ha="left",
            va="center",
            color=_COLOURS[line.style.colour] if line.style.strong else _COLOURS["muted"],
            fontweight="bold" if line.style.strong else "normal",
            gid=f"label-{index}",
            zorder=9,
            # A name that had to move far is connected with its line.
            arrowprops=_THREAD if abs(middles[index] + move - ends[index][1]) > LABEL_HEIGHT * 0.8 else None,
        )
    return [moved(box, move) for box, move in zip(wanted, moves, strict=True)]


_REFERENCE = re.compile(r"url\(#([^)]+)\)")


def _for_page(text: str, chart: Chart) -> str:
    """Turn matplotlib's file into an element of the page: unique ids, the page's colours, title and text."""
    root = ElementTree.fromstring(text)
    name = f"chart-{chart.name}"
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        for qualified in list(element.attrib):
            value = element.attrib.pop(qualified)
            key = qualified.rpartition("}")[2]
            if key == "id":
                value = f"{name}-{value}"
            elif key == "href":
                value = f"#{name}-{value.removeprefix('#')}"
            value = _REFERENCE.sub(rf"url(#{name}-\1)", value)
            for role, colour in _COLOURS.items():
                value = value.replace(colour, f"var(--{role})")
            element.set(key, value)
        if element.tag == "g" and element.get("id", "").startswith(f"{name}-label-"):
            element.set("class", "label")
    root.attrib.clear()
    root.attrib.update(
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {WIDTH:g} {HEIGHT:g}",
            "role": "img",
            "aria-labelledby": f"{name}-title {name}-desc",
            "class": "chart",
        }
    )
    for index, (tag, content) in enumerate((("title", chart.title), ("desc", chart.description))):
        element = ElementTree.Element(tag, {"id": f"{name}-{tag}"})
        element.text = content
        root.insert(index, element)
    return ElementTree.tostring(root, encoding="unicode")


LABEL_HEIGHT = 13.5
LABEL_STEP = 2.5
FARTHEST = 48.0
DOT = 4.5
SAMPLE = 6.0
LABEL_COST, DOT_COST, LINE_COST = 20.0, 4.0, 1.0
FAR = 7.0
"""Distance, in points, that costs as much as one crossing of a line."""


def apart(wanted: Sequence[float], gap: float, top: float) -> list[float]:
    """Return ascending places near the wanted ones, with a gap between any two, below `top` if they fit."""
    places: list[float] = []
    for place in wanted:
        places.append(max(place, places[-1] + gap) if places else place)
    limit = top
    for index in reversed(range(len(places))):
        places[index] = min(places[index], limit)
        limit = places[index] - gap
    return places


class Box(NamedTuple):
    """A rectangle, in points from the lower left."""

    left: float
    right: float
    low: float
    high: float

    def meets(self, other: Box) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.low < other.high
            and other.low < self.high
        )


def place(
    wanted: Sequence[Box], paths: Sequence[Sequence[tuple[float, float]]], bottom: float, top: float
) -> list[float]:
    """Return how far up each label moves, in points, to avoid other labels, dots and lines.

    Args:
        wanted: The best places of the labels. The first ones choose first.
        paths: The dots of each line.
        bottom: The least height of a label's middle.
        top: The greatest height of a label's middle.
    """
    marks = _marks(paths)
    moves = []
    for box in wanted:
        middle = (box.low + box.high) / 2

        def cost(move: float, box: Box = box) -> float:
            shifted = moved(box, move)
            return abs(move) / FAR + sum(price for mark, price in marks if shifted.meets(mark))

        best = min([move for move in _tries() if bottom <= middle + move <= top] or [0.0], key=cost)
        moves.append(best)
        marks.append((moved(box, best), LABEL_COST))
    return moves


def clearest(
    wanted: Sequence[Box], paths: Sequence[Sequence[tuple[float, float]]], taken: Sequence[Box]
) -> Box:
    """Return the place for a label that covers the least: of equals the first.

    Args:
        wanted: The places that it may have; at least one.
        paths: The dots of each line.
        taken: The places of other labels.
    """
    marks = [*_marks(paths), *((box, LABEL_COST) for box in taken)]
    return min(wanted, key=lambda box: sum(price for mark, price in marks if box.meets(mark)))


def _marks(paths: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[Box, float]]:
    """Return what the dots and lines cover, with what it costs to cover it."""
    marks = [(_around(x, y, DOT), DOT_COST) for path in paths for x, y in path]
    return marks + [(_around(x, y, 1.0), LINE_COST) for path in paths for x, y in _along(path)]


def _around(x: float, y: float, reach: float) -> Box:
    return Box(x - reach, x + reach, y - reach, y + reach)


def _along(path: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield points on the line between its dots."""
    for (x0, y0), (x1, y1) in itertools.pairwise(path):
        count = int(max(abs(x1 - x0), abs(y1 - y0)) / SAMPLE)
        for index in range(1, count):
            yield x0 + (x1 - x0) * index / count, y0 + (y1 - y0) * index / count


def moved(box: Box, up: float) -> Box:
    return box._replace(low=box.low + up, high=box.high + up)


def _tries() -> Iterator[float]:
    yield 0.0
    for step in range(1, int(FARTHEST / LABEL_STEP) + 1):
        yield step * LABEL_STEP
        yield -step * LABEL_STEP
