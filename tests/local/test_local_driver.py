"""The elastic driver over the local cloud's real rules: what is launched, and how each refusal is classed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.local.cloud.agent import Agent
from infra.node import rpc
from infra.node.elastic.driver import LaunchGroup, MachineState
from infra.node.elastic.drivers import load
from infra.node.elastic.drivers.local import LocalDriver
from infra.node.elastic.errors import ErrorClass
from infra.node.model import Accelerator, Partition
from tests.support.doubles import design, settings

DESIGN = design(Partition("gpu", "local.medium", 2, 100, 0, 9, Accelerator("v100", 4, simulated=True)))


class Wire:
    """The agent's calls, without a process: machines stay pending, so none is made."""

    def __init__(self, folder: Path) -> None:
        (folder / "cloud").mkdir()
        self.agent = Agent(folder)
        self.agent._cloud.limits.boot_delay = 3600
        self.asked: list[dict[str, Any]] = []
        self.answer: Exception | None = None

    def handle(self, method: str, params: dict[str, Any]) -> Any:
        self.asked.append({"method": method, **params})
        if self.answer is not None:
            raise self.answer
        return self.agent._handle(method, params)


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    made = Wire(tmp_path)
    server = rpc.Server(str(tmp_path / "agent.sock"), made.handle)
    threading.Thread(target=server.serve, daemon=True).start()
    yield made
    server.close()
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.cancel()


@pytest.fixture
def driver(wire: Wire, tmp_path: Path) -> LocalDriver:
    made = load(settings(tmp_path, DESIGN))
    assert isinstance(made, LocalDriver)
    return made


def group(*nodes: str, whole: bool = True) -> LaunchGroup:
    return LaunchGroup("gpu", nodes, whole, "-".join(nodes))


def test_a_launch_carries_names_tags_and_devices(driver: LocalDriver, wire: Wire) -> None:
    result = driver.launch(group("gpu-0", "gpu-1"))
    assert set(result.launched) == {"gpu-0", "gpu-1"}
    assert result.failures == ()
    (asked,) = wire.asked
    assert asked == {
        "method": "launch",
        "token": "gpu-0-gpu-1",
        "names": {"gpu-0": "t-gpu-0", "gpu-1": "t-gpu-1"},
        "min_count": 2,
        "machine": "local.medium",
        "gpus": 4,
        "tags": {"cluster": "t", "role": "compute", "partition": "gpu"},
    }
    machines = {m.node: (m.id, m.state) for m in driver.list()}
    assert machines == {node: (i, MachineState.PENDING) for node, i in result.launched.items()}
    driver.terminate([result.launched["gpu-0"], "m-unknown"])
    assert {m.node: m.state for m in driver.list()}["gpu-0"] is MachineState.TERMINATED
    calls = len(wire.asked)
    driver.terminate([])
    assert len(wire.asked) == calls


def test_other_clusters_and_the_head_are_not_its_machines(driver: LocalDriver, wire: Wire) -> None:
    for cluster, role in (("other", "compute"), ("t", "controller")):
        wire.agent._cloud.launch(role, {"x": f"{cluster}-x"}, 1, "m", {"cluster": cluster, "role": role})
    assert driver.list() == []


def test_whole_jobs_get_all_or_nothing_and_single_ones_what_there_is(driver: LocalDriver, wire: Wire) -> None:
    wire.agent._cloud.limits.quota_gpus = 8
    nodes = ("gpu-0", "gpu-1", "gpu-2")
    whole = driver.launch(group(*nodes))
    assert whole.launched == {}
    (failure,) = whole.failures
    assert (failure.nodes, failure.kind, failure.code) == (nodes, ErrorClass.QUOTA, "QuotaExceeded")
    single = driver.launch(LaunchGroup("gpu", nodes, False, "another token"))
    assert set(single.launched) == {"gpu-0", "gpu-1"}
    assert [(f.nodes, f.kind) for f in single.failures] == [(("gpu-2",), ErrorClass.QUOTA)]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("QuotaExceeded", ErrorClass.QUOTA),
        ("InsufficientCapacity", ErrorClass.CAPACITY),
        ("PlacementImpossible", ErrorClass.PLACEMENT),
        ("AccessDenied", ErrorClass.PERMISSION),
        ("RequestLimitExceeded", ErrorClass.THROTTLED),
        ("NameInUse", ErrorClass.THROTTLED),
        ("InvalidRequest", ErrorClass.CONFIG),
        ("SomethingNew", ErrorClass.CONFIG),
    ],
)
def test_refusals_are_classed(driver: LocalDriver, wire: Wire, code: str, kind: ErrorClass) -> None:
    wire.answer = type("CodedError", (Exception,), {"code": code})("no")
    (failure,) = driver.launch(group("gpu-0", "gpu-1")).failures
    assert (failure.nodes, failure.kind, failure.code) == (("gpu-0", "gpu-1"), kind, code)
    assert f"{kind}: no ({code})" in failure.sentence()


def test_a_running_machines_failed_boot_is_told_and_the_last_ones_forgotten(
    driver: LocalDriver, wire: Wire, tmp_path: Path
) -> None:
    boots = tmp_path / "lib" / "boot"
    boots.mkdir(parents=True)
    failed = {"state": "failed", "steps": [{"name": "hooks", "note": "no driver"}]}
    (boots / "gpu-0.json").write_text(json.dumps(failed))
    driver.launch(group("gpu-0", "gpu-1"))
    assert not (boots / "gpu-0.json").exists(), "what its last machine has left says nothing of this one"
    for record in wire.agent._cloud._machines.values():
        record.state = "running"
    (boots / "gpu-1.json").write_text(json.dumps(failed))
    told = {m.node: m.failure for m in driver.list()}
    assert told == {"gpu-0": None, "gpu-1": "step hooks: no driver"}


def test_a_cloud_that_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    (failure,) = LocalDriver(settings(tmp_path, DESIGN)).launch(group("gpu-0")).failures
    assert (failure.kind, failure.code) == (ErrorClass.THROTTLED, "Unavailable")


def test_a_provider_without_a_driver_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no elastic driver for provider 'azure'"):
        load(settings(tmp_path, design(provider="azure")))
