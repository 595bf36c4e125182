"""The budget: how many nodes may start, when it is used up, and that parallel launches never exceed it."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from node.design.local_cloud import CloudBehaviour
from node.design.model import Budget as Said
from node.design.model import ClusterDesign, Partition, SlurmSettings
from node.elastic.budget import Budget, amount, available_capacity, launch_seconds, summary, used_up
from node.elastic.driver import AvailableCapacity, LaunchGroup, Machine, MachineState
from node.elastic.failures import ErrorClass, Failure
from node.elastic.ledger import Account, Ledger
from tests.support.doubles import design

CHEAP = Partition("cheap", "small", 1, 100, 1, 40, price_hour=1.0)
DEAR = Partition("dear", "large", 1, 100, 0, 40, price_hour=36.0)
FREE = Partition("free", "local", 1, 100, 0, 40, price_hour=0.0)
LEAST = 100.0
"""The minimum seconds of a launch: an expensive node then costs 1 USD, a cheap one 1/36."""


def made(max_usd: float | None = None, max_hours: float | None = None, **changes: Any) -> ClusterDesign:
    return design(
        CHEAP,
        DEAR,
        FREE,
        budget=Said(max_usd, max_hours),
        slurm=SlurmSettings(suspend_time=98),
        **changes,
    )


def spent(usd: float = 0.0, hours: float = 0.0, running: tuple[tuple[str, float], ...] = ()) -> Account:
    return Account(usd, {"dear": hours} if hours else {}, (), running)


# account, underway, partition, wanted -> nodes
USD: list[tuple[str, Account, dict[str, int], str, int, int]] = [
    ("nothing is spent", spent(), {}, "dear", 4, 4),
    ("as many as the budget has launches", spent(), {}, "dear", 40, 10),
    ("and none for a launch's part", spent(0.01), {}, "dear", 40, 9),
    ("the last cent may be used", spent(9.0), {}, "dear", 1, 1),
    ("used up", spent(10.0), {}, "dear", 1, 0),
    ("exceeded", spent(12.0), {}, "dear", 1, 0),
    ("a cheaper partition still fits", spent(9.5), {}, "cheap", 40, 18),
    ("what costs nothing always does", spent(12.0), {}, "free", 40, 40),
    ("a fresh machine counts as a launch", spent(8.0, running=(("dear", 0.0),)), {}, "dear", 5, 1),
    ("an old one as its SuspendTime", spent(8.0, running=(("dear", 9999.0),)), {}, "dear", 5, 1),
    ("two leave no room", spent(8.0, running=(("dear", 0.0), ("dear", 0.0))), {}, "dear", 5, 0),
    ("one that is gone from the design is free", spent(8.0, running=(("old", 0.0),)), {}, "dear", 5, 2),
    ("launches under way count", spent(6.0), {"dear": 3}, "dear", 5, 1),
]


@pytest.mark.parametrize(
    ("account", "underway", "partition", "wanted", "count"), [c[1:] for c in USD], ids=[c[0] for c in USD]
)
def test_room_in_usd(
    account: Account, underway: dict[str, int], partition: str, wanted: int, count: int
) -> None:
    found = available_capacity(made(max_usd=10.0), account, underway, partition, wanted)
    assert found.count == count
    assert (found.failure is None) == (count == wanted)
    if found.failure is not None:
        assert (found.failure.kind, found.failure.nodes) == (ErrorClass.BUDGET, ())


def test_room_in_node_hours_and_the_nearer_of_two_limits() -> None:
    hours = 10 * LEAST / 3600
    assert available_capacity(made(max_hours=hours), spent(99.0), {}, "free", 40).count == 10
    both = made(max_usd=5.0, max_hours=hours)
    found = available_capacity(both, spent(), {}, "dear", 40)
    assert (found.count, found.failure and found.failure.code) == (5, "budget.max_usd in Pulumi.test.yaml")
    found = available_capacity(both, spent(), {}, "cheap", 40)
    assert (found.count, found.failure and found.failure.code) == (10, "budget.max_hours in Pulumi.test.yaml")
    assert available_capacity(made(), spent(1e9, 1e9), {}, "dear", 40) == AvailableCapacity(40), (
        "no limit is none"
    )


def test_the_sentence_says_what_is_spent_what_a_node_costs_and_the_cure() -> None:
    found = available_capacity(made(max_usd=2.0), spent(1.92, running=(("cheap", 5000.0),)), {}, "dear", 1)
    assert found.failure is not None
    assert found.failure.sentence() == (
        "budget: 1.92 of 2.00 USD are spent, the nodes that run will cost 0.027 more at least, one more node "
        "of dear costs 1.00 at least (budget.max_usd in Pulumi.test.yaml); raise it and run up again"
    )
    over = used_up(made(max_hours=2.0), spent(hours=2.5))
    assert over is not None
    assert over.sentence() == (
        "budget: 2.50 of 2.00 node-hours are spent (budget.max_hours in Pulumi.test.yaml); raise it and run "
        "up again"
    )
    assert used_up(made(max_usd=2.0, max_hours=9.0), spent(1.99, 8.9)) is None
    assert used_up(made(max_usd=2.0, max_hours=9.0), spent(2.0, 8.9)) is not None
    assert used_up(made(), spent(1e9, 1e9)) is None
    assert [amount(n) for n in (0, 0.00123, 0.5, 12.345)] == ["0.00", "0.0012", "0.50", "12.35"]


def test_a_launch_is_a_boot_and_the_time_until_an_idle_node_goes() -> None:
    assert launch_seconds(made()) == LEAST
    assert launch_seconds(made(local=CloudBehaviour(boot_delay=30))) == LEAST + 30
    aws = dataclasses.replace(made(), provider="aws", slurm=SlurmSettings(suspend_time=300))
    assert launch_seconds(aws) == 420
    assert launch_seconds(dataclasses.replace(aws, slurm=SlurmSettings(suspend_time=1))) >= 60


def test_the_summary_is_the_status() -> None:
    assert summary(made(), spent(5.0)) is None
    assert summary(made(max_usd=4.0), spent(5.0, 1.0)) == {
        "max_usd": 4.0, "max_hours": None, "left_usd": 0.0, "left_hours": None, "used": 1.25,
        "running_jobs": "keep",
    }  # fmt: skip
    both = summary(made(max_usd=4.0, max_hours=2.0), spent(1.0, 1.5))
    assert both is not None
    assert (both["left_usd"], both["left_hours"], both["used"]) == (3.0, 0.5, 0.75)


# --- properties ------------------------------------------------------------------------------------------

AMOUNTS = st.floats(0, 1e4, allow_nan=False)
PARTITIONS = st.sampled_from(["cheap", "dear", "free"])
RUNNING = st.lists(st.tuples(PARTITIONS, st.floats(0, 1e5)), max_size=5).map(tuple)
UNDERWAY = st.dictionaries(PARTITIONS, st.integers(0, 5), max_size=2)
LIMITS = st.tuples(
    st.none() | st.floats(0.001, 1e4, allow_nan=False), st.none() | st.floats(0.001, 1e4, allow_nan=False)
)


def at_least(running: tuple[tuple[str, float], ...], price: dict[str, float]) -> float:
    return sum(max(LEAST - age, 98.0) / 3600 * price[name] for name, age in running)


@examples(deadline=None)
@given(LIMITS, AMOUNTS, AMOUNTS, RUNNING, UNDERWAY, PARTITIONS, st.integers(0, 50))
def test_no_launch_that_is_admitted_passes_a_limit(
    limits: tuple[float | None, float | None],
    usd: float,
    hours: float,
    running: tuple[tuple[str, float], ...],
    underway: dict[str, int],
    partition: str,
    wanted: int,
) -> None:
    found = available_capacity(made(*limits), spent(usd, hours, running), underway, partition, wanted)
    assert 0 <= found.count <= wanted
    assert (found.failure is None) == (found.count == wanted)
    prices = {"cheap": 1.0, "dear": 36.0, "free": 0.0}
    for most, so_far, price in (
        (limits[0], usd, prices),
        (limits[1], hours, dict.fromkeys(prices, 1.0)),
    ):
        if most is None or not found.count or not price[partition]:
            continue
        total = so_far + at_least(running, price)
        total += sum(LEAST / 3600 * price[name] * n for name, n in underway.items())
        assert total + found.count * LEAST / 3600 * price[partition] <= most + 1e-6


@examples(deadline=None)
@given(LIMITS, AMOUNTS, AMOUNTS, RUNNING, PARTITIONS, st.integers(0, 50), st.floats(0, 100))
def test_room_is_monotone(
    limits: tuple[float | None, float | None],
    usd: float,
    hours: float,
    running: tuple[tuple[str, float], ...],
    partition: str,
    wanted: int,
    more: float,
) -> None:
    """More spending never allows more nodes, and a larger request or budget never allows fewer."""
    of = made(*limits)
    now = available_capacity(of, spent(usd, hours, running), {}, partition, wanted).count
    assert (
        available_capacity(of, spent(usd + more, hours + more, running), {}, partition, wanted).count <= now
    )
    assert (
        available_capacity(of, spent(usd, hours, (*running, ("dear", more))), {}, partition, wanted).count
        <= now
    )
    assert available_capacity(of, spent(usd, hours, running), {"dear": 1}, partition, wanted).count <= now
    assert available_capacity(of, spent(usd, hours, running), {}, partition, wanted + 1).count >= now
    larger = made(*(None if limit is None else limit + more for limit in limits))
    assert available_capacity(larger, spent(usd, hours, running), {}, partition, wanted).count >= now


STEPS = st.lists(st.tuples(PARTITIONS, st.integers(1, 8), st.booleans(), st.floats(0, 60)), max_size=30)


@examples(deadline=None, max_examples=40)
@given(STEPS)
def test_a_history_without_long_jobs_never_passes_the_budget(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, bool, float]]
) -> None:
    """Requests of any size come at any time. Each machine runs for as long as a launch is assumed to."""
    with world(tmp_path_factory.mktemp("budget"), 5.0) as (budget, ledger, clock):
        living: list[Machine] = []
        for number, (partition, count, whole, pause) in enumerate(steps):
            nodes = tuple(f"{partition}-{i}" for i in range(1, 40))[number : number + count]
            with budget.admission(LaunchGroup(partition, nodes, whole, f"t{number}")) as (allowed, _):
                names = allowed.nodes if allowed else ()
                budget.launched({node: f"{number}-{node}" for node in names})
            assert names in ((), nodes) or not whole
            living += [Machine(f"{number}-{n}", n, MachineState.RUNNING, clock[0]) for n in names]
            clock[0] += pause
            for machine in [m for m in living if clock[0] - m.launched >= LEAST]:
                # The pass that finds the machine gone comes in time: the cost of a late pass is not the
                # budget's concern.
                living.remove(machine)
                there = clock[0]
                clock[0] = machine.launched + LEAST
                ledger.see(living, clock[0])
                clock[0] = there
        assert ledger.account(clock[0]).usd <= 5.0 + 1e-6


# --- launches --------------------------------------------------------------------------------------------

World = tuple[Budget, Ledger, list[float]]


@contextlib.contextmanager
def world(folder: Path, max_usd: float) -> Iterator[World]:
    clock = [1e6]
    of = made(max_usd=max_usd)
    ledger = Ledger(folder / "ledger.json", of)
    yield Budget(of, ledger, lambda: clock[0]), ledger, clock


def wish(*nodes: str, whole: bool = False) -> LaunchGroup:
    return LaunchGroup(nodes[0].partition("-")[0], nodes, whole, "token")


def test_a_group_is_admitted_as_far_as_the_budget_reaches(tmp_path: Path) -> None:
    with world(tmp_path, 3.0) as (budget, _, _):
        with budget.admission(wish("dear-0", "dear-1")) as (allowed, failure):
            assert (allowed, failure) == (wish("dear-0", "dear-1"), None)
        with budget.admission(wish(*(f"dear-{i}" for i in range(5)))) as (allowed, failure):
            assert allowed is not None
            assert failure is not None
            assert (allowed.nodes, failure.nodes) == (("dear-0", "dear-1", "dear-2"), ("dear-3", "dear-4"))
            assert allowed.token != "token", "other nodes are another wish to the cloud"
        with budget.admission(wish(*(f"dear-{i}" for i in range(5)), whole=True)) as (allowed, failure):
            assert allowed is None
            assert failure is not None
            assert len(failure.nodes) == 5


def test_static_nodes_are_never_refused(tmp_path: Path) -> None:
    with world(tmp_path, 0.001) as (budget, _, _):
        with budget.admission(wish("cheap-0")) as (allowed, failure):
            assert (allowed, failure) == (wish("cheap-0"), None)
        with budget.admission(wish("cheap-0", "cheap-1")) as (allowed, failure):
            assert allowed is not None
            assert failure is not None
            assert (allowed.nodes, failure.nodes) == (("cheap-0",), ("cheap-1",))


def test_what_another_thread_launches_counts_at_once(tmp_path: Path) -> None:
    """A launch counts during the call and after it, before any listing; a failed launch leaves no trace."""
    with world(tmp_path, 3.0) as (budget, ledger, clock):
        with budget.admission(wish("dear-0", "dear-1")) as (first, _):
            assert first is not None
            assert budget.available_capacity("dear", 5).count == 1
            budget.launched({"dear-0": "m-0"})
        assert budget.available_capacity("dear", 5).count == 2, "dear-1 did not come"
        ledger.see([], clock[0] + 1)
        assert budget.available_capacity("dear", 5).count == 2, "the listing lags"
        with contextlib.suppress(RuntimeError), budget.admission(wish("dear-2", "dear-3")):
            raise RuntimeError
        assert budget.available_capacity("dear", 5).count == 2


def test_threads_together_launch_no_more_than_the_budget_has(tmp_path: Path) -> None:
    with world(tmp_path, 7.0) as (budget, _, _):
        came: list[str] = []
        begin = threading.Barrier(12)

        def launch(number: int) -> None:
            begin.wait(60)
            with budget.admission(wish(f"dear-{number}")) as (allowed, _):
                if allowed:
                    budget.launched({n: n for n in allowed.nodes})
                    came.extend(allowed.nodes)

        threads = [threading.Thread(target=launch, args=(i,)) for i in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(came) == 7
        assert isinstance(budget.available_capacity("dear", 1).failure, Failure)
