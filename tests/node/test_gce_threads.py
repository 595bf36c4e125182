"""Parallel launches and listings on a Compute Engine that answers slowly."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from google.cloud import compute_v1 as gce

from node.elastic.driver import Machine, MachineState
from node.elastic.drivers.gce import operations as gce_operations
from node.elastic.drivers.gce import unfinished as gce_unfinished
from node.elastic.drivers.gce.client import Clients
from node.elastic.drivers.gce.notices import PREEMPTED, EndReasons
from node.elastic.drivers.gce.operations import BulkInsert, OperationOrigin, Operations
from node.elastic.drivers.gce.unfinished import UnfinishedLaunches
from node.elastic.failures import ErrorClass

ZONE = "europe-west4-a"
MARK = OperationOrigin("me", "2026-11-22T10:00:00.000-08:00")
BULK = BulkInsert("launch", "group", ZONE, {"t-compute-0": "compute-0"}, 1, MARK)
SECONDS = 60.0


def clients(operations: Any) -> Clients:
    return Clients(None, operations, None, None)


class Slow:
    """The operations of a zone. The first list is answered when the test says."""

    def __init__(self, *operations: gce.Operation) -> None:
        self.operations = operations
        self.asked, self.answers = threading.Event(), threading.Event()
        self.lists = 0

    def list(self, request: Any, **_: Any) -> Any:
        self.lists += 1
        if self.lists == 1:
            self.asked.set()
            assert self.answers.wait(2 * SECONDS)
        return self

    def __iter__(self) -> Any:
        return iter(self.operations)

    def get(self, request: Any, **_: Any) -> gce.Operation:
        return gce.Operation(name="launch", status=gce.Operation.Status.DONE)


def machine(node: str, number: int, state: MachineState = MachineState.RUNNING) -> Machine:
    return Machine(f"{ZONE}/t-{node}/{number}", node, state, 1000.0, zone=ZONE)


def test_nobody_waits_for_the_reason_of_another_machines_end() -> None:
    """The query may take a minute. Launches record their machines meanwhile, and other listings continue."""
    slow = Slow(gce.Operation(operation_type=PREEMPTED, target_id=1))
    ends = EndReasons("p", lambda: clients(slow), lambda identity: False)
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
    failed = gce.Operation(
        operation_type="insert",
        operation_group_id="group",
        target_link=f"https://x/zones/{ZONE}/instances/t-compute-0",
        http_error_status_code=503,
        error=gce.Error(errors=[gce.Errors(code="ZONE_RESOURCE_POOL_EXHAUSTED", message="full")]),
    )
    slow = Slow(failed)
    slow.lists = 1
    unfinished = UnfinishedLaunches(Operations("p", lambda: clients(slow)))
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
        def wait(self, request: Any, **_: Any) -> gce.Operation:
            asked[0] += 1
            now[0] += 0.02
            return gce.Operation(name="launch", status=gce.Operation.Status.RUNNING)

        get = wait

    def sleep(seconds: float) -> None:
        now[0] += seconds

    operations = Operations("p", lambda: clients(Busy()), sleep, lambda: now[0])
    assert operations.watch(BULK, 60.0) is None
    assert now[0] == pytest.approx(160.0, abs=2 * gce_operations.EARLY_SECONDS)
    assert asked[0] <= 60.0 / gce_operations.EARLY_SECONDS + 1
