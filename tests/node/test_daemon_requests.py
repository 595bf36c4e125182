"""Requests that come late or overlap: what the daemon may still do about them."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from node.design.model import Budget
from node.elastic.daemon import Elastic
from node.elastic.driver import Machine, MachineState
from node.elastic.plan import Action
from node.elastic.rules import Verb
from node.system import rpc
from tests.support.checkout import until
from tests.support.doubles import DEBUG, FakeControl, FakeDriver, fast_design, job, node, running, settings


class Daemon:
    """The daemon's work with doubles of Slurm and a cloud that only record calls."""

    def __init__(self, folder: Path) -> None:
        self.control = FakeControl()
        self.driver = FakeDriver()
        self.requests = folder / "requests"
        self.requests.mkdir()
        made = settings(folder, fast_design())
        self.elastic = Elastic(made, self.control, self.driver, folder)

    def leave(self, request: dict[str, Any]) -> None:
        (self.requests / f"{request['id']}.json").write_text(json.dumps(request))


@pytest.fixture
def daemon(tmp_path: Path) -> Daemon:
    return Daemon(tmp_path)


def resume(nodes: str, *jobs: tuple[int, str]) -> dict[str, Any]:
    wish = {"all_nodes": nodes, "jobs": [{"job_id": j, "nodes": n} for j, n in jobs]}
    return {"id": "r1", "program": "resume", "nodes": nodes, "resume_file": json.dumps(wish), "time": 1.0}


def test_a_late_suspend_spares_a_machine_that_was_launched_after_it(daemon: Daemon) -> None:
    """A suspend that waited behind others must not end the machine of the node's next job."""
    daemon.driver.machines = [
        Machine("old", "debug-0", MachineState.RUNNING, 100.0),
        Machine("new", "debug-1", MachineState.RUNNING, 300.0),
    ]
    daemon.elastic.process({"id": "s", "program": "suspend", "nodes": "debug-[0-1]", "time": 200.0})
    until(lambda: daemon.driver.terminated, 60, "the old machine's end", 0.005)
    time.sleep(0.05)
    assert daemon.driver.terminated == ["old"]


def test_a_resume_does_not_wait_for_machines_that_take_long_to_end(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    monkeypatch.setattr(daemon.driver, "terminate", lambda ids: gate.wait(60))
    daemon.driver.machines = [Machine("m0", "debug-0", MachineState.RUNNING, 0.0)]
    daemon.elastic.process({"id": "s", "program": "suspend", "nodes": "debug-0", "time": 1.0})
    daemon.elastic.process(resume("debug-1", (7, "debug-1")))
    until(lambda: daemon.driver.launches, 60, "the launch", 0.005)
    gate.set()


def test_of_a_late_resume_only_what_slurm_still_waits_for_is_launched(daemon: Daemon) -> None:
    daemon.control.state = {
        "debug-0": node("debug-0", "MIXED", "POWERING_UP"),
        "debug-1": node("debug-1", "IDLE", "POWERED_DOWN"),
    }
    daemon.leave(resume("debug-[0-1]", (7, "debug-0"), (8, "debug-1")))
    with running(daemon.elastic):
        until(lambda: daemon.driver.launches, 60, "the launch", 0.005)
    assert [group.nodes for group in daemon.driver.launches] == [("debug-0",)]
    assert list(daemon.requests.iterdir()) == []


@pytest.mark.parametrize("text", ["", '{"program": "resume"', "[]", "7", "\x00\x00"])
def test_a_request_that_cannot_be_read_ends_neither_the_daemon_nor_its_next_start(
    daemon: Daemon, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A power failure leaves files without content. No later start would get past one."""
    (daemon.requests / "r0.json").write_text(text)
    daemon.control.state = {"debug-0": node("debug-0", "MIXED", "POWERING_UP")}
    daemon.leave(resume("debug-0", (7, "debug-0")))
    with running(daemon.elastic):
        until(lambda: daemon.driver.launches, 60, "the launch", 0.005)
    assert "r0.json cannot be read" in capsys.readouterr().out
    assert list(daemon.requests.iterdir()) == []


@pytest.mark.parametrize("error", [rpc.RpcError("forbidden", "may not list"), ValueError("what is this?")])
def test_the_budget_ends_also_while_the_cloud_lists_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Running machines cost money whether or not the cloud lists them."""
    driver = FakeDriver()
    control = FakeControl([node("debug-0", "ALLOCATED", "CLOUD")], [job(7, nodes=("debug-0",))])
    design = fast_design(DEBUG, budget=Budget(max_hours=1.0))
    elastic = Elastic(settings(tmp_path, design), control, driver, tmp_path)
    driver.machines = [Machine("m0", "debug-0", MachineState.RUNNING, time.time() - 7200)]
    elastic.reconciler.once()

    def refuse() -> list[Machine]:
        raise error

    monkeypatch.setattr(driver, "list", refuse)
    control.calls.clear()
    elastic.look()
    ((_, names, state, reason),) = control.calls
    assert (names, state) == (("debug-0",), "POWER_DOWN_ASAP")
    assert "node-hours are spent" in reason


def test_a_lost_launch_is_made_again_whole(daemon: Daemon) -> None:
    daemon.control.queue = {
        7: job(7, "CONFIGURING", nodes=("debug-0", "debug-1")),
        8: job(8, "RUNNING", nodes=("debug-2",)),
    }
    lost = [Action(Verb.LAUNCH, name, None, "the launch was lost") for name in ("debug-0", "debug-1")]
    daemon.elastic.reconciler.apply(lost, daemon.control.nodes())
    until(lambda: daemon.driver.launches, 60, "the launch", 0.005)
    (group,) = daemon.driver.launches
    assert (group.nodes, group.all_or_nothing, group.job) == (("debug-0", "debug-1"), True, 7)
