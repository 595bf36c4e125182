"""What happens to a running cluster on AWS when its stack file changes: the table, and more rules. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from cli.changes import table
from cli.changes.table import Change, Kind, Row, Rules, text
from infra import addresses
from node.design.model import ClusterDesign, Mount, Partition

_SHRINK = "EBS volumes only grow; a root file system grows at its machine's next boot"
_ZONE = "a disk cannot leave its zone; unless the head stays in it"
_GROUPS = "its security groups are of the old network"
_SUBNET = "FSx keeps it in its subnet, which then cannot be deleted: remove it first"
SHARED = (
    "{1} shares addresses with the old {0}, and AWS makes the new subnet before the old one goes: choose "
    "addresses of network.cidr that neither subnet had, or end the cluster first"
)
_MOVES = "with network.aws it changes its subnet: a new head"
_KEPT = "the controller and login machines keep their image until you replace them: `pulumi up --replace`"

OWN: dict[str, Row] = {
    "aws:region": Row(Kind.DATA, ("cluster.region",), table.OTHER_CLUSTER),
    "access.mode": Row(
        Kind.LIVE, ("access.mode",), f"the head gets a public address, or gives it up; {_MOVES}"
    ),
    "access.key": Row(Kind.TAKEOVER, ("access.key",), "EC2 gives a machine its key pair at the launch"),
    "controller.disk_gib": Row(Kind.LIVE, ("controller.disk_gib",), _SHRINK, Kind.NEVER),
    "controller.image": Row(Kind.NOTHING, ("controller.image",), _KEPT),
    "login.count": Row(
        Kind.LIVE, (), f"from or to 0 with access.mode ssh, the head gives up or gets its address; {_MOVES}"
    ),
    "login.disk_gib": Row(Kind.LIVE, ("login.disk_gib",), _SHRINK, Kind.NEVER),
    "partitions.accelerator": Row(Kind.RENEWED, ("partitions.accelerator",)),
    "partitions.placement": Row(
        Kind.RENEWED,
        ("partitions.placement",),
        "a placement group can be deleted only without nodes: until then `up` says so; run it again later",
    ),
    "partitions.zones": Row(Kind.NODES, (), "a removed zone: see network.zones"),
    "partitions.aws.efa": Row(Kind.RENEWED, ("partitions.efa",)),
    "partitions.aws.neuron_cores": Row(Kind.RENEWED),
    "partitions.aws.capacity_block": Row(Kind.RENEWED, ("partitions.capacity_block",)),
    "partitions.aws.placement_group": Row(Kind.RENEWED, ("partitions.placement_group",)),
    "controller.security_groups": Row(Kind.LIVE, ("controller.security_groups",)),
    "login.security_groups": Row(Kind.LIVE, ("login.security_groups",)),
    "partitions.aws.security_groups": Row(Kind.RENEWED, ("partitions.security_groups",)),
    "partitions.aws.launch_template_overrides": Row(Kind.RENEWED, ("partitions.template_overrides",)),
    **table.without_effect("Google Cloud's", "access.users", "controller.network_tags", "login.network_tags"),
    "partitions.gcp": Row(Kind.NOTHING, table.OF_GOOGLE),
    "storage.*.size_gib": Row(
        Kind.LIVE, ("storage.size_gib",), "less: EBS refuses it, Lustre is recreated", Kind.NEVER
    ),
    "storage.*.deployment": Row(Kind.DATA, ("storage.deployment",)),
    "storage.*.storage_type": Row(Kind.DATA, ("storage.storage_type",)),
    "storage.*.throughput": Row(Kind.LIVE, ("storage.throughput",)),
    "storage.*.s3_import": Row(Kind.LIVE, ("storage.s3_import",), "SCRATCH_1: recreated"),
    "storage.*.s3_export": Row(Kind.LIVE, ("storage.s3_export",), "SCRATCH_1: recreated"),
    "storage.*.tier": Row(Kind.NOTHING, (), "Google Cloud's"),
    "storage.*.gp3.*": Row(Kind.LIVE, ("storage.gp3",), "EBS changes a volume once in six hours"),
    "controller.gp3": Row(Kind.LIVE, ("controller.gp3",)),
    "login.gp3": Row(Kind.LIVE, ("login.gp3",)),
    "partitions.aws.gp3": Row(Kind.RENEWED, ("partitions.gp3",)),
    "storage.local_scratch": Row(Kind.RENEWED),
    "image.source": Row(Kind.NEVER, ("image.source", "access.user"), table.OTHER_RELEASE),
    "image.id": Row(Kind.RENEWED, ("image.id",), _KEPT),
    "image.bake": Row(Kind.RENEWED, ("image.bake",), _KEPT),
    "image.revision": Row(Kind.RENEWED, ("image.revision",), _KEPT),
    "network.public_cidr": Row(
        Kind.MOVED, ("network.public_cidr",), "to addresses that a subnet has now: not possible"
    ),
    "network.private_cidr": Row(
        Kind.MOVED,
        ("network.private_cidr",),
        "with a Lustre file system of the cluster's own, or to addresses that a subnet has now: not possible",
    ),
    "network.zones": Row(
        Kind.NODES, (), "if the head's zone is removed, head, /home and /apps are recreated empty"
    ),
    "network.aws": Row(
        Kind.MOVED,
        ("network.vpc", "network.public_subnet", "network.private_subnets"),
        "another network; Lustre is recreated in another VPC, /home and /apps in another zone",
    ),
    "network.gcp": Row(Kind.NOTHING),
    "aws.kms_key": Row(
        Kind.DATA, ("cluster.kms_key",), "a disk's key is fixed when it is made: head, /home and /apps"
    ),
    "aws.nat": Row(
        Kind.RENEWED,
        ("network.nat",),
        "nodes that are up lose their internet access if the gateway is removed",
    ),
    "aws.permissions_boundary": Row(Kind.LIVE, ("cluster.permissions_boundary",)),
    "aws.role_path": Row(
        Kind.RENEWED,
        ("cluster.role_path",),
        "nodes that are up lose their role, and with it mounted buckets and logs",
    ),
    "batch": Row(Kind.NOTHING, (), "only for scheduler: batch (see batch.md)"),
}
"""The rows that other clouds do not share."""
TABLE = table.whole_table(OWN)
"""What a change does, by key of the stack file below `slurm-stacks:cluster`. `*` is home, apps, scratch."""

UNSEEN = table.UNSEEN | {"cluster.project", "cluster.zone", "partitions.local_ssds"}
"""Fields of the design that follow from others, or for which a rule below exists."""


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
        if former != following and (found := addresses.shared(cidrs, [text(following)])):
            yield Change(key, "", Kind.NEVER, text(former), text(following), SHARED.format(*found))


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
        yield Change(key, f"partition {partition.name}", kind, text(before), text(configured), note)


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
        yield Change("partitions.reservation", f"partition {partition.name}", kind, before, after)


RULES = Rules(
    TABLE, of_mount, (head_moves, zones, reservations, storage_of_network, shared_addresses), spared, on_head
)
