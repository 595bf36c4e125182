"""The zones in which a cluster's nodes may start, compared with what Google offers there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pulumi_gcp import compute

from infra.errors import UserError
from infra.program.mode import UNKNOWN
from node.model import ClusterDesign, Host, Partition


def with_zones(design: ClusterDesign) -> ClusterDesign:
    """The design with the zones in which each partition's nodes may start. The machines read all of them.

    A partition without zones gets the stack's own zone, where the head is. A compact policy does not span
    zones, so a partition with one gets one zone.
    """
    partitions = []
    for partition in design.partitions:
        found = partition.zones or design.network.zones or (str(design.zone),)
        partitions.append(replace(partition, zones=found[:1] if partition.placement == "cluster" else found))
    return replace(design, partitions=tuple(partitions))


def compare(design: ClusterDesign) -> None:
    """Compares the machine types of a design with those that its zones offer, in a Pulumi program.

    No data source has the GPUs that are attached: `./cluster doctor` asks for them.

    Raises:
        UserError: A zone does not offer a machine type, or offers it with another number of vCPUs than the
            design expects.
    """
    zone = str(design.zone)
    wanted = {zone: {host.instance_type for host in design.hosts}}
    for partition in design.partitions:
        for other in partition.zones:
            wanted.setdefault(other, set()).add(partition.instance_type)
    offered = {where: offering(design, where, machines) for where, machines in wanted.items()}
    for host in design.hosts:
        _check(f"{host.name}", host, zone, offered[zone])
    for partition in design.partitions:
        for where in partition.zones:
            _check(f"partition {partition.name}", partition, where, offered[where])


def offering(design: ClusterDesign, zone: str, machines: Iterable[str]) -> dict[str, int] | None:
    """Machine type -> its vCPUs, for those of the machine types that a zone offers.

    `None` means that this is an offline plan, which cannot know it.
    """
    either = " OR ".join(f'(name = "{machine}")' for machine in sorted(machines))
    found = compute.get_machine_types(filter=either, zone=zone, project=design.project).machine_types
    if any(one.name.startswith(UNKNOWN) for one in found):
        return None
    return {one.name: one.guest_cpus for one in found}


def _check(who: str, of: Host | Partition, zone: str, offered: dict[str, int] | None) -> None:
    if offered is None:
        return
    if of.instance_type not in offered:
        raise UserError(
            f"{who}: Google Cloud does not offer {of.instance_type} in {zone}; take another "
            "instance type or another zone"
        )
    if isinstance(of, Partition) and offered[of.instance_type] != of.cpus:
        there = offered[of.instance_type]
        raise UserError(
            f"{who}: {of.instance_type} has {there} vCPUs in {zone}, and the snapshot says {of.cpus}: "
            f"give its facts in the stack file: slurm-stacks:cluster.instance_types.{of.instance_type}"
        )
