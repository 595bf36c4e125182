"""The availability zones of a cluster. AWS is asked for them where the stack file does not name them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import pulumi_aws as aws

from infra.aws.tags import tags
from infra.errors import UserError
from infra.program.mode import UNKNOWN
from node.model import ClusterDesign, Partition


@dataclass(frozen=True, slots=True)
class Zones:
    """The zones of a cluster.

    Attributes:
        head: The zone of the controller, its disks, the login machines and the NAT gateway.
        partitions: partition -> its zones, best first.
        existing: zone -> the private subnet of a network that is not ours. It is empty for our own network.
    """

    head: str
    partitions: dict[str, tuple[str, ...]]
    existing: dict[str, str] = field(default_factory=dict)

    @property
    def compute(self) -> tuple[str, ...]:
        """Every zone that may hold nodes, in the order of the partitions' lists."""
        return tuple(dict.fromkeys(zone for zones in self.partitions.values() for zone in zones))

    @property
    def private(self) -> tuple[str, ...]:
        """Every zone that has a private subnet: the zones of the nodes, and the head's zone."""
        return tuple(self.existing) or tuple(dict.fromkeys([*self.compute, self.head]))


def find(design: ClusterDesign) -> Zones:
    """Finds the zones of a design, in a Pulumi program.

    Raises:
        UserError: No zone that is left for a machine offers it.
    """
    found = _of_existing_network(design) if design.network.vpc else _of_own_network(design)
    for name, volume, zone in _volumes(design):
        if zone != found.head and not zone.startswith("<"):
            cure = (
                "give network.aws subnets there"
                if design.network.vpc
                else "add that zone to network.zones, or make a snapshot of the volume and `restore` it"
            )
            raise UserError(
                f"slurm-stacks:cluster.storage.{name}.existing: {volume} is in {zone}, and the controller in "
                f"{found.head}: EC2 attaches a volume in its own zone only; {cure}"
            )
    return found


def _volumes(design: ClusterDesign) -> list[tuple[str, str, str]]:
    """The name, the id and the zone of each existing volume."""
    found = []
    for mount in design.mounts:
        if mount.served_by == "controller" and mount.existing is not None:
            filters = [aws.ebs.GetVolumeFilterArgs(name="volume-id", values=[mount.existing])]
            zone = aws.ebs.get_volume(filters=filters).availability_zone
            known = f"<{mount.existing}.availabilityZone>" if zone.startswith(UNKNOWN) else zone
            found.append((mount.name, mount.existing, known))
    return found


def _of_own_network(design: ClusterDesign) -> Zones:
    configured = {p.name: p.zones or design.network.zones for p in design.partitions}
    # Existing volumes can be attached in their own zone only.
    volumes = [zone for _, _, zone in _volumes(design) if not zone.startswith("<")]
    current = _current_head_zone(design) or next(iter(volumes), None)
    if all(configured.values()):
        named = Zones(next(iter(configured.values()))[0], configured)
        return replace(named, head=current) if current in named.compute else named
    offered = {machine: offering(machine) for machine in _machines(design)}
    partitions = {
        p.name: configured[p.name] or _of_partition(design, p, offered[p.instance_type])
        for p in design.partitions
    }
    # Zones that suit more partitions come first, so that nodes, the head and the file systems are close
    # together.
    wanted = [zone for zones in partitions.values() for zone in zones]
    order = sorted(dict.fromkeys(wanted), key=lambda zone: (-wanted.count(zone), zone))
    ordered = {
        name: configured[name] or tuple(sorted(zones, key=order.index)) for name, zones in partitions.items()
    }
    return Zones(current or _of_head(design, order, offered), ordered)


def _current_head_zone(design: ClusterDesign) -> str | None:
    """The zone in which the cluster's head already is, if there is one.

    AWS may start to offer a machine in one more zone, and another zone is then the best. Without this, `up`
    would replace the controller there, with empty disks.
    """
    wanted = tags(design, public_name(design))
    filters = [
        aws.ec2.GetSubnetsFilterArgs(name=f"tag:{key}", values=[value]) for key, value in wanted.items()
    ]
    found = [subnet for subnet in aws.ec2.get_subnets(filters=filters).ids if not subnet.startswith(UNKNOWN)]
    return _zone_of(min(found)) if found else None


def public_name(design: ClusterDesign) -> str:
    """The name tag of the public subnet, by which the subnet is found."""
    return f"{design.name}-public"


def _of_existing_network(design: ClusterDesign) -> Zones:
    network = design.network
    subnets: dict[str, str] = {}
    for subnet in network.private_subnets:
        zone = _zone_of(subnet)
        if zone in subnets:
            raise UserError(
                f"slurm-stacks:cluster.network.aws.private_subnets: {subnets[zone]} and {subnet} are both in "
                f"{zone}; give one subnet for each zone"
            )
        subnets[zone] = subnet
    wanted = {p.name: p.zones or network.zones for p in design.partitions}
    partitions = {p.name: _among(p, wanted[p.name], subnets) for p in design.partitions}
    return Zones(_zone_of(network.public_subnet or network.private_subnets[0]), partitions, subnets)


def _among(partition: Partition, wanted: Sequence[str], subnets: dict[str, str]) -> tuple[str, ...]:
    """The zones of a partition that an existing network covers and that offer its instance type."""
    if any(zone.startswith(UNKNOWN) for zone in subnets):
        return tuple(subnets)
    covered = [zone for zone in wanted or subnets if zone in subnets]
    if not covered:
        raise UserError(
            f"partition {partition.name}: zones {', '.join(wanted)}, but network.aws.private_subnets lie in "
            f"{', '.join(subnets)}; add a subnet, or change the zones"
        )
    having = offering(partition.instance_type)
    fitting = tuple(zone for zone in covered if zone in having)
    if not fitting:
        raise UserError(
            f"partition {partition.name}: AWS offers {partition.instance_type} in "
            f"{', '.join(having) or 'no zone of the region'}, and the subnets lie in {', '.join(covered)}"
        )
    return fitting


def _zone_of(subnet: str) -> str:
    found = aws.ec2.get_subnet(id=subnet).availability_zone
    # The placeholder differs for each subnet, so that unknown zones stay apart.
    return f"<{subnet}.availabilityZone>" if found.startswith(UNKNOWN) else found


def offering(machine: str) -> tuple[str, ...]:
    """The region's zones in which AWS offers an instance type, sorted. Local and wavelength zones are left
    out."""
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
    return dict.fromkeys(
        [*(p.instance_type for p in design.partitions), *(h.instance_type for h in design.hosts)]
    )


def _of_partition(design: ClusterDesign, partition: Partition, offered: tuple[str, ...]) -> tuple[str, ...]:
    if not offered:
        raise UserError(
            f"partition {partition.name}: AWS offers {partition.instance_type} in no zone of "
            f"{design.region}; take another instance type or another aws:region"
        )
    return offered


def _of_head(design: ClusterDesign, order: Sequence[str], offered: dict[str, tuple[str, ...]]) -> str:
    """The first of the nodes' zones that offers the hosts' instance types, else any zone that does."""
    # Without hosts, as with AWS Batch, it is the first zone of the nodes.
    machines = {host.instance_type: offered[host.instance_type] for host in design.hosts}
    everywhere = sorted({zone for zones in machines.values() for zone in zones})
    for zone in [*order, *everywhere]:
        if all(zone in zones for zones in machines.values()):
            return zone
    raise UserError(
        f"no zone of {design.region} has all machines of the controller and login: {', '.join(machines)}"
    )


def with_zones(design: ClusterDesign, zones: Zones) -> ClusterDesign:
    """The design with the zones in which each partition's nodes may start. The machines read all of them.

    Neither a placement group nor EFA spans zones, so a partition with either gets one zone.
    """
    partitions = []
    for partition in design.partitions:
        found = zones.partitions[partition.name]
        one_zone = partition.placement == "cluster" or partition.efa
        partitions.append(replace(partition, zones=found[:1] if one_zone else found))
    return replace(design, partitions=tuple(partitions))
