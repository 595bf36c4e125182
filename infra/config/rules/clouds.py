"""Rules of what only one cloud has: Capacity Blocks, KMS keys, NAT gateways; Google's names and platforms."""

from __future__ import annotations

import re

from infra.config.cluster import PartitionConfig
from infra.config.fields import IN_WORDS, LONGEST_NAME, NAME, PLACEMENT_GROUP
from infra.config.mistakes import Location
from infra.config.rules.context import CLUSTER, MISSING, Context
from infra.config.storage import SharedStorage
from infra.instance_types.catalog import NEURON_CORES
from node.design.model import SUBNET_MANAGED
from node.elastic.drivers.gce.names import resource_of

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
    for index, partition in enumerate(c.cluster.partitions):
        at = (*CLUSTER, "partitions", index)
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
    for partition in c.cluster.partitions:
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


HOST_PREFIXES = ("login-", "image-")
"""Prefixes of the names of machines that are not nodes."""
WITHOUT_STANDARD = ("a3", "c3", "c3d", "g2")
"""Series without pd-standard (Compute Engine's documentation, "Persistent Disk": machine series support)."""
PLATFORMS = {
    "n1": ("Intel Sandy Bridge", "Intel Ivy Bridge", "Intel Haswell", "Intel Broadwell", "Intel Skylake"),
    "n2": ("Intel Cascade Lake", "Intel Ice Lake"),
    "n2d": ("AMD Rome", "AMD Milan"),
}
"""Series -> the platforms that can be asked for (Compute Engine's documentation, "CPU platforms")."""
ONE_PLATFORM = ("e2", "t2d")
"""Series that take no minimum CPU platform."""


def check_google(c: Context) -> None:
    if c.provider != "gcp":
        return
    for step in (_google_names, _google_disks, _google_network, _google_reservations, _google_hardware):
        step(c)


def _google_names(c: Context) -> None:
    """Refuse names that Cloud Storage refuses in a bucket's, and partitions that IAM takes for hosts."""
    if "google" in c.cluster.name or c.cluster.name.startswith("goog"):
        c.add(
            "name.google",
            (*CLUSTER, "name"),
            c.cluster.name,
            "a name that neither holds 'google' nor begins with 'goog'",
            "Cloud Storage refuses such names of buckets",
        )
    for index, partition in enumerate(c.cluster.partitions):
        # `login` itself is checked for every cloud.
        if f"{partition.name}-".startswith(HOST_PREFIXES) and partition.name != "login":
            c.add(
                "partition.name-prefix",
                (*CLUSTER, "partitions", index, "name"),
                partition.name,
                f"a name that does not begin with {' or '.join(HOST_PREFIXES)}",
                "by this name IAM tells nodes from login machines and from those that become images",
            )


def _google_disks(c: Context) -> None:
    """Check that a directory's disk has no machine's name, which that machine's disk has."""
    storage, cluster = c.cluster.storage, c.cluster.name
    for key in ("home", "apps", "scratch"):
        part = getattr(storage, key)
        if part is None and key == "scratch":
            continue
        path = (part or SharedStorage()).mounted_at(key)
        if part is not None and part.kind != "nfs":
            continue
        name = resource_of(cluster, path)
        machine = name.removeprefix(f"{cluster}-")
        partition, _, number = machine.rpartition("-")
        nodes = {partition_config.name for partition_config in c.cluster.partitions}
        where = (*CLUSTER, "storage", key, *(["path"] if part is not None else []))
        if (
            machine == "controller"
            or machine.startswith(HOST_PREFIXES)
            or (partition in nodes and number.isdigit())
        ):
            allowed = "a path that is not spelled like a machine of the cluster"
            c.add(
                "storage.name-of-machine",
                where,
                path,
                allowed,
                f"its disk would be {name}, and so is that of the machine {machine}",
            )


def _google_network(c: Context) -> None:
    network, at = c.cluster.network, (*CLUSTER, "network")
    for key in ("public_cidr", "private_cidr"):
        if getattr(network, key) is not None and network.gcp is None:
            c.add(
                "network.cidr-on-gcp",
                (*at, key),
                getattr(network, key),
                "nothing on Google Cloud: one subnetwork has all of network.cidr",
                f"remove {key}; access.mode says what is public",
            )
    if network.gcp is None:
        return
    for key in ("network", "subnetwork"):
        name = getattr(network.gcp, key)
        if name is not None and (not re.fullmatch(NAME, name) or len(name) > LONGEST_NAME):
            c.add(
                "network.gcp-name",
                (*at, "gcp", key),
                name,
                f"the name of a {key} in gcp:project: {IN_WORDS[NAME]}",
                f"write {name.rpartition('/')[2]}" if "/" in name else "",
            )


def _google_hardware(c: Context) -> None:
    """Refuse disks and processors that the series of a partition's machines does not have."""
    for index, partition in enumerate(c.cluster.partitions):
        config, at = partition.gcp, (*CLUSTER, "partitions", index, "gcp")
        if config is None or c.instance_type(partition.instance_type) is None:
            continue
        series = partition.instance_type.partition("-")[0]
        if config.disk_type == "pd-standard" and series in WITHOUT_STANDARD:
            allowed = f"pd-balanced or pd-ssd on {series.upper()} machines"
            c.add(
                "partition.disk-type",
                (*at, "disk_type"),
                config.disk_type,
                allowed,
                "write disk_type: pd-balanced",
            )
        platform = config.min_cpu_platform
        if platform is None:
            continue
        if series in ONE_PLATFORM:
            allowed = f"nothing on {series.upper()} machines, whose processors Google chooses"
            c.add(
                "partition.no-cpu-platform",
                (*at, "min_cpu_platform"),
                platform,
                allowed,
                "leave it out, or take N1, N2 or N2D machines",
            )
        elif platform not in (platforms := PLATFORMS.get(series, (platform,))):
            c.add(
                "partition.cpu-platform",
                (*at, "min_cpu_platform"),
                platform,
                f"one of {', '.join(platforms)} on {series.upper()}",
            )


def _google_reservations(c: Context) -> None:
    """Check reservations: one of Google's is in one zone, and nodes in others cannot use it.

    Nodes with a placement policy of the cluster's own cannot use it either: a reservation takes only the
    policies that it was made with (slurm-gcp removes its own there, in `update_reservation_props`).
    """
    for index, partition in enumerate(c.cluster.partitions):
        zones = partition.zones if partition.zones is not None else c.cluster.network.zones
        if partition.reservation is not None and len(set(zones)) > 1:
            c.add(
                "reservation.several-zones",
                (*CLUSTER, "partitions", index, "reservation"),
                partition.reservation,
                "one zone only: the reservation's",
                f"nodes may start in {', '.join(zones)}: give this partition one zone",
            )
        if partition.reservation is not None and partition.placement == "cluster":
            c.add(
                "reservation.placement",
                (*CLUSTER, "partitions", index, "placement"),
                partition.placement,
                "none with a reservation, which has its machines where they are",
                f"remove placement; a policy that {partition.reservation} was made with is named by "
                "gcp: {placement_policy: …}",
            )
        if partition.gcp is None or partition.gcp.placement_policy is None:
            continue
        if partition.reservation is None:
            c.add(
                "placement-policy.no-reservation",
                (*CLUSTER, "partitions", index, "gcp", "placement_policy"),
                partition.gcp.placement_policy,
                "nothing without a reservation: it is the reservation's policy",
                "write placement: cluster for one of the cluster's own",
            )
