"""What is known of pools: each class of failure against each event that may follow."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from node.design.model import SlurmSettings
from node.elastic.driver import AvailableCapacity
from node.elastic.failures import API_FAILURES, FALLS_BACK, POLICIES, ErrorClass, Failure
from node.elastic.pools import PARTITION_WIDE, Limit, Pool, Pools, combined
from tests.support.doubles import DEBUG, design

ZONED = replace(DEBUG, name="zoned", zones=("a", "b"))
DEBUG_POOL, A, B = Pool("debug"), Pool("zoned", "a"), Pool("zoned", "b")
OF_ZONES = [kind for kind in ErrorClass if kind not in (*PARTITION_WIDE, ErrorClass.PREEMPTED)]
TRAIN = [
    replace(DEBUG, name=f"train-{name}", pool=name, spot=name == "spot", default=False, zones=zones)
    for name, zones in (("spot", ("a", "b")), ("ondemand", ()), ("large", ()))
]
NEVER = [kind for kind, row in FALLS_BACK.items() if not row.falls]


def failure(kind: ErrorClass = ErrorClass.QUOTA, message: str = "no more") -> Failure:
    return Failure((), kind, "Code", message)


@pytest.fixture
def pools() -> Pools:
    return Pools(design(DEBUG, ZONED, slurm=SlurmSettings(resume_timeout=100)))


def count(pools: Pools, partition: str = "debug") -> int | None:
    limit = pools.limit(partition)
    return None if limit is None else limit.count


@pytest.mark.parametrize("kind", OF_ZONES)
def test_where_the_cloud_tells_of_room_so_many_are_free_and_all_at_the_end(
    pools: Pools, kind: ErrorClass
) -> None:
    pools.failed(DEBUG_POOL, failure(kind), 0.0, wanted=8)
    assert count(pools) == 0
    pools.answered(DEBUG_POOL, AvailableCapacity(4, failure(kind)))
    assert count(pools) == 4
    pools.tick(10_000.0)
    assert count(pools) == 4, "no back-off ends what the cloud says goes on"
    pools.answered(DEBUG_POOL, AvailableCapacity(8))
    assert pools.limit("debug") is None


@pytest.mark.parametrize("kind", OF_ZONES)
@pytest.mark.parametrize("answer", [None, AvailableCapacity(8)], ids=["cannot tell", "sees no obstacle"])
def test_where_it_does_not_the_back_off_doubles_and_ends_each_time(
    pools: Pools, kind: ErrorClass, answer: AvailableCapacity | None
) -> None:
    policy, now = POLICIES[kind], 0.0
    for row in range(8):
        pools.failed(DEBUG_POOL, failure(kind), now, wanted=8)
        pools.answered(DEBUG_POOL, answer)
        pause = min(policy.backoff * 2**row, policy.backoff_max)
        pools.tick(now + pause - 0.1)
        assert count(pools) == 0
        assert pools.refusal(DEBUG_POOL, 1, whole=False) == failure(kind)
        now += pause
        pools.tick(now)
        assert pools.limit("debug") is None
        assert pools.refusal(DEBUG_POOL, 8, whole=True) is None
    pools.launched(DEBUG_POOL, 8, whole=True)
    pools.failed(DEBUG_POOL, failure(kind), now)
    pools.answered(DEBUG_POOL, answer)
    pools.tick(now + policy.backoff)
    assert pools.limit("debug") is None, "a success ends the row"


def test_an_obstacle_that_room_does_not_see_is_not_ended_by_another_that_it_sees(pools: Pools) -> None:
    pools.failed(DEBUG_POOL, failure(ErrorClass.CONFIG), 0.0, wanted=2)
    pools.answered(DEBUG_POOL, AvailableCapacity(4, failure(ErrorClass.QUOTA)))
    assert count(pools) == 0, "two would have been there: it was something else"
    pools.tick(POLICIES[ErrorClass.CONFIG].backoff)
    assert pools.limit("debug") is None


@pytest.mark.parametrize("kind", API_FAILURES)
def test_an_api_in_trouble_opens_nothing_and_renames_nothing(pools: Pools, kind: ErrorClass) -> None:
    pools.failed(DEBUG_POOL, failure(), 0.0, wanted=8)
    pools.answered(DEBUG_POOL, AvailableCapacity(4, failure()))
    pools.answered(DEBUG_POOL, AvailableCapacity(0, failure(kind, "no answer of use")))
    assert pools.limit("debug") == Limit(0, failure())
    pools.answered(DEBUG_POOL, AvailableCapacity(4, failure()))
    assert count(pools) == 4


def test_what_was_launched_is_no_more_to_be_had(pools: Pools) -> None:
    pools.failed(DEBUG_POOL, failure(), 0.0, wanted=8)
    pools.answered(DEBUG_POOL, AvailableCapacity(4, failure()))
    assert pools.refusal(DEBUG_POOL, 4, whole=True) is None
    assert pools.refusal(DEBUG_POOL, 5, whole=True) == failure()
    assert pools.refusal(DEBUG_POOL, 5, whole=False) is None, "some of them"
    pools.launched(DEBUG_POOL, 3, whole=False)
    assert count(pools) == 1


def test_boots_that_keep_failing_one_node_is_tried(pools: Pools) -> None:
    boots = Pool.of("debug", "a", ErrorClass.BOOTSTRAP)
    assert boots == Pool("debug", None, ErrorClass.BOOTSTRAP)
    why = failure(ErrorClass.BOOTSTRAP)
    pools.failed(boots, why, 0.0, pause=30.0)
    pools.answered(boots, AvailableCapacity(8))
    assert pools.limit("debug") == Limit(0, why, booting=True)
    pools.tick(30.0)
    assert pools.limit("debug") == Limit(1, why, booting=True)
    pools.failed(boots, why, 40.0, pause=60.0)
    pools.tick(99.0)
    assert count(pools) == 0
    pools.tick(100.0)
    assert count(pools) == 1
    pools.recovered(boots)
    assert pools.limit("debug") is None


def test_who_waits_for_a_failure_hears_of_it_once(pools: Pools) -> None:
    heard = threading.Event()

    def listen() -> None:
        pools.wait_for_failure(600)
        heard.set()

    threading.Thread(target=listen, daemon=True).start()
    pools.failed(DEBUG_POOL, failure(), 0.0)
    assert heard.wait(60)
    assert not pools._news.is_set()


def test_a_node_that_nobody_wants_to_try_does_not_keep_the_pool_closed(pools: Pools) -> None:
    boots = Pool.of("debug", None, ErrorClass.BOOTSTRAP)
    pools.failed(boots, failure(ErrorClass.BOOTSTRAP), 0.0, pause=30.0)
    pools.tick(30.0)
    pools.tick(129.0)
    assert count(pools) == 1, "a boot may take as long as Slurm waits"
    pools.tick(130.0)
    assert pools.limit("debug") is None


def test_the_budget_ends_when_it_says_so(pools: Pools) -> None:
    purse = Pool.of("debug", None, ErrorClass.BUDGET)
    why = failure(ErrorClass.BUDGET)
    pools.failed(purse, why, 0.0, wanted=3)
    pools.tick(0.0)
    assert count(pools) == 0, "not before it was asked"
    pools.answered(purse, AvailableCapacity(2, why))
    pools.failed(DEBUG_POOL, failure(), 0.0)
    pools.answered(DEBUG_POOL, AvailableCapacity(0, failure()))
    assert pools.limit("debug") == Limit(0, failure()), "the tightest counts"
    pools.answered(DEBUG_POOL, AvailableCapacity(8))
    assert pools.limit("debug") == Limit(2, why)
    pools.answered(purse, AvailableCapacity(8))
    assert pools.limit("debug") is None


def test_a_partition_is_limited_when_all_its_zones_are(pools: Pools) -> None:
    assert pools.zones("zoned") == (A, B)
    pools.failed(A, failure(ErrorClass.CAPACITY, "none in a"), 0.0, wanted=8)
    pools.answered(A, AvailableCapacity(3, failure(ErrorClass.CAPACITY, "none in a")))
    assert pools.limit("zoned") is None
    pools.failed(B, failure(ErrorClass.CAPACITY, "none in b"), 0.0, wanted=8)
    pools.answered(B, AvailableCapacity(5, failure(ErrorClass.CAPACITY, "none in b")))
    limit = pools.limit("zoned")
    assert limit is not None
    assert limit.count == 5, "a job's nodes go to one zone: eight would not start"
    assert limit.failure.sentence().startswith("capacity: a: none in a, b: none in b (Code); ")
    assert pools.limit("debug") is None


def test_a_drain_that_an_earlier_daemon_left_is_taken_over_and_ends(pools: Pools) -> None:
    pools.adopt("zoned", failure(), 0.0)
    pools.adopt("debug", failure(ErrorClass.BOOTSTRAP), 0.0)
    assert (count(pools, "zoned"), count(pools)) == (0, 0)
    pools.answered(A, AvailableCapacity(8))
    assert pools.limit("zoned") is None
    pools.tick(POLICIES[ErrorClass.BOOTSTRAP].backoff)
    assert count(pools) == 1
    pools.answered(B, None)
    pools.tick(POLICIES[ErrorClass.QUOTA].backoff)
    assert B not in pools.failures()


def test_one_zones_failure_stays_its_own() -> None:
    assert combined([(None, failure())], ("n",)) == Failure(("n",), ErrorClass.QUOTA, "Code", "no more")


# --- pools of one partition ---------------------------------------------------------------------------------


@pytest.fixture
def train() -> Pools:
    return Pools(design(DEBUG, *TRAIN, slurm=SlurmSettings(resume_timeout=100)))


def fail(pools: Pools, name: str, kind: ErrorClass, zone: str | None = None) -> None:
    pools.failed(Pool.of(name, zone, kind), failure(kind), 0.0, pause=30.0)


def test_every_class_says_whether_the_next_pool_is_used() -> None:
    assert FALLS_BACK.keys() == set(ErrorClass)
    assert {kind for kind, row in FALLS_BACK.items() if row.falls} == set(ErrorClass) - set(NEVER)
    assert set(NEVER) == {
        ErrorClass.PERMISSION, ErrorClass.CONFIG, ErrorClass.BOOTSTRAP, *API_FAILURES
    }  # fmt: skip


@pytest.mark.parametrize("kind", ErrorClass)
def test_what_is_no_want_of_machines_holds_the_later_pools(train: Pools, kind: ErrorClass) -> None:
    fail(train, "train-ondemand", kind)
    assert train.limit("train-spot") is None, "a pool that is wanted more is not concerned"
    assert train.limit("debug") is None
    held = train.limit("train-large")
    if FALLS_BACK[kind].falls:
        assert held is None
    else:
        assert held == Limit(0, failure(kind, "ondemand: no more"), held_by="train-ondemand")
        train.recovered(Pool.of("train-ondemand", None, kind))
        assert train.limit("train-large") is None


@pytest.mark.parametrize("kind", [ErrorClass.CONFIG, ErrorClass.UNAVAILABLE])
def test_a_mistake_in_one_zone_holds_the_later_pools_when_no_zone_is_left(
    train: Pools, kind: ErrorClass
) -> None:
    fail(train, "train-spot", kind, "a")
    assert train.limit("train-ondemand") is None
    fail(train, "train-spot", ErrorClass.CAPACITY, "b")
    assert train.limit("train-ondemand") == Limit(0, failure(kind, "spot: no more"), held_by="train-spot")
    train.recovered(Pool("train-spot", "b"))
    assert train.limit("train-ondemand") is None


def test_a_held_pools_drain_is_taken_over_as_the_earlier_pools_failure(train: Pools) -> None:
    train.adopt("train-large", failure(ErrorClass.CONFIG, "ondemand: no more"), 0.0)
    assert train.failures().keys() == {Pool("train-ondemand")}
    held = Limit(0, failure(ErrorClass.CONFIG, "ondemand: no more"), held_by="train-ondemand")
    assert train.limit("train-large") == held
    train.answered(Pool("train-ondemand"), AvailableCapacity(8))
    assert train.limit("train-large") is None


def test_a_drain_that_says_its_end_is_taken_over_until_then(train: Pools) -> None:
    train.adopt("train-spot", failure(ErrorClass.INTERRUPTED), 100.0, 1000.0)
    train.answered(Pool.of("train-spot", None, ErrorClass.INTERRUPTED), AvailableCapacity(8))
    train.tick(1099.0)
    assert count(train, "train-spot") == 0, "the cloud's capacity says nothing about it"
    train.tick(1100.0)
    assert train.limit("train-spot") is None
