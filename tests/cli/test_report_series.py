"""Series, medians, speed-up and efficiency: what may be compared, and how."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.commands.report import page, words
from cli.commands.report.series import Series, Spread, group, ranked
from tests.support.report_records import local, record, runs

TIMES = st.floats(0.01, 1e5)


def only(*records: dict[str, Any]) -> Series:
    (one,) = group(runs(*records))
    return one


def up(one: Series, nodes: int) -> Spread:
    point = one.point(nodes)
    assert point is not None
    found = one.speed_up(point)
    assert found is not None
    return found


def test_repeats_are_one_point_by_their_median() -> None:
    one = only(*(record(1, s) for s in (80, 88, 160)), *(record(4, s) for s in (20, 24, 40)))
    assert [(p.nodes, len(p.runs)) for p in one.points] == [(1, 3), (4, 3)]
    assert one.points[0].seconds_per_epoch == Spread(11, 10, 20, 3)
    assert up(one, 4) == Spread(88 / 24, 88 / 40, 88 / 20, 3)
    efficiency = one.efficiency(one.points[1])
    assert efficiency is not None
    assert efficiency.median == pytest.approx(88 / 24 / 4)


@pytest.mark.parametrize(
    "change",
    [
        {"profile": "published"},
        {"data": "digits-synthetic"},
        {"epochs": 2},
        {"global_batch": 256},
        {"machine": "m4.large"},
        {"partition": "other"},
        {"pool": "spot"},
        {"gpus_per_node": 1},
        {"workers": 4, "global_batch": 256},
        {"digest": "0" * 64},
        {"digest": None},
    ],
    ids=str,
)
def test_whatever_differs_is_another_series(change: dict[str, Any]) -> None:
    found = group(runs(record(2), record(2, **change)))
    assert [len(one.points) for one in found] == [1, 1]
    assert all(len(point.runs) == 1 for one in found for point in one.points)


def test_stacks_are_series_of_their_own() -> None:
    both = [*runs(record(1), stack="a"), *runs(record(2), stack="b")]
    assert [one.key.stack for one in group(both)] == ["a", "b"]


@pytest.mark.parametrize(
    "change", [{"loss": 0.5, "accuracy": 0.5}, {"job_id": "9"}, {"cost_usd": None}, {"restarts": 1}], ids=str
)
def test_what_a_run_comes_to_does_not_part_it(change: dict[str, Any]) -> None:
    assert len(only(record(2), record(2, **change)).points[0].runs) == 2


def test_batch_is_compared_a_worker() -> None:
    assert [p.nodes for p in only(record(1), record(2), record(8)).points] == [1, 2, 8]


def test_without_one_node_there_is_no_speed_up() -> None:
    one = only(record(2, 40), record(4, 20))
    assert [one.speed_up(point) for point in one.points] == [None, None]
    assert [one.efficiency(point) for point in one.points] == [None, None]


def test_a_time_of_zero_is_no_measurement() -> None:
    one = only(record(1, 0.0), record(2, 10.0))
    assert one.points[0].seconds_per_epoch is None
    assert one.speed_up(one.points[1]) is None
    both = only(record(1, 0.0), record(1, 8.0), record(2, 4.0))
    assert up(both, 2).median == 2


def test_what_is_not_known_is_left_out_of_the_median() -> None:
    one = only(record(2, cost_usd=None), record(2, cost_usd=0.4, seconds=70.0, seconds_total=70.0))
    spread = one.points[0].of("cents_per_epoch")
    assert spread == Spread(5.0, 5.0, 5.0, 1)


def test_pretended_prices_are_no_cost() -> None:
    (run,) = runs(local(cost_usd=0.5))
    assert run.cents_per_epoch is None
    (paid,) = runs(record(2, 80.0, seconds_total=100.0, cost_usd=1.0))
    assert paid.cents_per_epoch == pytest.approx(10.0)  # 80 of 100 seconds, of eight epochs


@given(st.lists(TIMES, min_size=1, max_size=5), st.lists(TIMES, min_size=1, max_size=5), st.integers(2, 64))
def test_speed_up_and_efficiency(alone: list[float], together: list[float], nodes: int) -> None:
    one = only(*(record(1, t) for t in alone), *(record(nodes, t) for t in together))
    base = one.point(1)
    assert base is not None
    assert up(one, 1).median == pytest.approx(1)
    found, efficiency = up(one, nodes), one.efficiency(one.points[1])
    assert efficiency is not None
    assert found.low <= found.median * (1 + 1e-9)
    assert found.median <= found.high * (1 + 1e-9)
    assert found.count == len(together)
    assert efficiency.median * nodes == pytest.approx(found.median)
    # The speed-up stays the same if all runs are twice as fast.
    halved = only(*(record(1, t / 2) for t in alone), *(record(nodes, t / 2) for t in together))
    assert up(halved, nodes).median == pytest.approx(found.median)


@given(st.permutations([record(n, 80 / n) for n in (1, 1, 2, 4)]))
def test_the_order_of_runs_does_not_count(records: list[dict[str, Any]]) -> None:
    one = only(*records)
    assert [(p.nodes, len(p.runs)) for p in one.points] == [(1, 2), (2, 1), (4, 1)]
    assert up(one, 4).median == 4


def test_stacks_take_turns_and_the_longest_series_leads() -> None:
    a = group(runs(record(1), record(1, epochs=2), record(2, epochs=2), record(1, epochs=3), stack="a"))
    b = group(runs(record(1, epochs=4), stack="b"))
    assert [(s.key.stack, s.key.epochs) for s in ranked([*a, *b])] == [("a", 2), ("b", 4), ("a", 3), ("a", 8)]


@pytest.mark.parametrize(
    ("change", "comparable"),
    [
        ({}, True),
        ({"profile": "published"}, True),
        ({"profile": "local-sgd"}, False),
        ({"data": "digits-synthetic"}, False),
        ({"epochs": 7}, False),
        ({"global_batch": 256}, False),
    ],
    ids=str,
)
def test_what_may_stand_beside_published_accuracy(change: dict[str, Any], comparable: bool) -> None:
    (run,) = runs(record(2, **change))
    assert run.comparable is comparable


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, True),
        ({"cores": 4}, False),
        ({"cores": 1, "cores_shared": True}, False),
        ({"cores_others": 0.3}, False),
        ({"cores_others": 0.09}, True),
        ({"cores_others": None}, True),
    ],
    ids=str,
)
def test_local_nodes_are_compared_with_nodes_alike_only(change: dict[str, Any], told: bool) -> None:
    """A node of 1 CPU that ran on two cores was the base: more nodes looked no faster, by luck."""
    found = group(runs(local(1, 60.0), local(2, 40.0, **change)))
    ups = [up.median for one in found if (up := one.speed_up(one.points[-1])) and one.points[-1].nodes == 2]
    assert ups == ([pytest.approx(1.5)] if told else [])
    assert len(found) == (1 if told else 2)
    notes = " ".join(page.notes(page.Shown(runs(local(2, **change)), [found[-1]], [])))
    assert ("has no speed-up" in notes) == found[-1].uneven


def test_two_runs_beside_other_programs_are_not_compared_either() -> None:
    (one,) = group(runs(local(1, 60.0, cores_others=0.2), local(2, 40.0, cores_others=0.7)))
    assert (one.uneven, one.speed_up(one.points[1]), one.efficiency(one.points[1])) == (True, None, None)


def test_runs_beside_other_programs_are_one_series_whatever_their_cores() -> None:
    """One node alone and two that shared a core: what disturbed both is the same, and so is the answer."""
    found = runs(
        local(1, 60.0, cores=1, cores_shared=False, cores_others=0.3),
        local(2, 50.0, cores=1, cores_shared=True, cores_others=0.6),
    )
    (one,) = group(found)
    assert words.how_cores(one) == "nodes that shared cores, other programs on the cores"
    assert any("On a quiet machine" in text for text in page.notes(page.Shown(found, [one], [])))
    shown = {figure.label: (figure.value, figure.note) for figure in page.figures(found, [one])}
    assert shown["Fastest epoch"][0] == "–"
    assert "quiet machine" in shown["Fastest epoch"][1]
    assert "Images a second" not in shown
    quiet = runs(local(1, 60.0), local(2, 50.0, cores_others=0.6))
    (figure,) = [one for one in page.figures(quiet, group(quiet)) if one.label == "Fastest epoch"]
    assert figure.note.endswith(words.count(1, "node")), "the faster one was disturbed, so it is no record"


def test_a_machine_of_a_cloud_belongs_to_its_run() -> None:
    (one,) = group(runs(record(1, 60.0), record(2, 40.0, cores_others=0.3)))
    assert not one.uneven
    assert one.speed_up(one.points[1]) is not None


def test_nothing_is_predicted_of_nodes_that_share_one_memory() -> None:
    times = {"average_every": 16, "step_seconds": 0.05, "exchange_seconds": 0.08}
    (here,), (cloud,) = (group(runs(of(1), of(2, **times))) for of in (local, record))
    assert here.predicted(4) is None
    assert cloud.predicted(4) is not None
    here_and_there = [page.notes(page.Shown([], [one], [])) for one in (here, cloud)]
    assert [any("predicted" in text for text in texts) for texts in here_and_there] == [False, True]


def test_what_one_machine_allows_follows_from_steps_alone_and_beside_others() -> None:
    """The steps of docs/benchmark.md: 17.0 ms alone, 20.9 ms on each of two nodes."""
    alone, beside = local(1, step_seconds=0.017), local(2, step_seconds=0.0209)
    one = only(alone, beside, local(4, step_seconds=None))
    assert [one.allowed(point) for point in one.points] == [1.0, pytest.approx(1.627, abs=1e-3), None]
    others = (
        only(record(1, step_seconds=0.017), record(2, step_seconds=0.0209)),  # machines of their own
        only(beside),
        only(local(1, step_seconds=None), beside),
        only(*(local(n, cores=1, cores_shared=True) for n in (1, 2))),
        only(*(local(n, cores_others=0.5) for n in (1, 2))),
    )
    assert [other.allowed(other.points[-1]) for other in others] == [None] * len(others)
    noted = ["machine allows" in " ".join(page.notes(page.Shown([], [item], []))) for item in (one, *others)]
    assert noted == [True, *[False] * len(others)]


def test_the_fastest_figures_say_that_they_are_medians() -> None:
    one, several = (runs(record(2, 64.0)), runs(record(2, 64.0), record(2, 80.0), record(2, 48.0)))
    notes = [
        {figure.label: figure.note.replace(words.SPACE, " ") for figure in page.figures(own, group(own))}
        for own in (one, several)
    ]
    for label in ("Fastest epoch", "Images a second"):
        assert [found[label] for found in notes] == ["test, 2 nodes", "median of 3 runs: test, 2 nodes"]
