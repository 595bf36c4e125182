"""Requests that come late, or cross each other: what the daemon may still do about them."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from infra.node.elastic.daemon import Elastic
from infra.node.elastic.driver import Machine, MachineState
from infra.node.elastic.plan import Action, Verb
from tests.support.checkout import until
from tests.support.doubles import FakeControl, FakeDriver, fast_design, job, node, settings


class Daemon:
    """The daemon's work between a Slurm and a cloud that only remember."""

    def __init__(self, folder: Path) -> None:
        self.control = FakeControl()
        self.driver = FakeDriver()
        self.requests = folder / "requests"
        self.requests.mkdir()
        made = settings(folder, fast_design())
        self.elastic = Elastic(made, self.control, self.driver, folder)  # type: ignore[arg-type]

    def leave(self, request: dict[str, Any]) -> None:
        (self.requests / f"{request['id']}.json").write_text(json.dumps(request))


@pytest.fixture
def made(tmp_path: Path) -> Daemon:
    return Daemon(tmp_path)


def resume(nodes: str, *jobs: tuple[int, str]) -> dict[str, Any]:
    wish = {"all_nodes": nodes, "jobs": [{"job_id": j, "nodes": n} for j, n in jobs]}
    return {"id": "r1", "program": "resume", "nodes": nodes, "resume_file": json.dumps(wish), "time": 1.0}


def test_a_late_suspend_spares_a_machine_that_was_launched_after_it(made: Daemon) -> None:
    """A suspend that waited behind others must not take the machine of the node's next job."""
    made.driver.machines = [
        Machine("old", "debug-0", MachineState.RUNNING, 100.0),
        Machine("new", "debug-1", MachineState.RUNNING, 300.0),
    ]
    made.elastic.process({"id": "s", "program": "suspend", "nodes": "debug-[0-1]", "time": 200.0})
    until(lambda: made.driver.terminated, 5, "the old machine's end", 0.005)
    time.sleep(0.05)
    assert made.driver.terminated == ["old"]


def test_a_resume_does_not_wait_for_machines_that_take_long_to_end(
    made: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    monkeypatch.setattr(made.driver, "terminate", lambda ids: gate.wait(10))
    made.driver.machines = [Machine("m0", "debug-0", MachineState.RUNNING, 0.0)]
    made.elastic.process({"id": "s", "program": "suspend", "nodes": "debug-0", "time": 1.0})
    made.elastic.process(resume("debug-1", (7, "debug-1")))
    until(lambda: made.driver.launches, 2, "the launch", 0.005)
    gate.set()


def test_of_a_late_resume_only_what_slurm_still_waits_for_is_launched(made: Daemon) -> None:
    made.control.state = {
        "debug-0": node("debug-0", "MIXED", "POWERING_UP"),
        "debug-1": node("debug-1", "IDLE", "POWERED_DOWN"),
    }
    made.leave(resume("debug-[0-1]", (7, "debug-0"), (8, "debug-1")))
    threading.Thread(target=made.elastic.run, daemon=True).start()
    until(lambda: made.driver.launches, 5, "the launch", 0.005)
    assert [group.nodes for group in made.driver.launches] == [("debug-0",)]
    assert list(made.requests.iterdir()) == []


def test_a_lost_launch_is_made_again_whole(made: Daemon) -> None:
    made.control.queue = {
        7: job(7, "CONFIGURING", nodes=("debug-0", "debug-1")),
        8: job(8, "RUNNING", nodes=("debug-2",)),
    }
    lost = [Action(Verb.LAUNCH, name, None, "the launch was lost") for name in ("debug-0", "debug-1")]
    made.elastic._apply(lost)
    until(lambda: made.driver.launches, 5, "the launch", 0.005)
    (group,) = made.driver.launches
    assert (group.nodes, group.all_or_nothing, group.job) == (("debug-0", "debug-1"), True, 7)
