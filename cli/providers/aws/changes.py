"""What happens to a running cluster on AWS, besides what the keys of its stack file say. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from cli.changes import table
from cli.changes.table import Change, Rules, text
from infra import addresses
from infra.config import changes
from infra.effects import Kind
from node.design.model import ClusterDesign, Partition
from node.design.storage import Mount

_ZONE = "a disk cannot leave its zone; unless the head stays in it"
_GROUPS = "its security groups are of the old network"
_SUBNET = "FSx keeps it in its subnet, which then cannot be deleted: remove it first"
SHARED = (
    "{1} shares addresses with the old {0}, and AWS makes the new subnet before the old one goes: choose "
    "addresses of network.cidr that neither subnet had, or end the cluster first"
)


def of_mount(mount: Mount, name: str, kind: Kind) -> Kind:
    """FSx cannot shrink a file system or change a SCRATCH_1; the resource is replaced instead."""
    if mount.kind != "fsx_lustre":
        return kind
    if kind is Kind.NEVER:
        return Kind.DATA
    fixed = mount.deployment == "SCRATCH_1" and name in ("size_gib", "s3_import", "s3_export")
    return Kind.DATA if fixed else kind


def head_moves(old: ClusterDesign, new: ClusterDesign) -> Iterator[Change]:
    """Yield the change of the controller's subnet in somebody's own network, by its public address.

    In the cluster's own network the controller has a subnet of its own, and stays there.
    """
    if old.network.vpc is None or old.network != new.network or not old.hosts or not new.hosts:
        return
    was, will = (
        "public_subnet" if "public" in design.controller().tags else "private_subnets"
        for design in (old, new)
    )
    if was != will:
        yield Change("network.aws", "controller", Kind.MOVED, was, will, "its subnet is another one")


def storage_of_network(old: ClusterDesign, new: ClusterDesign) -> Iterator[Change]:
    """Yield what becomes of the cluster's own disks and file systems when its network is another one.

    FSx cannot give a file system other security groups, and a group belongs to its VPC. The engine makes an
    empty file system in the new network and deletes the old one. EBS volumes stay while the head stays in
    their zone, which only AWS knows of somebody's own subnets.
    """
    was, will = old.network, new.network
    elsewhere = was.vpc != will.vpc
    anew = elsewhere or (was.vpc is None and was.cidr != will.cidr)
    stay = {mount.path: mount.kind for mount in new.mounts if table.is_own_disk(mount)}
    for mount in old.mounts:
        if not table.is_own_disk(mount) or stay.get(mount.path) != mount.kind:
            continue
        lustre = mount.kind == "fsx_lustre"
        if lustre and elsewhere:
            yield Change("network.aws", mount.path, Kind.DATA, text(was.vpc), text(will.vpc), _GROUPS)
        elif lustre and anew:
            yield Change("network.cidr", mount.path, Kind.DATA, text(was.cidr), text(will.cidr), _GROUPS)
        elif lustre and was.vpc is None and was.private_cidr != will.private_cidr:
            former, following = text(was.private_cidr), text(will.private_cidr)
            yield Change("network.private_cidr", mount.path, Kind.NEVER, former, following, _SUBNET)
        elif mount.served_by == "controller" and (elsewhere or _head_subnet(old) != _head_subnet(new)):
            former, following = text(_head_subnet(old)), text(_head_subnet(new))
            yield Change("network.aws", mount.path, Kind.DATA, former, following, _ZONE)


def shared_addresses(old: ClusterDesign, new: ClusterDesign) -> Iterator[Change]:
    """Yield new subnets in the cluster's own network that share addresses with old ones."""
    was, will = old.network, new.network
    if was.vpc is not None or will.vpc is not None or was.cidr != will.cidr:
        return
    cidrs = [text(was.public_cidr), text(was.private_cidr)]
    for key, former, following in (
        ("network.public_cidr", was.public_cidr, will.public_cidr),
        ("network.private_cidr", was.private_cidr, will.private_cidr),
    ):
        if former != following and (overlap := addresses.shared(cidrs, [text(following)])):
            yield Change(key, "", Kind.NEVER, text(former), text(following), SHARED.format(*overlap))


def _head_subnet(design: ClusterDesign) -> str | None:
    """Return the subnet of somebody's own network whose zone is the head's (`infra.aws.network`)."""
    network = design.network
    return None if network.vpc is None else network.public_subnet or network.private_subnets[0]


def spared(mount: Mount, key: str) -> bool:
    """Whether a change of a key spares a mount: Lustre and EFS have no zones, and keys of their services."""
    in_part = key in ("aws.kms_key", "network.zones", "partitions.zones")
    return in_part and mount.served_by != "controller"


def on_head(design: ClusterDesign, _kind: Kind) -> tuple[str, ...]:
    """Return the files that a change of the head deletes: its root disk goes with its machine."""
    return table.files_on_head(design)


def zones(old: ClusterDesign, new: ClusterDesign) -> Iterator[Change]:
    """Compare the zones that the stack file names.

    Without such names zones are chosen anew, and the controller keeps its own.
    """
    everywhere = {zone for p in new.partitions for zone in _configured_zones(p, new)}
    for partition in new.partitions:
        configured = _configured_zones(partition, new)
        before = next((p.zones for p in old.partitions if p.name == partition.name), configured)
        if not configured or set(configured) >= set(before) or old.network.vpc != new.network.vpc:
            continue
        moves = new.network.vpc is None and not everywhere.issuperset(before)
        key = "partitions.zones" if partition.zones else "network.zones"
        kind = Kind.DATA if moves else Kind.NODES
        note = "unless the head is in one that is left" if moves else ""
        yield Change(key, f"partition {partition.label}", kind, text(before), text(configured), note)


def _configured_zones(partition: Partition, design: ClusterDesign) -> tuple[str, ...]:
    return partition.zones or design.network.zones


def reservations(old: ClusterDesign, new: ClusterDesign) -> Iterator[Change]:
    """Compare the members of a group of reservations, which the launch template does not name."""
    former = {partition.name: partition for partition in old.partitions}
    for partition in new.partitions:
        was = former.get(partition.name, partition)
        if was.reservations == partition.reservations or was.reservation != partition.reservation:
            continue
        kind = Kind.NODES if was.reservations and partition.reservations else Kind.RENEWED
        before, after = text(was.reservations), text(partition.reservations)
        yield Change("partitions.reservation", f"partition {partition.label}", kind, before, after)


RULES = Rules(
    changes.table("aws"),
    of_mount,
    (head_moves, zones, reservations, storage_of_network, shared_addresses),
    spared,
    on_head,
)
