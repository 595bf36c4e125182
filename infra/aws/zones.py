"""In which availability zones a cluster lies, asked of AWS where the stack file does not say it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import pulumi_aws as aws

from infra.aws.tags import tags
from infra.errors import UserError
from infra.node.model import ClusterDesign, Partition
from infra.runner.mode import UNKNOWN


@dataclass(frozen=True, slots=True)
class Zones:
    """Attributes:
    head: where the controller is, with its disks, the login machines and the NAT gateway.
    partitions: a partition's zones, best first.
    existing: the private subnets of a network that is not ours, by zone; empty for our own network.
    """

    head: str
    partitions: dict[str, tuple[str, ...]]
    existing: dict[str, str] = field(default_factory=dict)

    @property
    def compute(self) -> tuple[str, ...]:
        """Every zone that may hold nodes, in the order of the partitions' wishes."""
        return tuple(dict.fromkeys(zone for zones in self.partitions.values() for zone in zones))

    @property
    def private(self) -> tuple[str, ...]:
        """Every zone that has a private subnet: those of the nodes, and the head's."""
        return tuple(self.existing) or tuple(dict.fromkeys([*self.compute, self.head]))


def find(design: ClusterDesign) -> Zones:
    """The zones of a design, in a Pulumi program.

    Raises:
        UserError: a machine is not offered in any zone that is left for it.
    """
    return _existing(design) if design.network.vpc else _own(design)


def _own(design: ClusterDesign) -> Zones:
    said = {p.name: p.zones or design.network.zones for p in design.partitions}
    kept = _kept(design)
    if all(said.values()):
        named = Zones(next(iter(said.values()))[0], said)
        return replace(named, head=kept) if kept in named.compute else named
    offered = {machine: offering(machine) for machine in _machines(design)}
    partitions = {
        p.name: said[p.name] or _of_partition(design, p, offered[p.machine]) for p in design.partitions
    }
    # Zones that fit more partitions first: nodes, the head and the file systems are then close together.
    wanted = [zone for zones in partitions.values() for zone in zones]
    order = sorted(dict.fromkeys(wanted), key=lambda zone: (-wanted.count(zone), zone))
    ordered = {
        name: said[name] or tuple(sorted(zones, key=order.index)) for name, zones in partitions.items()
    }
    return Zones(kept or _of_head(design, order, offered), ordered)


def _kept(design: ClusterDesign) -> str | None:
    """Where the cluster's head is already.

    AWS offers a machine in a zone more, and the best zone is another: without this, `up` would make the
    controller anew there, with empty disks.
    """
    wanted = tags(design, public_name(design))
    filters = [
        aws.ec2.GetSubnetsFilterArgs(name=f"tag:{key}", values=[value]) for key, value in wanted.items()
    ]
    found = [subnet for subnet in aws.ec2.get_subnets(filters=filters).ids if not subnet.startswith(UNKNOWN)]
    return _zone_of(min(found)) if found else None


def public_name(design: ClusterDesign) -> str:
    """The name tag of the public subnet, by which it is found again."""
    return f"{design.name}-public"


def _existing(design: ClusterDesign) -> Zones:
    network = design.network
    subnets: dict[str, str] = {}
    for subnet in network.private_subnets:
        zone = _zone_of(subnet)
        if zone in subnets:
            raise UserError(
                f"slurm-stacks:cluster.network.aws.private_subnets: {subnets[zone]} and {subnet} are both in "
                f"{zone}; give one subnet a zone"
            )
        subnets[zone] = subnet
    wanted = {p.name: p.zones or network.zones for p in design.partitions}
    partitions = {p.name: _among(p, wanted[p.name], subnets) for p in design.partitions}
    return Zones(_zone_of(network.public_subnet or network.private_subnets[0]), partitions, subnets)


def _among(partition: Partition, wanted: Sequence[str], subnets: dict[str, str]) -> tuple[str, ...]:
    """The zones of a partition that an existing network covers and that offer its machine."""
    if any(zone.startswith(UNKNOWN) for zone in subnets):
        return tuple(subnets)
    covered = [zone for zone in wanted or subnets if zone in subnets]
    if not covered:
        raise UserError(
            f"partition {partition.name}: zones {', '.join(wanted)}, but network.aws.private_subnets lie in "
            f"{', '.join(subnets)}; add a subnet, or change the zones"
        )
    having = offering(partition.machine)
    fitting = tuple(zone for zone in covered if zone in having)
    if not fitting:
        raise UserError(
            f"partition {partition.name}: AWS offers {partition.machine} in "
            f"{', '.join(having) or 'no zone of the region'}, and the subnets lie in {', '.join(covered)}"
        )
    return fitting


def _zone_of(subnet: str) -> str:
    found = aws.ec2.get_subnet(id=subnet).availability_zone
    # A placeholder that tells one unknown zone from another.
    return f"<{subnet}.availabilityZone>" if found.startswith(UNKNOWN) else found


def offering(machine: str) -> tuple[str, ...]:
    """The region's zones in which AWS has this machine, by name; local and wavelength zones left out."""
    found = aws.ec2.get_instance_type_offerings(
        filters=[{"name": "instance-type", "values": [machine]}], location_type="availability-zone"
    ).locations
    return tuple(
        sorted(
            {
                zone
                for zone in found
                if zone.startswith(UNKNOWN) or re.fullmatch(r"[a-z]+(-[a-z]+)+-\d[a-z]", zone)
            }
        )
    )


def _machines(design: ClusterDesign) -> Iterable[str]:
    return dict.fromkeys([*(p.machine for p in design.partitions), *(h.machine for h in design.hosts)])


def _of_partition(design: ClusterDesign, partition: Partition, offered: tuple[str, ...]) -> tuple[str, ...]:
    if not offered:
        raise UserError(
            f"partition {partition.name}: AWS offers {partition.machine} in no zone of {design.region}; "
            "take another machine or another aws:region"
        )
    return offered


def _of_head(design: ClusterDesign, order: Sequence[str], offered: dict[str, tuple[str, ...]]) -> str:
    """The first of the nodes' zones that has the hosts' machines, else any that has."""
    machines = {host.machine: offered[host.machine] for host in design.hosts}
    everywhere = sorted({zone for zones in machines.values() for zone in zones})
    for zone in [*order, *everywhere]:
        if all(zone in zones for zones in machines.values()):
            return zone
    raise UserError(
        f"no zone of {design.region} has all machines of the controller and login: {', '.join(machines)}"
    )


def labels(zones: Sequence[str]) -> list[str]:
    """What tells zones apart in the names of resources: their letters, or numbers where a plan knows none."""
    found = [letter(zone) for zone in zones]
    return found if len(set(found)) == len(found) else [str(number) for number in range(len(found))]


def letter(zone: str) -> str:
    """`a` of `eu-west-1a`: short, and the same whichever other zones there are; `a` for an unknown zone."""
    return "a" if zone.startswith(UNKNOWN) else zone[-1]
