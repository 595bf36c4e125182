"""Launches of the EC2 driver over a real client: tags, whole jobs, fail-over, tokens, and every refusal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from infra.config.rules import platform
from node.design.model import Partition, Settings, Site
from node.elastic.driver import LaunchGroup, MachineState
from node.elastic.drivers import load
from node.elastic.drivers.ec2 import launches as ec2_launch
from node.elastic.drivers.ec2 import names as ec2_names
from node.elastic.drivers.ec2.driver import Ec2Driver
from node.elastic.failures import ErrorClass
from tests.support import doubles, fake_ec2_limits
from tests.support.checkout import until
from tests.support.cloud_faults import Fault
from tests.support.fake_ec2 import EFA, FakeEc2, fake_ec2

COMPUTE = Partition("compute", "c4.2xlarge", 8, 100, 0, 2000)
SPOT = Partition("spot", "c4.2xlarge", 8, 100, 0, 10, spot=True)
DESIGN = doubles.design(COMPUTE, SPOT, provider="aws", isolation="vm")


def settings(fake: FakeEc2) -> Settings:
    return Settings(DESIGN, Site("/", "slurm", "head", "10.0.0.1", **fake.site()))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEc2]:
    monkeypatch.setattr(ec2_launch, "PAUSES", (0.01, 0.01, 0.01))
    with fake_ec2(("compute", "spot")) as made:
        yield made


@pytest.fixture
def driver(fake: FakeEc2) -> Ec2Driver:
    return fake.driver(settings(fake))


def nodes(first: int, end: int) -> tuple[str, ...]:
    return tuple(f"compute-{n}" for n in range(first, end))


def group(*names: str, whole: bool = True, zone: str | None = None, token: str = "token") -> LaunchGroup:
    return LaunchGroup("compute", names, whole, token, zone=zone)


def runs(fake: FakeEc2) -> list[dict[str, Any]]:
    return [call.params for call in fake.calls if call.action == "RunInstances"]


def test_a_launch_is_one_call_with_template_interfaces_and_tags(fake: FakeEc2, driver: Ec2Driver) -> None:
    result = driver.launch(group("compute-3", "compute-0", "compute-1"))
    assert set(result.launched) == {"compute-0", "compute-1", "compute-3"}
    assert result.failures == ()
    assert fake.actions() == ["DescribeLaunchTemplateVersions", "RunInstances"]
    (run,) = runs(fake)
    assert (run["MinCount"], run["MaxCount"]) == ("3", "3")
    assert (run["LaunchTemplate.LaunchTemplateId"], run["LaunchTemplate.Version"]) == (
        fake.templates["compute"], "1",
    )  # fmt: skip
    assert run["NetworkInterface.1.SubnetId"] == fake.subnets["eu-central-1a"]
    assert run["NetworkInterface.1.SecurityGroupId.1"] == "sg-12345678"
    assert "SubnetId" not in run
    tags = {
        "Name": "t-compute",
        "slurm-stacks:cluster": "t",
        "slurm-stacks:stack": "test",
        "slurm-stacks:role": "compute",
        "slurm-stacks:partition": "compute",
        "slurm-stacks:nodes": "compute-[0-1,3]",
    }
    assert [fake.calls[-1].tags(k) for k in ("instance", "volume", "network-interface")] == [tags] * 3
    assert fake.calls[-1].tags("spot-instances-request") == {}
    listed = {m.node: m for m in driver.list()}
    assert {node: m.id for node, m in listed.items()} == result.launched
    assert {m.zone for m in listed.values()} == {"eu-central-1a"}


def test_a_spot_partitions_requests_are_tagged_too(fake: FakeEc2, driver: Ec2Driver) -> None:
    assert driver.launch(LaunchGroup("spot", ("spot-0",), False, "t")).failures == ()
    assert fake.calls[-1].tags("spot-instances-request")["slurm-stacks:nodes"] == "spot-0"


TAGS = {"cost-center": "4711", "nodes": "compute-9", "role": "controller", "slurm-stack": "x", "env": ""}
"""Tags of a stack file, among them such as look like the cluster's own."""


def tags_of(account: Any, kind: str) -> list[dict[str, str]]:
    """Return the tags of each resource of a kind that the account has, by its API."""
    found: dict[str, dict[str, str]] = {}
    filters = [{"Name": "resource-type", "Values": [kind]}]
    for tag in account.describe_tags(Filters=filters)["Tags"]:
        found.setdefault(tag["ResourceId"], {})[tag["Key"]] = tag["Value"]
    return list(found.values())


def test_all_that_a_launch_makes_has_the_stack_files_tags_and_is_found_and_ended(fake: FakeEc2) -> None:
    tagged = Settings(replace(DESIGN, tags=TAGS), Site("/", "slurm", "head", "10.0.0.1", **fake.site()))
    driver = fake.driver(tagged)
    made = driver.launch(group("compute-0", "compute-1")).launched
    assert driver.launch(LaunchGroup("spot", ("spot-0",), False, "t")).failures == ()
    for call in (call for call in fake.calls if call.action == "RunInstances"):
        kinds = ["instance", "volume", "network-interface"]
        if call.tags()["slurm-stacks:partition"] == "spot":
            kinds.append("spot-instances-request")
        for kind in kinds:
            assert TAGS.items() <= call.tags(kind).items(), kind
            assert call.tags(kind)["slurm-stacks:role"] == "compute"
            # The rule of the stack file counts these, and the tags of the host list.
            own = {*platform.OURS, *(f"{ec2_names.NODES}{n}" for n in ("", "-2"))}
            assert call.tags(kind).keys() - TAGS.keys() <= own
    account = fake.connect()
    # moto keeps no tags of interfaces that RunInstances makes.
    for kind, count in (("instance", 3), ("volume", 3)):
        there = [tags for tags in tags_of(account, kind) if tags.get("slurm-stacks:cluster") == "t"]
        assert len(there) == count, kind
        assert all(TAGS.items() <= tags.items() for tags in there), kind
    listed = {machine.node: machine.id for machine in driver.list()}
    assert {node: listed[node] for node in made} == made
    assert set(listed) == {"compute-0", "compute-1", "spot-0"}
    driver.terminate(list(listed.values()))
    assert {machine.state for machine in driver.list()} <= {MachineState.STOPPING, MachineState.TERMINATED}


def test_every_interface_of_a_template_goes_to_the_subnet(fake: FakeEc2) -> None:
    fake.connect().delete_launch_template(LaunchTemplateId=fake.templates["compute"])
    fake.template("compute", EFA)
    assert fake.driver(settings(fake)).launch(group("compute-0")).failures == ()
    (run,) = runs(fake)
    subnet = fake.subnets["eu-central-1a"]
    assert [run[f"NetworkInterface.{n}.SubnetId"] for n in (1, 2)] == [subnet, subnet]
    assert run["NetworkInterface.2.InterfaceType"] == "efa-only"
    assert "NetworkInterface.3.SubnetId" not in run


def test_a_template_without_interfaces_gets_the_subnet_beside_it(fake: FakeEc2) -> None:
    fake.connect().delete_launch_template(LaunchTemplateId=fake.templates["compute"])
    fake.template("compute", [])
    assert fake.driver(settings(fake)).launch(group("compute-0")).failures == ()
    (run,) = runs(fake)
    assert run["SubnetId"] == fake.subnets["eu-central-1a"]


def test_a_whole_group_is_whole_or_not_at_all(fake: FakeEc2, driver: Ec2Driver) -> None:
    fake.capacity = {"eu-central-1a": 3, "eu-central-1b": 3}
    result = driver.launch(group(*nodes(0, 4)))
    assert result.launched == {}
    (failure,) = result.failures
    assert (failure.nodes, failure.kind) == (nodes(0, 4), ErrorClass.CAPACITY)
    assert failure.code == "InsufficientInstanceCapacity"
    assert "eu-central-1a: We currently do not have sufficient c4.2xlarge capacity" in failure.message
    assert "eu-central-1b: We currently" in failure.message
    assert fake.instances() == []
    assert len(runs(fake)) == 2


def test_a_full_zone_is_left_for_the_next(fake: FakeEc2, driver: Ec2Driver) -> None:
    fake.capacity = {"eu-central-1a": 3}
    result = driver.launch(group(*nodes(0, 4)))
    assert (len(result.launched), result.failures) == (4, ())
    assert {m.zone for m in driver.list()} == {"eu-central-1b"}


def test_a_group_with_a_zone_stays_there(fake: FakeEc2, driver: Ec2Driver) -> None:
    fake.capacity = {"eu-central-1b": 0}
    (failure,) = driver.launch(group("compute-0", zone="eu-central-1b")).failures
    assert failure.kind is ErrorClass.CAPACITY
    assert driver.launch(group("compute-0", zone="eu-central-1a")).failures == ()
    (failure,) = driver.launch(group("compute-1", zone="eu-west-1a")).failures
    assert (failure.kind, failure.code) == (ErrorClass.CONFIG, "NoSubnet")
    assert failure.message == ("no subnet lies in zone eu-west-1a; with one: eu-central-1a, eu-central-1b")


def test_single_nodes_take_what_there_is_in_every_zone(fake: FakeEc2, driver: Ec2Driver) -> None:
    fake.capacity = {"eu-central-1a": 2, "eu-central-1b": 1}
    result = driver.launch(group(*nodes(0, 5), whole=False))
    assert set(result.launched) == set(nodes(0, 3))
    (failure,) = result.failures
    assert (failure.nodes, failure.kind) == (nodes(3, 5), ErrorClass.CAPACITY)
    assert {m.node: m.zone for m in driver.list()} == {
        "compute-0": "eu-central-1a", "compute-1": "eu-central-1a", "compute-2": "eu-central-1b",
    }  # fmt: skip


def test_a_quota_stops_the_tries_and_is_told_in_the_clouds_words(fake: FakeEc2, driver: Ec2Driver) -> None:
    fake.quota = 2
    result = driver.launch(group(*nodes(0, 5), whole=False))
    assert set(result.launched) == {"compute-0", "compute-1"}
    (failure,) = result.failures
    assert (failure.nodes, failure.kind, failure.code) == (nodes(2, 5), ErrorClass.QUOTA, "VcpuLimitExceeded")
    assert failure.message == "You have requested more vCPU capacity than your limit"
    assert len(runs(fake)) == 2


def test_a_placement_group_is_followed_to_the_zone_where_it_is(fake: FakeEc2, driver: Ec2Driver) -> None:
    fake.faults = [Fault("RunInstances", "InvalidPlacementGroup.InUse", times=1)]
    assert driver.launch(group("compute-0")).failures == ()
    assert [m.zone for m in driver.list()] == ["eu-central-1b"]


@pytest.mark.parametrize("full_first", [True, False])
def test_a_placement_group_elsewhere_does_not_hide_that_its_zone_is_full(
    fake: FakeEc2, driver: Ec2Driver, full_first: bool
) -> None:
    fake.faults = [
        Fault("RunInstances", "InsufficientInstanceCapacity", 500, times=1),
        Fault("RunInstances", "InvalidPlacementGroup.InUse", times=1),
    ][:: 1 if full_first else -1]
    (failure,) = driver.launch(group("compute-0")).failures
    assert (failure.kind, failure.code) == (ErrorClass.CAPACITY, "InsufficientInstanceCapacity")


def test_an_unusable_zone_does_not_hide_that_another_is_full(fake: FakeEc2, driver: Ec2Driver) -> None:
    fake.faults = [
        Fault("RunInstances", "InsufficientInstanceCapacity", 500, times=1),
        Fault("RunInstances", "InvalidParameterValue", message="the group is in another zone"),
    ]
    (failure,) = driver.launch(group("compute-0")).failures
    assert failure.kind is ErrorClass.CAPACITY
    assert "the group is in another zone" in failure.message


def test_the_same_wish_again_launches_nothing_twice(fake: FakeEc2, driver: Ec2Driver) -> None:
    first, again = driver.launch(group(*nodes(0, 2))), driver.launch(group(*nodes(0, 2)))
    assert again == first
    assert len(fake.instances()) == 2
    assert driver.launch(group(*nodes(0, 2), token="another")).launched != first.launched
    tokens = [run["ClientToken"] for run in runs(fake)]
    assert tokens[0] == tokens[1] != tokens[2]
    assert all(len(token) <= 64 and token.isascii() for token in tokens)


def test_the_same_token_for_other_nodes_is_another_wish(fake: FakeEc2, driver: Ec2Driver) -> None:
    """Otherwise EC2 would answer with the first nodes' machines and launch nothing."""
    first = driver.launch(group(*nodes(0, 2), zone="eu-central-1a"))
    other = driver.launch(group(*nodes(2, 4), zone="eu-central-1a"))
    assert set(other.launched) == set(nodes(2, 4))
    assert not set(other.launched.values()) & set(first.launched.values())


def test_a_lost_answer_is_fetched_again(
    fake: FakeEc2, driver: Ec2Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gives up waiting although EC2 has launched. The next try gets those machines."""
    fake.faults = [Fault("RunInstances", "Never", done=True, hang=2.0, times=1)]
    with monkeypatch.context() as patch:
        # Only this call has a short time limit. The others are answered, however long that takes here.
        patch.setattr(driver._client(), "run_instances", fake.client(1.0).run_instances)
        (failure,) = driver.launch(group(*nodes(0, 2))).failures
    assert (failure.kind, failure.code) == (ErrorClass.UNAVAILABLE, "ReadTimeoutError")
    until(lambda: fake.tokens, 60, "the launch that nobody waits for")
    assert len(driver.launch(group(*nodes(0, 2))).launched) == 2
    assert len(fake.instances()) == 2


def test_a_lost_answer_is_fetched_again_also_while_the_template_changes(
    fake: FakeEc2, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client waits a minute for an answer. By the next try the template is read again."""
    monkeypatch.setattr(ec2_launch, "TEMPLATE_SECONDS", 0.0)
    driver = fake.driver(settings(fake))
    fake.faults = [Fault("RunInstances", "InternalError", 500, done=True, times=1)]
    assert driver.launch(group(*nodes(0, 2))).launched == {}
    fake.connect().create_launch_template_version(
        LaunchTemplateId=fake.templates["compute"],
        SourceVersion="1",
        LaunchTemplateData={"ImageId": "ami-87654321"},
    )
    assert len(driver.launch(group(*nodes(0, 2))).launched) == 2
    assert len(fake.instances()) == 2
    driver.launch(group(*nodes(2, 4), token="the next wish"))
    assert [run["LaunchTemplate.Version"] for run in runs(fake)] == ["1", "1", "2"]


def test_a_template_that_changes_between_two_tries_is_another_request(fake: FakeEc2) -> None:
    fake.driver(settings(fake)).launch(group("compute-0"))
    fake.connect().create_launch_template_version(
        LaunchTemplateId=fake.templates["compute"],
        SourceVersion="1",
        LaunchTemplateData={"ImageId": "ami-87654321", "NetworkInterfaces": [{"DeviceIndex": 0}]},
    )
    result = fake.driver(settings(fake)).launch(group("compute-0"))
    assert result.failures == ()
    assert [run["LaunchTemplate.Version"] for run in runs(fake)] == ["1", "2"]
    assert [call.code for call in fake.calls] == [None] * len(fake.calls)


def test_half_of_a_large_group_is_undone(fake: FakeEc2, driver: Ec2Driver, monkeypatch: Any) -> None:
    monkeypatch.setattr(ec2_launch, "CALL_NODES", 3)
    fake.faults = [Fault("RunInstances", "InsufficientInstanceCapacity", 500, skip=1, times=1)]
    result = driver.launch(group(*nodes(0, 5), zone="eu-central-1a"))
    assert result.launched == {}
    (failure,) = result.failures
    assert (failure.nodes, failure.kind) == (nodes(0, 5), ErrorClass.CAPACITY)
    assert len(fake.instances()) == 3
    assert fake.living() == []
    # The same request again launches new machines and does not return the ended ones.
    again = driver.launch(group(*nodes(0, 5), zone="eu-central-1a"))
    assert set(again.launched) == set(nodes(0, 5))
    assert len(fake.living()) == 5
    assert "IdempotentInstanceTerminated" not in {call.code for call in fake.calls}


def test_a_group_larger_than_what_one_call_ends_is_undone(
    fake: FakeEc2, driver: Ec2Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ec2_launch, "CALL_NODES", 2)
    monkeypatch.setattr(ec2_launch, "TERMINATE_IDS", 3)
    monkeypatch.setattr(fake_ec2_limits, "IDS", {"TerminateInstances": 3})
    fake.capacity = {"eu-central-1a": 4, "eu-central-1b": 4}
    nodes = tuple(f"compute-{n}" for n in range(6))
    result = driver.launch(LaunchGroup("compute", nodes, True, "large"))
    assert (result.launched, fake.living()) == ({}, [])
    assert [call.code for call in fake.calls if call.action == "TerminateInstances"] == [None] * 4


def test_the_other_half_is_waited_for_while_the_cloud_is_busy(
    fake: FakeEc2, driver: Ec2Driver, monkeypatch: Any
) -> None:
    monkeypatch.setattr(ec2_launch, "CALL_NODES", 3)
    fake.faults = [Fault("RunInstances", "RequestLimitExceeded", 503, skip=1, times=2)]
    assert len(driver.launch(group(*nodes(0, 5))).launched) == 5
    assert len(fake.instances()) == 5
    assert "TerminateInstances" not in fake.actions()


def test_undoing_waits_for_machines_that_are_not_listed_yet(
    fake: FakeEc2, driver: Ec2Driver, monkeypatch: Any
) -> None:
    monkeypatch.setattr(ec2_launch, "CALL_NODES", 3)
    monkeypatch.setattr(ec2_launch, "PAUSES", (0.2,) * 10)
    fake.lag = 0.5
    fake.faults = [Fault("RunInstances", "VcpuLimitExceeded", skip=1)]
    (failure,) = driver.launch(group(*nodes(0, 5))).failures
    assert failure.kind is ErrorClass.QUOTA
    assert fake.living() == []


def test_undoing_that_fails_is_tried_again(fake: FakeEc2, driver: Ec2Driver, monkeypatch: Any) -> None:
    monkeypatch.setattr(ec2_launch, "CALL_NODES", 3)
    fake.faults = [
        Fault("RunInstances", "VcpuLimitExceeded", skip=1),
        Fault("TerminateInstances", "RequestLimitExceeded", 503, times=2),
    ]
    (failure,) = driver.launch(group(*nodes(0, 5))).failures
    assert failure.kind is ErrorClass.QUOTA
    assert fake.living() == []


def test_a_daemon_that_has_forgotten_an_undone_launch_takes_another_token(
    fake: FakeEc2, driver: Ec2Driver
) -> None:
    """After a restart the request is sent again, and its token's machines have ended."""
    first = driver.launch(group(*nodes(0, 2)))
    driver.terminate(list(first.launched.values()))
    again = fake.driver(settings(fake)).launch(group(*nodes(0, 2)))
    assert again.failures == ()
    assert set(again.launched.values()).isdisjoint(first.launched.values())
    assert fake.calls[-2].code == "IdempotentInstanceTerminated"


def test_machines_that_are_dead_on_arrival_are_failures(fake: FakeEc2, driver: Ec2Driver) -> None:
    """An accepted launch contains an error: the volumes' quota shows only after EC2 has accepted it."""
    fake.stillborn = 1
    single = driver.launch(group(*nodes(0, 3), whole=False, zone="eu-central-1a"))
    assert set(single.launched) == set(nodes(0, 3)), "the one that died was asked for again"
    assert len(fake.living()) == 3
    fake.stillborn = 1
    whole = driver.launch(group(*nodes(3, 6), zone="eu-central-1a", token="whole"))
    assert whole.launched == {}
    (failure,) = whole.failures
    assert (failure.kind, failure.code) == (ErrorClass.QUOTA, "Client.VolumeLimitExceeded")
    assert failure.message == "Volume limit exceeded"
    assert len(fake.living()) == 3


WIRE = [
    ("InsufficientInstanceCapacity", 500, ErrorClass.CAPACITY), ("Unsupported", 400, ErrorClass.CAPACITY),
    ("InsufficientFreeAddressesInSubnet", 400, ErrorClass.CAPACITY),
    ("UnfulfillableCapacity", 400, ErrorClass.CAPACITY), ("SpotMaxPriceTooLow", 400, ErrorClass.CAPACITY),
    ("VcpuLimitExceeded", 400, ErrorClass.QUOTA), ("InstanceLimitExceeded", 400, ErrorClass.QUOTA),
    ("MaxSpotInstanceCountExceeded", 400, ErrorClass.QUOTA), ("VolumeLimitExceeded", 400, ErrorClass.QUOTA),
    ("RequestLimitExceeded", 503, ErrorClass.THROTTLED), ("Unavailable", 503, ErrorClass.UNAVAILABLE),
    ("ServiceUnavailable", 503, ErrorClass.UNAVAILABLE), ("InternalError", 500, ErrorClass.UNAVAILABLE),
    ("UnauthorizedOperation", 403, ErrorClass.PERMISSION), ("ExpiredToken", 400, ErrorClass.PERMISSION),
    ("InvalidAMIID.NotFound", 400, ErrorClass.CONFIG), ("Novel", 502, ErrorClass.UNAVAILABLE),
]  # fmt: skip


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("code", "status", "kind"), WIRE)
def test_refusals_over_the_wire(
    fake: FakeEc2, driver: Ec2Driver, code: str, status: int, kind: ErrorClass, whole: bool
) -> None:
    """Each subnet gets one call, as the client does not retry; others are tried only where that may help."""
    fake.faults = [Fault("RunInstances", code, status)]
    (failure,) = driver.launch(group(*nodes(0, 2), whole=whole)).failures
    assert (failure.nodes, failure.kind, failure.code) == (nodes(0, 2), kind, code)
    assert "the cloud's own words" in failure.message
    assert len(runs(fake)) == (2 if kind is ErrorClass.CAPACITY else 1)
    assert fake.instances() == []


def test_a_template_that_cannot_be_read_is_a_failure_like_any_other(fake: FakeEc2, driver: Ec2Driver) -> None:
    fake.faults = [Fault("DescribeLaunchTemplateVersions", "UnauthorizedOperation", 403, times=1)]
    (failure,) = driver.launch(group("compute-0")).failures
    assert failure.kind is ErrorClass.PERMISSION
    assert driver.launch(group("compute-0")).failures == ()
    (failure,) = driver.launch(LaunchGroup("debug", ("debug-0",), True, "t")).failures
    assert (failure.kind, failure.code) == (ErrorClass.CONFIG, "NoTemplate")


def test_an_endpoint_that_is_not_there(fake: FakeEc2) -> None:
    fake.url = "http://127.0.0.1:9"
    (failure,) = fake.driver(settings(fake)).launch(group("compute-0")).failures
    assert (failure.kind, failure.code) == (ErrorClass.UNAVAILABLE, "EndpointConnectionError")


def test_the_providers_driver_is_made_without_a_client(fake: FakeEc2) -> None:
    assert isinstance(load(settings(fake)), Ec2Driver)
    assert fake.calls == []


def test_more_nodes_than_a_call_may_launch(
    fake: FakeEc2, driver: Ec2Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One launch call for as many nodes as it may have, a page of each list, and one call to end them all."""
    assert ec2_launch.CALL_NODES == 500, "what EC2 takes"
    monkeypatch.setattr(ec2_launch, "CALL_NODES", 50)
    # A template is read again after a minute, and this machine may be slow.
    monkeypatch.setattr(ec2_launch, "TEMPLATE_SECONDS", 3600.0)
    result = driver.launch(group(*nodes(0, 51), whole=False))
    assert len(result.launched) == 51
    assert fake.actions() == ["DescribeLaunchTemplateVersions", "RunInstances", "RunInstances"]
    fake.forget()
    listed = driver.list()
    assert {m.node: m.id for m in listed} == result.launched
    # One page of instances, and one query of each kind.
    assert sorted(fake.actions()) == [
        "DescribeInstanceStatus", "DescribeInstances", "DescribeSpotInstanceRequests",
    ]  # fmt: skip
    fake.forget()
    driver.terminate([m.id for m in listed])
    assert fake.actions() == ["TerminateInstances"]
    assert fake.living() == []


def test_nodes_with_gaps_between_their_numbers_are_one_call_too(fake: FakeEc2, driver: Ec2Driver) -> None:
    """Their host list fills several tags, and every machine's node is read from it."""
    wanted = tuple(f"compute-{n}" for n in range(0, 240, 2))
    result = driver.launch(group(*wanted))
    assert set(result.launched) == set(wanted)
    assert len(runs(fake)) == 1
    tags = next(call for call in fake.calls if call.action == "RunInstances").tags()
    assert {"slurm-stacks:nodes", "slurm-stacks:nodes-2"} <= set(tags)
    assert {m.node: m.id for m in driver.list()} == result.launched
