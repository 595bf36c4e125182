"""Boots that fail: the job is told why, the next try is on another node, and repeated failures are paused."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from node.bootstrap.report import failure
from node.elastic.daemon import Elastic
from node.elastic.driver import LaunchGroup, Machine, MachineState
from node.elastic.failed_boots import FailedBoots
from tests.support.doubles import FakeControl, FakeDriver, fast_design, job, node, settings

WHY = "step hooks: driver.sh ended with status 3"
SENTENCE = f"bootstrap: {WHY} (boot); see the node's boot report, by `logs debug-0`"


class Cluster:
    """A daemon whose nodes' boots fail."""

    def __init__(self, folder: Path) -> None:
        self.control, self.driver = FakeControl(), FakeDriver()
        (folder / "requests").mkdir()
        self.elastic = Elastic(settings(folder, fast_design()), self.control, self.driver, folder)

    def boot(self, *names: str, failure: str | None = WHY) -> None:
        self.control.state = {name: node(name, "MIXED", "POWERING_UP") for name in names}
        self.driver.machines = [
            Machine(f"m-{name}", name, MachineState.RUNNING, time.time(), failure) for name in names
        ]

    def limit(self) -> int | None:
        found = self.elastic.capacity_limiter._pools.limit("debug")
        return None if found is None else found.count

    def come_up(self) -> None:
        self.control.state = {name: node(name, "MIXED") for name in self.control.state}
        self.elastic.reconciler.once()


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_a_failed_boot_is_acted_on_at_once_and_its_job_told(cluster: Cluster) -> None:
    cluster.control.queue = {
        5: job(5, "CONFIGURING", nodes=("debug-0", "debug-1")),
        6: job(6, "COMPLETED", nodes=("debug-0",)),
        7: job(7, "RUNNING", nodes=("debug-4",)),
    }
    cluster.boot("debug-0")
    cluster.elastic.reconciler.once()
    assert cluster.control.calls == [
        ("comment", 5, SENTENCE),
        ("down", ("debug-0",), f"slurm-stacks {SENTENCE}"),
        ("avoid", ("debug-0",)),
    ]
    cluster.elastic.launcher.launch(LaunchGroup("debug", ("debug-9",), False, "t"), {})
    assert cluster.driver.launches, "it may be this node's own fault"


def test_a_boot_that_goes_on_is_left_alone(cluster: Cluster) -> None:
    cluster.boot("debug-0", failure=None)
    cluster.elastic.reconciler.once()
    assert cluster.control.calls == []


def test_boots_that_keep_failing_are_paused_ever_longer(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    group = LaunchGroup("debug", ("debug-9",), False, "t")
    for pause in (0, 30, 60, 120):
        cluster.boot("debug-0")
        cluster.elastic.reconciler.once()
        now[0] += max(0, pause - 0.1)
        cluster.elastic.capacity_limiter.once()
        if pause:
            cluster.elastic.launcher.launch(group, {"debug-9": 8})
            assert cluster.driver.launches == [], f"asked during the pause of {pause} s"
            assert ("comment", 8, SENTENCE) in cluster.control.calls, "who waits hears why"
        cluster.control.calls.clear()
        now[0] += 0.2
        cluster.elastic.capacity_limiter.once()
        assert cluster.limit() == (1 if pause else None), "one node is tried"
    cluster.boot("debug-1", failure=None)
    cluster.come_up()
    cluster.elastic.capacity_limiter.once()
    cluster.boot("debug-0")
    cluster.elastic.reconciler.once()
    cluster.elastic.launcher.launch(group, {})
    assert cluster.driver.launches == [group], "one that came up ends the row"


def test_a_node_that_was_up_before_says_nothing_of_new_boots() -> None:
    boots = FailedBoots()
    assert boots.failed("debug", 100.0) == 0
    boots.came_up("debug", 99.0)
    assert boots.failed("debug", 101.0) == 30
    boots.came_up("other", 200.0)
    assert boots.failed("debug", 102.0) == 60
    boots.came_up("debug", 103.0)
    assert boots.failed("debug", 104.0) == 0
    for _ in range(12):
        pause = boots.failed("debug", 105.0)
    assert pause == 600


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            {"state": "failed", "steps": [{"name": "users"}, {"name": "ready", "note": "no port"}]},
            "step ready: no port",
        ),
        (
            {"state": "failed", "steps": [{"name": "hooks", "note": "status 3", "tail": ["a", "no device"]}]},
            "step hooks: status 3: no device",
        ),
        (
            {"state": "failed", "steps": [{"name": "hooks", "note": "the end:", "tail": ["no device", " "]}]},
            "step hooks: the end: no device",
        ),
        ({"state": "ready", "steps": [{"name": "ready", "note": "slurmd runs"}]}, None),
        ({"state": "booting", "steps": []}, None),
        ({"state": "failed", "steps": []}, None),
        ([], None),
    ],
)
def test_what_a_report_says_of_a_failure(tmp_path: Path, content: object, expected: str | None) -> None:
    file = tmp_path / "debug-0.json"
    assert failure(file) is None, "not booted yet"
    file.write_text("{")
    assert failure(file) is None, "being written"
    file.write_text(json.dumps(content))
    assert failure(file) == expected
