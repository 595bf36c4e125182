"""What happens to a running cluster on Google Cloud, besides what the keys of its stack file say. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from cli.changes import table
from cli.changes.table import Change, Rules, text
from infra.config import changes
from infra.effects import Kind
from node.design.model import ClusterDesign
from node.design.storage import Mount

TABLE = changes.table("gcp")


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
                key, f"partition {partition.label}", Kind.NODES, text(was), text(will), TABLE[key].note
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
