"""What happens to a running cluster on Google Cloud when its stack file changes: a table and a rule. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from cli.changes import table
from cli.changes.table import Change, Kind, Row, Rules, text
from node.design.model import ClusterDesign, Mount

_SHRINK = "disks of Google Cloud only grow"
_GROWS = f"the file system follows at the machine's next start; {_SHRINK}"
_KEPT = "the controller and login machines keep their disk until you replace it: `pulumi up --replace`"
_AWS = "AWS's"

OWN: dict[str, Row] = {
    "gcp:project": Row(Kind.DATA, ("cluster.project",), table.OTHER_CLUSTER),
    "gcp:region": Row(Kind.DATA, ("cluster.region",), table.OTHER_CLUSTER),
    "gcp:zone": Row(Kind.DATA, ("cluster.zone",), "head, disks and zonal Filestore are recreated empty"),
    "access.mode": Row(
        Kind.LIVE, ("access.mode",), "the login machine gets a public address, or gives it up"
    ),
    **table.without_effect(_AWS, "access.key"),
    "access.users": Row(Kind.LIVE, ("access.users",)),
    "controller.disk_gib": Row(Kind.LIVE, ("controller.disk_gib",), _GROWS, Kind.NEVER),
    "controller.image": Row(Kind.NOTHING, ("controller.image",), _KEPT),
    "login.count": Row(Kind.LIVE),
    "login.disk_gib": Row(Kind.LIVE, ("login.disk_gib",), _GROWS, Kind.NEVER),
    # Unlike on AWS, the number of accelerators is not fixed by the machine type.
    "partitions.accelerator": Row(Kind.RENEWED, ("partitions.accelerator",)),
    "partitions.placement": Row(
        Kind.RENEWED,
        ("partitions.placement",),
        "a placement policy can be deleted only without nodes: until then `up` says so; run it again later",
    ),
    "partitions.zones": Row(Kind.NODES),
    "partitions.aws": Row(
        Kind.NOTHING,
        (
            "partitions.efa",
            "partitions.capacity_block",
            "partitions.placement_group",
            "partitions.gp3",
            "partitions.security_groups",
        ),
        _AWS,
    ),
    "aws": Row(
        Kind.NOTHING,
        ("cluster.kms_key", "cluster.permissions_boundary", "cluster.role_path", "network.nat"),
        _AWS,
    ),
    "controller.network_tags": Row(Kind.LIVE, ("controller.network_tags",)),
    "login.network_tags": Row(Kind.LIVE, ("login.network_tags",)),
    "partitions.gcp.network_tags": Row(Kind.RENEWED, ("partitions.network_tags",)),
    "partitions.gcp.instance_template_overrides": Row(Kind.RENEWED, ("partitions.template_overrides",)),
    "partitions.gcp.secure_boot": Row(Kind.RENEWED, ("partitions.secure_boot",)),
    "partitions.gcp.placement_policy": Row(Kind.RENEWED, ("partitions.placement_policy",)),
    "partitions.gcp.disk_type": Row(Kind.RENEWED, ("partitions.disk_type",)),
    "partitions.gcp.min_cpu_platform": Row(Kind.RENEWED, ("partitions.min_cpu_platform",)),
    "storage.*.size_gib": Row(Kind.LIVE, ("storage.size_gib",), _GROWS, Kind.NEVER),
    "storage.*.tier": Row(Kind.DATA, ("storage.deployment",), "another tier is another file system"),
    "storage.*.deployment": Row(Kind.NOTHING, (), _AWS),
    **table.without_effect(_AWS, *table.ON_AWS),
    "storage.local_scratch": Row(Kind.RENEWED, ("partitions.local_ssds",)),
    "image.source": Row(Kind.NEVER, ("image.source", "access.user"), table.OTHER_RELEASE),
    "image.id": Row(Kind.RENEWED, ("image.id",), _KEPT),
    "image.bake": Row(Kind.RENEWED, ("image.bake",), _KEPT),
    "image.revision": Row(Kind.RENEWED, ("image.revision",), _KEPT),
    "network.public_cidr": Row(Kind.NOTHING, (), "the subnetwork has all of network.cidr"),
    "network.private_cidr": Row(Kind.NOTHING, (), "the subnetwork has all of network.cidr"),
    "network.zones": Row(Kind.NODES, (), "the head stays in gcp:zone"),
    "network.aws": Row(Kind.NOTHING, (), _AWS),
    "network.gcp": Row(
        Kind.MOVED,
        ("network.vpc", "network.private_subnets"),
        "another network; in another VPC network Filestore is recreated",
    ),
    "batch": Row(Kind.NOTHING, (), _AWS),
}
"""The rows that other clouds do not share."""
TABLE = table.whole_table(OWN)
"""What a change does, by key of the stack file below `slurm-stacks:cluster`. `*` is home, apps, scratch."""

UNSEEN = table.UNSEEN | {"network.private_cidr", "network.public_cidr", "network.public_subnet"}
"""Fields of the design that follow from others, for which a rule below exists, or that only AWS has."""


def zones(old: ClusterDesign, new: ClusterDesign) -> Iterator[Change]:
    """Compare the zones in which nodes may start.

    The published design has those that were chosen for it (`infra.gcp.network.with_zones`).
    """
    if old.zone != new.zone:
        return
    for partition in new.partitions:
        will = partition.zones or new.network.zones or (str(new.zone),)
        will = will[:1] if partition.placement == "cluster" else will
        was = next((former.zones for former in old.partitions if former.name == partition.name), will)
        if was and set(will) != set(was):
            key = "partitions.zones" if partition.zones else "network.zones"
            yield Change(
                key, f"partition {partition.name}", Kind.NODES, text(was), text(will), TABLE[key].note
            )


def storage_of_network(old: ClusterDesign, new: ClusterDesign) -> Iterator[Change]:
    """Filestore instances of the cluster's own, which are made anew in another VPC network.

    Another subnetwork of the same network changes nothing for them. Disks belong to no network.
    """
    was, will = old.network.vpc, new.network.vpc
    if was == will:
        return
    stay = {mount.path for mount in new.mounts if table.is_own_disk(mount) and mount.kind == "filestore"}
    for mount in old.mounts:
        if mount.kind == "filestore" and table.is_own_disk(mount) and mount.path in stay:
            note = "its address is of the old network"
            yield Change("network.gcp", mount.path, Kind.DATA, text(was), text(will), note)


def spared(mount: Mount, key: str) -> bool:
    """Whether a change of a key spares a mount: a Filestore instance of a regional tier is in no zone."""
    from infra.gcp.storage import REGIONAL  # here, because that module needs the SDK

    return key == "gcp:zone" and mount.kind == "filestore" and mount.deployment in REGIONAL


def on_head(design: ClusterDesign, kind: Kind) -> tuple[str, ...]:
    """Return what a new head ends: its root disk outlives it, and so does the accounting."""
    return table.files_on_head(design) if kind is Kind.DATA else ()


RULES = Rules(TABLE, more=(zones, storage_of_network), spared=spared, head=on_head)
