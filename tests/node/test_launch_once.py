"""A node has one machine, whatever Slurm asks for: the daemon with the real drivers of all clouds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest

from node.design.model import Partition, Settings, Site
from node.elastic.daemon import Elastic
from node.elastic.driver import Driver, LaunchGroup, LaunchResult, Machine, MachineState
from node.elastic.drivers.gce import operations as gce_operations
from node.elastic.failures import ErrorClass, Failure
from node.slurm.control import SlurmDown
from node.slurm.states import NodeState
from tests.support import doubles
from tests.support.checkout import until
from tests.support.doubles import FakeControl, FakeDriver
from tests.support.fake_ec2 import fake_ec2
from tests.support.fake_gce import fake_gce

COMPUTE = Partition("compute", "c4.2xlarge", 8, 100, 0, 20)
NODES = ("compute-0", "compute-1")


@dataclass
class Cluster:
    """The daemon's work on a simulated cloud, whose operations end when the test moves the time on."""

    settings: Settings
    elastic: Elastic
    control: FakeControl
    driver: Driver
    passes: Callable[[], None]
    count: int = field(default=0)

    def resume(self, nodes: str, job: int | None = None) -> None:
        self.count += 1
        request: dict[str, Any] = {"id": f"r{self.count}", "program": "resume", "nodes": nodes, "time": 0.0}
        self.elastic.process(request if job is None else {**request, "job": str(job)})
        until(lambda: not self.elastic.launcher._busy, 60, "the launches", 0.005)

    def look(self) -> None:
        self.passes()
        self.elastic.look()
        until(
            lambda: not self.elastic.launcher._busy or self.elastic.launcher._delayed, 60, "launches", 0.005
        )

    def living(self) -> list[Machine]:
        return [machine for machine in self.driver.list() if machine.state.alive]

    def are(self, *flags: str, base: str = "ALLOCATED", boot: float | None = None) -> None:
        self.control.state = {
            node: NodeState(node, base, frozenset({"CLOUD", *flags}), boot_time=boot) for node in NODES
        }


def made(folder: Path, driver: Driver, settings: Settings, passes: Callable[[], None]) -> Cluster:
    (folder / "requests").mkdir(exist_ok=True)
    control = FakeControl()
    return Cluster(settings, Elastic(settings, control, driver, folder), control, driver, passes)


@pytest.fixture(params=["aws", "gcp"])
def cluster(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    monkeypatch.setattr(gce_operations, "PAUSES", (0.01, 0.01))
    design = doubles.design(COMPUTE, provider=request.param, isolation="vm")
    with ExitStack() as stack:
        if request.param == "aws":
            ec2 = stack.enter_context(fake_ec2(("compute",)))
            settings = Settings(design, Site("/", "slurm", "head", "10.0.0.1", **ec2.site()))
            yield made(tmp_path, ec2.driver(settings), settings, lambda: None)
        else:
            gce = stack.enter_context(fake_gce(("compute",)))
            settings = Settings(design, Site("/", "slurm", "head", "10.0.0.1", **gce.site()))
            yield made(tmp_path, gce.driver(settings), settings, lambda: gce.cloud.advance(1))


def test_a_node_that_boots_gets_no_second_machine(cluster: Cluster, tmp_path: Path) -> None:
    cluster.are("POWERING_UP")
    cluster.resume("compute-[0-1]")
    first = {machine.id for machine in cluster.living()}
    assert len(first) == 2
    cluster.resume("compute-[0-1]")
    # A daemon that has just started does not know what the former one has launched, but what its ledger says.
    again = made(tmp_path, cluster.driver, cluster.settings, lambda: None)
    again.are("POWERING_UP")
    again.resume("compute-[0-1]")
    assert {machine.id for machine in cluster.living()} == first
    assert cluster.control.calls == again.control.calls == [], "no node is given back, drained or avoided"


def test_a_node_that_is_up_gets_another_machine_when_slurm_waits_for_its_boot(cluster: Cluster) -> None:
    """This is `--reboot`, before 23.02."""
    cluster.are("POWERING_UP")
    cluster.resume("compute-[0-1]")
    first = {machine.id for machine in cluster.living()}
    cluster.are(boot=time.time() + 1)
    cluster.elastic.reconciler.once()
    cluster.are("POWERING_UP", "NOT_RESPONDING", boot=time.time() + 1)
    cluster.resume("compute-[0-1]", job=7)
    assert {machine.id for machine in cluster.living()} == first, "the reconciler decides"
    for _ in range(20):
        cluster.look()
        if len(now := {machine.id for machine in cluster.living()} - first) == 2:
            break
    assert len(now) == len(cluster.living()) == 2, "of each name one"
    cluster.look()
    assert {machine.id for machine in cluster.living()} == now
    assert cluster.control.calls == []


# --- names in use -----------------------------------------------------------------------------------------


class Named(FakeDriver):
    """A cloud where names are in use for now, or another's for ever.

    Attributes:
        ending, foreign: Nodes whose names are in use.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ending: set[str] = set()
        self.foreign: set[str] = set()

    def launch(self, group: LaunchGroup) -> LaunchResult:
        failures = []
        for names, kind in ((self.ending, ErrorClass.UNAVAILABLE), (self.foreign, ErrorClass.CONFIG)):
            if hit := tuple(sorted(names & set(group.nodes))):
                nodes = group.nodes if group.all_or_nothing else hit
                failures.append(Failure(nodes, kind, "NAME_IN_USE", "in use", hit[0], own=True))
        self.answers = [tuple(failures)]
        return super().launch(group)


@pytest.fixture
def named(tmp_path: Path) -> tuple[Elastic, FakeControl, Named]:
    (tmp_path / "requests").mkdir()
    control, driver = FakeControl(), Named()
    return (
        Elastic(doubles.settings(tmp_path, doubles.fast_design()), control, driver, tmp_path),
        control,
        driver,
    )


def launch(elastic: Elastic, *nodes: str, whole: bool = False) -> None:
    elastic.launcher._count_launches(nodes, +1)
    elastic.launcher.launch(LaunchGroup("debug", nodes, whole, "token"), dict.fromkeys(nodes, 7))


@pytest.mark.parametrize("whole", [True, False])
def test_a_name_in_use_delays_its_own_launch_and_no_other(
    named: tuple[Elastic, FakeControl, Named], monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    elastic, control, driver = named
    driver.ending = {"debug-1"}
    launch(elastic, "debug-0", "debug-1", whole=whole)
    launch(elastic, "debug-5")
    waiting = {"debug-0", "debug-1"} if whole else {"debug-1"}
    assert elastic.launcher.busy() == waiting, "the reconciler leaves them alone"
    assert {machine.node for machine in driver.machines} == {"debug-0", "debug-1", "debug-5"} - waiting
    elastic.launcher.launch_delayed()
    until(lambda: elastic.launcher._delayed, 60, "the second try", 0.005)
    driver.ending = set()
    elastic.launcher.launch_delayed()
    until(lambda: not elastic.launcher.busy(), 60, "the third try", 0.005)
    assert {machine.node for machine in driver.machines} == {"debug-0", "debug-1", "debug-5"}
    assert control.calls == []
    assert elastic.capacity_limiter._pools.failures() == {}


def test_a_launch_that_waited_too_long_is_given_up_for_its_nodes_alone(
    named: tuple[Elastic, FakeControl, Named], monkeypatch: pytest.MonkeyPatch
) -> None:
    elastic, control, driver = named
    driver.ending = {"debug-1"}
    launch(elastic, "debug-1")
    late = time.monotonic() + doubles.fast_design().slurm.resume_timeout
    monkeypatch.setattr(time, "monotonic", lambda: late)
    elastic.launcher.launch_delayed()
    assert [call[:2] for call in control.calls if call[0] == "down"] == [("down", ("debug-1",))]
    assert elastic.launcher.busy() == set()
    assert elastic.capacity_limiter._pools.failures() == {}, "the pool has machines"


def test_a_request_that_comes_again_while_the_cloud_is_called_launches_nothing(
    named: tuple[Elastic, FakeControl, Named], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`scontrol update … State=POWER_UP` twice within the seconds that a cloud takes."""
    elastic, _, driver = named
    called, goes_on = threading.Event(), threading.Event()
    answer = driver.launch

    def slow(group: LaunchGroup) -> LaunchResult:
        called.set()
        assert goes_on.wait(60)
        return answer(group)

    monkeypatch.setattr(driver, "launch", slow)
    first = threading.Thread(target=launch, args=(elastic, "debug-0", "debug-1"))
    first.start()
    assert called.wait(60)
    launch(elastic, "debug-1")
    assert elastic.launcher.busy() == {"debug-0", "debug-1"}
    goes_on.set()
    first.join()
    launch(elastic, "debug-2")
    assert sorted(str(machine.node) for machine in driver.machines) == ["debug-0", "debug-1", "debug-2"]
    assert elastic.launcher.busy() == set()


def test_a_launch_that_cannot_be_given_up_keeps_no_other_waiting(
    named: tuple[Elastic, FakeControl, Named], monkeypatch: pytest.MonkeyPatch
) -> None:
    """slurmctld does not answer just then: nodes whose launch is forgotten here would be busy for ever."""
    elastic, control, driver = named
    driver.ending = {"debug-0", "debug-1"}
    launch(elastic, "debug-0")
    launch(elastic, "debug-1")

    def silent() -> NoReturn:
        raise SlurmDown(["scontrol"], None, "no answer")

    monkeypatch.setattr(control, "nodes", silent)
    late = time.monotonic() + doubles.fast_design().slurm.resume_timeout
    monkeypatch.setattr(time, "monotonic", lambda: late)
    elastic.launcher.launch_delayed()
    assert elastic.launcher.busy() == set()


def test_a_node_that_is_powered_down_is_not_waited_for(named: tuple[Elastic, FakeControl, Named]) -> None:
    elastic, _, driver = named
    driver.ending = {"debug-1"}
    launch(elastic, "debug-1")
    elastic.launcher.given_back(["debug-1"])
    assert elastic.launcher.busy() == set()
    driver.ending = set()
    elastic.launcher.launch_delayed()
    assert driver.machines == []


def test_a_name_that_is_anothers_takes_its_node_out_of_the_way_and_no_other(
    named: tuple[Elastic, FakeControl, Named],
) -> None:
    elastic, control, driver = named
    driver.foreign = {"debug-1"}
    launch(elastic, "debug-0", "debug-1")
    assert [machine.node for machine in driver.machines] == ["debug-0"]
    assert [call[:2] for call in control.calls if call[0] == "down"] == [("down", ("debug-1",))]
    assert elastic.capacity_limiter._pools.failures() == {}


def waiting_for(node: str) -> dict[str, NodeState]:
    return {node: NodeState(node, "ALLOCATED", frozenset({"CLOUD", "POWERING_UP"}))}


def test_a_machine_of_a_nodes_earlier_life_makes_way(named: tuple[Elastic, FakeControl, Named]) -> None:
    """Slurm would take no registration of it, because it booted before the request."""
    elastic, control, driver = named
    control.state = waiting_for("debug-1")
    driver.machines = [Machine("m-old", "debug-1", MachineState.RUNNING, 1.0)]
    launch(elastic, "debug-1")
    assert driver.terminated == ["m-old"]
    assert elastic.launcher.busy() == {"debug-1"}
    elastic.launcher.launch_delayed()
    until(lambda: not elastic.launcher.busy(), 60, "the launch", 0.005)
    assert [machine.id for machine in driver.machines] == ["m-debug-1"]
    assert control.calls == []


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("state", "job"),
    [
        ("ALLOCATED", "RUNNING"),
        ("ALLOCATED+NOT_RESPONDING", "RUNNING"),
        ("IDLE", None),
        ("IDLE+DRAIN", None),
        ("DOWN", None),
        ("IDLE+POWERED_DOWN", None),
        # A job that asks for a reboot has got the node of a suspended one.
        ("ALLOCATED+NOT_RESPONDING+POWERING_UP", "SUSPENDED"),
    ],
)
def test_a_machine_that_slurm_may_use_never_makes_way(
    named: tuple[Elastic, FakeControl, Named], state: str, job: str | None, whole: bool
) -> None:
    """Whatever the daemon knows of it: an earlier one may have launched it."""
    elastic, control, driver = named
    control.state = {"debug-1": NodeState.parse("debug-1", f"{state}+CLOUD", None)}
    if job is not None:
        control.queue = {7: doubles.job(7, job, nodes=("debug-1",))}
    driver.machines = [Machine("m-1", "debug-1", MachineState.RUNNING, 1.0)]
    launch(elastic, "debug-0", "debug-1", whole=whole)
    assert (driver.terminated, elastic.launcher.busy()) == ([], set())
    assert [machine.id for machine in driver.machines] == ["m-1", "m-debug-0"]
    assert control.calls == []


def test_no_machine_makes_way_while_slurm_does_not_answer(
    named: tuple[Elastic, FakeControl, Named],
) -> None:
    elastic, control, driver = named
    control.error = SlurmDown(["scontrol"], None, "no answer")
    driver.machines = [Machine("m-old", "debug-1", MachineState.RUNNING, 1.0)]
    launch(elastic, "debug-1")
    assert (driver.terminated, elastic.launcher.busy()) == ([], {"debug-1"})
    control.error, control.state = None, waiting_for("debug-1")
    elastic.launcher.launch_delayed()
    until(lambda: elastic.launcher._delayed and driver.terminated, 60, "the former machine", 0.005)
    elastic.launcher.launch_delayed()
    until(lambda: not elastic.launcher.busy(), 60, "the launch", 0.005)
    assert [machine.id for machine in driver.machines] == ["m-debug-1"]


@pytest.mark.parametrize("raises", [False, True])
def test_a_launch_that_fails_leaves_it_known_which_machine_a_node_has(
    named: tuple[Elastic, FakeControl, Named], monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    elastic, _, driver = named
    ledger = elastic._ledger
    ledger.launched({"debug-0": "m-0", "debug-1": "m-1", "debug-2": "m-2"}, time.time())
    answer = driver.launch

    def fail(group: LaunchGroup) -> LaunchResult:
        assert not ledger.newest().keys() & set(group.nodes), "a daemon that is killed now believes it"
        elastic.launcher.given_back(["debug-2"])
        if raises:
            raise RuntimeError("unexpected")
        return answer(group)

    monkeypatch.setattr(driver, "launch", fail)
    driver.ending = {"debug-1", "debug-2"}
    launch(elastic, "debug-0", "debug-1", "debug-2")
    first = "m-0" if raises else "m-debug-0"
    assert ledger.newest() == {"debug-0": first, "debug-1": "m-1"}, "debug-2 was powered down"


def test_a_cloud_that_does_not_list_is_asked_to_launch_as_before(
    named: tuple[Elastic, FakeControl, Named], monkeypatch: pytest.MonkeyPatch
) -> None:
    elastic, _, driver = named

    def silent() -> list[Machine]:
        raise RuntimeError("no answer")

    monkeypatch.setattr(driver, "list", silent)
    launch(elastic, "debug-1")
    assert [machine.node for machine in driver.machines] == ["debug-1"]
