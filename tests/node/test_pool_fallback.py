"""The daemon and each cloud's driver, with two pools: a fallback's calls, by the clouds' codes; restarts."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from node.design.model import ClusterDesign, Partition, Settings, Site, SlurmSettings
from node.elastic import launcher as launcher_module
from node.elastic.daemon import Elastic
from node.elastic.driver import Driver, LaunchGroup
from node.elastic.drivers.ec2 import launches as ec2_launch
from node.elastic.drivers.gce import operations as gce_operations
from node.elastic.failures import POLICIES, ErrorClass, Failure
from node.elastic.pool_choices import shut
from tests.support import doubles
from tests.support.cloud_faults import Fault as AmazonFault
from tests.support.doubles import FakeControl, FakeDriver, job, node
from tests.support.fake_ec2 import fake_ec2
from tests.support.fake_gce import Fault as GoogleFault
from tests.support.fake_gce import fake_gce

POOLS = ("train-spot", "train-dear")
SPOT, DEAR = (tuple(f"{pool}-{n}" for n in range(4)) for pool in POOLS)


def pools(instance_type: str, **provider: Any) -> ClusterDesign:
    kinds = [
        Partition(name, instance_type, 8, 100, 0, 4, pool=name[6:], spot=name == POOLS[0], price_hour=0.1)
        for name in POOLS
    ]
    return doubles.design(*kinds, slurm=SlurmSettings(reconcile_interval=0.05), **provider)


class Cluster:
    """A daemon with eight nodes that are off, four in each pool.

    Attributes:
        launches: Returns how often the cloud was asked for machines.
        refuse: Has the cloud refuse each launch with a code from now on; `None` ends that.
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        driver: Driver,
        launches: Callable[[], int] = int,
        refuse: Callable[[str | None], None] = lambda code: None,
    ) -> None:
        self.folder, self.settings, self.driver = folder, settings, driver
        self.launches, self.refuse = launches, refuse
        self.control = FakeControl(node(n, "IDLE", "POWERED_DOWN") for n in (*SPOT, *DEAR))
        (folder / "requests").mkdir(parents=True)
        self.start()

    def start(self) -> None:
        """Start a daemon, perhaps after another one that was killed."""
        self.elastic = Elastic(self.settings, self.control, self.driver, self.folder)

    def launch(self, *nodes: str) -> None:
        """Ask for the nodes of a job, as Slurm does. Those that are powered down get no machine."""
        group = LaunchGroup(nodes[0][:10], nodes, True, f"t{time.monotonic()}", 7)
        self.elastic.launcher.launch(group, dict.fromkeys(nodes, 7))

    def look(self) -> dict[str, str]:
        """Return node -> its reason, of those that are drained after one pass of the limiter."""
        self.elastic.capacity_limiter._asked = -1000.0
        self.elastic.capacity_limiter.once()
        return {name: state.reason or "" for name, state in self.control.state.items() if state.is_drained}

    def off(self) -> None:
        """Let time pass: nodes that are given back are off."""
        for name, state in self.control.state.items():
            kept = state.flags & {"DRAIN"} | {"POWERED_DOWN"}
            self.control.state[name] = dataclasses.replace(state, base="IDLE", flags=frozenset(kept))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture
def amazon(stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(ec2_launch, "PAUSES", (0.01,))
    fake = stack.enter_context(fake_ec2(POOLS))
    design = pools("c4.2xlarge", provider="aws", isolation="vm")
    settings = Settings(design, Site(str(tmp_path), "slurm", "head", "10.0.0.1", **fake.site()))

    def refuse(code: str | None) -> None:
        fake.faults = [] if code is None else [AmazonFault("RunInstances", code)]

    def launches() -> int:
        return int(fake.actions().count("RunInstances"))

    return Cluster(tmp_path / "lib", settings, fake.driver(settings), launches, refuse)


@pytest.fixture
def google(stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(gce_operations, "PAUSES", (0.01,))
    fake = stack.enter_context(fake_gce(POOLS))
    design = pools("n1-standard-8", provider="gcp", isolation="vm")
    settings = Settings(design, Site(str(tmp_path), "slurm", "head", "10.0.0.1", **fake.site()))

    def refuse(code: str | None) -> None:
        status = 403 if code in ("PERMISSION_DENIED", "QUOTA_EXCEEDED") else 400
        fake.faults = [] if code is None else [GoogleFault("instances.bulk_insert", code, status)]

    def launches() -> int:
        return int(fake.counts().get("instances.bulk_insert", 0))

    return Cluster(tmp_path / "lib", settings, fake.driver(settings), launches, refuse)


FALLS = {
    "amazon": (
        "InsufficientInstanceCapacity", "UnfulfillableCapacity", "MaxSpotInstanceCountExceeded",
        "SpotMaxPriceTooLow", "VcpuLimitExceeded", "InvalidPlacementGroup.InUse",
    ),
    "google": ("ZONE_RESOURCE_POOL_EXHAUSTED", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "QUOTA_EXCEEDED"),
}  # fmt: skip
NEVER = {
    "amazon": ("AuthFailure", "UnauthorizedOperation", "InvalidParameterValue", "InvalidAMIID.NotFound"),
    "google": ("PERMISSION_DENIED", "forbidden", "INVALID_ARGUMENT"),
}


@pytest.mark.parametrize(("cloud", "code"), [(cloud, code) for cloud in FALLS for code in FALLS[cloud]])
def test_a_fallback_is_one_more_call(request: pytest.FixtureRequest, cloud: str, code: str) -> None:
    """The refused pool is asked once in each of its zones, the next one once, and the first not again."""
    cluster: Cluster = request.getfixturevalue(cloud)
    cluster.refuse(code)
    cluster.launch(*SPOT)
    refused = cluster.launches()
    assert 1 <= refused <= 2, "it has two zones"
    cluster.refuse(None)
    cluster.elastic.launcher._pools.wake()
    cluster.off()
    drained = cluster.look()
    assert not set(drained) & set(DEAR), "jobs may have the next pool's nodes"
    cluster.launch(*DEAR)
    assert cluster.launches() == refused + 1
    assert {m.node for m in cluster.driver.list()} == set(DEAR)


@pytest.mark.parametrize(("cloud", "code"), [(cloud, code) for cloud in NEVER for code in NEVER[cloud]])
def test_a_mistake_holds_the_next_pool(request: pytest.FixtureRequest, cloud: str, code: str) -> None:
    cluster: Cluster = request.getfixturevalue(cloud)
    cluster.refuse(code)
    cluster.launch(*SPOT)
    cluster.off()
    drained = cluster.look()
    assert drained.keys() == {*SPOT, *DEAR}
    kinds = {reason.split(":")[0] for reason in drained.values()}
    assert len(kinds) == 1
    assert all(drained[name].split(": ")[1] == "spot" for name in DEAR), drained


@pytest.mark.parametrize("cloud", FALLS)
def test_a_cloud_that_does_not_answer_moves_no_job(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, cloud: str
) -> None:
    monkeypatch.setattr(launcher_module, "RETRY_PAUSES", ())
    cluster: Cluster = request.getfixturevalue(cloud)
    cluster.refuse("ServiceUnavailable" if cloud == "amazon" else "SERVICE_UNAVAILABLE")
    cluster.launch(*SPOT)
    cluster.off()
    assert set(cluster.look()) == {*SPOT, *DEAR}


# --- without a cloud -------------------------------------------------------------------------------------


@pytest.fixture
def local(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "lib", doubles.settings(tmp_path, pools("local.small")), FakeDriver())


def driver_of(cluster: Cluster) -> FakeDriver:
    assert isinstance(cluster.driver, FakeDriver)
    return cluster.driver


def test_a_mistake_holds_the_next_pool_also_after_the_daemon_was_killed_and_until_it_is_over(
    local: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    driver_of(local).answers = [(Failure(SPOT, ErrorClass.CONFIG, "Bad", "no such image"),)]
    local.launch(*SPOT)
    local.off()
    held = local.look()
    assert held["train-dear-0"].startswith("slurm-stacks config: spot: no such image (Bad); ")
    told = [shut(local.elastic.launcher._pools, name, now, 5000.0) for name in POOLS]
    assert [None if one is None else (one["until"], one["left"]) for one in told] == [(5300, 0)] * 2
    local.start()
    assert local.look() == held
    assert set(local.elastic.capacity_limiter._pools.failures()) == {
        *local.elastic.launcher._pools.zones("train-spot")
    }
    now += POLICIES[ErrorClass.CONFIG].backoff
    assert local.look() == {}


def test_a_pool_whose_machines_are_taken_back_twice_is_closed_and_stays_so_after_a_restart(
    local: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    local.elastic.launcher.taken_back({"train-spot-0": "m-1", "train-dear-0": "m-9"})
    assert local.look() == {}
    now += 100.0
    local.elastic.launcher.taken_back({"train-spot-0": "m-1", "train-spot-1": "m-2"})
    reasons = local.look()
    assert reasons.keys() == set(SPOT)
    assert reasons["train-spot-0"].startswith(
        "slurm-stacks interrupted: spot machines were taken back twice within 10 minutes (until "
    )
    began = time.time()
    for name in SPOT:
        state = dataclasses.replace(local.control.state[name], reason_time=began)
        local.control.state[name] = state
    now += 60.0
    local.start()
    assert local.look() == reasons
    assert driver_of(local).asked == [], "the cloud knows nothing of it"
    now += 601.0
    assert local.look() == {}
    local.elastic.launcher.taken_back({"train-spot-0": "m-3"})
    now += 100.0
    local.elastic.launcher.taken_back({"train-spot-0": "m-4"})
    (failing,) = local.elastic.launcher._pools.failures().values()
    assert 1100 < failing.until - now <= 1200, "the second pause is twice as long"


def test_a_refused_job_is_told_of_its_pool_and_of_those_that_are_closed(local: Cluster) -> None:
    local.control.queue = {7: job(7, "CONFIGURING", partition="train", nodes=SPOT)}
    driver_of(local).free = 0
    for nodes, word in ((SPOT, "dry"), (DEAR, "gone")):
        driver_of(local).answers = [(Failure(nodes, ErrorClass.CAPACITY, "Full", word),)]
        local.control.queue[7] = dataclasses.replace(local.control.queue[7], nodes=())
        local.launch(*nodes)
        local.off()
        local.look()
    told = [call[2] for call in local.control.calls if call[0] == "comment"]
    assert told[0].startswith("capacity: spot: dry (Full); ")
    assert told[-1].startswith("capacity: spot: ")
    assert "dear: gone" in told[-1]
