"""The reserved capacity in which a partition's nodes start: one reservation, or a group of several."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra.aws.tags import reservation_group, tags
from node.model import ClusterDesign, Partition

POOL = "AWS::EC2::CapacityReservationPool"
"""Makes a group one that launches can target."""
GENERIC, MEMBERS, MEMBER = (
    "AWS::ResourceGroups::Generic",
    "allowed-resource-types",
    "AWS::EC2::CapacityReservation",
)
"""Makes a group one that takes capacity reservations only (EC2 user guide, "Create a group")."""


def specification(
    name: str, design: ClusterDesign, partition: Partition, parent: pulumi.Resource
) -> aws.ec2.LaunchTemplateCapacityReservationSpecificationArgs | None:
    """Limits a partition to its reserved capacity. With a looser preference a node would start on demand,
    without notice, when the reservation is full.

    Several reservations become a group of the stack's own, because a launch names one reservation or one
    group.

    Args:
        name: The beginning of the names of the group and its members in the stack.
    """
    group: pulumi.Input[str] | None = None
    if partition.reservations:
        group = _group(name, design, partition, parent)
    elif partition.reservation is None:
        return None
    elif partition.reservation.startswith("arn:"):
        group = partition.reservation
    return aws.ec2.LaunchTemplateCapacityReservationSpecificationArgs(
        capacity_reservation_preference="capacity-reservations-only",
        capacity_reservation_target=aws.ec2.LaunchTemplateCapacityReservationSpecificationCapacityReservationTargetArgs(
            capacity_reservation_id=partition.reservation if group is None else None,
            capacity_reservation_resource_group_arn=group,
        ),
    )


def _group(
    name: str, design: ClusterDesign, partition: Partition, parent: pulumi.Resource
) -> pulumi.Output[str]:
    """The ARN of the group of a partition's reservations."""
    opts, invoke = pulumi.ResourceOptions(parent=parent), pulumi.InvokeOptions(parent=parent)
    group = aws.resourcegroups.Group(
        name,
        name=reservation_group(design.name, partition.name),
        description=f"reserved capacity of partition {partition.name} in cluster {design.name}",
        configurations=[
            aws.resourcegroups.GroupConfigurationArgs(type=POOL),
            aws.resourcegroups.GroupConfigurationArgs(
                type=GENERIC,
                parameters=[
                    aws.resourcegroups.GroupConfigurationParameterArgs(name=MEMBERS, values=[MEMBER])
                ],
            ),
        ],
        tags=tags(design, reservation_group(design.name, partition.name), partition=partition.name),
        opts=opts,
    )
    place = pulumi.Output.concat(
        "arn:",
        aws.get_partition_output(opts=invoke).partition,
        f":ec2:{design.region}:",
        aws.get_caller_identity_output(opts=invoke).account_id,
    )
    for reservation in partition.reservations:
        identity = reservation.rpartition("/")[2]
        shared = reservation.startswith("arn:")
        aws.resourcegroups.Resource(
            f"{name}-{identity}",
            group_arn=group.arn,
            resource_arn=reservation
            if shared
            else pulumi.Output.concat(place, f":capacity-reservation/{identity}"),
            opts=opts,
        )
    return group.arn
