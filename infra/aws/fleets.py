"""A launch template a partition: all that the elastic driver does not say when it launches nodes."""

from __future__ import annotations

import base64
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.aws import images, userdata
from infra.aws.parts import Station
from infra.aws.tags import tags
from infra.node.model import ClusterDesign, Partition

METADATA: dict[str, Any] = {
    "http_endpoint": "enabled",
    "http_tokens": "required",
    "http_put_response_hop_limit": 1,
    # A machine reads its cluster, its role and its place in the launch there, without a call.
    "instance_metadata_tags": "enabled",
}
"""Of every machine: only its own processes reach its role's credentials."""
TAGGED = ("instance", "volume", "network-interface")


class AwsFleets(pulumi.ComponentResource):
    """What nodes are made from: no node itself.

    A template names no subnet, for the driver tries one zone after another, and no host: all instances of one
    launch are alike, and each finds its name by its number in the launch.

    Attributes:
        templates: partition -> the launch template's id. The driver launches its default version, which is
            always the newest.

    Args:
        station: of compute machines.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        station: Station,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:AwsFleets", name, None, opts)
        self._name = name
        self._design = design
        self._user_data = pulumi.Output.from_input(station.bucket).apply(
            lambda bucket: _base64(userdata.render(design, bucket, "compute"))
        )
        self.templates: dict[str, pulumi.Output[str]] = {
            partition.name: self._template(partition, station).id for partition in design.partitions
        }
        self.register_outputs({"templates": self.templates})

    def _template(self, partition: Partition, station: Station) -> aws.ec2.LaunchTemplate:
        design, own = self._design, f"{self._name}-{partition.name}"
        labels = tags(design, f"{design.name}-{partition.name}", role="compute", partition=partition.name)
        return aws.ec2.LaunchTemplate(
            own,
            name=f"{design.name}-{partition.name}",
            description=f"nodes of partition {partition.name}, cluster {design.name}",
            update_default_version=True,
            image_id=station.start_from(partition.name, partition.image),
            instance_type=partition.machine,
            key_name=design.access.key,
            user_data=self._user_data,
            iam_instance_profile=aws.ec2.LaunchTemplateIamInstanceProfileArgs(name=station.profile),
            metadata_options=aws.ec2.LaunchTemplateMetadataOptionsArgs(**METADATA),
            instance_initiated_shutdown_behavior="terminate",
            block_device_mappings=[
                aws.ec2.LaunchTemplateBlockDeviceMappingArgs(
                    device_name=images.root_device(partition.image or design.image.id),
                    ebs=aws.ec2.LaunchTemplateBlockDeviceMappingEbsArgs(
                        volume_size=partition.disk_gib,
                        volume_type="gp3",
                        encrypted="true",
                        kms_key_id=design.kms_key,
                        delete_on_termination="true",
                    ),
                )
            ],
            network_interfaces=[
                aws.ec2.LaunchTemplateNetworkInterfaceArgs(**interface, security_groups=[station.group])
                for interface in interfaces(partition.efa, public=not design.network.nat)
            ],
            placement=self._placement(partition),
            instance_market_options=_market(partition),
            capacity_reservation_specification=_reservation(partition),
            tag_specifications=[
                aws.ec2.LaunchTemplateTagSpecificationArgs(resource_type=kind, tags=labels) for kind in TAGGED
            ],
            tags=labels,
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _placement(self, partition: Partition) -> aws.ec2.LaunchTemplatePlacementArgs | None:
        """In a placement group, of the partition's own or an existing one: its nodes are close together."""
        if partition.placement != "cluster":
            return None
        if partition.placement_group is not None:
            return aws.ec2.LaunchTemplatePlacementArgs(group_name=partition.placement_group)
        design = self._design
        group = aws.ec2.PlacementGroup(
            f"{self._name}-{partition.name}-group",
            name=f"{design.name}-{partition.name}",
            strategy="cluster",
            tags=tags(design, f"{design.name}-{partition.name}", partition=partition.name),
            opts=pulumi.ResourceOptions(parent=self),
        )
        return aws.ec2.LaunchTemplatePlacementArgs(group_name=group.name)


def interfaces(efa: int, *, public: bool = False) -> list[dict[str, Any]]:
    """A machine's network interfaces, without security groups and subnets.

    One card: an EFA interface is an ordinary one with the fabric beside it. Several: AWS's layout, an
    ordinary one and on each card one for the fabric alone, which takes no address (EC2 guide,
    efa-acc-inst-types).

    Args:
        efa: EFA interfaces; 0 for none.
        public: with a public address, where there is no NAT gateway.
    """
    first: dict[str, Any] = {
        "device_index": 0,
        "network_card_index": 0,
        "delete_on_termination": "true",
    }
    if efa <= 1:
        kind = {"interface_type": "efa"} if efa else {}
        return [{**first, **kind, "associate_public_ip_address": "true" if public else "false"}]
    # EC2 refuses any word about public addresses where there are several interfaces, and gives none.
    fabric = [
        {**first, "interface_type": "efa-only", "network_card_index": card, "device_index": int(card == 0)}
        for card in range(efa)
    ]
    return [{**first, "interface_type": "interface"}, *fabric]


def _market(partition: Partition) -> aws.ec2.LaunchTemplateInstanceMarketOptionsArgs | None:
    if partition.capacity_block:
        # EC2 refuses a launch into a block that does not say so (botocore, ec2: MarketType).
        return aws.ec2.LaunchTemplateInstanceMarketOptionsArgs(market_type="capacity-block")
    if not partition.spot:
        return None
    return aws.ec2.LaunchTemplateInstanceMarketOptionsArgs(
        market_type="spot",
        spot_options=aws.ec2.LaunchTemplateInstanceMarketOptionsSpotOptionsArgs(
            # A persistent request would bring back, behind Slurm's back, what was interrupted.
            spot_instance_type="one-time",
            instance_interruption_behavior="terminate",
        ),
    )


def _reservation(partition: Partition) -> aws.ec2.LaunchTemplateCapacityReservationSpecificationArgs | None:
    """Reserved capacity and nothing else: aiming at a full group would run on demand without a word."""
    if partition.reservation is None:
        return None
    group = partition.reservation.startswith("arn:")
    return aws.ec2.LaunchTemplateCapacityReservationSpecificationArgs(
        capacity_reservation_preference="capacity-reservations-only",
        capacity_reservation_target=aws.ec2.LaunchTemplateCapacityReservationSpecificationCapacityReservationTargetArgs(
            capacity_reservation_id=None if group else partition.reservation,
            capacity_reservation_resource_group_arn=partition.reservation if group else None,
        ),
    )


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
