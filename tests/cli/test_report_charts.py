"""The plots: which series share one, what is said of them, and the SVG as an element of a page."""

from __future__ import annotations

import itertools
import re
from typing import Any
from xml.etree import ElementTree

import pytest

from cli.commands.report import charts, draw, page, words
from cli.commands.report.charts import Chart, Dot, Line, Style
from cli.commands.report.runs import Run, published_runs
from cli.commands.report.series import group
from tests.support.report_records import local, record, runs

PUBLISHED = published_runs()
GPU = {"gpus_per_node": 1}


def plots(ours: list[Run], gpu: bool = False) -> dict[str, Chart]:
    """Return the plots over nodes by name, for our runs and the published ones of one group."""
    series = [s for s in (*group(ours), *group(PUBLISHED)) if s.any_run.gpu == gpu]
    entries, _ = charts.entries(series)
    return {chart.name: chart for chart in charts.over_nodes("x", entries)}


def names(chart: Chart) -> list[str]:
    return [line.label for line in chart.lines]


# --- what stands beside what -----------------------------------------------------------------------------


def test_ours_stand_beside_the_published_ones() -> None:
    found = plots(runs(record(1, 64), record(2, 40), stack="mine"))
    assert list(found) == ["x-time", "x-speed-up", "x-efficiency", "x-cost", "x-accuracy"]
    for chart in found.values():
        assert names(chart) == ["mine", "n1-standard-2", "m4.large", "c4.2xlarge"]
    assert found["x-time"].lines[0].dots == (Dot(1, 8, 8, 8), Dot(2, 5, 5, 5))
    assert found["x-time"].lines[2].dots[0] == Dot(1, *[381.350 / 8] * 3)


def test_the_line_to_beat_follows_from_the_times_of_step_and_exchange() -> None:
    """A step of 50 ms beside another worker, 40 ms alone; 5 ms a step for the exchange of two workers."""
    two = record(2, 40, average_every=16, step_seconds=0.05, exchange_seconds=0.08)
    found = plots(runs(record(1, 64), two, stack="mine"))
    line = found["x-speed-up"].lines[-1]
    assert line.label == "predicted"
    assert not line.style.strong
    assert [dot.x for dot in line.dots] == list(charts.PREDICTED_NODES)
    assert [dot.y for dot in line.dots[1:3]] == pytest.approx([2 * 0.04 / 0.055, 4 * 0.04 / 0.0575])
    assert names(found["x-time"])[-1] != "predicted"
    assert re.search(r"predicted, by nodes: 1: 1\.00?×", found["x-speed-up"].description)
    assert "The line “predicted” is" in " ".join(notes(two, record(1, 64)))
    in_step = runs({**two, "average_every": None})
    assert [run.scaling and run.scaling.every for run in in_step] == [1], "`sync` exchanges at every step"
    # A run that did not measure both times predicts nothing.
    unknown = {"average_every": None, "profile": "local-sgd"}
    for lacking in ({"exchange_seconds": None}, {"step_seconds": None}, unknown):
        other = {**two, **lacking}
        assert names(plots(runs(record(1, 64), other))["x-speed-up"])[-1] != "predicted"


def test_local_nodes_have_the_line_of_what_their_machine_allows() -> None:
    here = (local(1, 64, step_seconds=0.017), local(2, 40, step_seconds=0.0209))
    line = plots(runs(*here))["x-speed-up"].lines[-1]
    assert (line.label, line.style.strong) == ("machine allows", False)
    assert [(dot.x, dot.y) for dot in line.dots] == [(1, 1.0), (2, pytest.approx(1.627, abs=1e-3))]


@pytest.mark.parametrize("gpu", [False, True])
def test_synthetic_accuracy_never_stands_beside_the_published_one(gpu: bool) -> None:
    own = GPU if gpu else {}
    found = plots(runs(local(1, **own), local(2, **own), record(1, **own), record(2, **own)), gpu)
    beside, alone = found["x-accuracy"], found["x-accuracy-digits-synthetic"]
    assert [line.style.strong for line in alone.lines] == [True]
    assert names(alone) == ["test 2"]
    assert "test 2" not in names(beside)
    assert names(beside)[0] == "test 1"
    assert not any(line.style.strong for line in beside.lines[1:])
    assert "not to be compared" in alone.caption
    # Time and speed-up are of both.
    assert names(found["x-time"])[:2] == ["test 1", "test 2"]


@pytest.mark.parametrize("change", [{"epochs": 2}, {"global_batch": 256}, {"profile": "local-sgd"}], ids=str)
def test_another_recipe_on_mnist_stands_alone_too(change: dict[str, Any]) -> None:
    found = plots(runs(record(2, **change)))
    assert "test" not in names(found["x-accuracy"])
    assert names(found["x-accuracy-mnist"]) == ["test"]


def test_without_a_run_on_one_node_ours_has_no_speed_up() -> None:
    found = plots(runs(record(2), record(4)))
    assert names(found["x-time"])[0] == "test"
    for name in ("x-speed-up", "x-efficiency"):
        assert "test" not in names(found[name])
        assert found[name].lines


def test_pretended_prices_are_not_drawn() -> None:
    assert "test" not in names(plots(runs(local(cost_usd=3.0)))["x-cost"])


def test_series_that_are_too_many_are_said_to_be_missing() -> None:
    own = group(runs(*(record(1, epochs=e) for e in range(1, 7))))
    entries, rest = charts.entries(own)
    assert [e.label for e in entries] == ["test 1", "test 2", "test 3", "test 4"]
    assert len({e.style for e in entries}) == 4
    assert [s.key.epochs for s in rest] == [2, 1]
    assert page.notes(page.Shown([], [], rest)) == [
        "The plots show four series at most; the tables have all of them."
    ]


def test_looks_differ_by_more_than_colour() -> None:
    for gpu in (False, True):
        series = [s for s in group(PUBLISHED) if s.any_run.gpu == gpu]
        looks = [e.style for e in charts.entries(series)[0]]
        assert len({style.marker for style in looks}) == len({style.dashes for style in looks}) == len(looks)


def test_curves_are_a_series_own_by_nodes() -> None:
    (one,) = group(runs(record(1), record(1), record(4)))
    (entry,), _ = charts.entries([one])
    loss, accuracy = charts.over_epochs("e", entry)
    assert names(loss) == names(accuracy) == [words.count(1, "node"), words.count(4, "node")]
    assert [dot.x for dot in loss.lines[0].dots] == list(range(1, 9))
    assert loss.lines[0].dots[1].y == 0.2


def test_one_epoch_is_no_curve() -> None:
    (entry,), _ = charts.entries(group(runs(record(1, epochs=1))))
    assert charts.over_epochs("e", entry) == []


def test_of_many_numbers_of_nodes_some_curves_are_drawn() -> None:
    (entry,), _ = charts.entries(group(runs(*(record(n) for n in range(1, 21)))))
    loss, _ = charts.over_epochs("e", entry)
    assert len(loss.lines) == 6
    assert [line.label.split(words.SPACE)[0] for line in loss.lines][::5] == ["1", "20"]


# --- words -----------------------------------------------------------------------------------------------


def test_a_plot_says_what_it_shows_and_what_its_scale_is() -> None:
    found = plots(runs(record(1, 64.0), record(8, 16.0)))
    assert {name: (chart.title, chart.caption) for name, chart in found.items()} == {
        "x-time": ("Training time of one epoch", "Logarithmic scale."),
        "x-speed-up": ("Speed-up", "Over one node of the same series. Logarithmic scale."),
        "x-efficiency": ("Efficiency", "Speed-up a node."),
        "x-cost": (
            "Price of one epoch",
            "The nodes' training time, without start-up, controller and storage.",
        ),
        "x-accuracy": ("Accuracy", "On the training data after eight epochs on MNIST."),
    }
    assert "p3.2xlarge" in names(plots([], gpu=True)["x-cost"])  # retired: its last price


def test_headings() -> None:
    assert page.headline(["a"], runs(record(1)), []) == "Runs of stack a beside the published ones"
    assert page.headline(["a"], [], []) == "No results of stack a yet; these are the published ones"


def notes(*records: dict[str, Any]) -> list[str]:
    own = runs(*records)
    return page.notes(page.Shown(own, group(own), []))


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([record(1)], None),
        ([local(1)], "synthetic digits"),
        ([local(1)], "no network lies between them"),
        ([local(1), local(2, cores=1, cores_shared=True)], "nodes shared cores has no speed-up"),
        ([local(1), local(2, cores_others=0.4)], "a tenth or more of the cores’ time"),
        ([record(2)], "a series without a run on one node has none"),
        ([record(1), record(1, digest="0" * 64)], "never averaged"),
        ([record(1, restarts=2)], "after the last checkpoint"),
        ([record(1), record(1)], "whiskers"),
        ([record(1), record(2)], "Profile sync scales the learning rate"),
        ([record(1, epochs=2)], "first epoch is slower"),
        ([record(1, epochs=2)], "another recipe"),
    ],
)
def test_notes_name_what_a_reader_must_know(records: list[dict[str, Any]], said: str | None) -> None:
    assert notes(*records) == [] if said is None else said in " ".join(notes(*records))
    if said is not None:
        assert said not in " ".join(notes(record(1)))


@pytest.mark.parametrize(
    ("value", "seconds", "ratio", "usd"),
    [
        (1234.5, "1,234 s", "1,234×", "$1,234.50"),
        (99.96, "100 s", "100×", "$99.96"),
        (9.96, "9.96 s", "10×", "$9.96"),
        (1.0, "1.00 s", "1.0×", "$1.00"),
        (0.994, "0.99 s", "0.99×", "$0.994"),
        (0.0036, "0.00 s", "0.00×", "$0.0036"),
    ],
)
def test_figures_have_sensible_digits(value: float, seconds: str, ratio: str, usd: str) -> None:
    assert words.seconds(value).replace(words.SPACE, " ") == seconds
    assert (words.ratio(value), words.usd(value)) == (ratio, usd)


def test_a_kept_time_is_readable() -> None:
    assert words.when("20261121T141109Z") == "2026-11-21 14:11 UTC"
    assert words.when("strange") == "strange"


def test_every_kind_of_data_has_a_name() -> None:
    from workload.result import _CHOICES

    assert set(charts.DATA) == set(_CHOICES["data"])


# --- the picture -----------------------------------------------------------------------------------------


def simple(**changes: object) -> Chart:
    line = Line("a <b> & $x_1$ \N{SNOWMAN}", Style("s1", "o"), (Dot(1, 2.0, 1.5, 2.5), Dot(2, 4.0, 4.0, 4.0)))
    values: dict[str, Any] = {
        "name": "t",
        "title": "<t>",
        "measure": "M.",
        "x_label": "nodes",
        "unit": "seconds",
    }
    return Chart(**{**values, "lines": (line,), **changes})


def test_a_picture_is_an_element_with_the_pages_colours_and_its_own_ids() -> None:
    chart = simple(ideal="rising", unit="times")
    text = draw.svg(chart)
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.get("viewBox") == f"0 0 400 {draw.PLOT_HEIGHT + draw.ROW:g}"
    assert "width" not in root.attrib
    texts = {element.tag.rpartition("}")[2]: element.text for element in root}
    assert texts["title"] == "<t>"
    assert texts["desc"] == chart.description
    assert root.get("aria-labelledby") == "chart-t-title chart-t-desc"
    ids = [identity for e in root.iter() if (identity := e.get("id"))]
    assert len(ids) == len(set(ids))
    assert all(name.startswith("chart-t-") for name in ids)
    for reference in re.findall(r'(?:href="#|url\(#)([^")]+)', text):
        assert reference in ids
    assert "var(--s1)" in text
    assert not re.search(r"#0000[ab]\w", text)
    assert "".join(e.text or "" for e in root.iter("{http://www.w3.org/2000/svg}text")).count("$x_1$") == 1
    for absent in ("metadata", "<style", "http://www.w3.org/1999", "matplotlib.org", "<?xml", "DOCTYPE"):
        assert absent not in text


def test_equal_charts_are_equal_text_and_others_have_other_ids() -> None:
    assert draw.svg(simple()) == draw.svg(simple())
    ids = re.compile(r'id="([^"]+)"')
    assert not set(ids.findall(draw.svg(simple()))) & set(ids.findall(draw.svg(simple(name="u"))))


def test_drawing_leaves_matplotlibs_settings_as_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw.svg(simple())
    assert dict(matplotlib.rcParams) == before
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("unit", list(charts.UNITS))
@pytest.mark.parametrize("value", [1e-9, 0.5, 1.0, 99_999.0, 1e11])
def test_any_value_can_be_drawn(unit: charts.Unit, value: float) -> None:
    line = Line("a", Style("s1", "o"), (Dot(1, value, value, value), Dot(1000, value * 2, value, value * 3)))
    for from_zero in (True, False):
        assert "<svg" in draw.svg(simple(unit=unit, lines=(line,), from_zero=from_zero))


@pytest.mark.parametrize("unit", ["seconds", "share", "cents", "fraction"])
def test_zeros_and_single_dots_can_be_drawn(unit: charts.Unit) -> None:
    line = Line("a", Style("pub", "s", (2.0, 1.0), strong=False), (Dot(3, 0, 0, 0),))
    assert "<svg" in draw.svg(simple(unit=unit, lines=(line,), ideal="flat"))
    assert "<svg" in draw.svg(simple(unit=unit, lines=(line,), x_label="epoch", x_log=False))


def test_scales_are_logarithmic_where_a_linear_one_would_flatten_most() -> None:
    def of(unit: charts.Unit, *values: float) -> bool:
        dots = tuple(Dot(i + 1, v, v, v) for i, v in enumerate(values))
        return simple(unit=unit, lines=(Line("a", Style("s1", "o"), dots),)).log

    assert of("seconds", 1, 13)
    assert not of("seconds", 2, 13)
    assert not of("cents", 0, 13)
    assert of("times", 1, 2)
    assert not of("fraction", 0.01, 1)


SVG = "{http://www.w3.org/2000/svg}"


def path_of(root: ElementTree.Element, name: str) -> list[tuple[float, float]]:
    """The points of a drawn line."""
    (line,) = [e for e in root.iter(f"{SVG}g") if e.get("id") == f"chart-t-{name}"]
    text = line.find(f"{SVG}path").get("d", "")  # type: ignore[union-attr]
    numbers = [float(word) for word in text.replace("M", " ").replace("L", " ").split()]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


@pytest.mark.parametrize("x_log", [True, False])
@pytest.mark.parametrize("unit", ["times", "share", "fraction"])
@pytest.mark.parametrize("ideal", ["rising", "flat"])
def test_a_perfect_series_lies_on_the_ideal_line_whatever_the_scales(
    x_log: bool, unit: charts.Unit, ideal: Any
) -> None:
    values = [float(n) if ideal == "rising" else 1.0 for n in range(1, 21)]
    dots = tuple(Dot(n, y, y, y) for n, y in enumerate(values, 1))
    line = Line("x", Style("s1", "o"), dots)
    root = ElementTree.fromstring(draw.svg(simple(unit=unit, lines=(line,), ideal=ideal, x_log=x_log)))
    seen = path_of(root, "ideal")
    (series,) = (e for e in root.iter(f"{SVG}g") if e.get("id") == "chart-t-line-0")
    marks = [place_of(e) for e in series.iter(f"{SVG}use")]
    assert len(marks) == len(dots)
    for x, y in marks:
        (x0, y0), (x1, y1) = next(
            pair for pair in itertools.pairwise(seen) if pair[0][0] - 0.01 <= x <= pair[1][0] + 0.01
        )
        between = y0 + (y1 - y0) * (x - x0) / (x1 - x0) if x1 > x0 else y0
        assert abs(between - y) < 1.0, (x, y, between)


@pytest.mark.parametrize("last", [1.01, 4.4])
@pytest.mark.parametrize("name", ["mine", "m" * 16])
def test_the_legend_has_each_line_once_below_the_plot(last: float, name: str) -> None:
    two = record(2, 64 / min(last, 2), average_every=16, exchange_seconds=0.001)
    found = plots(runs(record(1, 64), two, record(4, 64 / last), stack=name))
    for chart in found.values():
        root = ElementTree.fromstring(draw.svg(chart))
        _, _, width, height = map(float, root.get("viewBox", "").split())
        (legend,) = (e for e in root.iter(f"{SVG}g") if e.get("id", "").endswith("-legend"))
        texts = [(e.text or "", *place_of(e)) for e in legend.iter(f"{SVG}text")]
        assert [said for said, *_ in texts] == [*names(chart), *["ideal"] * (chart.ideal is not None)]
        axis = max(place_of(e)[1] for e in root.iter(f"{SVG}text") if e.text == "number of nodes")
        for (one, x, y), (_, other, below) in itertools.combinations(texts, 2):
            assert abs(y - below) >= draw.FONT_SIZE or x + len(one) * draw.LETTER * 0.9 <= other
        assert all(x + len(said) * draw.LETTER * 0.9 <= width and axis < y <= height for said, x, y in texts)


def place_of(element: ElementTree.Element) -> tuple[float, float]:
    return float(element.get("x", "")), float(element.get("y", ""))


def test_the_plot_of_batch_is_of_the_same_kind() -> None:
    """Its ideal line was straight between a linear and a logarithmic scale: 3x at 8 machines."""
    from cli.providers.batch import report as batch

    mine = [batch.Row("ours", n, 8 * n, "p3dn.24xlarge", 700.0 * 8 * n) for n in (1, 2, 8)]
    chart = batch.chart(mine, batch.published())
    assert (chart.x_log, chart.log, chart.ideal) == (True, True, "rising")
    assert chart.title == "8 machines train 8.0× as fast as one"
    assert batch.chart([], batch.published()).title.startswith("Published: ")
    assert batch.chart(mine[1:], []).title == "8 machines train 4.0× as fast as 2"


def test_a_long_name_is_cut_to_fit() -> None:
    assert charts.short("x" * 60) == "x" * 15 + "…"
    assert charts.short("x" * 60, " 2") == "x" * 13 + "… 2"
    assert charts.short("local") == "local"
