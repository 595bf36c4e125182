"""Launch templates: exactly these, with the interfaces, placement and reservation that were asked for."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest
from botocore.session import Session

from infra.aws.fleets import AwsFleets, interfaces
from infra.node.model import Access, ClusterDesign, Image
from tests.support.aws_machines import AMI, STATIONS, Machines
from tests.support.aws_mocks import CPU, GPU, OWN, aws_design, declare
from tests.support.aws_rules import weaknesses
from tests.support.recorder import Recorder, counts

TEMPLATE, GROUP = "aws:ec2/launchTemplate:LaunchTemplate", "aws:ec2/placementGroup:PlacementGroup"
FLEETS = "slurm-stacks:index:AwsFleets"
ARN = "arn:aws:resource-groups:eu-west-1:123456789012:group/ours"


def fleets(design: ClusterDesign, *, preview: bool = False) -> Recorder:
    aws = Machines(preview=preview)
    return declare(lambda: AwsFleets("f", design, STATIONS["compute"]), preview=preview, aws=aws)


def template(**changes: Any) -> dict[str, Any]:
    """The template of one partition that differs from the usual one in this."""
    return fleets(aws_design(partitions=(replace(CPU, **changes),))).inputs("f-cpu")


@pytest.mark.parametrize("preview", [False, True])
def test_fleets_are_exactly_these_resources(preview: bool) -> None:
    made = fleets(aws_design(), preview=preview)
    assert counts(made) == {FLEETS: 1, TEMPLATE: 2, GROUP: 1}
    assert {made.parents()[name] for name in ("f-cpu", "f-gpu", "f-gpu-group")} == {"f"}
    assert made.after("f-gpu") == {"f-gpu-group"}
    assert made.after("f-cpu") == set()


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
    """Else a node would have to ask EC2 which node it is. Keys with a slash would stop every launch."""
    made = template()
    assert made["metadataOptions"]["instanceMetadataTags"] == "enabled"
    assert not [key for key in made["tags"] if "/" in key or " " in key]


@pytest.mark.parametrize("cards", [4, 8, 32])
def test_several_efa_cards_get_an_interface_each_and_no_word_about_public_addresses(cards: int) -> None:
    """The layout of the EC2 guide: an ordinary interface, and on every card one for the fabric alone."""
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
    (only,) = fleets(aws_design()).inputs("f-gpu")["networkInterfaces"]
    assert (only["interfaceType"], only["deviceIndex"]) == ("efa", 0)
    assert only["associatePublicIpAddress"] == "false"


def test_nodes_close_together_are_in_a_group_of_their_partition() -> None:
    made = fleets(aws_design())
    assert made.inputs("f-gpu-group")["strategy"] == "cluster"
    assert made.inputs("f-gpu")["placement"] == {"groupName": "c-gpu"}
    assert made.inputs("f-gpu-group")["tags"]["slurm-stacks:cluster"] == "c"


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


def test_an_image_of_the_partitions_own_wins() -> None:
    own = "ami-0fedcba9876543210"
    made = template(image=own)
    assert made["imageId"] == own
    assert made["blockDeviceMappings"][0]["deviceName"] == f"/dev/of-{own}", "Amazon Linux has another"
    clusters = fleets(aws_design(image=Image(id=own))).inputs("f-cpu")
    assert clusters["blockDeviceMappings"][0]["deviceName"] == f"/dev/of-{own}"
    assert template()["blockDeviceMappings"][0]["deviceName"] == "/dev/sda1"


def test_a_key_pair_is_the_users() -> None:
    made = fleets(aws_design(access=Access("ssh", ("203.0.113.0/24",), "mine")))
    assert made.inputs("f-cpu")["keyName"] == "mine"


def test_all_nodes_get_the_same_user_data() -> None:
    made = fleets(aws_design())
    first, second = (made.inputs(name)["userData"] for name in ("f-cpu", "f-gpu"))
    assert first == second
    assert "--role compute" in base64.b64decode(first).decode()


@pytest.mark.parametrize("change", [{}, {"efa": 1}, {"efa": 4}, {"spot": True}, {"placement": "cluster"}])
def test_templates_have_no_weakness(change: dict[str, Any]) -> None:
    made = fleets(aws_design(partitions=(replace(GPU, **change),)))
    resources = [
        {"type": kind, "name": name, "inputs": made.inputs(name)} for name, kind in made.types().items()
    ]
    assert weaknesses(resources) == []


def test_a_capacity_block_is_a_market_of_its_own() -> None:
    """Without it EC2 refuses the launch: "The market type (purchasing) option is not valid"."""
    made = template(reservation="cr-0123456789abcdef0", capacity_block=True)
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
    named = replace(GPU, placement_group="lab p4d")
    made = fleets(aws_design(partitions=(named,)))
    assert made.inputs("f-gpu")["placement"] == {"groupName": "lab p4d"}
    assert counts(made) == {FLEETS: 1, TEMPLATE: 1}


def test_disks_have_the_customers_key() -> None:
    key = "arn:aws:kms:eu-west-1:123456789012:key/12345678-1234-1234-1234-123456789012"
    made = fleets(aws_design(kms_key=key)).inputs("f-cpu")
    (disk,) = made["blockDeviceMappings"]
    assert (disk["ebs"]["encrypted"], disk["ebs"]["kmsKeyId"]) == ("true", key)
    assert "kmsKeyId" not in template()["blockDeviceMappings"][0]["ebs"]


def test_without_a_nat_gateway_a_node_has_a_public_address() -> None:
    open_air = aws_design(network=replace(OWN, nat=False))
    made = fleets(open_air)
    for name in ("f-cpu", "f-gpu"):
        (only,) = made.inputs(name)["networkInterfaces"]
        assert (only["associatePublicIpAddress"], only["securityGroups"]) == ("true", ["sg-compute"])
