"""Spot machines that are taken back: what counts, when a pool is closed, for how long, and when anew."""

from __future__ import annotations

from dataclasses import replace

import pytest

from node.elastic.failures import POLICIES, ErrorClass
from node.elastic.interruptions import EVENT_SECONDS, QUIET_SECONDS, WINDOW_SECONDS, Interruptions
from node.elastic.replacements import end_of_pause, utc_time
from tests.support.doubles import DEBUG, design

SPOT, DEAR, RARE = (
    replace(DEBUG, name=f"train-{name}", pool=name, spot=name != "dear", default=False)
    for name in ("spot", "dear", "rare")
)
POLICY = POLICIES[ErrorClass.INTERRUPTED]
TEN, HOURS = POLICY.backoff, POLICY.backoff_max


def seen(*pools: object) -> Interruptions:
    return Interruptions(design(DEBUG, *(pools or (SPOT, DEAR, RARE))))  # type: ignore[arg-type]


def take(interruptions: Interruptions, now: float, node: str = "train-spot-0") -> float:
    """Return for how long the pool is closed when one more machine is taken back."""
    closed = interruptions.taken_back({node: f"m-{now}"}, now)
    return closed[0][1] if closed else 0.0


def test_the_second_time_within_ten_minutes_closes_the_pool() -> None:
    assert (TEN, HOURS) == (600.0, 4 * 3600.0)
    pool = seen()
    assert take(pool, 0.0) == 0.0
    assert pool.taken_back({"train-spot-1": "m"}, WINDOW_SECONDS) == [("train-spot", TEN)]


def test_two_times_that_are_far_apart_close_nothing() -> None:
    pool = seen()
    assert [take(pool, now) for now in (0.0, 601.0, 1300.0)] == [0.0] * 3


def test_the_machines_of_one_job_are_one_event_and_each_counts_once() -> None:
    """A machine that will be taken back is seen again until it is gone, two minutes later on AWS."""
    pool = seen()
    assert pool.taken_back({f"train-spot-{n}": f"m-{n}" for n in range(4)}, 0.0) == []
    assert pool.taken_back({"train-spot-5": "m-5"}, EVENT_SECONDS - 1) == []
    assert pool.taken_back({f"train-spot-{n}": f"m-{n}" for n in range(4)}, 120.0) == []
    assert pool.taken_back({"train-spot-0": "another"}, 121.0) == [("train-spot", TEN)]


def test_the_pause_doubles_to_four_hours_and_is_short_again_after_a_quiet_time() -> None:
    pool, now, pauses = seen(), 0.0, []
    for _ in range(7):
        take(pool, now + 1)
        pauses.append(take(pool, now + 101))
        assert take(pool, now + 201) == 0.0, "it is closed: machines that were left are taken back"
        now += 101 + pauses[-1]
    assert pauses == [TEN, 2 * TEN, 4 * TEN, 8 * TEN, 16 * TEN, HOURS, HOURS]
    now += QUIET_SECONDS
    take(pool, now)
    assert take(pool, now + 100) == TEN


@pytest.mark.parametrize("node", ["debug-0", "train-dear-0", "train-rare-0", "elsewhere-3"])
def test_only_a_spot_pool_with_a_later_one_on_demand_is_closed(node: str) -> None:
    pool = seen()
    assert [take(pool, now, node) for now in (0.0, 100.0, 200.0)] == [0.0] * 3


def test_a_spot_partition_without_pools_goes_on_as_it_is() -> None:
    pool = seen(replace(DEBUG, name="lone", spot=True, default=False))
    assert [take(pool, now, "lone-0") for now in (0.0, 100.0)] == [0.0] * 2


def test_a_daemon_that_starts_again_goes_on_with_the_growth() -> None:
    pool = seen()
    pool.adopt("train-spot", 2 * TEN, 300.0, 0.0)
    pool.adopt("train-spot", TEN, 300.0, 0.0)
    pool.adopt("debug", TEN, 300.0, 0.0)
    assert [take(pool, now) for now in (100.0, 200.0)] == [0.0] * 2, "it is closed"
    assert [take(pool, now) for now in (301.0, 401.0)] == [0.0, 4 * TEN]


@pytest.mark.parametrize("began", [0.0, 30.0, 86_390.0])
def test_the_end_of_a_pause_is_read_from_its_reason(began: float) -> None:
    until = end_of_pause(f"until {utc_time(began + 3 * 3600)}", began)
    assert until is not None
    assert abs(until - began - 3 * 3600) < 60
    assert end_of_pause("InsufficientCapacity", began) is None
