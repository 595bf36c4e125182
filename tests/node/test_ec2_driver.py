"""The EC2 driver over a real client: lists, notices, boot reports and terminations."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from node.bootstrap.report_server import ReportServer
from node.design.model import ClusterDesign, Partition, Settings, Site
from node.elastic.driver import LaunchGroup, Machine, MachineState
from node.elastic.drivers.boot_reports import BootStatus
from node.elastic.drivers.ec2 import launches as ec2_launch
from node.elastic.drivers.ec2 import notices as ec2_notices
from node.elastic.drivers.ec2.answers import Event
from node.elastic.drivers.ec2.client import Ec2Client
from node.elastic.drivers.ec2.driver import Ec2Driver
from node.elastic.drivers.ec2.errors import Ec2Error
from node.elastic.drivers.ec2.notices import Ec2Notices
from tests.support import doubles
from tests.support.cloud_faults import Fault
from tests.support.fake_ec2 import FakeEc2, fake_ec2

COMPUTE = Partition("compute", "c4.2xlarge", 8, 100, 0, 50)
DESIGN = doubles.design(COMPUTE, provider="aws", isolation="vm")
SPOT = doubles.design(replace(COMPUTE, spot=True), provider="aws", isolation="vm")


def settings(fake: FakeEc2, design: ClusterDesign = DESIGN) -> Settings:
    return Settings(design, Site("/", "slurm", "head", "10.0.0.1", **fake.site()))


@pytest.fixture
def fake() -> Iterator[FakeEc2]:
    with fake_ec2() as made:
        yield made


@pytest.fixture
def driver(fake: FakeEc2) -> Ec2Driver:
    return fake.driver(settings(fake))


def launch(driver: Ec2Driver, *numbers: int, token: str | None = None) -> dict[str, str]:
    nodes = tuple(f"compute-{n}" for n in numbers)
    return driver.launch(LaunchGroup("compute", nodes, True, token or str(numbers))).launched


def test_all_pages_and_all_states_are_listed(fake: FakeEc2, driver: Ec2Driver) -> None:
    fake.page = 1
    made: dict[str, str] = {}
    for number in range(5):
        made |= launch(driver, number, number + 10)
    states = ["pending", "running", "stopping", "shutting-down", "terminated", "stopped"]
    for node, state in zip(made, states, strict=False):
        fake.set_state(made[node], state)
    fake.forget()
    found = {m.id: m for m in driver.list()}
    assert {m.node: m.id for m in found.values()} == made
    assert fake.actions().count("DescribeInstances") == 5
    assert [found[made[node]].state for node in list(made)[:5]] == [
        MachineState.PENDING, MachineState.RUNNING, MachineState.STOPPING, MachineState.STOPPING,
        MachineState.TERMINATED,
    ]  # fmt: skip
    # A stopped instance still exists and must be ended: it counts as alive, and will not become a node.
    stopped = found[made[list(made)[5]]]
    assert (stopped.state, stopped.failure) == (
        MachineState.RUNNING, "the instance is stopped: no reason given",
    )  # fmt: skip
    assert all(abs(m.launched - time.time()) < 60 for m in found.values())


def test_nodes_of_an_older_launch_template_are_told_apart(
    fake: FakeEc2, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver recognises them by the tags that EC2 itself sets on what is launched from a template."""
    monkeypatch.setattr(ec2_launch, "TEMPLATE_SECONDS", 3600.0)

    def outdated(driver: Ec2Driver) -> set[str | None]:
        return {m.node for m in driver.list() if m.outdated}

    def running(made: Mapping[str, str]) -> None:
        for identity in made.values():
            fake.set_state(identity, "running")

    driver = fake.driver(settings(fake))
    running(launch(driver, 0))
    assert outdated(driver) == set()
    fake.connect().create_launch_template_version(
        LaunchTemplateId=fake.templates["compute"], LaunchTemplateData={"InstanceType": "c4.large"}
    )
    assert outdated(driver) == set(), "asked once a minute"
    later = fake.driver(settings(fake))
    running(launch(later, 1))
    assert outdated(later) == {"compute-0"}
    fake.faults = [Fault("DescribeLaunchTemplateVersions", "RequestLimitExceeded", 503)]
    assert outdated(fake.driver(settings(fake))) == set(), "a listing does not depend on it"


def test_strangers_are_not_its_machines(fake: FakeEc2, driver: Ec2Driver) -> None:
    launch(driver, 0)
    client = fake.connect()
    subnet = fake.subnets["eu-central-1a"]
    for cluster, role in (("other", "compute"), ("t", "controller")):
        tags = [
            {"Key": "slurm-stacks:cluster", "Value": cluster}, {"Key": "slurm-stacks:role", "Value": role},
        ]  # fmt: skip
        client.run_instances(
            ImageId="ami-12345678", MinCount=1, MaxCount=1, SubnetId=subnet,
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
        )  # fmt: skip
    assert [m.node for m in driver.list()] == ["compute-0"]


@pytest.mark.parametrize("nodes", [None, "compute-[", "compute-0,"])
def test_a_machine_whose_tag_names_no_node_is_listed_without_one(
    fake: FakeEc2, driver: Ec2Driver, nodes: str | None
) -> None:
    tags = {"slurm-stacks:cluster": "t", "slurm-stacks:role": "compute"}
    tags |= {"slurm-stacks:nodes": nodes} if nodes else {}
    fake.connect().run_instances(
        ImageId="ami-12345678", MinCount=1, MaxCount=1, SubnetId=fake.subnets["eu-central-1a"],
        TagSpecifications=[
            {"ResourceType": "instance", "Tags": [{"Key": k, "Value": v} for k, v in tags.items()]}
        ],
    )  # fmt: skip
    (machine,) = driver.list()
    assert (machine.node, machine.state) == (None, MachineState.RUNNING)


def test_a_list_that_lags_shows_machines_later(fake: FakeEc2, driver: Ec2Driver) -> None:
    fake.lag = 600
    made = launch(driver, 0, 1)
    assert len(made) == 2
    assert driver.list() == []
    fake.catch_up()
    assert {m.node for m in driver.list()} == set(made)


def test_an_ended_machine_says_why(fake: FakeEc2, driver: Ec2Driver) -> None:
    made = launch(driver, 0)
    fake.set_state(
        made["compute-0"], "terminated", ("Server.SpotInstanceTermination", "Spot instance termination")
    )
    (machine,) = driver.list()
    assert machine.failure == "the instance is terminated: Spot instance termination"


# --- terminations --------------------------------------------------------------------------------------


def test_terminations_skip_what_is_gone_and_may_be_repeated(fake: FakeEc2, driver: Ec2Driver) -> None:
    made = launch(driver, 0, 1, 2)
    fake.forget()
    strangers = ["i-00000000000000001", "i-00000000000000002"]
    driver.terminate([*strangers, *list(made.values())[:2]])
    assert fake.actions() == ["TerminateInstances", "TerminateInstances"]
    assert [i.id for i in fake.living()] == [made["compute-2"]]
    driver.terminate(list(made.values()))
    driver.terminate(strangers)
    assert fake.living() == []
    fake.forget()
    driver.terminate([])
    assert fake.calls == []


def test_terminations_go_in_batches(
    fake: FakeEc2, driver: Ec2Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ec2_launch, "TERMINATE_IDS", 2)
    made = launch(driver, 0, 1, 2)
    fake.forget()
    fake.faults = [Fault("TerminateInstances", "RequestLimitExceeded", 503, times=1)]
    with pytest.raises(Ec2Error, match=r"throttled: the cloud's own words \(RequestLimitExceeded\)"):
        driver.terminate(list(made.values()))
    assert [len(call.listed("InstanceId")) for call in fake.calls] == [2, 1]
    assert len(fake.living()) == 2, "the other batch is ended all the same"


@pytest.mark.parametrize(
    "code", ["UnauthorizedOperation", "OperationNotPermitted", "InvalidInstanceID.NotFound"]
)
def test_a_termination_that_is_refused_is_raised(fake: FakeEc2, driver: Ec2Driver, code: str) -> None:
    """This includes a not-found error that names none of the instances: it must not be repeated forever."""
    made = launch(driver, 0)
    fake.faults = [Fault("TerminateInstances", code, message="of i-0123")]
    fake.forget()
    with pytest.raises(Ec2Error, match="of i-0123"):
        driver.terminate(list(made.values()))
    assert len(fake.calls) == 1


def test_a_machine_that_somebody_has_protected_keeps_no_other_from_its_end(
    fake: FakeEc2, driver: Ec2Driver
) -> None:
    """EC2 terminates none of a call's instances if it refuses one of them."""
    made = launch(driver, 0, 1, 2)
    fake.connect().modify_instance_attribute(
        InstanceId=made["compute-1"], DisableApiTermination={"Value": True}
    )
    with pytest.raises(Ec2Error, match=f"{made['compute-1']}.*OperationNotPermitted"):
        driver.terminate(["i-00000000000000001", *made.values()])
    assert [i.id for i in fake.living()] == [made["compute-1"]]


# --- refusals of the list ------------------------------------------------------------------------------


def test_half_a_list_is_none(fake: FakeEc2, driver: Ec2Driver) -> None:
    fake.page = 1
    for number in range(3):
        launch(driver, number)
    fake.faults = [Fault("DescribeInstances", "InternalError", 500, skip=1, times=1)]
    with pytest.raises(Ec2Error, match=r"unavailable: the cloud's own words \(InternalError\)"):
        driver.list()
    assert len(driver.list()) == 3


def test_a_list_of_a_cloud_that_is_not_there(fake: FakeEc2) -> None:
    fake.url = "http://127.0.0.1:9"
    with pytest.raises(Ec2Error, match=r"did not answer.*EndpointConnectionError"):
        fake.driver(settings(fake)).list()


def test_there_is_no_room_to_tell_of(driver: Ec2Driver, fake: FakeEc2) -> None:
    assert driver.available_capacity("compute", None, 3) is None
    assert fake.calls == []


# --- boot reports --------------------------------------------------------------------------------------


def test_boot_reports_are_asked_for_running_machines_at_once(fake: FakeEc2) -> None:
    asked: list[Sequence[Machine]] = []
    made: dict[str, str] = {}

    def boots(running: Sequence[Machine]) -> Mapping[str, BootStatus]:
        asked.append(running)
        return {
            made["compute-0"]: BootStatus("step mounts: no route"),
            made["compute-1"]: BootStatus("an old one"),
        }

    driver = fake.driver(settings(fake), boots)
    assert driver.list() == []
    assert asked == []
    made |= launch(driver, 0, 1, 2)
    fake.set_state(made["compute-1"], "pending")
    assert {m.node: m.failure for m in driver.list()} == {
        "compute-0": "step mounts: no route", "compute-1": None, "compute-2": None,
    }  # fmt: skip
    (running,) = asked
    assert {m.node for m in running} == {"compute-0", "compute-2"}
    assert all(abs(m.launched - time.time()) < 60 for m in running)


def test_a_machine_reports_from_its_private_address_and_of_itself_only(fake: FakeEc2, tmp_path: Path) -> None:
    """The driver's own reader, over what the controller's server has taken. EC2 alone tells of notices."""
    its = settings(fake)
    its = replace(its, site=replace(its.site, root=str(tmp_path)))
    folder = tmp_path / "var/lib/slurm-stacks/reports"
    folder.mkdir(parents=True)
    driver = Ec2Driver(its, fake.client)
    made = launch(driver, 0, 1, 2)
    private = {i.id: i.private_ip for i in fake.instances()}
    addresses = {m.node: m.addresses for m in driver.list()}
    assert addresses == {node: (private[identity],) for node, identity in made.items()}
    content = {"state": "failed", "steps": [{"name": "mounts", "note": "no route"}], "host": "compute-0"}
    with socket.socket() as listener:
        server = ReportServer(listener, folder, lambda: time.time() + 5)
    later = json.dumps({**content, "notice": time.time() + 30}).encode()
    assert server.take(private[made["compute-1"]], later) == ""
    assert {m.node: (m.failure, m.notice) for m in driver.list()} == {
        "compute-0": (None, None), "compute-1": ("step mounts: no route", None), "compute-2": (None, None),
    }  # fmt: skip


def test_a_list_does_not_depend_on_boot_reports(fake: FakeEc2) -> None:
    def boots(running: Sequence[Machine]) -> Mapping[str, BootStatus]:
        raise OSError("no folder")

    driver = fake.driver(settings(fake), boots)
    launch(driver, 0)
    assert [m.node for m in driver.list()] == ["compute-0"]


# --- notices -------------------------------------------------------------------------------------------


def test_events_that_end_a_machine_are_notices_when_they_are_near(fake: FakeEc2, driver: Ec2Driver) -> None:
    made = launch(driver, *range(6))
    soon, later = time.time() + 600, time.time() + 7 * 24 * 3600
    fake.events = {
        made["compute-0"]: ("instance-retirement", soon, "The instance is running on degraded hardware"),
        made["compute-1"]: ("instance-stop", soon, "[Completed] The instance is ..."),
        made["compute-2"]: ("instance-stop", soon, "[Canceled] The instance is ..."),
        made["compute-3"]: ("system-maintenance", soon, "of the network"),
        made["compute-4"]: ("instance-reboot", later, "in a week: the job is over by then"),
    }
    notices = {m.node: m.notice for m in driver.list()}
    assert notices.pop("compute-0") == pytest.approx(soon, abs=1)
    assert set(notices.values()) == {None}
    assert "DescribeSpotInstanceRequests" not in fake.actions(), "no partition runs on spot capacity"


def test_spot_interruptions_are_notices(fake: FakeEc2) -> None:
    driver = fake.driver(settings(fake, SPOT))
    made = launch(driver, 0, 1)
    told = time.time() - 10
    fake.interrupted = {made["compute-1"]: told}
    fake.events = {made["compute-1"]: ("instance-stop", told + 500, "later than the interruption")}
    notices = {m.node: m.notice for m in driver.list()}
    assert notices == {"compute-0": None, "compute-1": pytest.approx(told + 120, abs=1)}


def test_notices_are_asked_for_now_and_then(fake: FakeEc2) -> None:
    clock = [1000.0]
    notices = Ec2Notices(fake.client, spot=True, clock=lambda: clock[0])
    fake.interrupted = {"i-1": 950.0}
    for _ in range(3):
        assert notices.all() == {"i-1": 1070.0}
    assert fake.actions() == ["DescribeInstanceStatus", "DescribeSpotInstanceRequests"]
    fake.interrupted = {}
    clock[0] += ec2_notices.NOTICES_SECONDS
    assert notices.all() == {}
    # A clock that is set back must not stop the queries.
    clock[0] -= 500
    notices.all()
    assert len(fake.calls) == 6


def test_a_list_does_not_depend_on_notices(
    fake: FakeEc2, driver: Ec2Driver, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = launch(driver, 0)
    soon = time.time() + 60
    fake.events = {made["compute-0"]: ("instance-stop", soon, "")}
    assert driver.list()[0].notice is not None
    monkeypatch.setattr(ec2_notices, "NOTICES_SECONDS", 0.0)
    fake.faults = [Fault("DescribeInstanceStatus", "UnauthorizedOperation", 403)]
    for _ in range(2):
        assert driver.list()[0].notice == pytest.approx(soon, abs=1), "what was said last still counts"
    assert capsys.readouterr().out.count("interruptions and events are unknown: permission") == 1


@pytest.mark.parametrize("refused", ["DescribeInstanceStatus", "DescribeSpotInstanceRequests"])
def test_one_kind_of_notice_that_cannot_be_had_hides_no_other(fake: FakeEc2, refused: str) -> None:
    driver = fake.driver(settings(fake, SPOT))
    made = launch(driver, 0, 1)
    told = time.time()
    fake.interrupted = {made["compute-0"]: told}
    fake.events = {made["compute-1"]: ("instance-stop", told + 60, "")}
    fake.faults = [Fault(refused, "RequestLimitExceeded", 503)]
    known = {m.node for m in driver.list() if m.notice is not None}
    assert known == {"compute-0" if refused == "DescribeInstanceStatus" else "compute-1"}


def test_notices_have_pages(fake: FakeEc2) -> None:
    """Both queries use pages of a size that the call names: without one EC2 may time out."""
    driver = fake.driver(settings(fake, SPOT))
    launch(driver, 0)
    told = time.time()
    fake.page = 2
    fake.events = {f"i-{number}": ("instance-stop", told + 60, "") for number in range(5)}
    fake.interrupted = {f"i-{number}": told for number in range(5, 8)}
    fake.forget()
    assert set(driver._notices.all()) == {f"i-{number}" for number in range(8)}
    assert fake.actions() == ["DescribeInstanceStatus"] * 3 + ["DescribeSpotInstanceRequests"] * 2
    assert {call.params.get("MaxResults") for call in fake.calls} == {"1000"}


def test_notices_that_do_not_come_hold_up_one_listing_only() -> None:
    """Terminations and the status list machines too."""
    asked, answers = threading.Event(), threading.Event()

    class Client(Ec2Client):
        def events(self, codes: Sequence[str]) -> Iterator[Event]:
            asked.set()
            assert answers.wait(60)
            return iter(())

    notices = Ec2Notices(lambda: Client("eu-central-1"), spot=False)
    with ThreadPoolExecutor(2) as threads:
        asks = threads.submit(notices.all)
        assert asked.wait(60)
        try:
            assert threads.submit(notices.all).result(60) == {}
            assert not asks.done()
        finally:
            answers.set()
        assert asks.result(60) == {}


def test_a_refused_call_is_sent_once(fake: FakeEc2) -> None:
    fake.faults = [Fault("DescribeInstances", "RequestLimitExceeded", 503)]
    with pytest.raises(Ec2Error):
        fake.driver(settings(fake)).list()
    assert len(fake.calls) == 1
