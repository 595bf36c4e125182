"""What a destroyed cluster leaves on AWS on purpose, by its tags."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from infra.aws.tags import CLUSTER, KEPT, SAVED
from infra.instance_types.catalog import catalog
from operations.aws.account import DENIED, explained
from operations.clouds.kept import KeptStorage, Value, disk_kind

Client = Callable[[str], Any]
"""Gives a boto3 client of a service by its name."""


def kept(client: Client, cluster: str) -> Iterator[KeptStorage]:
    """Yield the volumes, file systems, snapshots and backups of a cluster that are to stay.

    Services that the user may not list are left out; the report of leftovers names them.

    Raises:
        UserError: AWS refuses for another reason, or does not answer.
    """
    from botocore.exceptions import ClientError

    rates = catalog().storage.get("aws", {})
    looks: Sequence[Callable[[], Iterator[KeptStorage]]] = (
        lambda: _disks(client("ec2"), cluster, rates),
        lambda: _efs(client("efs"), cluster, rates),
        lambda: _lustre(client("fsx"), client("ec2"), cluster, rates),
    )
    for look in looks:
        with explained():
            try:
                yield from list(look())
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") not in DENIED:
                    raise


def is_kept(tags: Iterable[Mapping[str, str]]) -> bool:
    """Whether these tags are those of storage that is to stay, or of a snapshot or backup of it."""
    return any(tag["Key"] in (KEPT, SAVED) for tag in tags)


def _named(tags: Sequence[Mapping[str, str]], cluster: str, key: str) -> str | None:
    """Return the name in the stack file; `None` if it belongs to another cluster or is not to stay."""
    known = {tag["Key"]: tag["Value"] for tag in tags}
    return known.get(key) if known.get(CLUSTER) == cluster else None


def _disks(ec2: Any, cluster: str, rates: Mapping[str, float]) -> Iterator[KeptStorage]:
    filters = [{"Name": f"tag:{CLUSTER}", "Values": [cluster]}]
    for page in ec2.get_paginator("describe_volumes").paginate(Filters=filters):
        for volume in page["Volumes"]:
            if name := _named(volume.get("Tags", []), cluster, KEPT):
                keys: dict[str, Value] = {"kind": disk_kind(name), "existing": volume["VolumeId"]}
                what, created = f"EBS volume {volume['VolumeId']}", str(volume.get("CreateTime", ""))
                yield KeptStorage(name, what, volume["Size"], created, keys, rates.get("nfs"))
    for page in ec2.get_paginator("describe_snapshots").paginate(OwnerIds=["self"], Filters=filters):
        for snapshot in page["Snapshots"]:
            if name := _named(snapshot.get("Tags", []), cluster, SAVED):
                identity, size = snapshot["SnapshotId"], snapshot["VolumeSize"]
                keys = {"kind": disk_kind(name), "size_gib": size, "snapshot": True, "restore": identity}
                yield KeptStorage(
                    name, f"EBS snapshot {identity}", size, str(snapshot.get("StartTime", "")), keys
                )


def _efs(efs: Any, cluster: str, rates: Mapping[str, float]) -> Iterator[KeptStorage]:
    for page in efs.get_paginator("describe_file_systems").paginate():
        for system in page["FileSystems"]:
            if name := _named(system.get("Tags", []), cluster, KEPT):
                size = round(system["SizeInBytes"]["Value"] / 1024**3, 2)
                keys: dict[str, Value] = {"kind": "efs", "existing": system["FileSystemId"]}
                what = f"EFS file system {system['FileSystemId']}"
                created = str(system.get("CreationTime", ""))
                yield KeptStorage(name, what, size, created, keys, rates.get("efs"))


def _lustre(fsx: Any, ec2: Any, cluster: str, rates: Mapping[str, float]) -> Iterator[KeptStorage]:
    for page in fsx.get_paginator("describe_file_systems").paginate():
        for system in page["FileSystems"]:
            name = _named(system.get("Tags", []), cluster, KEPT)
            if name is None or system["FileSystemType"] != "LUSTRE":
                continue
            keys: dict[str, Value] = {"kind": "fsx_lustre", "existing": system["FileSystemId"]}
            if group := _group(ec2, system.get("NetworkInterfaceIds", [])):
                keys["security_group"] = group
            what = f"Lustre file system {system['FileSystemId']}"
            created = str(system.get("CreationTime", ""))
            yield KeptStorage(
                name, what, system["StorageCapacity"], created, keys, _lustre_rate(system, rates)
            )
    for page in fsx.get_paginator("describe_backups").paginate():
        for backup in page["Backups"]:
            if name := _named(backup.get("Tags", []), cluster, SAVED):
                yield _backup(name, backup)


def _backup(name: str, backup: Mapping[str, Any]) -> KeptStorage:
    system, identity = backup["FileSystem"], backup["BackupId"]
    lustre = system.get("LustreConfiguration", {})
    keys: dict[str, Value] = {"kind": "fsx_lustre", "size_gib": system["StorageCapacity"]}
    keys["deployment"] = lustre["DeploymentType"]
    if system.get("StorageType") == "HDD":
        keys["storage_type"] = "HDD"
    keys |= {"throughput": lustre["PerUnitStorageThroughput"], "snapshot": True, "restore": identity}
    created = str(backup.get("CreationTime", ""))
    return KeptStorage(name, f"FSx backup {identity}", system["StorageCapacity"], created, keys)


def _group(ec2: Any, interfaces: Sequence[str]) -> str | None:
    """Return the security group that stays with a Lustre file system."""
    if not interfaces:
        return None
    answer = ec2.describe_network_interfaces(NetworkInterfaceIds=list(interfaces[:1]))
    groups = [group["GroupId"] for interface in answer["NetworkInterfaces"] for group in interface["Groups"]]
    return str(groups[0]) if groups else None


def _lustre_rate(system: Mapping[str, Any], rates: Mapping[str, float]) -> float | None:
    # The snapshot of prices has only SSDs, and only the slowest PERSISTENT_2.
    lustre = system.get("LustreConfiguration", {})
    if system.get("StorageType") != "SSD" or lustre.get("PerUnitStorageThroughput") not in (None, 125):
        return None
    return rates.get(f"fsx_lustre.{lustre.get('DeploymentType')}")
