"""Draws charts as SVG elements for a page. Their colours are the page's variables, for light and dark mode.

Matplotlib computes the picture. Its global state, the user's settings and the clock have no effect, so equal
charts give equal text. Importing matplotlib takes long, so only the drawing function imports it.
"""

from __future__ import annotations

import io
import logging
import math
import os
import re
import warnings
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from cli.commands.report.charts import Chart, Line
from infra.program.locations import cache_root

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


WIDTH, PLOT_HEIGHT = 400.0, 250.0
"""The size of a picture without its legend."""
PAD = 5 / 72
"""The space around the plot and its legend, in inches."""
FONT_SIZE = 12.0
"""The size in units of WIDTH. It is ten pixels if the picture is as wide as a phone."""
LETTER, HANDLE, ROW = 0.58 * FONT_SIZE, 48.0, 18.0
"""In the legend: the width of a letter, that of a line with the gaps beside it, and the height of a name."""
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


def svg(chart: Chart) -> str:
    """Return the chart as one `<svg>` element. Its ids begin with the chart's name."""
    # Its caches go beside ours. Its messages about caches and unknown glyphs are of no use to the reader.
    os.environ.setdefault("MPLCONFIGDIR", str(cache_root() / "matplotlib"))
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matplotlib.rcdefaults()
        settings: Any = {**_SETTINGS, "svg.hashsalt": chart.name}
        matplotlib.rcParams.update(settings)
        height = PLOT_HEIGHT + math.ceil(_names(chart) / _columns(chart)) * ROW
        figure = Figure(
            (WIDTH / 72, height / 72), dpi=72, layout=ConstrainedLayoutEngine(h_pad=PAD, w_pad=PAD)
        )
        FigureCanvasSVG(figure)
        _draw(figure, chart)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata=DATE_FREE)
    return _for_page(buffer.getvalue(), chart)


def _names(chart: Chart) -> int:
    """Return how many names the legend has."""
    return len(chart.lines) + (chart.ideal is not None)


def _columns(chart: Chart) -> int:
    """Return how many names of the legend are beside each other."""
    return max(1, int(WIDTH / (max(len(line.label) for line in chart.lines) * LETTER + HANDLE)))


def _draw(figure: Figure, chart: Chart) -> None:
    xs = [dot.x for line in chart.lines for dot in line.dots]
    first, last = min(xs), max(xs)
    axes = figure.add_subplot()
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
    ideal = chart.ideal is not None and last > first
    if ideal:
        _ideal(axes, chart, first, last)
    for index, line in enumerate(chart.lines):
        # Ours lie above the others.
        _line(axes, line, index, 4 if line.style.strong else 3)
    _legend(figure, chart, ideal)


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
    axes.plot(xs, ys, color=_COLOURS["muted"], linewidth=1, dashes=(1, 2.5), zorder=2, gid=IDEAL)


def _line(axes: Axes, line: Line, index: int, z: float) -> None:
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
        gid=f"line-{index}",
        **look,
    )


def _legend(figure: Figure, chart: Chart, ideal: bool) -> None:
    """Name the lines below the plot."""
    axes = figure.axes[0]
    drawn = {line.get_gid(): line for line in axes.lines}
    names = [(line.label, drawn[f"line-{index}"]) for index, line in enumerate(chart.lines)]
    names += [(IDEAL, drawn[IDEAL])] if ideal else []
    legend = figure.legend(
        [line for _, line in names],
        [name for name, _ in names],
        loc="outside lower left",
        ncols=_columns(chart),
        frameon=False,
        handlelength=2.4,
        columnspacing=1.4,
        borderpad=0,
        labelcolor=_COLOURS["ink"],
    )
    legend.set_gid("legend")


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
    view = root.attrib["viewBox"]
    root.attrib.clear()
    root.attrib.update(
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": view,
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
