"""Who has used a machine: parts that add up, whatever the jobs and the clocks do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from math import fsum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.billing.shares import FOREVER, Kind, Part, Run, share, split
from node.elastic.machine_record import MachineLife

NODE = MachineLife("m-1", "gpu-0", "gpu", 0.0, 1000.0, 1000.0, 3.6, 8, 8000, "gpu", 4)
HALF = Run("1", "ann", "physics", ("gpu-0",), 100.0, 900.0, cpus=4, surely_ran=True)


def of(lives: list[MachineLife], *runs: Run, **more: object) -> dict[tuple[str, str], float]:
    """Return the seconds of each machine's parts by the job, or by the kind."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for part in split(lives, runs, **more):  # type: ignore[arg-type]
        found[part.life.id, part.run.job if part.run else part.kind] += part.seconds
    return dict(found)


@pytest.mark.parametrize(
    ("run", "part"),
    [
        (replace(HALF, cpus=2), 0.25),
        (replace(HALF, cpus=2, memory_mib=4000), 0.5),
        (replace(HALF, cpus=2, memory_mib=4000, gres={"gpu": 4.0}), 1.0),
        (replace(HALF, cpus=2, gres={"neuron": 4.0}), 0.25),
        (replace(HALF, cpus=99), 1.0),
        (replace(HALF, cpus=0), 0.0),
    ],
)
def test_a_share_is_the_largest_of_cpus_memory_and_devices(run: Run, part: float) -> None:
    assert share(run, NODE) == pytest.approx(part)


def test_a_node_whose_size_nobody_knows_is_the_jobs() -> None:
    assert share(HALF, replace(NODE, cpus=0, memory_mib=0, devices=0)) == 1.0


def test_what_nobody_has_is_idle() -> None:
    assert of([NODE], HALF) == {("m-1", "1"): 400.0, ("m-1", "idle"): 600.0}


def test_jobs_that_share_a_node_never_have_more_than_it() -> None:
    memory = replace(HALF, job="2", cpus=1, memory_mib=6000)
    found = of([NODE], replace(HALF, cpus=6), memory)
    assert found == {
        ("m-1", "1"): pytest.approx(400.0),
        ("m-1", "2"): pytest.approx(400.0),
        ("m-1", "idle"): pytest.approx(200.0),
    }


def test_a_suspended_job_and_the_one_that_took_its_place_share_the_node() -> None:
    whole, urgent = replace(HALF, cpus=8), replace(HALF, job="2", cpus=8, start=400.0, end=600.0)
    found = of([NODE], whole, urgent)
    assert found["m-1", "1"] == pytest.approx(700.0)
    assert found["m-1", "2"] == pytest.approx(100.0)


def test_each_run_of_a_requeued_job_counts_on_its_machine() -> None:
    second = replace(NODE, id="m-2", launched=2000.0, ended=3000.0)
    again = replace(HALF, start=2100.0, end=2200.0, cpus=8)
    found = of([NODE, second], replace(HALF, cpus=8), again)
    assert (found["m-1", "1"], found["m-2", "1"]) == (800.0, 100.0)


def test_tasks_of_arrays_and_parts_of_het_jobs_are_jobs() -> None:
    found = of([NODE], *(replace(HALF, job=name, cpus=2) for name in ("7_1", "7_2", "8+0", "8+1")))
    assert found == {("m-1", name): 200.0 for name in ("7_1", "7_2", "8+0", "8+1")} | {("m-1", "idle"): 200.0}


def test_a_job_that_runs_counts_until_now() -> None:
    assert of([NODE], replace(HALF, end=None, cpus=8), running={"m-1"}) == {
        ("m-1", "1"): 900.0,
        ("m-1", "idle"): 100.0,
    }


def test_a_run_whose_end_was_lost_stays_on_its_machine() -> None:
    second = replace(NODE, id="m-2", launched=2000.0, ended=3000.0)
    found = of([NODE, second], replace(HALF, end=None, cpus=8))
    assert ("m-2", "1") not in found


def test_a_job_of_several_nodes_counts_on_each() -> None:
    other = replace(NODE, id="m-2", node="gpu-1")
    found = of([NODE, other], replace(HALF, nodes=("gpu-0", "gpu-1", "gone-0"), cpus=8))
    assert found["m-1", "1"] == found["m-2", "1"] == 800.0


def test_a_machine_that_never_registered_is_a_failed_boot_whatever_waited_for_it() -> None:
    dead, good = replace(NODE, registered=False), replace(NODE, id="m-2", launched=1000.0, ended=2000.0)
    waited = replace(HALF, cpus=8, start=50.0, end=1500.0, surely_ran=False)
    assert of([dead, good], waited) == {
        ("m-1", "failed boots"): 1000.0,
        ("m-2", "1"): 500.0,
        ("m-2", "idle"): 500.0,
    }


def test_a_machine_that_nobody_saw_up_and_that_a_job_ran_on_did_not_fail() -> None:
    assert of([replace(NODE, registered=False)], HALF) == of([NODE], HALF)


def test_a_machine_that_boots_is_idle() -> None:
    boots = replace(NODE, registered=False)
    assert of([boots], replace(HALF, surely_ran=False), running={"m-1"}) == {("m-1", "idle"): 1000.0}


def test_the_minute_that_a_cloud_bills_at_least_is_nobodys() -> None:
    short = replace(NODE, ended=20.0, seconds=60.0)
    assert of([short], replace(HALF, start=0.0, end=20.0, cpus=8)) == {
        ("m-1", "1"): 20.0,
        ("m-1", "idle"): 40.0,
    }


def test_an_end_that_was_seen_late_leaves_the_run_on_the_machine_before() -> None:
    late, second = replace(NODE, ended=1030.0, seconds=1030.0), replace(NODE, id="m-2", launched=1010.0)
    second = replace(second, ended=2000.0, seconds=990.0)
    found = of([late, second], replace(HALF, cpus=8, end=1000.0))
    assert found["m-1", "1"] == 900.0
    assert ("m-2", "1") not in found


def test_a_run_that_began_in_the_second_of_its_machines_launch_did_not_run_on_the_one_before() -> None:
    """Local machines boot within a second."""
    dead = replace(NODE, launched=10.5, ended=11.3, seconds=0.8, registered=False)
    good = replace(NODE, id="m-2", launched=11.4, ended=100.0, seconds=88.6)
    found = of([dead, good], replace(HALF, cpus=8, start=11.0, end=50.0))
    assert found["m-1", "failed boots"] == pytest.approx(0.8)
    assert found["m-2", "1"] == pytest.approx(38.6)


# --- whatever happens -------------------------------------------------------------------------------------

times = st.floats(0, 5000) | st.integers(0, 5000).map(float)
amounts = st.floats(0, 20) | st.integers(0, 20).map(float)


@st.composite
def machines(draw: st.DrawFn) -> MachineLife:
    launched = draw(times)
    # A clock that was set back may have a machine end before its launch.
    ended = draw(times)
    seconds = max(draw(st.sampled_from([0.0, 60.0])), ended - launched)
    node = draw(st.sampled_from(["gpu-0", "gpu-1"]))
    return MachineLife(
        "", node, "gpu", launched, ended, seconds, 1.0,
        draw(st.integers(0, 8)), draw(st.integers(0, 16)), draw(st.sampled_from(["", "gpu"])),
        draw(st.integers(0, 4)), draw(st.booleans()),
    )  # fmt: skip


@st.composite
def jobs(draw: st.DrawFn) -> Run:
    return Run(
        draw(st.sampled_from(["1", "2_1", "3+0"])), "ann", "physics",
        tuple(draw(st.lists(st.sampled_from(["gpu-0", "gpu-1", "other-0"]), max_size=3))),
        draw(times), draw(st.none() | times), draw(amounts), draw(amounts), {"gpu": draw(amounts)},
        draw(st.booleans()),
    )  # fmt: skip


fleets = st.lists(machines(), max_size=6).map(
    lambda lives: [replace(life, id=f"m-{number}") for number, life in enumerate(lives)]
)


def seconds_of(parts: list[Part]) -> dict[str, float]:
    found: dict[str, list[float]] = defaultdict(list)
    for part in parts:
        found[part.life.id].append(part.seconds)
    return {machine: fsum(seconds) for machine, seconds in found.items()}


def sums_of(parts: Iterable[Part]) -> dict[object, float]:
    """Return the seconds of each job on each machine, and of all that no job had."""
    found: dict[object, float] = defaultdict(float)
    for part in parts:
        found[part.life.id, part.kind, part.run and part.run.job] += part.seconds
    return found


@given(fleets, st.lists(jobs(), max_size=8), st.sets(st.sampled_from(["m-0", "m-1"])))
def test_the_parts_of_each_machine_are_what_it_ran(
    lives: list[MachineLife], runs: list[Run], running: set[str]
) -> None:
    parts = [*split(lives, runs, running)]
    assert all(part.seconds > 0 for part in parts)
    assert all((part.run is not None) == (part.kind is Kind.JOBS) for part in parts)
    assert seconds_of(parts) == pytest.approx(
        {life.id: life.seconds for life in lives if life.seconds > 0}, rel=1e-9, abs=1e-6
    )


@given(fleets, st.lists(jobs(), max_size=8), times, times)
def test_the_bills_of_two_periods_are_the_bill_of_both(
    lives: list[MachineLife], runs: list[Run], one: float, other: float
) -> None:
    middle, end = sorted((one, other))
    whole = sums_of(split(lives, runs, until=end))
    halves = sums_of([*split(lives, runs, until=middle), *split(lives, runs, since=middle, until=end)])
    assert halves == pytest.approx(whole, rel=1e-9, abs=1e-6)


@given(fleets, st.lists(jobs(), max_size=8))
def test_no_run_has_more_than_its_own_time_on_a_node(lives: list[MachineLife], runs: list[Run]) -> None:
    for part in split(lives, runs):
        if part.run is not None:
            overlap = min(part.run.until, part.life.ended) - max(part.run.start, part.life.launched)
            assert part.seconds <= overlap * share(part.run, part.life) + 1e-6
            assert part.life.node in part.run.nodes


@given(fleets, st.lists(jobs(), max_size=8), st.randoms())
def test_the_order_of_what_is_read_does_not_matter(
    lives: list[MachineLife], runs: list[Run], random: object
) -> None:
    ordered = sums_of(split(lives, runs))
    random.shuffle(lives)  # type: ignore[attr-defined]
    random.shuffle(runs)  # type: ignore[attr-defined]
    assert sums_of(split(lives, runs)) == pytest.approx(ordered, rel=1e-9, abs=1e-6)


@given(fleets, st.lists(jobs(), max_size=8), st.floats(-1e6, 1e6))
def test_the_time_of_day_does_not_matter(lives: list[MachineLife], runs: list[Run], later: float) -> None:
    def moved(run: Run) -> Run:
        return replace(run, start=run.start + later, end=None if run.end is None else run.end + later)

    shifted = [replace(life, launched=life.launched + later, ended=life.ended + later) for life in lives]
    before = seconds_of([*split(lives, runs, since=-FOREVER)])
    assert seconds_of([*split(shifted, map(moved, runs))]) == pytest.approx(before, rel=1e-6, abs=1e-3)
