"""What a destroyed cluster leaves on Google Cloud on purpose: by labels, and snapshots by their names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from cli.clouds.kept_storage import KeptStorage, Value
from cli.gcp.account import Account
from cli.gcp.leftovers import LAST, kept_parts
from infra.gcp.storage import snapshot_prefix
from infra.instance_types.catalog import catalog
from node.elastic.drivers.gce.names import resource_of, short
from node.elastic.drivers.gce.names import value as label

ZONE = re.compile(r".*-[a-z]")


def kept(account: Account, cluster: str, paths: Mapping[str, str]) -> Iterator[KeptStorage]:
    """The disks, Filestore instances and snapshots of a cluster that are to stay.

    Args:
        paths: Name in the stack file -> path of each directory; its snapshots are found by that.

    Raises:
        UserError: Google Cloud refuses, or does not answer.
    """
    rates = catalog().storage.get("gcp", {})
    names = {label(name): name for name in paths}
    for name, disk in kept_parts(account, cluster, "disk"):
        keys: dict[str, Value] = {"kind": "nfs", "existing": str(disk["name"])}
        what, size = f"persistent disk {disk['name']}", float(disk.get("sizeGb", 0))
        made = str(disk.get("creationTimestamp", ""))
        yield KeptStorage(names.get(name, name), what, size, made, keys, rates.get("nfs"))
    for name, one in kept_parts(account, cluster, "Filestore instance"):
        place = str(one["name"]).split("/")
        existing = short(str(one["name"])) if ZONE.fullmatch(place[3]) else str(one["name"])
        keys = {"kind": "filestore", "existing": existing}
        size = float(one["fileShares"][0]["capacityGb"])
        what, made = f"Filestore instance {short(str(one['name']))}", str(one.get("createTime", ""))
        yield KeptStorage(
            names.get(name, name), what, size, made, keys, rates.get(f"filestore.{one.get('tier')}")
        )
    paths_of = {resource_of(cluster, path): name for name, path in paths.items()}
    wanted = {of: re.compile(re.escape(snapshot_prefix(of)) + LAST.pattern) for of in paths_of}
    for one in account.pages("compute", "projects/{project}/global/snapshots", "items"):
        of, identity = short(str(one.get("sourceDisk", ""))), str(one["name"])
        if of in wanted and wanted[of].fullmatch(identity):
            gib = int(one.get("diskSizeGb", 0))
            keys = {"kind": "nfs", "size_gib": gib, "snapshot": True, "restore": identity}
            yield KeptStorage(
                paths_of[of], f"snapshot {identity}", gib, str(one.get("creationTimestamp", "")), keys
            )
