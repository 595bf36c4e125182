"""The elastic daemon's work, with doubles of Slurm and a cloud: every request, and every failure."""

from __future__ import annotations

import json
import resource
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.design.model import ClusterDesign, Partition
from node.elastic import client, launcher
from node.elastic.daemon import MOST_FILES, Elastic, open_many_files
from node.elastic.driver import LaunchGroup, LaunchResult, Machine, MachineState
from node.elastic.failures import ErrorClass, Failure
from node.elastic.rules import NodePhase, Verb
from node.elastic.view import is_admin_disabled, phase, state_text
from node.slurm import hardware
from node.slurm.hardware import Hardware, Line, Record
from node.slurm.states import NodeState
from node.system import rpc
from tests.support.checkout import until
from tests.support.doubles import DEBUG, FakeControl, FakeDriver, fast_design, job, node, running, settings
from tests.support.naps import noted_naps


class Daemon:
    """The daemon's work with its doubles."""

    def __init__(self, folder: Path, design: ClusterDesign | None = None) -> None:
        self.control = FakeControl()
        self.driver = FakeDriver()
        self.lib = folder
        (folder / "requests").mkdir(exist_ok=True)
        made = settings(folder, design or fast_design())
        self.elastic = Elastic(made, self.control, self.driver, folder)

    def resume(self, nodes: str, *jobs: tuple[int, str], identity: str = "r1") -> None:
        wish = {"all_nodes": nodes, "jobs": [{"job_id": j, "nodes": n} for j, n in jobs]}
        request = {"id": identity, "program": "resume", "nodes": nodes, "resume_file": json.dumps(wish)}
        self.elastic.process(request)
        until(lambda: not self.elastic.launcher._busy, 60, "the launches", 0.005)

    def told(self, verb: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.control.calls if call[0] == verb]


@pytest.fixture
def daemon(tmp_path: Path) -> Daemon:
    return Daemon(tmp_path)


def failure(nodes: str | tuple[str, ...], kind: ErrorClass = ErrorClass.QUOTA) -> Failure:
    return Failure((nodes,) if isinstance(nodes, str) else nodes, kind, "Code", "the cloud's words")


def test_a_resume_launches_each_jobs_nodes_whole_and_single_ones_together(daemon: Daemon) -> None:
    daemon.resume("debug-[0-4]", (7, "debug-[0-1]"), (8, "debug-2"), (9, "debug-3"))
    launched = {group.nodes: (group.all_or_nothing, group.job) for group in daemon.driver.launches}
    assert launched == {
        ("debug-0", "debug-1"): (True, 7),
        ("debug-2", "debug-3", "debug-4"): (False, None),
    }
    assert daemon.control.calls == []


def test_a_resume_without_its_file_still_launches_what_slurm_named(daemon: Daemon) -> None:
    daemon.elastic.process({"id": "r", "program": "resume", "nodes": "debug-[0-1]", "resume_file": None})
    until(lambda: daemon.driver.launches, 60, "the launch", 0.005)
    assert daemon.driver.launches[0].nodes == ("debug-0", "debug-1")


def test_a_failed_launch_gives_the_nodes_back_and_says_why_on_node_and_job(daemon: Daemon) -> None:
    nodes = ("debug-0", "debug-1")
    daemon.driver.answers = [(failure(nodes),)]
    daemon.resume("debug-[0-1]", (7, "debug-[0-1]"))
    sentence = "quota: the cloud's words (Code); ask for a higher quota, or lower the partition's max"
    assert daemon.told("comment") == [(7, sentence)]
    assert daemon.told("down") == [(nodes, f"slurm-stacks {sentence}")]


def test_only_the_jobs_of_lost_nodes_are_told(daemon: Daemon) -> None:
    daemon.driver.answers = [(failure("debug-1"),)]
    daemon.resume("debug-[0-1]", (7, "debug-0"), (8, "debug-1"))
    assert [call[0] for call in daemon.told("comment")] == [8]
    assert [call[0] for call in daemon.told("down")] == [("debug-1",)]


def test_a_job_that_was_cancelled_meanwhile_does_not_keep_its_nodes(daemon: Daemon) -> None:
    daemon.control.refuse_job_updates = True
    daemon.driver.answers = [(failure("debug-0"),)]
    daemon.resume("debug-0", (7, "debug-0"))
    assert [call[0] for call in daemon.told("down")] == [("debug-0",)]


def test_a_pool_that_refused_is_not_asked_again_until_its_pause_is_over(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    # Quota: 30 s, 60, 120, 240, then 300 at most.
    for streak, pause in enumerate((30, 60, 120, 240, 300, 300)):
        daemon.driver.answers = [(failure("debug-0"),)]
        before = len(daemon.driver.launches)
        daemon.elastic.launcher.launch(_group(f"a{streak}"), {})
        assert len(daemon.driver.launches) == before + 1
        now += pause - 0.1
        daemon.elastic.capacity_limiter.once()
        daemon.elastic.launcher.launch(_group(f"b{streak}"), {"debug-0": 5})
        assert len(daemon.driver.launches) == before + 1, "asked during the pause"
        assert daemon.told("comment")[-1][0] == 5, "who asks during the pause hears why"
        now += 0.1
        daemon.elastic.capacity_limiter.once()


def _group(token: str) -> LaunchGroup:
    return LaunchGroup("debug", ("debug-0",), False, token)


def test_pools_are_paused_one_by_one(tmp_path: Path) -> None:
    other = Partition("other", "local.small", 1, 100, 0, 2)
    daemon = Daemon(tmp_path, fast_design(Partition("debug", "local.small", 1, 100, 0, 2), other))
    daemon.driver.answers = [(failure("debug-0"),)]
    daemon.resume("debug-0")
    daemon.resume("other-0", identity="r2")
    assert [group.partition for group in daemon.driver.launches] == ["debug", "other"]
    assert [call[0] for call in daemon.told("down")] == [("debug-0",)]


def test_a_throttled_call_is_repeated_with_the_same_token(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "RETRY_PAUSES", (0.001, 0.001, 0.001))
    busy = (failure("debug-0", ErrorClass.THROTTLED),)
    daemon.driver.answers = [busy, busy]
    daemon.resume("debug-0", (7, "debug-0"))
    assert len(daemon.driver.launches) == 3
    assert len({group.token for group in daemon.driver.launches}) == 1
    assert daemon.control.calls == []

    daemon.driver.answers = [(failure("debug-1", ErrorClass.THROTTLED),)] * 10
    daemon.resume("debug-1", (7, "debug-1"), identity="r2")
    assert len(daemon.driver.launches) == 3 + 4, "the first call and one after each pause"
    assert [call[0] for call in daemon.told("down")] == [("debug-1",)]


def test_other_failures_are_not_repeated_at_once(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "RETRY_PAUSES", (0.001,))
    daemon.driver.answers = [(failure("debug-0", ErrorClass.CAPACITY),)]
    daemon.resume("debug-0")
    assert len(daemon.driver.launches) == 1


def test_a_drivers_surprise_leaves_the_daemon_and_frees_the_nodes(daemon: Daemon) -> None:
    daemon.driver.answers = [ValueError("surprise")]
    daemon.resume("debug-0")
    assert daemon.elastic.launcher._busy == {}
    daemon.resume("debug-1", identity="r2")
    assert [m.node for m in daemon.driver.machines] == ["debug-1"]


def test_a_machine_of_a_nodes_last_life_is_no_sign_of_its_next(daemon: Daemon) -> None:
    """Otherwise a pass between Slurm's decision and its request sees an ended machine, and launches again."""
    daemon.resume("debug-[0-1]")
    assert set(daemon.elastic._ledger.newest()) == {"debug-0", "debug-1"}
    daemon.elastic.process({"program": "suspend", "nodes": "debug-0", "time": 1.0})
    assert set(daemon.elastic._ledger.newest()) == {"debug-1"}


def test_a_node_that_goes_has_all_nodes_looked_at_that_are_waited_for(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a job of many nodes the observer reads one alone while that comes up."""
    looks: list[None] = []
    monkeypatch.setattr(daemon.elastic._observer, "look_at_all", lambda: looks.append(None))
    daemon.resume("debug-0")
    assert looks == []
    daemon.elastic.process({"program": "suspend", "nodes": "debug-0", "time": 1.0})
    daemon.elastic.process({"program": "resume-fail", "nodes": "debug-0"})
    assert len(looks) == 2


def test_nor_is_one_whose_node_goes_while_it_is_launched(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = daemon.driver.launch

    def late(group: LaunchGroup) -> LaunchResult:
        daemon.elastic.launcher.given_back(["debug-0"])
        return launch(group)

    monkeypatch.setattr(daemon.driver, "launch", late)
    daemon.resume("debug-[0-1]")
    assert set(daemon.elastic._ledger.newest()) == {"debug-1"}
    monkeypatch.setattr(daemon.driver, "launch", launch)
    daemon.elastic.launcher.unlisted(["m-debug-0"])
    daemon.driver.terminate(["m-debug-0"])
    daemon.resume("debug-0", identity="r2")
    assert set(daemon.elastic._ledger.newest()) == {"debug-0", "debug-1"}, "of its next life"


def passes(daemon: Daemon) -> list[Any]:
    """What a few passes over a node that is up decided."""
    daemon.control.state["debug-0"] = node("debug-0", "ALLOCATED", "CLOUD")
    daemon.elastic.reconciler.policy = replace(daemon.elastic.reconciler.policy, settle=0.0)
    daemon.elastic.reconciler.once()
    return daemon.told("down")


def test_a_daemon_that_was_killed_knows_which_machine_it_had_launched(daemon: Daemon, tmp_path: Path) -> None:
    """The machine ends before the next daemon has seen it alive."""
    daemon.resume("debug-0")
    ended = replace(daemon.driver.machines[0], state=MachineState.TERMINATED)
    restarted = Daemon(tmp_path)
    restarted.driver.machines = [ended]
    assert passes(restarted) == [(("debug-0",), "slurm-stacks preempted: the machine is gone")]


def test_it_takes_no_earlier_machine_for_the_one_that_it_was_launching(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new machine is up, and no list shows it yet."""
    daemon.resume("debug-0")
    ended = replace(daemon.driver.machines[0], state=MachineState.TERMINATED)
    daemon.driver.machines = [ended]
    monkeypatch.setattr(daemon.elastic._budget_enforcer._budget, "launched", killed)
    daemon.resume("debug-0", identity="r2")
    restarted = Daemon(tmp_path)
    restarted.driver.machines = [ended]
    assert passes(restarted) == []


def killed(_: object) -> None:
    raise RuntimeError


def test_nor_one_of_a_node_that_was_off_meanwhile(daemon: Daemon, tmp_path: Path) -> None:
    """A daemon was killed before it heard that Slurm had powered the node down."""
    daemon.resume("debug-0")
    ended = replace(daemon.driver.machines[0], state=MachineState.TERMINATED)
    restarted = Daemon(tmp_path)
    restarted.driver.machines = [ended]
    restarted.control.state["debug-0"] = node("debug-0", "IDLE", "CLOUD", "POWERED_DOWN")
    restarted.elastic.reconciler.once()
    assert passes(restarted) == []


def test_suspend_ends_the_living_machines_of_the_nodes(daemon: Daemon) -> None:
    states = (MachineState.RUNNING, MachineState.PENDING, MachineState.STOPPING, MachineState.TERMINATED)
    daemon.driver.machines = [Machine(f"m{i}", f"debug-{i}", state, 0.0) for i, state in enumerate(states)]
    daemon.driver.machines.append(Machine("m9", "debug-9", MachineState.RUNNING, 0.0))
    daemon.elastic.process({"program": "suspend", "nodes": "debug-[0-4]", "time": 1.0})
    until(lambda: daemon.driver.terminated == ["m0", "m1"], 60, "both machines' end", 0.005)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (node("n", "IDLE", "CLOUD"), NodePhase.UP),
        (node("n", "ALLOCATED", "DRAIN"), NodePhase.UP),
        (node("n", "IDLE", "POWERED_DOWN"), NodePhase.POWERED_DOWN),
        (node("n", "DOWN", "POWERED_DOWN"), NodePhase.STUCK),
        (node("n", "DOWN", "POWERED_DOWN", reason="ResumeTimeout reached"), NodePhase.STUCK),
        (node("n", "DOWN", "POWERED_DOWN", reason="disk swap"), NodePhase.POWERED_DOWN),
        (node("n", "IDLE", "POWERED_DOWN", "DRAIN", reason="slurm-stacks quota: x"), NodePhase.POWERED_DOWN),
        (node("n", "IDLE", "POWERED_DOWN", "DRAIN", reason="slurm-stacks preempted: x"), NodePhase.STUCK),
        (node("n", "IDLE", "POWERED_DOWN", "DRAIN", reason="disk swap"), NodePhase.POWERED_DOWN),
        (node("n", "IDLE", "POWERED_DOWN", "NOT_RESPONDING"), NodePhase.STUCK),
        (node("n", "ALLOCATED", "POWERED_DOWN", "NOT_RESPONDING"), NodePhase.POWERED_DOWN),
        (
            node("n", "IDLE", "POWERED_DOWN", "NOT_RESPONDING", "DRAIN", reason="disk swap"),
            NodePhase.POWERED_DOWN,
        ),
        (node("n", "ALLOCATED", "DRAIN", reason="slurm-stacks preempted: x"), NodePhase.DRAINING),
        (node("n", "IDLE", "DRAIN", "COMPLETING", reason="slurm-stacks preempted: x"), NodePhase.DRAINING),
        (node("n", "IDLE", "DRAIN", reason="slurm-stacks preempted: x"), NodePhase.DRAINED),
        (node("n", "IDLE", "DRAIN", reason="Duplicate jobid"), NodePhase.DRAINED),
        (node("n", "IDLE", "DRAIN", reason="disk swap"), NodePhase.UP),
        (node("n", "IDLE", "DRAIN", "INVALID_REG", reason="Low CPUs"), NodePhase.UNFIT),
        (node("n", "MIXED", "DRAIN", "INVALID_REG", reason="Low CPUs"), NodePhase.DRAINING),
        (node("n", "IDLE", "DRAIN", "INVALID_REG", reason="disk swap"), NodePhase.UP),
        (node("n", "ALLOCATED", "POWERED_DOWN", "POWER_UP"), NodePhase.POWERING_UP),
        (node("n", "MIXED", "POWERING_UP", "NOT_RESPONDING"), NodePhase.POWERING_UP),
        (node("n", "IDLE", "POWERING_DOWN"), NodePhase.POWERING_DOWN),
        (node("n", "DOWN", "POWERING_DOWN"), NodePhase.POWERING_DOWN),
        (node("n", "IDLE", "POWER_DOWN"), NodePhase.POWERING_DOWN),
        (node("n", "DOWN"), NodePhase.DOWN),
        (node("n", "DOWN", "NOT_RESPONDING"), NodePhase.DOWN),
        (node("n", "DOWN", "POWERING_UP"), NodePhase.DOWN),
        (node("n", "IDLE", "NOT_RESPONDING"), NodePhase.SILENT),
        (node("n", "UNKNOWN"), NodePhase.SILENT),
        (node("n", "UNKNOWN", "NOT_RESPONDING"), NodePhase.SILENT),
    ],
    ids=lambda v: state_text(v) if isinstance(v, NodeState) else str(v),
)
def test_phase(state: NodeState, expected: NodePhase) -> None:
    assert phase(state) is expected


@pytest.mark.parametrize(
    ("flags", "base", "reason", "expected"),
    [
        (("DRAIN",), "IDLE", "bad fan", True),
        ((), "DOWN", "bad fan", True),
        ((), "IDLE", "bad fan", False),
        (("DRAIN",), "IDLE", None, False),
        ((), "DOWN", "slurm-stacks quota: …", False),
        ((), "DOWN", "Not responding", False),
        ((), "DOWN", "ResumeTimeout reached", False),
        ((), "DOWN", "Node unexpectedly rebooted", False),
    ],
)
def test_held(flags: tuple[str, ...], base: str, reason: str | None, expected: bool) -> None:
    assert is_admin_disabled(node("n", base, *flags, reason=reason)) is expected


def test_why_a_job_waits_is_said_in_our_words_first() -> None:
    ours = job(1, "PENDING", reason="Resources", explanation="Nodes busy", admin_comment="quota: …")
    assert ours.cause == "quota: …"
    assert job(1, "PENDING", reason="Resources", explanation="Nodes busy").cause == "Nodes busy"
    assert job(1, "PENDING", reason="Resources").cause == "Resources"
    assert job(1, "PENDING").cause is None
    assert job(1, "RUNNING", admin_comment="quota: …").cause is None


def repeat(
    daemon: Daemon,
    done: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
    busy: Callable[[], dict[str, int]] | None = None,
) -> None:
    """Reconcile on a clock of the test until something is done; `busy` is set when each pass begins."""
    clock = iter(range(0, 4000, 4))
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: float(next(clock)))
        for _ in range(6):
            daemon.elastic.launcher._busy = busy() if busy else daemon.elastic.launcher._busy
            daemon.elastic.reconciler.once()
            if done():
                return
    raise AssertionError(daemon.control.calls)


def test_reconcile_ends_orphans(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.control.state = {"debug-0": node("debug-0", "IDLE", "POWERED_DOWN")}
    daemon.driver.machines = [Machine("m0", "debug-0", MachineState.RUNNING, 0.0)]
    repeat(daemon, lambda: daemon.driver.terminated, monkeypatch)
    assert daemon.driver.terminated == ["m0"]


def test_reconcile_gives_back_nodes_whose_machine_is_gone(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.control.state = {n: node(n, "DOWN", "NOT_RESPONDING") for n in ("debug-0", "debug-1")}
    repeat(daemon, lambda: daemon.control.calls, monkeypatch)
    assert daemon.control.calls == [
        ("down", ("debug-0", "debug-1"), "slurm-stacks preempted: the machine is gone")
    ]


def test_reconcile_launches_again_what_was_lost(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.control.state = {"debug-3": node("debug-3", "ALLOCATED", "POWERING_UP")}
    # The launch runs in its own thread, which may begin after the last pass.
    repeat(daemon, lambda: daemon.elastic.launcher.busy() or daemon.driver.launches, monkeypatch)
    until(lambda: daemon.driver.launches, 60, "the launch", 0.005)
    assert daemon.driver.launches[0].nodes == ("debug-3",)


def test_reconcile_brings_static_nodes_up_and_leaves_held_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(tmp_path, fast_design(Partition("debug", "local.small", 1, 100, 2, 3)))
    off = {f"debug-{i}": node(f"debug-{i}", "IDLE", "POWERED_DOWN") for i in range(3)}
    off["debug-1"] = node("debug-1", "IDLE", "POWERED_DOWN", "DRAIN", reason="bad fan")
    daemon.control.state = off
    repeat(daemon, lambda: daemon.control.calls, monkeypatch)
    assert daemon.control.calls == [("up", ("debug-0",))]


def test_reconcile_leaves_a_launch_under_way_alone(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.driver.gate.clear()
    daemon.control.state = {"debug-0": node("debug-0", "ALLOCATED", "POWERING_UP")}
    daemon.elastic.process({"id": "r", "program": "resume", "nodes": "debug-0", "resume_file": None})
    with pytest.raises(AssertionError):
        repeat(daemon, lambda: len(daemon.driver.launches) > 1 or daemon.control.calls, monkeypatch)
    daemon.driver.gate.set()


def test_a_launch_that_begins_during_a_pass_is_seen_by_it(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.control.state = {"debug-0": node("debug-0", "ALLOCATED", "POWERING_UP")}
    for begins in (True, False):
        # Slurm is read first, then the cloud. In between another thread begins or ends a launch of the node.
        now = {"debug-0": 1} if begins else {}
        monkeypatch.setattr(
            daemon.driver,
            "list",
            lambda n=now: setattr(daemon.elastic.launcher, "_busy", dict(n)) or [],  # type: ignore[func-returns-value]
        )
        with pytest.raises(AssertionError):
            repeat(
                daemon,
                lambda: daemon.driver.launches,
                monkeypatch,
                lambda b=begins: {} if b else {"debug-0": 1},  # type: ignore[misc]
            )


def test_status_has_the_shape_of_the_contract(daemon: Daemon) -> None:
    daemon.control.state = {
        "debug-0": node("debug-0", "ALLOCATED", "CLOUD"),
        "debug-1": node("debug-1", "IDLE", "POWERED_DOWN", "CLOUD", reason="slurm-stacks quota: …"),
        "debug-2": node("debug-2", "ALLOCATED", "POWERING_UP"),
    }
    daemon.control.queue = {
        5: job(5, "RUNNING", nodes=("debug-0",)),
        6: job(6, "PENDING", reason="Resources"),
        7: job(7, "COMPLETED"),
    }
    daemon.driver.machines = [
        Machine("m0", "debug-0", MachineState.RUNNING, time.time() - 3600),
        Machine("m2", "debug-2", MachineState.PENDING, time.time()),
        Machine("m9", "debug-9", MachineState.TERMINATED, 0.0),
    ]
    daemon.elastic.reconciler.once()
    status = daemon.elastic.handle("status", {})
    cost = status.pop("cost")
    assert status.pop("cloud") is None, "it answers"
    assert status.pop("closed") is None, "no command has closed partitions"
    assert status.pop("settings") is None, "the stack file's options are in force"
    assert {step["error"] for step in status.pop("steps")} == {None}
    # Slurm does not list the other nodes of the partition.
    status["nodes"] = [found for found in status["nodes"] if found["state"] != "MISSING"]
    assert status == {
        "partitions": [
            {"name": "debug", "state": "UP", "machine": "local.small", "min": 0, "max": 10, "up": 1,
             "pools": []},
        ],
        "nodes": [
            {"name": "debug-0", "partition": "debug", "pool": None, "state": "ALLOCATED+CLOUD",
             "usable": True, "machine_state": "running", "reason": None, "next_state": None, "changes": []},
            {"name": "debug-1", "partition": "debug", "pool": None, "state": "IDLE+CLOUD+POWERED_DOWN",
             "usable": True, "machine_state": None, "reason": "slurm-stacks quota: …", "next_state": None,
             "changes": []},
            {"name": "debug-2", "partition": "debug", "pool": None, "state": "ALLOCATED+POWERING_UP",
             "usable": True, "machine_state": "pending", "reason": None, "next_state": None, "changes": []},
        ],
        "reservations": [],
        "disks": [],
        "unsaved": None,
        "machines": {"running": 1, "pending": 1},
        "jobs": [
            {"id": 5, "slurm_id": "5", "name": "keras-job", "user": "u", "partition": "debug",
             "state": "RUNNING", "elapsed_seconds": 0, "nodes": "debug-0", "cause": None, "advice": None,
             "pool": None, "pool_reason": None},
            {"id": 6, "slurm_id": "6", "name": "keras-job", "user": "u", "partition": "debug",
             "state": "PENDING", "elapsed_seconds": None, "nodes": "", "cause": "Resources",
             "advice": None, "pool": None, "pool_reason": None},
        ],
    }  # fmt: skip
    assert cost["node_hours"] == pytest.approx(1.0, abs=0.01)
    assert cost["usd"] == pytest.approx(0.5, abs=0.01)
    json.dumps(status)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run one of Slurm's programs as slurmctld does."""

    def run(name: str, *arguments: str, socket: Path, requests: Path, **environment: str) -> int:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        for key, value in environment.items():
            monkeypatch.setenv(key, value)
        return client.main(name, str(socket), str(requests))

    return run


def test_requests_left_while_the_daemon_was_down_are_its_first_work(
    daemon: Daemon, tmp_path: Path, program: Callable[..., int]
) -> None:
    there = {"socket": tmp_path / "none.sock", "requests": tmp_path / "requests"}
    wish = tmp_path / "resume.json"
    wish.write_text('{"all_nodes": "debug-[0-1]", "jobs": [{"job_id": 3, "nodes": "debug-[0-1]"}]}')
    daemon.driver.machines = [Machine("m5", "debug-5", MachineState.RUNNING, 0.0)]
    daemon.control.state = {f"debug-{i}": node(f"debug-{i}", "MIXED", "POWERING_UP") for i in (0, 1)}
    assert program("resume", "debug-[0-1]", **there, SLURM_RESUME_FILE=str(wish)) == 0
    assert program("suspend", "debug-5", **there) == 0
    # Slurm removes the file once the program has ended.
    wish.unlink()
    left = sorted((tmp_path / "requests").iterdir())
    assert [json.loads(file.read_text())["program"] for file in left] == ["resume", "suspend"]

    with running(daemon.elastic):
        until(lambda: daemon.driver.launches and daemon.driver.terminated, 60, "both requests", 0.005)
    assert (daemon.driver.launches[0].job, daemon.driver.launches[0].all_or_nothing) == (3, True)
    assert daemon.driver.terminated == ["m5"]
    assert list((tmp_path / "requests").iterdir()) == []


def test_who_may_only_ask_gets_answers_and_changes_nothing(daemon: Daemon) -> None:
    assert daemon.elastic.answer("cost", {})["node_hours"] == 0
    for method in ("request", "wait", "wait_for_release", "record", "renew", "reconfigure", "nonsense"):
        with pytest.raises(ValueError, match="no question is named"):
            daemon.elastic.answer(method, {"request": {"program": "suspend", "nodes": "debug-0"}})


def test_programs_reach_a_living_daemon(
    daemon: Daemon, tmp_path: Path, program: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {"socket": tmp_path / "e.sock", "requests": tmp_path / "requests"}
    server = rpc.Server(str(there["socket"]), daemon.elastic.handle)
    threading.Thread(target=server.serve, daemon=True).start()
    daemon.control.state = {"debug-0": node("debug-0", "ALLOCATED")}
    with running(daemon.elastic), closing(server):
        gone = {"SLURM_RESUME_FILE": str(tmp_path / "gone")}
        assert program("resume", "debug-0", **there, **gone) == 0
        until(lambda: daemon.driver.launches, 60, "the launch", 0.005)
        assert program("nonsense", "debug-0", **there) == 0
        daemon.elastic._queue.put({"program": "resume", "nodes": "debug-1", "id": "x", "resume_file": "{"})
        assert program("resume-fail", "debug-0", **there) == 0
        assert program("suspend", "debug-0", **there) == 0
        until(lambda: daemon.driver.terminated, 60, "the suspend, after a request that is not JSON", 0.005)
        assert list(there["requests"].iterdir()) == []
        job_ = {"SLURM_JOB_ID": "4", "SLURM_JOB_NODELIST": "debug-0"}
        assert program("prolog-slurmctld", **there, **job_) == 0
        assert program("epilog-slurmctld", **there, **job_) == 0
        # A prolog of an earlier release may still wait.
        former = {"job": 4, "nodes": "debug-0", "asked": time.monotonic()}
        assert rpc.call(str(there["socket"]), "wait", 60.0, **former) == {"over": True}
        recorded: list[str] = []
        monkeypatch.setattr(daemon.elastic.changes, "once", lambda: recorded.append("changes"))
        # systemd runs it also after slurmctld has ended by itself: then nobody answers.
        assert program("record-changes", **there) == 0
        assert recorded == []
        assert program("record-changes", **there, MAINPID="1") == 0
        assert recorded == ["changes"]
        with pytest.raises(rpc.RpcError, match="no call is named"):
            rpc.call(str(there["socket"]), "launch")


@pytest.mark.parametrize("name", client.WAITING)
def test_a_program_that_waits_ends_well_in_the_end_without_a_daemon(
    name: str, tmp_path: Path, program: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prolog that fails would requeue the job, and one that never ends would hold it forever."""
    naps = noted_naps(monkeypatch)
    there = {"socket": tmp_path / "none.sock", "requests": tmp_path}
    assert program(name, **there, SLURM_JOB_ID="4", SLURM_JOB_NODELIST="debug-0") == 0
    assert len(naps) == client.WAIT_RETRIES[client.WAITING[name]]


@pytest.mark.parametrize(
    ("limits", "after"), [((256, 300), 300), ((256, 10**6), MOST_FILES), ((300, 300), 300)]
)
def test_a_daemon_has_descriptors_for_all_who_wait(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], after: int
) -> None:
    have = [limits]
    monkeypatch.setattr(resource, "getrlimit", lambda _: have[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: have.append(pair))
    open_many_files()
    assert have[-1] == (after, limits[1])


def test_a_static_node_that_has_not_changed_comes_up_once_its_line_is_the_new_one(tmp_path: Path) -> None:
    """Views of nodes that have not changed are kept from pass to pass."""
    static = replace(DEBUG, min=1)
    daemon = Daemon(tmp_path, fast_design(static))
    daemon.control.state = {"debug-0": node("debug-0", "IDLE", "CLOUD", "POWERED_DOWN")}
    reconciler = daemon.elastic.reconciler
    reconciler.policy = replace(reconciler.policy, settle=0.0)
    for line, verbs in ((replace(static, cpus=1), []), (static, [Verb.POWER_UP])):
        record = Record("22.05", (Line("debug-[0-9]", Hardware.of(line)),))
        (tmp_path / hardware.RECORD).write_text(hardware.text(record))
        assert [action.verb for action in reconciler.once()] == verbs
