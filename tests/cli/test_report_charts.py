"""The plots: which series share one, what the titles say, and the SVG as an element of a page."""

from __future__ import annotations

import itertools
import re
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.commands.report import charts, draw, page, words
from cli.commands.report.charts import Chart, Dot, Line, Style
from cli.commands.report.runs import Run, published_runs
from cli.commands.report.series import group
from tests.support.report_records import local, record, runs
from tests.support.wide import wide

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
    (note,) = [text for text in page.notes(runs(two), group(runs(two)), []) if "Where the time" in text]
    said = note.replace("\N{NO-BREAK SPACE}", " ").replace(words.SPACE, " ")
    assert "on 2 workers goes: 91 % computes" in said
    assert "A step takes 50.0 ms, an exchange every 16 steps 80.0 ms" in said
    in_step = runs({**two, "average_every": None})
    assert [run.scaling and run.scaling.every for run in in_step] == [1], "`sync` exchanges at every step"
    # A run that did not measure both times predicts nothing.
    unknown = {"average_every": None, "profile": "local-sgd"}
    for lacking in ({"exchange_seconds": None}, {"step_seconds": None}, unknown):
        other = {**two, **lacking}
        assert names(plots(runs(record(1, 64), other))["x-speed-up"])[-1] != "predicted"


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
        assert found[name].title.startswith("Published: ")


def test_pretended_prices_are_not_drawn() -> None:
    assert "test" not in names(plots(runs(local(cost_usd=3.0)))["x-cost"])


def test_series_that_are_too_many_are_said_to_be_missing() -> None:
    own = group(runs(*(record(1, epochs=e) for e in range(1, 7))))
    entries, rest = charts.entries(own)
    assert [e.label for e in entries] == ["test 1", "test 2", "test 3", "test 4"]
    assert len({e.style for e in entries}) == 4
    assert [s.key.epochs for s in rest] == [2, 1]
    (note,) = (text for text in page.notes([], [], rest) if "not in the plots" in text)
    assert "2 epochs" in note.replace(words.SPACE, " ")
    assert "1 epoch," in note.replace(words.SPACE, " ")


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


# --- titles ----------------------------------------------------------------------------------------------


def title(name: str, *records: dict[str, Any]) -> str:
    return plots(runs(*records))[name].title.replace(words.SPACE, " ")


def test_titles_are_statements_on_ours() -> None:
    both = (record(1, 64.0), record(8, 16.0, accuracy=0.98))
    assert title("x-time", *both) == "An epoch takes 8.00 s on 1 node, 2.00 s on 8 nodes"
    assert title("x-speed-up", *both) == "8 nodes train 4.0× as fast as one"
    assert title("x-efficiency", *both) == "Each of 8 nodes does 50 % of what one does alone"
    assert title("x-accuracy", *both) == "Accuracy is 0.9900 on 1 node, 0.9800 on 8 nodes"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (20.0, "2 nodes train 2.0× as fast as one"),
        (41.0, "2 nodes train about as fast as one"),
        (60.0, "2 nodes take 1.5× as long as one"),
    ],
)
def test_slower_is_said_as_slower(seconds: float, said: str) -> None:
    assert title("x-speed-up", record(1, 40.0), record(2, seconds)) == said


def test_titles_without_ours_are_on_the_articles() -> None:
    cpu, gpu = plots([]), plots([], gpu=True)
    said = {name: chart.title.replace(words.SPACE, " ") for name, chart in cpu.items()}
    assert said == {
        "x-time": "Published: two nodes are slower than one, on all 3 clusters",
        "x-speed-up": "Published: at best 3.9×, with 10 nodes",
        "x-efficiency": "Published: with the most nodes, each does 14 % to 39 % of one alone",
        "x-cost": "Published: an epoch is cheapest on one node",
        "x-accuracy": "Published: from 0.9994 on 1 node down to 0.9747 on 10 nodes",
    }
    assert gpu["x-speed-up"].title == "Published: more nodes are slower than one, 0.46× at best"
    assert "p3.2xlarge" in names(gpu["x-cost"])  # retired: its last price


def headline(*records: dict[str, Any], stacks: tuple[str, ...] = ("test",)) -> str:
    return page.headline(stacks, group(runs(*records))).replace(words.SPACE, " ")


def test_the_headline_of_a_local_stack_claims_no_more_than_it_may() -> None:
    assert headline(local(1, 60.0), local(2, 50.0)) == (
        "On one machine’s cores, 2 workers train 1.2× as fast as one"
    )
    shared = local(2, 50.0, cores=1, cores_shared=True)
    assert headline(local(1, 60.0), shared) == "2 nodes train an epoch in 25.0 s", "not compared with one"
    said = page.leads(["test"], group(runs(local(1), shared)), [])
    assert any("2 workers shared its 1 core" in text.replace(words.SPACE, " ") for text in said)
    (said_of_own,) = page.leads(["test"], group(runs(local(1), local(2))), [])
    assert "each with CPU cores of its own" in said_of_own
    busy = runs(local(1), local(2, cores_others=0.4))
    said = page.leads(["test"], group(busy), [])
    assert any("took up to 40 %" in text.replace(words.SPACE, " ") for text in said)
    assert not any("share" in text for text in page.leads(["test"], group(runs(record(1))), []))


def test_headlines() -> None:
    assert headline(record(1, 64.0), record(4, 20.0)) == "4 nodes train 3.2× as fast as one"
    assert headline(record(2, 64.0)) == "2 nodes train an epoch in 8.00 s"
    assert headline() == "No results of stack test yet; these are the published ones"


def test_the_same_machines_are_compared_in_words() -> None:
    said = page.leads(["test"], group(runs(record(1, 64.0), record(4, 16.0))), group(PUBLISHED))
    text = " ".join(said).replace(words.SPACE, " ")
    assert "2.00 s on 4 nodes of test; published for as many n1-standard-2: 26.2 s." in text
    said = page.leads(["test"], group(runs(record(2, 16.0, **GPU))), group(PUBLISHED))
    assert "n1-standard-2 with 1 V100: 20.0 s" in " ".join(said).replace(words.SPACE, " ")
    strange = page.leads(["test"], group(runs(record(2, machine="own.box"))), group(PUBLISHED))
    assert not any("published" in text for text in strange)


def test_notes_name_what_a_reader_must_know() -> None:
    def notes(*records: dict[str, Any]) -> str:
        own = runs(*records)
        return " ".join(page.notes(own, group(own), []))

    assert notes(record(1)) == ""
    assert "synthetic digits" in notes(local(1))
    assert "has no run on one node" in notes(record(2))
    assert "never averaged" in notes(record(1), record(1, digest="0" * 64))
    assert "after the last checkpoint" in notes(record(1, restarts=2))
    assert "whiskers" in notes(record(1), record(1))
    assert "Profile sync scales the learning rate" in notes(record(2))
    assert "Profile local-sgd is the default" in notes(record(2, profile="local-sgd", average_every=8))
    assert "local-sgd is the default" not in notes(record(1, profile="local-sgd"), record(2))


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
    assert root.get("viewBox") == "0 0 400 270"
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
    marks = [(float(e.get("x", "")), float(e.get("y", ""))) for e in root.iter(f"{SVG}use") if e.get("x")]
    for x, y in marks[-len(dots) :]:  # those before are the axes' ticks
        (x0, y0), (x1, y1) = next(
            pair for pair in itertools.pairwise(seen) if pair[0][0] - 0.01 <= x <= pair[1][0] + 0.01
        )
        between = y0 + (y1 - y0) * (x - x0) / (x1 - x0) if x1 > x0 else y0
        assert abs(between - y) < 1.0, (x, y, between)


def labels_of(chart: Chart) -> dict[str, draw.Box]:
    root = ElementTree.fromstring(draw.svg(chart))
    found = {}
    for element in root.iter(f"{SVG}g"):
        if "label" in element.get("class", ""):
            (text,) = element.iter(f"{SVG}text")
            x, y, said = float(text.get("x", "")), float(text.get("y", "")), text.text or ""
            found[said] = draw.Box(x, x + len(said) * draw.LETTER * 0.9, y - 9, y)
    return found


@pytest.mark.parametrize("last", [1.01, 2.0, 4.4, *wide(1.2, 1.6, 1.9, 2.2, 3.0, 3.9, 4.0)])
@pytest.mark.parametrize("exchange", [0.001, 0.4, *wide(0.02, 0.08)])
def test_no_two_names_of_a_plot_print_over_each_other(last: float, exchange: float) -> None:
    """Ours and the predicted line end near the ideal one: where "ideal" used to stand."""
    two = record(2, 64 / min(last, 2), average_every=16, exchange_seconds=exchange)
    four = record(4, 64 / last, average_every=16, exchange_seconds=exchange)
    for ours in ([record(1, 64), two], [record(1, 64), two, four]):
        found = plots(runs(*ours, stack="mine"))
        for name in ("x-speed-up", "x-efficiency"):
            boxes = labels_of(found[name])
            assert "ideal" in boxes
            for (one, a), (other, b) in itertools.combinations(boxes.items(), 2):
                assert not a.meets(b), (name, one, other)


@pytest.mark.parametrize("most", [1, 8, *wide(2, 4)])
@pytest.mark.parametrize("share", [1.0, 0.5, *wide(0.95, 0.8)])
def test_names_keep_apart_where_we_the_ideal_and_the_predicted_line_are_one(most: int, share: float) -> None:
    """With perfect scaling and no exchange all three lie on each other, up to their ends."""
    ours = [record(1, 64)]
    for nodes in (n for n in (2, 4, 8) if n <= most):
        ours.append(record(nodes, 64 / (nodes * share), average_every=16, exchange_seconds=0.0))
    found = plots(runs(*ours, stack="mine"))
    for name in ("x-speed-up", "x-efficiency"):
        boxes = labels_of(found[name])
        assert "ideal" in boxes
        assert all(box.low >= 0 and box.high <= draw.HEIGHT for box in boxes.values())
        for (one, a), (other, b) in itertools.combinations(boxes.items(), 2):
            assert not a.meets(b), (name, one, other)


def test_the_plot_of_batch_is_of_the_same_kind() -> None:
    """Its ideal line was straight between a linear and a logarithmic scale: 3x at 8 machines."""
    from cli.providers.batch import report as batch

    mine = [batch.Row("ours", n, 8 * n, "p3dn.24xlarge", 700.0 * 8 * n) for n in (1, 2, 8)]
    chart = batch.chart(mine, batch.published())
    assert (chart.x_log, chart.log, chart.ideal) == (True, True, "rising")
    assert chart.title == "8 machines train 8.0× as fast as one"
    assert batch.chart([], batch.published()).title.startswith("Published: ")
    assert batch.chart(mine[1:], []).title == "8 machines train 4.0× as fast as 2"


@given(st.lists(st.floats(-50, 300), min_size=1, max_size=8), st.floats(1, 20))
def test_labels_of_one_end_keep_their_order_and_a_gap(wanted: list[float], gap: float) -> None:
    places = draw.apart(sorted(wanted), gap, 240.0)
    assert all(b - a >= gap - 1e-6 for a, b in itertools.pairwise(places))
    assert places[-1] <= 240.0


def test_labels_go_out_of_each_others_way() -> None:
    boxes = [draw.Box(10, 60, 94, 106), draw.Box(30, 80, 96, 108)]
    moves = draw.place(boxes, [], 0, 200)
    assert moves[0] == 0
    first, second = (draw.moved(box, move) for box, move in zip(boxes, moves, strict=True))
    assert not first.meets(second)
    # A label also moves out of a line's way.
    (move,) = draw.place(boxes[:1], [[(0.0, 100.0), (300.0, 100.0)]], 0, 200)
    assert abs(move) >= 6


def test_a_long_name_is_cut_to_fit() -> None:
    assert charts.short("x" * 60) == "x" * 15 + "…"
    assert charts.short("x" * 60, " 2") == "x" * 13 + "… 2"
    assert charts.short("local") == "local"
