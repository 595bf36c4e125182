"""The clock is set by an hour, forward or back, while the cluster runs: nothing depends on that."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from localcloud.cloud import Cloud
from localcloud.machines import Boot, ProcessRuntime
from node.design.local_cloud import CloudBehaviour
from node.design.model import Partition
from node.elastic import client, observer
from node.elastic.daemon import Elastic
from node.elastic.driver import Machine, MachineState
from node.elastic.ledger import Ledger
from node.elastic.observer import Observer, Wait
from node.system import rpc
from node.system.processes import ProcessId
from tests.support.checkout import until
from tests.support.doubles import FakeControl, FakeDriver, design, fast_design, node, settings

HOUR = 3600.0
JUMPS = pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["forward", "back"])
Set = Callable[[float], None]


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Set:
    """Moves the wall clock. The monotonic clock continues."""
    real = time.time
    shift = [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + shift[0])

    def move(seconds: float) -> None:
        shift[0] += seconds

    return move


# --- the waiting prolog ----------------------------------------------------------------------------------


@JUMPS
def test_a_prolog_goes_when_its_nodes_are_up(
    set_clock: Set, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    """The prolog's program and the daemon are two processes, which must agree on which moment came first."""
    monkeypatch.setattr(observer, "POLL_SECONDS", 0.005)
    nodes = {"debug-0": node("debug-0", "ALLOCATED", "POWERING_UP")}
    control = FakeControl()
    monkeypatch.setattr(control, "nodes", lambda: dict(nodes))
    elastic = Elastic(settings(tmp_path, fast_design()), control, FakeDriver(), tmp_path)
    asked = threading.Event()

    def handle(method: str, params: dict[str, object]) -> object:
        asked.set()
        return elastic.handle(method, params)

    server = rpc.Server(str(tmp_path / "socket"), handle)
    threading.Thread(target=server.serve, daemon=True).start()
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "debug-0")
    over = threading.Event()

    def prolog() -> None:
        client._wait(str(tmp_path / "socket"), "wait")
        over.set()

    threading.Thread(target=prolog, daemon=True).start()
    assert asked.wait(60)
    set_clock(jump)
    assert not over.wait(0.2), "the node is not up"
    nodes["debug-0"] = node("debug-0", "ALLOCATED")
    assert over.wait(60)
    server.close()


@JUMPS
def test_a_node_that_is_still_off_is_waited_for(
    set_clock: Set, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    monkeypatch.setattr(observer, "POLL_SECONDS", 0.005)
    monkeypatch.setattr(observer, "STALE_POWERED_DOWN_SECONDS", HOUR / 2)
    watching = Observer(lambda _: {"debug-0": node("debug-0", "IDLE", "POWERED_DOWN")}, lambda: {1})
    over = threading.Event()
    wait = Wait(1, ["debug-0"], time.monotonic(), HOUR / 2, lambda _: over.set(), lambda: False)
    set_clock(jump)
    watching.wait(wait)
    assert not over.wait(0.2)


# --- reconciling -----------------------------------------------------------------------------------------


@JUMPS
def test_no_node_is_given_back_for_the_clocks_sake(set_clock: Set, tmp_path: Path, jump: float) -> None:
    """One node is up, one starts, one is being powered down. All of them are as they should be."""
    control = FakeControl(
        [
            node("debug-0", "ALLOCATED", "CLOUD"),
            node("debug-1", "ALLOCATED", "CLOUD", "POWERING_UP"),
            node("debug-2", "IDLE", "CLOUD", "POWERING_DOWN"),
        ]
    )
    driver = FakeDriver()
    driver.machines = [
        Machine(f"m-{name}", name, MachineState.RUNNING, time.time()) for name in ("debug-0", "debug-1")
    ]
    elastic = Elastic(settings(tmp_path, fast_design()), control, driver, tmp_path)
    before = elastic.reconciler.once()
    cost = elastic.status()["cost"]
    for _ in range(3):
        set_clock(jump)
        assert elastic.reconciler.once() == before == []
    assert control.calls == []
    assert driver.terminated == []
    assert elastic.status()["cost"]["node_hours"] == pytest.approx(cost["node_hours"], abs=0.01)


@JUMPS
def test_a_suspend_ends_the_machine_that_it_is_about(set_clock: Set, tmp_path: Path, jump: float) -> None:
    """The clock tells whether Slurm's request is newer than the machine. A wrong answer is mended later."""
    control = FakeControl([node("debug-0", "IDLE", "CLOUD", "POWERED_DOWN")])
    driver = FakeDriver()
    driver.machines = [Machine("m-0", "debug-0", MachineState.RUNNING, time.time())]
    elastic = Elastic(settings(tmp_path, fast_design()), control, driver, tmp_path)
    elastic.reconciler.policy = replace(elastic.reconciler.policy, settle=0.05)
    set_clock(jump)
    elastic.process({"program": "suspend", "nodes": "debug-0", "time": time.time()})

    def gone() -> bool:
        elastic.reconciler.once()
        return "m-0" in driver.terminated

    until(gone, 60, "the machine's end", 0.02)


# --- what it costs ---------------------------------------------------------------------------------------

PARTITION = Partition("debug", "local.small", 1, 100, 0, 4, price_hour=1.0)


class Clocks:
    def __init__(self) -> None:
        self.wall = 100 * HOUR
        self.steady = 5.0

    def go(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


@JUMPS
def test_a_machine_costs_the_time_that_it_ran(tmp_path: Path, jump: float) -> None:
    clocks = Clocks()
    ledger = Ledger(tmp_path / "ledger.json", design(PARTITION), lambda: clocks.steady)
    machine = Machine("m", "debug-0", MachineState.RUNNING, clocks.wall)
    ledger.see([machine], clocks.wall)
    clocks.go(HOUR)
    clocks.wall += jump
    assert ledger.cost(clocks.wall)["node_hours"] == 1.0
    ledger.see([machine], clocks.wall)
    clocks.go(HOUR)
    ledger.see([machine], clocks.wall)
    assert ledger.cost(clocks.wall)["node_hours"] == 2.0
    clocks.wall -= jump
    ledger.see([], clocks.wall)
    clocks.go(HOUR)
    spent = ledger.cost(clocks.wall)
    assert (spent["node_hours"], spent["usd"], spent["by_partition"]) == (2.0, 2.0, {"debug": 2.0})
    again = Ledger(tmp_path / "ledger.json", design(PARTITION), lambda: clocks.steady)
    assert again.cost(clocks.wall)["node_hours"] == 2.0


def test_a_clock_that_is_corrected_gently_is_followed(tmp_path: Path) -> None:
    """Thousands of corrections, each too small for a jump, do not count as jumps."""
    clocks = Clocks()
    ledger = Ledger(tmp_path / "ledger.json", design(PARTITION), lambda: clocks.steady)
    machine = Machine("m", "debug-0", MachineState.RUNNING, clocks.wall)
    for _ in range(100):
        ledger.see([machine], clocks.wall)
        clocks.go(36.0)
        clocks.wall += 0.36
    assert ledger.cost(clocks.wall)["node_hours"] == pytest.approx(1.01)


# --- the local cloud -------------------------------------------------------------------------------------


class NoMachines(ProcessRuntime):
    """A cloud that cannot start any machine."""

    def start(self, boot: Boot) -> ProcessId:
        raise OSError("none here")

    def stop(self, boot: Boot, process: ProcessId) -> bool:
        return True

    def clear(self, boot: Boot) -> None:
        return

    def purge(self) -> None:
        return


@JUMPS
def test_an_ended_machine_is_listed_for_its_minute(set_clock: Set, tmp_path: Path, jump: float) -> None:
    cloud = Cloud(tmp_path, NoMachines(tmp_path, sys.executable), CloudBehaviour(boot_delay=60))
    tags = {"cluster": "t", "role": "compute"}
    answer = cloud.launch("token", {"debug-0": "t-debug-0"}, 1, "local.small", tags)
    cloud.terminate([answer["machines"][0]["id"]])
    set_clock(jump)
    assert [m["state"] for m in cloud.list({})["machines"]] == ["terminated"]
    assert cloud.launch("token", {"debug-0": "t-debug-0"}, 1, "local.small", tags)["failures"] == []
    assert len(cloud.list({})["machines"]) == 1, "the same call is still known"
