"""Parallel launches and listings on a Compute Engine that answers slowly."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from node.elastic.driver import Machine, MachineState
from node.elastic.drivers.gce import operations as gce_operations
from node.elastic.drivers.gce import unfinished as gce_unfinished
from node.elastic.drivers.gce.client import Resource
from node.elastic.drivers.gce.notices import PREEMPTED, EndReasons
from node.elastic.drivers.gce.operations import BulkInsert, OperationOrigin, Operations
from node.elastic.drivers.gce.unfinished import UnfinishedLaunches
from node.elastic.failures import ErrorClass

ZONE = "europe-west4-a"
MARK = OperationOrigin("me", "2026-11-22T10:00:00.000-08:00")
BULK = BulkInsert("launch", "group", ZONE, {"t-compute-0": "compute-0"}, 1, MARK)
SECONDS = 60.0


class Slow:
    """The operations of a zone. The first list is answered when the test says."""

    def __init__(self, *operations: Resource) -> None:
        self._operations = operations
        self.asked, self.answers = threading.Event(), threading.Event()
        self.lists = 0

    def operations(self, zone: str, wanted: str = "") -> Iterator[Resource]:
        self.lists += 1
        if self.lists == 1:
            self.asked.set()
            assert self.answers.wait(2 * SECONDS)
        return iter(self._operations)

    def operation(self, zone: str, name: str) -> Resource:
        return {"name": name, "status": "DONE"}


def machine(node: str, number: int, state: MachineState = MachineState.RUNNING) -> Machine:
    return Machine(f"{ZONE}/t-{node}/{number}", node, state, 1000.0, zone=ZONE)


def test_nobody_waits_for_the_reason_of_another_machines_end() -> None:
    """The query may take a minute. Launches record their machines meanwhile, and other listings continue."""
    slow: Any = Slow({"operationType": PREEMPTED, "targetId": "1"})
    ends = EndReasons(slow, lambda identity: False)
    ends.explained([machine("compute-0", 1), machine("compute-1", 2)])
    with ThreadPoolExecutor(3) as threads:
        asks = threads.submit(ends.explained, [machine("compute-1", 2)])
        assert slow.asked.wait(SECONDS)
        try:
            threads.submit(ends.launched, {"compute-2": f"{ZONE}/t-compute-2/3"}).result(SECONDS)
            other = threads.submit(ends.explained, [machine("compute-1", 2)]).result(SECONDS)
            assert [m.node for m in other] == ["compute-1"], "one without a reason is not told of"
            assert not asks.done()
        finally:
            slow.answers.set()
        told = {m.node: m.state for m in asks.result(SECONDS)}
    assert told == {"compute-1": MachineState.RUNNING, "compute-0": MachineState.TERMINATED}


def test_a_late_failure_is_told_once_also_where_two_listings_look_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A check takes longer than the pause between two, and the node's next launch is another one."""
    monkeypatch.setattr(gce_unfinished, "ASK_SECONDS", 0.0)
    failed = {
        "operationType": "insert",
        "operationGroupId": "group",
        "targetLink": f"https://x/zones/{ZONE}/instances/t-compute-0",
        "httpErrorStatusCode": 503,
        "error": {"errors": [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "full"}]},
    }
    slow: Any = Slow(failed)
    slow.lists = 1
    unfinished = UnfinishedLaunches(Operations(slow))
    assert unfinished.add(BULK) == {}
    slow.lists = 0
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(unfinished.look)
        assert slow.asked.wait(SECONDS)
        try:
            (failure,) = unfinished.take(["compute-0"]).failures
            assert failure.kind is ErrorClass.CAPACITY
        finally:
            slow.answers.set()
        first.result(SECONDS)
    assert unfinished.take(["compute-0"]).failures == ()


def test_a_cloud_that_ends_a_wait_early_is_not_asked_without_a_pause() -> None:
    """It may answer at once while it is busy: thirty launches would ask it hundreds of times a second."""
    now = [100.0]
    asked = [0]

    class Busy:
        def wait(self, zone: str, name: str, seconds: float = 0.0) -> Resource:
            asked[0] += 1
            now[0] += 0.02
            return {"name": name, "status": "RUNNING"}

        operation = wait

    def sleep(seconds: float) -> None:
        now[0] += seconds

    busy: Any = Busy()
    operations = Operations(busy, sleep, lambda: now[0])
    assert operations.watch(BULK, 60.0) is None
    assert now[0] == pytest.approx(160.0, abs=2 * gce_operations.EARLY_SECONDS)
    assert asked[0] <= 60.0 / gce_operations.EARLY_SECONDS + 1
