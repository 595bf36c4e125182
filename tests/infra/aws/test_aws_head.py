"""The head's machines and addresses: exact resources, what no change may replace, and who gets a public
address."""

from __future__ import annotations

from dataclasses import replace

import pulumi_command as command
import pytest

from infra.aws.addresses import AwsAddresses
from infra.aws.head import AwsHead
from node.model import ClusterDesign
from tests.support.aws_machines import AMI, RESOURCES_BY_ROLE, Machines
from tests.support.aws_mocks import CONTROLLER, LOGIN, OWN, aws_design, declare, ssh_design
from tests.support.recorder import Recorder, counts

INSTANCE, INTERFACE = "aws:ec2/instance:Instance", "aws:ec2/networkInterface:NetworkInterface"
EIP = "aws:ec2/eip:Eip"
COMPONENTS = {"slurm-stacks:index:AwsHead": 1, "slurm-stacks:index:AwsAddresses": 1}
GROUND = {"command:local:Command": 1}


def head(design: ClusterDesign, *, preview: bool = False) -> Recorder:
    def program() -> None:
        dependency = command.local.Command("dependency", create="true")
        addresses = AwsAddresses("s", design, RESOURCES_BY_ROLE, [dependency])
        AwsHead("h", design, RESOURCES_BY_ROLE, addresses, dependency, [])

    return declare(program, preview=preview, aws=Machines(preview=preview))


@pytest.mark.parametrize("preview", [False, True])
def test_a_head_behind_session_manager_is_exactly_these_resources(preview: bool) -> None:
    made = head(aws_design(), preview=preview)
    assert counts(made) == {**COMPONENTS, **GROUND, INSTANCE: 1, INTERFACE: 1}
    assert {made.parents()[name] for name in ("h-controller",)} == {"h"}


@pytest.mark.parametrize("preview", [False, True])
def test_a_head_with_login_machines_is_exactly_these_resources(preview: bool) -> None:
    made = head(ssh_design(login=True), preview=preview)
    assert counts(made) == {**COMPONENTS, **GROUND, INSTANCE: 2, INTERFACE: 2, EIP: 1}
    assert "s-login-0-public" in made.types(), "users reach the login machine, nobody the controller"
    assert "h-controller" in made.after("h-login-0"), "it mounts what the controller exports"


def test_only_access_by_ssh_gives_a_public_address() -> None:
    assert EIP not in counts(head(aws_design(hosts=(CONTROLLER, LOGIN))))
    assert counts(head(ssh_design()))[EIP] == 1
    for made in (head(aws_design()), head(ssh_design())):
        assert "associatePublicIpAddress" not in made.inputs("h-controller")


def test_without_a_nat_gateway_every_host_has_an_address_for_its_way_out() -> None:
    """Users do not log in there. They log in as `access.mode` says."""
    design = aws_design(hosts=(CONTROLLER, LOGIN), network=replace(OWN, nat=False))
    assert counts(head(design))[EIP] == 2
    seen: list[AwsAddresses] = []
    declare(lambda: seen.append(AwsAddresses("s", design, RESOURCES_BY_ROLE)), aws=Machines())
    assert seen[0].public == {}


def test_disks_of_hosts_have_the_customers_key() -> None:
    key = "arn:aws:kms:eu-west-1:123456789012:key/12345678-1234-1234-1234-123456789012"
    disk = head(aws_design(kms_key=key)).inputs("h-controller")["rootBlockDevice"]
    assert (disk["encrypted"], disk["kmsKeyId"]) == (True, key)


def test_an_address_outlives_its_machine() -> None:
    made = head(ssh_design())
    assert made.inputs("h-controller")["primaryNetworkInterface"] == {"networkInterfaceId": "s-controller-id"}
    assert made.inputs("s-controller-public")["networkInterface"] == "s-controller-id"
    assert made.inputs("s-controller") == {
        "description": "controller of cluster c",
        "subnetId": "subnet-head",
        "securityGroups": ["sg-head"],
        "tags": {
            "Name": "c-controller",
            "slurm-stacks:cluster": "c",
            "slurm-stacks:stack": "test",
            "slurm-stacks:host": "controller",
        },
    }
    assert made.after("s-controller") == set(), "there before any machine is"
    assert made.after("s-controller-public") == {"dependency", "s-controller"}, (
        "no public address without a gateway"
    )


def test_neither_a_new_image_nor_new_user_data_touches_a_head_with_jobs() -> None:
    asked = head(aws_design()).asked["h-controller"]
    assert set(asked.ignoreChanges) == {"ami", "userData", "userDataBase64"}
    assert asked.deleteBeforeReplace is True, "its address has one machine at a time"


def test_what_a_head_is_made_of() -> None:
    made = head(aws_design(hosts=(replace(CONTROLLER, disk_gib=123),))).inputs("h-controller")
    assert (made["ami"], made["instanceType"]) == (AMI, "m5.large")
    assert made["iamInstanceProfile"] == "controller-profile"
    assert made["metadataOptions"] == {
        "httpEndpoint": "enabled",
        "httpTokens": "required",
        "httpPutResponseHopLimit": 1,
        "instanceMetadataTags": "enabled",
    }
    disk = made["rootBlockDevice"]
    assert (disk["volumeSize"], disk["encrypted"], disk["deleteOnTermination"]) == (123, True, True)
    assert made["tags"]["slurm-stacks:bucket"] == "bucket-1", "by which its host keys are found"
    assert "--role controller --host controller" in made["userData"]
    assert made["userDataReplaceOnChange"] is False


def test_only_a_login_machines_metadata_reaches_containers() -> None:
    made = head(aws_design(hosts=(CONTROLLER, replace(LOGIN, open_metadata=True))))
    options = {host: made.inputs(f"h-{host}")["metadataOptions"] for host in ("controller", LOGIN.name)}
    assert {host: one["httpPutResponseHopLimit"] for host, one in options.items()} == {
        "controller": 1,
        LOGIN.name: 2,
    }
    assert {one["httpTokens"] for one in options.values()} == {"required"}


def test_a_hosts_own_image_wins() -> None:
    own = replace(CONTROLLER, image="ami-0fedcba9876543210")
    assert head(aws_design(hosts=(own,))).inputs("h-controller")["ami"] == "ami-0fedcba9876543210"


def test_a_head_waits_for_what_it_stands_on() -> None:
    assert head(aws_design()).after("h-controller") == {"dependency", "s-controller"}
