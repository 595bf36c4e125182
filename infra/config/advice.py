"""The warnings of a plan: what a stack file may say, but the user should know about."""

from __future__ import annotations

from typing import NamedTuple

from infra.config import placeholders, provider_settings
from infra.config.load import StackConfig
from infra.design import benchmark_design
from infra.instance_types.catalog import Catalog, InstanceType
from node.design import time_limits
from node.design.model import BenchmarkDesign, ClusterDesign, Partition
from node.system import plurals

SOON_HOURS = 24.0


class GpuDirect(NamedTuple):
    """The network between GPUs of several machines that needs network cards of its own.

    Attributes:
        cards: The number of cards beside the machine's first.
        gbits: Their bandwidth with the first one's, in Gbit/s.
    """

    protocol: str
    cards: int
    gbits: int


GPUDIRECT = {
    "a3-edgegpu-8g": GpuDirect("GPUDirect-TCPX", 4, 600),
    "a3-highgpu-8g": GpuDirect("GPUDirect-TCPX", 4, 1000),
    "a3-megagpu-8g": GpuDirect("GPUDirect-TCPXO", 8, 1800),
}
"""Types of Google Cloud whose network between GPUs this program does not make (Compute Engine's
documentation, "Networking and GPU machines")."""
PLAIN_TCP_GBYTES = 4
"""What NCCL moves without GPUDirect, in GB/s (NVIDIA's AI cluster runtime, "gke-tcpxo-networking")."""


def warnings(
    config: StackConfig, design: ClusterDesign, facts: Catalog, cores: int | None = None
) -> list[str]:
    """Return the warnings, each with the part that it is about; at the end what is to be filled in.

    Args:
        facts: The snapshot. The stack's own facts are applied here.
        cores: The cores of this machine, which local nodes share. `None` means not known.
    """
    facts = config.catalog(facts)
    remarks = [*_partitions(config, design, facts)]
    if config.cluster.access.allow_ssh_from_anywhere:
        remarks.append("cluster.access: SSH is open to the whole internet")
    if not design.aws.nat:
        remarks.append(
            "cluster.aws.nat: machines have public addresses, but nobody gets in by them: the security "
            "groups let in no more than with a NAT gateway"
        )
    remarks += _budget(design)
    remarks += _cores(benchmark_design(config, design), design, cores)
    remarks += _elsewhere(design, facts)
    remarks += _job(design)
    for mount in design.mounts:
        if mount.deployment in ("SCRATCH_1", "SCRATCH_2"):
            remarks.append(
                f"cluster.storage.{mount.name}: {mount.deployment} keeps one copy of the data, which a "
                "failed server loses"
            )
    if design.hosts and design.state() is not None and (image := own_image(design)) is not None:
        remarks.append(f"cluster.controller.image: {unknown_release(image)}")
    remarks += [
        f"aws:endpoints: {endpoint} is not encrypted: signed requests and session tokens go there in clear"
        for endpoint in provider_settings.plain_endpoints(config.provider_settings)
    ]
    if config.environment:
        remarks.append(
            f"environment: {', '.join(config.environment)} is read by Pulumi's engine only: what it changes, "
            "and the account that its variables lead to, is not in this plan"
        )
    if config.placeholders:
        remarks.append(placeholders.listed(config.placeholders))
    return remarks


def own_image(design: ClusterDesign) -> str | None:
    """Return the image of the user's own from which a controller starts; `None` if it starts from another."""
    return design.controller().image or (None if design.image.bake else design.image.id)


def unknown_release(image: str) -> str:
    """Return the sentence about a controller's image that does not say which Slurm it has."""
    return (
        f"which Slurm {image} has is known only when another controller boots from it: if that is older than "
        "the one that has written the queue, the boot fails, and the queue is not changed"
    )


def _job(design: ClusterDesign) -> list[str]:
    """Return what one job of AWS Batch costs, which the limit of vCPUs does not say."""
    if design.batch is None:
        return []
    batch, (queue,) = design.batch, design.partitions
    nodes = f"cluster.batch.nodes: a job of {plurals.count(batch.nodes, 'node')} of {queue.instance_type}"
    side = plurals.count(queue.max // batch.nodes, "job runs", "jobs run")
    if queue.price_hour is None:
        return [f"{nodes} has no known price; at most {side} at once"]
    return [f"{nodes} costs {queue.price_hour * batch.nodes:.2f} USD an hour; at most {side} at once"]


def _cores(training: BenchmarkDesign | None, design: ClusterDesign, cores: int | None) -> list[str]:
    """Warn where local nodes share cores, because this machine has too few."""
    if design.provider != "local" or training is None or cores is None:
        return []
    text = too_few_cores(design.partition(training.partition), training.nodes, cores)
    return [] if text is None else [f"benchmark.nodes: {text}"]


def too_few_cores(partition: Partition, nodes: int, cores: int) -> str | None:
    """Say that local nodes of a partition have fewer cores than their type, or share some; `None` if not.

    Args:
        cores: The cores of this machine.
    """
    kind, has = partition.instance_type, plurals.count(cores, "core")
    if partition.cpus > cores:
        return f"a node of {kind} has {partition.cpus} CPUs, and this machine has {has}: it gets no more"
    if nodes * partition.cpus <= cores:
        return None
    needs = plurals.count(nodes * partition.cpus, "core")
    return (
        f"{nodes} × {kind} need {needs}, and this machine has {has}: the nodes share them, so their time "
        "says little about what more machines would bring, and no speed-up is computed from it"
    )


def _elsewhere(design: ClusterDesign, facts: Catalog) -> list[str]:
    """Warn that storage is counted at another region's prices: each provider's are known for one region."""
    known = facts.storage_of.get(design.provider)
    if known is None or design.region in (None, known):
        return []
    return [f"cost: disks and file systems are counted at {known}'s prices, {design.region}'s are not known"]


def _budget(design: ClusterDesign) -> list[str]:
    """Warn of the budget's limits. Only static nodes may have no price; for others that is a mistake."""
    budget, partitions = design.budget, design.partitions
    remarks = []
    if budget.max_usd is not None:
        path = "cluster.budget.max_usd"
        if unpriced := [p.label for p in partitions if p.price_hour is None]:
            remarks.append(
                f"{path}: no price is known for the static nodes of {', '.join(unpriced)}, so the budget "
                "does not count them: give one under cluster.instance_types"
            )
        if design.provider == "local" and not any(p.price_hour for p in partitions):
            remarks.append(f"{path}: local nodes cost nothing; to try the budget, set local.price_hour")
        static = sum((p.price_hour or 0.0) * p.min for p in partitions)
        remarks += _static(path, budget.max_usd, "USD", static)
    for account in design.accounts:
        if account.budget.max_usd is not None and not any(p.price_hour for p in partitions):
            path = f"cluster.accounts: {account.name}: budget.max_usd"
            remarks.append(f"{path}: no node has a price, so nothing is counted: limit max_hours instead")
    if budget.max_hours is not None:
        static = float(sum(p.min for p in partitions))
        remarks += _static("cluster.budget.max_hours", budget.max_hours, "node-hours", static)
    return remarks


def _static(path: str, most: float, unit: str, hourly: float) -> list[str]:
    """Warn if the static nodes alone use up the budget soon.

    Args:
        hourly: How much of the unit the static nodes use in an hour.
    """
    if hourly * SOON_HOURS <= most:
        return []
    lasts = plurals.of_hours(most / hourly)
    return [
        f"{path}: the static nodes alone (nodes.min) use up the {most:g} {unit} in {lasts}; they are "
        "never refused, and no other node starts then"
    ]


def _partitions(config: StackConfig, design: ClusterDesign, facts: Catalog) -> list[str]:
    remarks = []
    for partition in design.partitions:
        name, machine = f"partition {partition.label}", facts.machines[partition.instance_type]
        if partition.min:
            price = ""
            if partition.price_hour is None:
                price = f", price of {partition.instance_type} unknown"
            elif partition.price_hour:
                price = f", {partition.price_hour * partition.min:.2f} USD an hour"
            static = plurals.count(partition.min, "static node")
            runs = "runs" if partition.min == 1 else "run"
            remarks.append(f"{name}: {static} {runs} as long as the cluster is up{price}")
        if partition.accelerator and partition.accelerator.simulated:
            kind = partition.accelerator.type
            remarks.append(
                f"{name}: its {kind} devices are simulated; Slurm counts them and no program can use them"
            )
        if machine.previous_generation:
            remarks.append(
                f"{name}: {partition.instance_type} is of a previous generation, as EC2 counts them; look at "
                "newer ones"
            )
        built_in, chosen = machine.accelerator, partition.accelerator
        if config.cluster.provider == "aws" and built_in and chosen and chosen.count < built_in.count:
            remarks.append(
                f"{name}: {partition.instance_type} always has {built_in.count} accelerators, all are "
                f"paid for; jobs may use {chosen.count}"
            )
        remarks += _fabric(name, partition, machine)
        if config.cluster.provider == "aws":
            remarks += _amazon(name, partition, design)
        if partition.topology and partition.min < partition.max:
            remarks.append(
                f"{name}: Slurm knows the places of nodes that run; those of nodes that are off count as "
                f"unknown, so jobs are placed best with nodes: {{min: {partition.max}, max: {partition.max}}}"
            )
        remarks += _boots(name, partition, design)
        remarks += _zones(name, partition, design, facts)
    return remarks


def _fabric(name: str, partition: Partition, machine: InstanceType) -> list[str]:
    """Return what several nodes lose because their fast network is not used."""
    if partition.accelerator is None or partition.max < 2:
        return []
    kind = partition.instance_type
    if (fabric := GPUDIRECT.get(kind)) is not None:
        return [
            f"{name}: between nodes, {kind} reaches {fabric.gbits:,} Gbit/s by {fabric.protocol} over "
            f"{fabric.cards} network cards of its own; the cluster has one card, and NCCL then moves about "
            f"{PLAIN_TCP_GBYTES} GB/s: train on one node, or take a type whose one card is all that it has"
        ]
    if machine.efa > 0 and machine.network_cards > 1 and not partition.aws.efa:
        return [
            f"{name}: between nodes, {kind} uses one of its {machine.network_cards} network cards, by TCP; "
            "aws: {efa: true} uses all of them"
        ]
    return []


def _boots(name: str, partition: Partition, design: ClusterDesign) -> list[str]:
    """Return what makes a cloud's nodes start slowly, and whether Slurm gives them up too early."""
    if design.isolation != "vm" or design.scheduler != "slurm":
        return []
    remarks, longest = [], time_limits.boot(design, partition)
    if design.slurm.resume_timeout < longest:
        remarks.append(
            f"{name}: cluster.slurm.resume_timeout is {design.slurm.resume_timeout} s, and the steps of a "
            f"boot may take {longest} s: a slow node is given back while it installs; leave the key out"
        )
    kinds = {mount.kind for mount in design.mounts if "compute" in mount.roles}
    installs = [
        *(["the driver of its accelerators"] if partition.accelerator else []),
        *(["EFA"] if partition.aws.efa else []),
        *(["a kernel with a Lustre client (and starts again)"] if "fsx_lustre" in kinds else []),
    ]
    ours = partition.image is None and design.image.id is None
    if installs and ours and not time_limits.baked(design, partition):
        remarks.append(
            f"{name}: each node installs {' and '.join(installs)} at every start, which takes minutes "
            "that are paid for: image: {bake: true} makes an image that has it"
        )
    return remarks


def _amazon(name: str, partition: Partition, design: ClusterDesign) -> list[str]:
    remarks = []
    reserved = partition.reservation or partition.reservations
    if reserved and partition.placement == "cluster" and partition.aws.placement_group is None:
        remarks.append(
            f"{name}: a reservation that AWS made for you has a placement group of its own; asking for "
            "another one ends in InsufficientInstanceCapacity: write placement: none, or name the group in "
            "which it was made (aws: {placement_group: …})"
        )
    if partition.aws.capacity_block:
        remarks.append(
            f"{name}: a Capacity Block is paid for as it is bought, and its price is not the one here; 30 "
            "minutes before its end EC2 ends its machines, and jobs that run there are queued again"
        )
    if partition.spot and (key := design.aws.kms_key) is not None:
        remarks.append(
            f"{name}: EC2 starts spot machines with a customer's key only where its role has a grant for it: "
            f"aws kms create-grant --region {design.region} --key-id {key} --grantee-principal "
            "arn:aws:iam::<account>:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot "
            "--operations Decrypt Encrypt GenerateDataKey GenerateDataKeyWithoutPlaintext CreateGrant "
            "DescribeKey ReEncryptFrom ReEncryptTo"
        )
    return remarks


def _zones(name: str, partition: Partition, design: ClusterDesign, facts: Catalog) -> list[str]:
    """Warn of zones without the GPU. No data source of Pulumi says where GPUs are offered."""
    wanted = partition.accelerator
    gpu = facts.attachable_to(partition.instance_type, wanted.type) if wanted else None
    if gpu is None or design.provider != gpu.provider or not gpu.zones:
        return []
    zones = partition.zones or design.network.zones or (str(design.zone),)
    missing = [zone for zone in zones if zone not in gpu.zones]
    near = [zone for zone in gpu.zones if zone.startswith(f"{design.region}-")]
    where = f"in {', '.join(near)} of {design.region}" if near else f"in {', '.join(gpu.zones)}"
    return (
        [f"{name}: on {facts.date} Google Cloud offered {gpu.name} {where}, not in {', '.join(missing)}"]
        if missing
        else []
    )
