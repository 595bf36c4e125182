"""Rules of what only AWS has: names, Neuron, KMS keys, NAT gateways, Capacity Blocks, placement groups."""

from __future__ import annotations

import re

from infra.config.fields import IN_WORDS, PLACEMENT_GROUP
from infra.config.mistakes import Location
from infra.config.partitions import PartitionConfig
from infra.config.rules.context import CLUSTER, MISSING, Context
from infra.instance_types.catalog import NEURON_CORES
from node.design.accelerators import SUBNET_MANAGED

IMAGE_PREFIX = "image-"
"""Prefix of the names of machines that become images."""

S3_PREFIXES = ("xn--", "sthree-", "amzn-s3-demo-")
"""Beginnings of bucket names that S3 keeps for itself (its user guide, "Bucket naming rules")."""


def check_amazon(c: Context) -> None:
    if c.provider != "aws":
        if c.cluster.aws is not None:
            c.add(
                "provider.other-settings",
                (*CLUSTER, "aws"),
                "nothing that applies",
                f"settings of {c.provider}",
                "remove aws:",
            )
        return
    if c.cluster.name.startswith(S3_PREFIXES):
        allowed = f"a name that does not begin with {', '.join(S3_PREFIXES)}"
        c.add("name.s3", (*CLUSTER, "name"), c.cluster.name, allowed, "S3 refuses such names of buckets")
    _kms_key(c)
    _nat(c)
    for at, partition in c.groups():
        _aws_name(c, partition, at)
        if partition.aws is not None and partition.aws.capacity_block:
            _capacity_block(c, partition, at)
        if partition.aws is not None and partition.aws.placement_group is not None:
            _placement_group(c, partition, at)
        _neuron_cores(c, partition, at)
        _subnet_manager(c, partition, at)


def _aws_name(c: Context, partition: PartitionConfig, at: Location) -> None:
    """Check a partition's name, by which IAM tells nodes' reports from those of image builds."""
    if f"{partition.name}-".startswith(IMAGE_PREFIX):
        allowed = f"a name that is not {IMAGE_PREFIX.rstrip('-')}, and does not begin with {IMAGE_PREFIX}"
        advice = "by this name IAM tells nodes from machines that become images"
        c.add("partition.name-prefix", (*at, "name"), partition.name, allowed, advice)


def _neuron_cores(c: Context, partition: PartitionConfig, at: Location) -> None:
    """Check that NeuronCores are those of Neuron devices."""
    machine = c.instance_type(partition.instance_type)
    if partition.aws is None or not partition.aws.neuron_cores or machine is None:
        return
    if machine.accelerator is None or machine.accelerator.type not in NEURON_CORES:
        allowed = f"false: {partition.instance_type} has no Neuron devices"
        c.add(
            "partition.no-neuron-cores",
            (*at, "aws", "neuron_cores"),
            True,
            allowed,
            f"types that have: {', '.join(NEURON_CORES)}",
        )


def _kms_key(c: Context) -> None:
    """Check that a KMS key is in the stack's region."""
    key = c.cluster.aws.kms_key if c.cluster.aws is not None else None
    if key is not None and c.region is not None and (region := key.split(":")[3]) != c.region:
        advice = f"a key of {region} encrypts nothing here: take one of {c.region}"
        c.add("aws.kms-key-region", (*CLUSTER, "aws", "kms_key"), key, f"a key of {c.region}", advice)


def _nat(c: Context) -> None:
    if c.cluster.aws is None or c.cluster.aws.nat:
        return
    at = (*CLUSTER, "aws", "nat")
    if c.cluster.network.aws is not None:
        c.add(
            "aws.nat-with-vpc",
            at,
            False,
            "true, or nothing, with an existing VPC",
            "its subnets and routes are its owner's, and no NAT gateway is made there: remove nat",
        )
    for _, partition in c.groups():
        machine = c.instance_type(partition.instance_type)
        if partition.aws is not None and partition.aws.efa and machine is not None and machine.efa > 1:
            c.add(
                "aws.nat-with-interfaces",
                at,
                False,
                "true with machines of several network interfaces",
                f"EC2 gives {partition.instance_type} (partition {partition.name}) no public address with "
                f"{machine.efa} EFA interfaces, so its nodes could not reach the internet",
            )


def _capacity_block(c: Context, partition: PartitionConfig, at: Location) -> None:
    """Check a Capacity Block: one reservation of accelerated machines in one zone, close together.

    Its market type is one of its own, so a launch into it is neither spot nor on demand (botocore, EC2's
    MarketType). Blocks begin and end at different times, so nodes of a partition start in one block, although
    EC2's groups may hold several. Its machines are in one cluster, and other placement groups have no room in
    it (EC2 user guide, "Capacity Blocks for ML").
    """
    where, machine = (*at, "aws", "capacity_block"), c.instance_type(partition.instance_type)
    if partition.reservation is None:
        c.add(
            "capacity-block.no-reservation",
            (*at, "reservation"),
            MISSING,
            "the Capacity Block's id, cr-…",
            "see the EC2 console",
        )
    elif isinstance(partition.reservation, list) or ":resource-groups:" in partition.reservation:
        c.add(
            "capacity-block.not-one",
            (*at, "reservation"),
            partition.reservation,
            "the Capacity Block's own id, cr-…",
            "nodes start in one block; another block is another partition",
        )
    if machine is not None and machine.accelerator is None:
        c.add(
            "capacity-block.no-accelerator",
            where,
            True,
            f"false: {partition.instance_type} has no accelerators",
            "Capacity Blocks are of accelerated machines; any other reservation needs no such key",
        )
    group = partition.aws is not None and partition.aws.placement_group is not None
    if partition.placement == "cluster" or group:
        c.add(
            "capacity-block.placement",
            (*at, "aws", "placement_group") if group else (*at, "placement"),
            partition.aws.placement_group if group and partition.aws else "cluster",
            "nothing with a Capacity Block",
            "its machines are close together already, and no other group can use it: remove this",
        )
    zones = partition.zones if partition.zones is not None else c.cluster.network.zones
    if len(set(zones)) != 1:
        c.add(
            "capacity-block.zones",
            (*at, "zones"),
            zones or MISSING,
            "one zone: the Capacity Block's",
            f"write for example zones: [{c.region or 'us-east-2'}a], with the block's own letter",
        )


def _subnet_manager(c: Context, partition: PartitionConfig, at: Location) -> None:
    """Refuse machines whose GPUs are of no use with what Ubuntu's image and our boot install.

    NVIDIA's NVLink Subnet Manager is neither. AWS's Deep Learning Base AMI supports these machines (its
    release notes).
    """
    machine = c.instance_type(partition.instance_type)
    has_image = c.cluster.image.id is not None or partition.image is not None
    gpus = machine.accelerator if machine is not None else None
    if gpus is not None and gpus.type in SUBNET_MANAGED and gpus.count > 1 and not has_image:
        c.add(
            "image.no-subnet-manager",
            (*at, "image"),
            MISSING,
            "an image with NVIDIA's NVLink Subnet Manager, without which no program can use the GPUs of "
            f"{partition.instance_type}",
            "write image: {id: ami-…} with AWS's Deep Learning Base AMI (OSS driver, Ubuntu 24.04): "
            "aws ssm get-parameters --names /aws/service/deeplearning/ami/x86_64/"
            "base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id",
        )


def _placement_group(c: Context, partition: PartitionConfig, at: Location) -> None:
    group = str(partition.aws.placement_group if partition.aws is not None else None)
    if re.fullmatch(r"pg-[0-9a-f]{8,17}", group):
        c.add(
            "placement-group.id",
            (*at, "aws", "placement_group"),
            group,
            IN_WORDS[PLACEMENT_GROUP],
            "the EC2 console shows its name",
        )
    if partition.placement == "none" and "placement" in partition.model_fields_set:
        c.add(
            "placement-group.placement-none",
            (*at, "placement"),
            "none",
            "cluster, or nothing, with a placement group by name",
            "remove placement, or aws.placement_group",
        )
