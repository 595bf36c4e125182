"""What a destroyed cluster leaves on Google Cloud on purpose: by labels, and snapshots by their names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from node.elastic.drivers.gce.names import resource_of, short
from node.elastic.drivers.gce.names import value as label
from operations.clouds.kept import KeptStorage, Value, disk_kind
from operations.gcp.account import Account
from operations.gcp.leftovers import LAST, kept_parts

ZONE = re.compile(r".*-[a-z]")


def kept(account: Account, cluster: str, paths: Mapping[str, str]) -> Iterator[KeptStorage]:
    """Yield the disks, Filestore instances and snapshots of a cluster that are to stay.

    Args:
        paths: Name in the stack file -> path of each directory; its snapshots are found by that.

    Raises:
        UserError: Google Cloud refuses, or does not answer.
    """
    # Imported here, because every SSH connection imports this module.
    from infra.gcp.storage import snapshot_prefix
    from infra.instance_types.catalog import catalog

    rates = catalog().storage.get("gcp", {})
    names = {label(name): name for name in paths}
    for name, disk in kept_parts(account, cluster, "disk"):
        keys: dict[str, Value] = {"kind": disk_kind(names.get(name, name)), "existing": str(disk["name"])}
        what, size = f"persistent disk {disk['name']}", float(disk.get("sizeGb", 0))
        created = str(disk.get("creationTimestamp", ""))
        yield KeptStorage(names.get(name, name), what, size, created, keys, rates.get("nfs"))
    for name, instance in kept_parts(account, cluster, "Filestore instance"):
        place = str(instance["name"]).split("/")
        existing = short(str(instance["name"])) if ZONE.fullmatch(place[3]) else str(instance["name"])
        keys = {"kind": "filestore", "existing": existing}
        size = float(instance["fileShares"][0]["capacityGb"])
        what = f"Filestore instance {short(str(instance['name']))}"
        created = str(instance.get("createTime", ""))
        yield KeptStorage(
            names.get(name, name), what, size, created, keys, rates.get(f"filestore.{instance.get('tier')}")
        )
    paths_of = {resource_of(cluster, path): name for name, path in paths.items()}
    wanted = {of: re.compile(re.escape(snapshot_prefix(of)) + LAST.pattern) for of in paths_of}
    for snapshot in account.pages("compute", "projects/{project}/global/snapshots", "items"):
        of, identity = short(str(snapshot.get("sourceDisk", ""))), str(snapshot["name"])
        if of in wanted and wanted[of].fullmatch(identity):
            gib = int(snapshot.get("diskSizeGb", 0))
            keys = {"kind": disk_kind(paths_of[of]), "size_gib": gib, "snapshot": True, "restore": identity}
            yield KeptStorage(
                paths_of[of], f"snapshot {identity}", gib, str(snapshot.get("creationTimestamp", "")), keys
            )
