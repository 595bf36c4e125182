"""The daemon's capacity drains, with doubles of Slurm and a cloud: refusals, drains, causes, restarts."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from node.design.model import ClusterDesign
from node.elastic import capacity
from node.elastic.capacity import CapacityLimiter
from node.elastic.daemon import Elastic
from node.elastic.driver import AvailableCapacity, LaunchGroup, Machine, MachineState
from node.elastic.failures import ErrorClass, Failure
from node.elastic.pending_jobs import MOST_RELEASES, UNSTARTED
from node.elastic.replacements import MOST_REPLACEMENTS
from node.slurm.control import SlurmDown
from node.slurm.states import NodeState
from node.system import rpc
from tests.support.doubles import DEBUG, FakeControl, FakeDriver, fast_design, job, node, settings

FOUR = dataclasses.replace(DEBUG, max=4)
NODES = tuple(f"debug-{i}" for i in range(4))
QUOTA = Failure((), ErrorClass.QUOTA, "Code", "there is no more")
REASON = f"slurm-stacks {QUOTA.sentence()}"


class Cluster:
    """A cluster with four nodes that are off."""

    def __init__(self, folder: Path, design: ClusterDesign | None = None) -> None:
        self.folder = folder
        self.design = design or fast_design(FOUR)
        self.control = FakeControl(node(n, "IDLE", "POWERED_DOWN") for n in NODES)
        self.driver = FakeDriver()
        (folder / "requests").mkdir()
        self.start()

    def start(self) -> None:
        """Start a daemon, perhaps after another one that was killed."""
        made = settings(self.folder, self.design)
        self.elastic = Elastic(made, self.control, self.driver, self.folder)

    def refuse(self, *nodes: str, kind: ErrorClass = ErrorClass.QUOTA) -> None:
        """Fail a job's launch. Slurm powers its nodes down as it is told."""
        self.driver.answers = [(Failure(nodes, kind, "Code", "there is no more"),)]
        self.elastic.launcher.launch(LaunchGroup("debug", nodes, True, "t", 7), dict.fromkeys(nodes, 7))
        why = self.control.calls[-1][2]
        for name in nodes:
            self.control.state[name] = node(name, "IDLE", "POWERING_DOWN", reason=why)

    def settle(self) -> None:
        for name, state in self.control.state.items():
            if "POWERING_DOWN" in state.flags:
                flags = (state.flags - {"POWERING_DOWN"}) | {"POWERED_DOWN"}
                self.control.state[name] = dataclasses.replace(state, flags=flags)

    def look(self) -> list[tuple[Any, ...]]:
        """Return what one pass tells Slurm."""
        self.control.calls.clear()
        self.elastic.capacity_limiter._asked = -1000.0
        self.elastic.capacity_limiter.once()
        return self.control.calls

    def drained(self) -> set[str]:
        return {name for name, state in self.control.state.items() if state.is_drained}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_without_trouble_nobody_is_asked_and_nothing_is_told(cluster: Cluster) -> None:
    assert cluster.look() == []
    assert cluster.driver.asked == []


def test_a_refused_pool_is_drained_as_far_as_there_is_no_capacity_and_undrained_later(
    cluster: Cluster,
) -> None:
    cluster.driver.free = 2
    cluster.refuse(*NODES[:3])
    assert cluster.look() == [("node", NODES[:3], "DRAIN", REASON)], "of those that are off two may be had"
    assert cluster.driver.asked == [("debug", None, 4)]
    cluster.settle()
    assert cluster.look() == [("node", ("debug-0",), "IDLE", None)]
    assert cluster.look() == [], "nothing is told twice"
    cluster.driver.free = 4
    assert cluster.look() == [("node", ("debug-1", "debug-2"), "IDLE", None)]
    assert cluster.drained() == set()


def test_a_job_of_a_partition_that_people_have_made_is_told_why_it_waits(cluster: Cluster) -> None:
    for name, state in cluster.control.state.items():
        cluster.control.state[name] = dataclasses.replace(state, partitions=("debug", "urgent"))
    waiting = job(9, "PENDING", partition="urgent", reason="Resources", wanted_nodes=3)
    other = job(8, "PENDING", partition="elsewhere", reason="Resources", wanted_nodes=3)
    cluster.control.queue = {9: waiting, 8: other}
    cluster.driver.free = 0
    cluster.refuse(*NODES[:3])
    told = [call for call in cluster.look() if call[0] == "comment"]
    assert [call[1] for call in told] == [9]
    assert QUOTA.message in str(told[0]), "as a job of the stack file's partition with these nodes"


def test_a_partition_whose_machines_fail_again_and_again_pauses_with_the_last_cause(cluster: Cluster) -> None:
    """Nobody pays for machine after machine. A node that is up and has such a reason itself is left alone."""
    up = node("debug-0", "MIXED", "DRAIN", reason="slurm-stacks health: GPU 3: too hot")
    cluster.control.state["debug-0"] = up
    cluster.elastic.launcher.replaces(["debug-1"] * (MOST_REPLACEMENTS - 1), "GPU 3: too hot")
    assert cluster.look() == []
    cluster.elastic.launcher.replaces(["debug-1"], "GPU 3: too hot")
    ((_, nodes, state, reason),) = cluster.look()
    assert (nodes, state) == (NODES[1:], "DRAIN")
    why = "4 nodes or more were replaced within an hour, the last debug-1: GPU 3: too hot (until "
    assert reason.startswith(f"slurm-stacks health: {why}")
    assert reason.endswith("; look for what they have in common, by `logs debug-1`")
    assert cluster.driver.asked == [], "the cloud knows nothing of it"
    assert cluster.control.state["debug-0"] == up

    cluster.start()
    assert cluster.look() == [], "another daemon goes on with the pause"
    for pool in cluster.elastic.capacity_limiter._pools.failures():
        cluster.elastic.capacity_limiter._pools.recovered(pool)
    assert cluster.look() == [("node", NODES[1:], "IDLE", None)]
    assert cluster.control.state["debug-0"] == up


@pytest.mark.parametrize(("changed", "lifted"), [(-1.0, False), (1.0, True)])
def test_an_up_that_changed_something_ends_the_pause_for_health(
    cluster: Cluster, changed: float, lifted: bool
) -> None:
    """It may have mended the prolog that failed. A daemon that was only killed goes on with the pause."""
    cluster.elastic.launcher.replaces(["debug-1"] * MOST_REPLACEMENTS, "Prolog error")
    cluster.look()
    began = time.time()
    for name, state in cluster.control.state.items():
        cluster.control.state[name] = dataclasses.replace(state, reason_time=began)
    made = settings(cluster.folder, cluster.design)
    cluster.elastic = Elastic(made, cluster.control, cluster.driver, cluster.folder, began + changed)
    assert cluster.look() == ([("node", NODES, "IDLE", None)] if lifted else [])
    assert (cluster.drained() == set()) is lifted


def test_a_node_that_got_a_job_while_the_cloud_was_asked_is_not_drained(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drain would end a job that waits for its node to come up."""
    cluster.driver.free = 0
    cluster.refuse(*NODES[:2])
    ask = cluster.driver.available_capacity

    def slow(*question: Any) -> AvailableCapacity | None:
        cluster.control.state["debug-2"] = node("debug-2", "MIXED", "POWERING_UP")
        cluster.control.state["debug-3"] = node("debug-3", "MIXED", "POWERED_DOWN")
        return ask(*question)

    monkeypatch.setattr(cluster.driver, "available_capacity", slow)
    assert cluster.look() == [("node", NODES[:2], "DRAIN", REASON)]


def test_a_pass_that_does_not_ask_the_cloud_reads_the_nodes_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.driver.free = 0
    cluster.refuse(*NODES[:2])
    readings = 0
    nodes = cluster.control.nodes

    def read() -> Mapping[str, NodeState]:
        nonlocal readings
        readings += 1
        return nodes()

    monkeypatch.setattr(cluster.control, "nodes", read)
    cluster.look()
    assert readings == 2
    monkeypatch.setattr(cluster.elastic.capacity_limiter, "_interval", 600.0)
    asked = len(cluster.driver.asked)
    cluster.elastic.capacity_limiter.once()
    assert (readings, len(cluster.driver.asked)) == (3, asked)


def test_a_daemon_that_was_killed_goes_on(cluster: Cluster) -> None:
    cluster.driver.free = 1
    cluster.refuse(*NODES)
    # The daemon is killed after it powered the nodes down and before it drained them.
    cluster.start()
    assert cluster.look() == [("node", NODES, "DRAIN", REASON)]
    cluster.settle()
    cluster.start()
    assert cluster.look() == [("node", ("debug-0",), "IDLE", None)]
    cluster.start()
    cluster.driver.free = 9
    assert cluster.look() == [("node", NODES[1:], "IDLE", None)]


def test_where_the_cloud_cannot_tell_the_back_off_ends_the_drain(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0  # the exact sum may be a little less than the pause, because of rounding
    monkeypatch.setattr(time, "monotonic", lambda: now)
    cluster.refuse(*NODES)
    cluster.look()
    cluster.settle()
    now += 29.9
    assert cluster.look() == []
    now += 0.1
    assert cluster.look() == [("node", NODES, "IDLE", None)]


@pytest.mark.parametrize(
    "error", [RuntimeError("a surprise"), rpc.RpcUnavailableError("s", "nobody")], ids=str
)
def test_a_cloud_that_fails_when_asked_ends_nothing_and_no_look(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> AvailableCapacity:
        raise error

    cluster.driver.free = 0
    cluster.refuse(*NODES)
    monkeypatch.setattr(cluster.driver, "available_capacity", fail)
    if isinstance(error, rpc.RpcUnavailableError):
        monkeypatch.setattr(cluster.driver, "list", fail)
    assert cluster.look() == [("node", NODES, "DRAIN", REASON)]


def test_boots_that_keep_failing_leave_one_node_to_try(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    why = "step hooks: driver.sh ended with status 3: no device"
    cluster.elastic.launcher.give_up_boots(["debug-0"], why)
    assert cluster.look() == [], "the first may be the node's own fault"
    cluster.elastic.launcher.give_up_boots(["debug-1"], why)
    ((verb, nodes, state, reason),) = cluster.look()
    assert (verb, nodes, state) == ("node", NODES, "DRAIN")
    assert why in reason
    now += 30
    assert cluster.look() == [("node", ("debug-0",), "IDLE", None)]
    cluster.control.state["debug-0"] = node("debug-0", "MIXED", "POWERING_UP")
    cluster.driver.machines = [Machine("m", "debug-0", MachineState.RUNNING, time.time() + 1)]
    assert cluster.look() == [], "one at a time"
    cluster.control.state["debug-0"] = node("debug-0", "MIXED")
    cluster.elastic.launcher.boots.came_up("debug", time.time() + 1)
    assert cluster.look() == [("node", NODES[1:], "IDLE", None)]


def test_who_waits_is_told_why_and_starts_when_it_is_over(cluster: Cluster) -> None:
    cluster.driver.free = 1
    cluster.refuse(*NODES)
    cluster.settle()
    soon = time.time() + 25
    cluster.control.queue = {
        7: job(7, "PENDING", reason="BeginTime", eligible_time=soon, restarts=1, wanted_nodes=4,
               admin_comment=QUOTA.sentence()),
        8: job(8, "PENDING", reason="Resources", wanted_nodes=2),
        9: job(9, "PENDING", reason="Resources", wanted_nodes=1),
    }  # fmt: skip
    told = [call for call in cluster.look() if call[0] != "node"]
    assert told == [("comment", 8, QUOTA.sentence())]
    cluster.driver.free = 4
    cluster.control.queue[8] = dataclasses.replace(cluster.control.queue[8], admin_comment=QUOTA.sentence())
    told = [call for call in cluster.look() if call[0] != "node"]
    assert told == [("start", 7), ("comment", 8, "")], "in the same look that lets its nodes go"


def test_numbers_that_have_changed_are_told_again_but_not_in_each_look(cluster: Cluster) -> None:
    cluster.driver.free = 0
    cluster.refuse(*NODES)
    cluster.settle()
    cluster.look()
    many = range(1, 31)
    old = "quota: 4 run, 0 left"
    for name, state in cluster.control.state.items():
        cluster.control.state[name] = dataclasses.replace(state, reason=f"slurm-stacks {old}")
    cluster.control.queue = {
        n: job(n, "PENDING", reason="Resources", wanted_nodes=2, admin_comment=old) for n in many
    }
    assert cluster.look() == [], "it was told just now"
    cluster.elastic.capacity_limiter._told = -1000.0
    told = cluster.look()
    assert told[0] == ("node", NODES, None, REASON)
    assert told[1:] == [("comment", n, QUOTA.sentence()) for n in many[:20]], "a few in each look"


def test_a_job_does_not_start_while_its_old_machines_are_there(cluster: Cluster) -> None:
    cluster.control.queue = {7: job(7, "RUNNING", start_time=time.time() - 60)}
    assert cluster.look() == []
    cluster.control.queue = {
        7: job(7, "PENDING", reason="BeginTime", eligible_time=time.time() + 25, restarts=1,
               admin_comment="preempted: the cloud took debug-3 back (debug-3); x"),
    }  # fmt: skip
    cluster.control.state["debug-3"] = node("debug-3", "IDLE", "POWERING_DOWN")
    cluster.driver.machines = [Machine("m3", "debug-3", MachineState.STOPPING, 0.0)]
    assert cluster.look() == []
    cluster.driver.machines = [Machine("m3", "debug-3", MachineState.TERMINATED, 0.0)]
    assert cluster.look() == [("start", 7)]


def test_a_job_that_a_node_refused_to_start_is_tried_again_but_not_for_ever(cluster: Cluster) -> None:
    held: dict[str, Any] = {"reason": UNSTARTED, "priority": 0, "restarts": 1}
    cluster.control.queue = {
        7: job(7, "PENDING", **held),
        9: job(9, "PENDING", array_job=8, array_task="3", **held),
        10: job(10, "PENDING", reason="JobHeldUser", priority=0),
    }
    for _ in range(MOST_RELEASES):
        assert cluster.look() == [("release", 7), ("release", "8_3")]
    assert cluster.look() == [], "what no node can start is a person's"
    del cluster.control.queue[7]
    cluster.look()
    cluster.control.queue[7] = job(7, "PENDING", **held)
    assert cluster.look() == [("release", 7)], "of jobs that are gone nothing is remembered"


def test_a_job_that_ended_meanwhile_ends_no_look(cluster: Cluster) -> None:
    cluster.control.queue = {
        7: job(7, admin_comment=QUOTA.sentence()),
        8: job(8, admin_comment="quota: x"),
        9: job(9, "PENDING", reason=UNSTARTED),
    }
    cluster.control.refuse_job_updates = True
    assert cluster.look() == []


def test_nodes_that_slurm_refuses_to_change_end_no_look(cluster: Cluster) -> None:
    cluster.driver.free = 0
    cluster.refuse(*NODES)
    cluster.control.refuse_node_updates = True
    cluster.control.queue = {8: job(8, "PENDING", reason="Resources", wanted_nodes=2)}
    assert ("comment", 8, QUOTA.sentence()) in cluster.look()


def test_the_rest_of_a_job_that_cannot_run_is_released(cluster: Cluster) -> None:
    cluster.control.state["debug-0"] = node("debug-0")
    cluster.control.state["debug-1"] = node("debug-1", "IDLE", "POWERING_UP")
    cluster.elastic.launcher.surplus_nodes.wanted(dict.fromkeys(NODES, 7))
    cluster.driver.free = 0
    cluster.refuse(*NODES[2:])
    cluster.control.queue = {7: job(7, "PENDING", reason="Resources", wanted_nodes=4)}
    assert [call for call in cluster.look() if call[2] != "DRAIN" and call[0] in ("node", "down")] == [
        ("node", ("debug-0",), "POWER_DOWN_ASAP", capacity.NOT_NEEDED),
        ("down", ("debug-1",), capacity.NOT_NEEDED),
    ]


def test_or_left_to_a_job_that_fits(cluster: Cluster) -> None:
    cluster.control.state["debug-0"] = node("debug-0")
    cluster.elastic.launcher.surplus_nodes.wanted(dict.fromkeys(NODES, 7))
    cluster.driver.free = 0
    cluster.refuse(*NODES[1:])
    cluster.control.queue = {8: job(8, "PENDING", reason="Resources", wanted_nodes=1)}
    assert [call[2] for call in cluster.look()] == ["DRAIN"]


def test_a_controller_that_is_away_is_asked_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    class EnoughError(BaseException):
        pass

    def wait(seconds: float) -> None:
        looks.append(seconds)
        cluster.control.error = None
        if len(looks) == 3:
            raise EnoughError

    monkeypatch.setattr(cluster.elastic.capacity_limiter._pools, "wait_for_failure", wait)
    cluster.control.error = SlurmDown(["scontrol"], 1, "nobody")
    with pytest.raises(EnoughError):
        CapacityLimiter.run(cluster.elastic.capacity_limiter)
    assert len(looks) == 3
