"""The driver of the local cloud, over that cloud's real rules: what is launched, and each refusal's class."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localcloud import behaviour, isolation
from localcloud.agent import Agent
from localcloud.network import hosts_text
from node.bootstrap.report_server import ReportServer
from node.design.accelerators import Accelerator
from node.design.model import CONTAINER, ClusterDesign, Partition, Settings
from node.design.sites import LocalSite
from node.elastic.driver import AvailableCapacity, LaunchGroup, MachineState
from node.elastic.drivers import load
from node.elastic.drivers.local import LocalDriver
from node.elastic.failures import ErrorClass
from node.system import rpc
from tests.support import doubles

DESIGN = doubles.design(
    Partition("gpu", "local.medium", 2, 100, 0, 9, Accelerator("v100", 4, simulated=True))
)


class Wire:
    """The agent's calls without a process. Machines stay pending, so no process is started for them."""

    def __init__(self, folder: Path) -> None:
        (folder / "cloud").mkdir()
        self.agent = Agent(folder)
        self.limits(boot_delay=3600)
        self.asked: list[dict[str, Any]] = []
        self.answer: Exception | None = None

    def limits(self, **changes: Any) -> None:
        self.agent._handle("limits", changes)

    def handle(self, method: str, params: dict[str, Any]) -> Any:
        self.asked.append({"method": method, **params})
        if self.answer is not None:
            raise self.answer
        return self.agent._handle(method, params)


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    made = Wire(tmp_path)
    server = rpc.Server(str(tmp_path / "cloud" / "agent.sock"), made.handle)
    threading.Thread(target=server.serve, daemon=True).start()
    yield made
    server.close()
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.cancel()
            thread.join(30)


def settings(run: Path, of: ClusterDesign = DESIGN) -> Settings:
    made = doubles.settings(run, of)
    return replace(made, site=replace(made.site, cloud=LocalSite(str(run / "cloud" / "agent.sock"))))


@pytest.fixture
def driver(wire: Wire, tmp_path: Path) -> LocalDriver:
    made = load(settings(tmp_path))
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
        "tags": {"cluster": "t", "role": "compute", "partition": "gpu", "cpus": "2"},
        "zone": None,
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
    wire.limits(quota_gpus=8)
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
        ("NameInUse", ErrorClass.UNAVAILABLE),
        ("InvalidRequest", ErrorClass.CONFIG),
        ("SomethingNew", ErrorClass.CONFIG),
    ],
)
def test_refusals_are_classed(driver: LocalDriver, wire: Wire, code: str, kind: ErrorClass) -> None:
    wire.answer = type("CodedError", (Exception,), {"code": code})("no")
    (failure,) = driver.launch(group("gpu-0", "gpu-1")).failures
    assert (failure.nodes, failure.kind, failure.code) == (("gpu-0", "gpu-1"), kind, code)
    assert failure.own == (code == "NameInUse")
    assert f"{kind}: no ({code})" in failure.sentence()


def test_a_running_machines_failed_boot_is_told_and_the_last_ones_is_not(
    driver: LocalDriver, wire: Wire, tmp_path: Path
) -> None:
    boots = tmp_path / "bucket" / "boot"
    boots.mkdir(parents=True)

    def report(node: str) -> None:
        steps = [{"name": "hooks", "note": "no driver"}]
        content = {"state": "failed", "started": time.time(), "steps": steps}
        (boots / f"{node}.json").write_text(json.dumps(content))

    report("gpu-0")
    driver.launch(group("gpu-0", "gpu-1", "gpu-2"))
    time.sleep(0.05)  # a file's time is that of the kernel's last tick
    report("gpu-1")
    report("gpu-2")
    for record in wire.agent._cloud._store.machines.values():
        record.state = "pending" if record.node == "gpu-2" else "running"
    told = {m.node: m.failure for m in driver.list()}
    assert told == {"gpu-0": None, "gpu-1": "step hooks: no driver", "gpu-2": None}


def test_container_machines_report_from_their_own_addresses(wire: Wire, tmp_path: Path) -> None:
    """Each has a root of its own, who can write every machine's report in the bucket's folder."""
    isolation.write_isolation(tmp_path, CONTAINER)
    (tmp_path / "cloud" / "hosts").write_text(hosts_text({"gpu-0": "10.99.1.0", "gpu-1": "10.99.1.1"}))
    boots, reports = tmp_path / "bucket" / "boot", tmp_path / "var/lib/slurm-stacks/reports"
    boots.mkdir(parents=True)
    reports.mkdir(parents=True)
    driver = LocalDriver(settings(tmp_path, replace(DESIGN, isolation=CONTAINER)))
    driver.launch(group("gpu-0", "gpu-1", "gpu-2"))
    for record in wire.agent._cloud._store.machines.values():
        record.state = "running"
    assert {m.node: m.addresses for m in driver.list()} == {
        "gpu-0": ("10.99.1.0",), "gpu-1": ("10.99.1.1",), "gpu-2": (),
    }  # fmt: skip
    content = {"state": "failed", "steps": [{"name": "hooks", "note": "no driver"}], "host": "gpu-0"}
    (boots / "gpu-0.json").write_text(json.dumps(content))
    with socket.socket() as listener:
        server = ReportServer(listener, reports)
    assert server.take("10.99.1.1", json.dumps({**content, "notice": time.time() + 9}).encode()) == ""
    told = {m.node: (m.failure, m.notice) for m in driver.list()}
    assert told == {"gpu-0": (None, None), "gpu-1": ("step hooks: no driver", None), "gpu-2": (None, None)}


def test_zone_and_notice_are_carried(driver: LocalDriver, wire: Wire) -> None:
    driver.launch(replace(group("gpu-0"), zone="b"))
    driver.launch(group("gpu-1"))
    wire.handle("fault", {"action": "preempt", "node": "gpu-0", "notice": 900})
    zoned, other = driver.list()
    assert (zoned.zone, other.zone, other.notice) == ("b", None, None)
    assert zoned.notice is not None
    assert 0 < zoned.notice - time.time() <= 900


def test_room_is_told_with_its_cause(driver: LocalDriver, wire: Wire) -> None:
    wire.limits(**{"quota_gpus": 8, "capacity.gpu/b": 1})
    driver.launch(group("gpu-0"))
    assert driver.available_capacity("gpu", None, 1) == AvailableCapacity(1)
    assert wire.asked[-1] == {
        "method": "available_capacity", "partition": "gpu", "zone": None, "machine": "local.medium",
        "gpus": 4, "count": 1,
    }  # fmt: skip
    found = driver.available_capacity("gpu", None, 3)
    assert found is not None
    assert found.count == 1
    assert found.failure is not None
    assert (found.failure.nodes, found.failure.kind) == ((), ErrorClass.QUOTA)
    assert "quota of 8 GPUs" in found.failure.message
    found = driver.available_capacity("gpu", "c", 2)
    assert found is not None
    assert found.count == 1, "another zone's capacity is none of it"
    wire.limits(quota_gpus=None)
    found = driver.available_capacity("gpu", "b", 2)
    assert found is not None
    assert found.failure is not None
    assert (found.count, found.failure.kind) == (1, ErrorClass.CAPACITY)
    wire.limits(api_error="permission")
    found = driver.available_capacity("gpu", None, 2)
    assert found is not None
    assert found.failure is not None
    assert (found.count, found.failure.kind) == (0, ErrorClass.PERMISSION)


def test_the_clouds_own_errors_are_classed(driver: LocalDriver, wire: Wire) -> None:
    """Each class that `api_error` may name comes out as that class."""
    for kind in behaviour.ERRORS:
        wire.limits(api_error=kind)
        (failure,) = driver.launch(group("gpu-0")).failures
        assert failure.kind == kind
        if kind in behaviour.OF_EVERY_CALL:
            with pytest.raises(rpc.RpcError):
                driver.list()
            with pytest.raises(rpc.RpcError):
                driver.terminate(["m-1"])
        else:
            assert driver.list() == []
            driver.terminate(["m-1"])
    wire.limits(api_error=None)
    assert driver.launch(group("gpu-0")).failures == ()


def test_room_in_a_cloud_that_does_not_answer(tmp_path: Path) -> None:
    found = LocalDriver(settings(tmp_path)).available_capacity("gpu", None, 1)
    assert found is not None
    assert found.failure is not None
    assert (found.count, found.failure.kind) == (0, ErrorClass.UNAVAILABLE)


def test_a_cloud_that_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    (failure,) = LocalDriver(settings(tmp_path)).launch(group("gpu-0")).failures
    assert (failure.kind, failure.code) == (ErrorClass.UNAVAILABLE, "Unavailable")


def test_a_provider_without_a_driver_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no elastic driver for provider 'azure'"):
        load(settings(tmp_path, doubles.design(provider="azure")))
