"""The launch templates are exactly these, with the interfaces, placement and reservation of the stack
file."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from typing import Any

import pulumi
import pytest
from botocore.session import Session
from botocore.validate import ParamValidator

from infra.aws.launch_templates import AwsLaunchTemplates, image_id, interfaces, root_device
from infra.config import distributions
from node.design.model import Access, AwsPartition, AwsSettings, ClusterDesign, Image
from tests.support import varied
from tests.support.aws_machines import AMI, RESOURCES_BY_ROLE, Machines
from tests.support.aws_mocks import ACCOUNT, CPU, GPU, aws_design, declare
from tests.support.aws_rules import weaknesses
from tests.support.recorder import Recorder, counts

TEMPLATE, GROUP = "aws:ec2/launchTemplate:LaunchTemplate", "aws:ec2/placementGroup:PlacementGroup"
COMPONENT = "slurm-stacks:index:AwsLaunchTemplates"
ARN = "arn:aws:resource-groups:eu-west-1:123456789012:group/ours"


def templates(design: ClusterDesign, *, preview: bool = False) -> Recorder:
    aws = Machines(preview=preview)
    return declare(
        lambda: AwsLaunchTemplates("f", design, RESOURCES_BY_ROLE["compute"]), preview=preview, aws=aws
    )


def template(**changes: Any) -> dict[str, Any]:
    """The template of one partition with these changes."""
    return templates(aws_design(partitions=(replace(CPU, **changes),))).inputs("f-cpu")


def test_nodes_retire_for_their_launch_template_and_their_line_in_slurm_conf_and_nothing_else() -> None:
    made = varied.renewed(
        GPU, "aws", lambda one: templates(aws_design(partitions=(one,))).inputs(f"f-{one.name}")
    )
    assert {"partitions.instance_type", "partitions.aws.efa", "partitions.cpus"} <= made


@pytest.mark.parametrize("preview", [False, True])
def test_templates_are_exactly_these_resources(preview: bool) -> None:
    recorder = templates(aws_design(), preview=preview)
    assert counts(recorder) == {COMPONENT: 1, TEMPLATE: 2, GROUP: 1}
    assert {recorder.parents()[name] for name in ("f-cpu", "f-gpu", "f-gpu-placement-group")} == {"f"}
    assert recorder.after("f-gpu") == {"f-gpu-placement-group"}
    assert recorder.after("f-cpu") == set()


def test_a_template_is_whole_but_for_subnet_host_and_number() -> None:
    made = template()
    assert made["name"] == "c-cpu"
    assert (made["imageId"], made["instanceType"]) == (AMI, "m5.xlarge")
    assert made["iamInstanceProfile"] == {"name": "compute-profile"}
    assert made["instanceInitiatedShutdownBehavior"] == "terminate"
    assert made["updateDefaultVersion"] is True, "the driver launches the newest"
    assert made["networkInterfaces"] == [
        {
            "deviceIndex": 0,
            "networkCardIndex": 0,
            "deleteOnTermination": "true",
            "associatePublicIpAddress": "false",
            "securityGroups": ["sg-compute"],
        }
    ]
    assert not any(key in made for key in ("placement", "instanceMarketOptions", "keyName"))
    assert "capacityReservationSpecification" not in made


def test_what_a_node_leaves_behind_goes_with_it_and_has_the_clusters_tags() -> None:
    made = template(disk_gib=77)
    (disk,) = made["blockDeviceMappings"]
    assert disk["ebs"] == {
        "volumeSize": 77,
        "volumeType": "gp3",
        "encrypted": "true",
        "deleteOnTermination": "true",
    }
    wanted = {
        "Name": "c-cpu",
        "slurm-stacks:cluster": "c",
        "slurm-stacks:stack": "test",
        "slurm-stacks:role": "compute",
        "slurm-stacks:partition": "cpu",
    }
    kinds = ("instance", "volume", "network-interface")
    specs = {spec["resourceType"]: spec["tags"] for spec in made["tagSpecifications"]}
    assert specs == dict.fromkeys(kinds, wanted)
    assert made["tags"] == wanted, "policies know the cluster's templates by their tag"


def test_instances_read_their_tags_by_the_metadata_service() -> None:
    """Otherwise a node would have to ask EC2 which node it is. Keys with a slash would stop every launch."""
    made = template()
    assert made["metadataOptions"]["instanceMetadataTags"] == "enabled"
    assert not [key for key in made["tags"] if "/" in key or " " in key]


def test_an_open_metadata_address_is_open_to_containers_too() -> None:
    """A container with a network of its own is one hop further. Otherwise a machine's own rules refuse it."""
    shut, opened = template()["metadataOptions"], template(open_metadata=True)["metadataOptions"]
    assert (shut["httpPutResponseHopLimit"], opened["httpPutResponseHopLimit"]) == (1, 2)
    assert shut == {**opened, "httpPutResponseHopLimit": 1}, "and nothing else: IMDSv2 is required"


@pytest.mark.parametrize("cards", [4, 8, 32])
def test_several_efa_cards_get_an_interface_each_and_no_word_about_public_addresses(cards: int) -> None:
    """The layout is that of the EC2 guide: one ordinary interface, and one for the fabric alone on every
    card."""
    made = interfaces(cards)
    assert made[0]["interface_type"] == "interface"
    assert [(one["network_card_index"], one["device_index"]) for one in made] == [
        (0, 0),
        (0, 1),
        *((card, 0) for card in range(1, cards)),
    ]
    assert {one["interface_type"] for one in made[1:]} == {"efa-only"}
    assert not any("associate_public_ip_address" in one for one in made)


def test_one_efa_card_is_one_interface() -> None:
    (only,) = templates(aws_design()).inputs("f-gpu")["networkInterfaces"]
    assert (only["interfaceType"], only["deviceIndex"]) == ("efa", 0)
    assert only["associatePublicIpAddress"] == "false"


def test_nodes_close_together_are_in_a_group_of_their_partition() -> None:
    recorder = templates(aws_design())
    assert recorder.inputs("f-gpu-placement-group")["strategy"] == "cluster"
    assert recorder.inputs("f-gpu")["placement"] == {"groupName": "c-gpu"}
    assert recorder.inputs("f-gpu-placement-group")["tags"]["slurm-stacks:cluster"] == "c"


def test_spot_is_asked_for_once() -> None:
    assert template(spot=True)["instanceMarketOptions"] == {
        "marketType": "spot",
        "spotOptions": {"spotInstanceType": "one-time", "instanceInterruptionBehavior": "terminate"},
    }


@pytest.mark.parametrize(
    ("said", "key"),
    [("cr-0123456789abcdef0", "capacityReservationId"), (ARN, "capacityReservationResourceGroupArn")],
)
def test_a_full_reservation_never_falls_back_to_on_demand(said: str, key: str) -> None:
    assert template(reservation=said)["capacityReservationSpecification"] == {
        "capacityReservationPreference": "capacity-reservations-only",
        "capacityReservationTarget": {key: said},
    }


OWN_CR, SHARED_CR = "cr-0123456789abcdef0", "cr-0fedcba9876543210"
SHARED = f"arn:aws:ec2:eu-west-1:999999999999:capacity-reservation/{SHARED_CR}"
RESOURCE_GROUP, MEMBER = "aws:resourcegroups/group:Group", "aws:resourcegroups/resource:Resource"


@pytest.mark.parametrize("preview", [False, True])
def test_several_reservations_are_a_group_of_the_stacks(preview: bool) -> None:
    """The group is the one that the EC2 user guide makes: launches can target it, and it takes only
    reservations ("Create a group"). A shared one has its owner's account in its ARN."""
    grouped = replace(CPU, reservations=(OWN_CR, SHARED))
    recorder = templates(aws_design(partitions=(grouped,)), preview=preview)
    assert counts(recorder) == {COMPONENT: 1, TEMPLATE: 1, RESOURCE_GROUP: 1, MEMBER: 2}
    group = recorder.inputs("f-cpu-reserved")
    assert group["name"] == "c-cpu"
    assert group["tags"]["slurm-stacks:cluster"] == "c"
    assert group["configurations"] == [
        {"type": "AWS::EC2::CapacityReservationPool"},
        {
            "type": "AWS::ResourceGroups::Generic",
            "parameters": [{"name": "allowed-resource-types", "values": ["AWS::EC2::CapacityReservation"]}],
        },
    ]
    assert recorder.inputs(f"f-cpu-reserved-{SHARED_CR}")["resourceArn"] == SHARED
    if preview:
        return
    arn = f"arn:aws:ec2:eu-west-1:{ACCOUNT}:capacity-reservation/{OWN_CR}"
    assert recorder.inputs(f"f-cpu-reserved-{OWN_CR}")["resourceArn"] == arn
    target = recorder.inputs("f-cpu")["capacityReservationSpecification"]
    assert target["capacityReservationPreference"] == "capacity-reservations-only"
    assert list(target["capacityReservationTarget"]) == ["capacityReservationResourceGroupArn"]
    assert recorder.after("f-cpu") >= {"f-cpu-reserved"}
    operation = Session().get_service_model("resource-groups").operation_model("CreateGroup")
    upper = [
        {
            "Type": one["type"],
            "Parameters": [{"Name": p["name"], "Values": p["values"]} for p in one.get("parameters", [])],
        }
        for one in group["configurations"]
    ]
    asked = {"Name": group["name"], "Description": group["description"], "Configuration": upper}
    report = ParamValidator().validate(asked, operation.input_shape)
    assert not report.has_errors(), report.generate_report()
    for key in ("Name", "Description"):
        shape = operation.input_shape.members[key]
        assert re.fullmatch(shape.metadata["pattern"], asked[key]), "botocore checks no patterns itself"
    members = Session().get_service_model("resource-groups").operation_model("GroupResources")
    pattern = members.input_shape.members["ResourceArns"].member.metadata["pattern"]
    assert all(re.fullmatch(pattern, one) for one in (arn, SHARED))


def test_an_image_of_the_partitions_own_wins() -> None:
    image = "ami-0fedcba9876543210"
    made = template(image=image)
    assert made["imageId"] == image
    assert made["blockDeviceMappings"][0]["deviceName"] == f"/dev/of-{image}", "Amazon Linux has another"
    clusters = templates(aws_design(image=Image(id=image))).inputs("f-cpu")
    assert clusters["blockDeviceMappings"][0]["deviceName"] == f"/dev/of-{image}"
    assert template()["blockDeviceMappings"][0]["deviceName"] == "/dev/sda1"


def test_a_key_pair_is_the_users() -> None:
    recorder = templates(aws_design(access=Access("ssh", ("203.0.113.0/24",), "mine")))
    assert recorder.inputs("f-cpu")["keyName"] == "mine"


def test_all_nodes_get_the_same_user_data() -> None:
    recorder = templates(aws_design())
    first, second = (recorder.inputs(name)["userData"] for name in ("f-cpu", "f-gpu"))
    assert first == second
    assert "--role compute" in base64.b64decode(first).decode()


@pytest.mark.parametrize(
    "change",
    [{}, {"aws": AwsPartition()}, {"aws": AwsPartition(efa=4)}, {"spot": True}, {"placement": "cluster"}],
)
def test_templates_have_no_weakness(change: dict[str, Any]) -> None:
    recorder = templates(aws_design(partitions=(replace(GPU, **change),)))
    resources = [
        {"type": kind, "name": name, "inputs": recorder.inputs(name)}
        for name, kind in recorder.types().items()
    ]
    assert weaknesses(resources) == []


def test_a_capacity_block_is_a_market_of_its_own() -> None:
    """Without it EC2 refuses the launch: "The market type (purchasing) option is not valid"."""
    made = template(reservation="cr-0123456789abcdef0", aws=AwsPartition(capacity_block=True))
    assert made["instanceMarketOptions"] == {"marketType": "capacity-block"}
    assert made["capacityReservationSpecification"] == {
        "capacityReservationPreference": "capacity-reservations-only",
        "capacityReservationTarget": {"capacityReservationId": "cr-0123456789abcdef0"},
    }
    model = Session().get_service_model("ec2")
    launch = model.operation_model("CreateLaunchTemplate").input_shape.members["LaunchTemplateData"]
    market = launch.members["InstanceMarketOptions"].members["MarketType"]
    assert "capacity-block" in market.enum
    assert "instanceMarketOptions" not in template(reservation="cr-0123456789abcdef0")


def test_a_group_by_name_is_nobodys_to_make_here() -> None:
    named = replace(GPU, aws=AwsPartition(efa=1, placement_group="lab p4d"))
    recorder = templates(aws_design(partitions=(named,)))
    assert recorder.inputs("f-gpu")["placement"] == {"groupName": "lab p4d"}
    assert counts(recorder) == {COMPONENT: 1, TEMPLATE: 1}


def test_disks_have_the_customers_key() -> None:
    key = "arn:aws:kms:eu-west-1:123456789012:key/12345678-1234-1234-1234-123456789012"
    made = templates(aws_design(aws=AwsSettings(kms_key=key))).inputs("f-cpu")
    (disk,) = made["blockDeviceMappings"]
    assert (disk["ebs"]["encrypted"], disk["ebs"]["kmsKeyId"]) == ("true", key)
    assert "kmsKeyId" not in template()["blockDeviceMappings"][0]["ebs"]


def test_without_a_nat_gateway_a_node_has_a_public_address() -> None:
    open_air = aws_design(aws=AwsSettings(nat=False))
    recorder = templates(open_air)
    for name in ("f-cpu", "f-gpu"):
        (only,) = recorder.inputs(name)["networkInterfaces"]
        assert (only["associatePublicIpAddress"], only["securityGroups"]) == ("true", ["sg-compute"])


def image(wanted: Image) -> tuple[Any, list[str]]:
    seen: list[Any] = []
    aws = Machines()
    declare(lambda: pulumi.Output.from_input(image_id(wanted)).apply(seen.append), aws=aws)
    (found,) = seen
    return found, aws.calls


@pytest.mark.parametrize("source", distributions.DISTRIBUTIONS)
def test_a_distribution_is_found_by_its_public_parameter(source: str) -> None:
    """The id comes from `insecure_value`: `value` is a secret, and so would be every template."""
    assert image(Image(source)) == (AMI, ["aws:ssm/getParameter:getParameter"])


def test_the_root_disk_has_the_name_that_its_image_gives_it() -> None:
    """Under another name a machine gets a second disk, and its root disk stays unencrypted."""
    assert root_device(Image("debian-13")) == "/dev/xvda"
    assert root_device(Image("ubuntu-24.04", bake=True)) == "/dev/sda1"


def test_an_image_of_ones_own_needs_no_question() -> None:
    assert image(Image(id="ami-0fedcba9876543210")) == ("ami-0fedcba9876543210", [])


@pytest.mark.parametrize("bake", [False, True])
def test_a_baked_one_begins_with_the_same(bake: bool) -> None:
    assert image(Image(id="ami-0fedcba9876543210", bake=bake))[0] == "ami-0fedcba9876543210"
    assert image(Image("ubuntu-24.04", bake=bake))[0] == AMI
