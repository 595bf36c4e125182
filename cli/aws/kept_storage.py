"""What a destroyed cluster leaves on AWS on purpose, by its tags."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from cli.aws.account import DENIED, explained
from cli.clouds.kept_storage import KeptStorage, Value
from infra.aws.tags import CLUSTER, KEPT, SAVED
from infra.instance_types.catalog import catalog

Client = Callable[[str], Any]
"""Gives a boto3 client of a service by its name."""


def kept(client: Client, cluster: str) -> Iterator[KeptStorage]:
    """The volumes, file systems, snapshots and backups of a cluster that are to stay.

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
    """The name in the stack file; `None` if it belongs to another cluster or is not to stay."""
    known = {tag["Key"]: tag["Value"] for tag in tags}
    return known.get(key) if known.get(CLUSTER) == cluster else None


def _disks(ec2: Any, cluster: str, rates: Mapping[str, float]) -> Iterator[KeptStorage]:
    ours = [{"Name": f"tag:{CLUSTER}", "Values": [cluster]}]
    for page in ec2.get_paginator("describe_volumes").paginate(Filters=ours):
        for one in page["Volumes"]:
            if name := _named(one.get("Tags", []), cluster, KEPT):
                keys: dict[str, Value] = {"kind": "nfs", "existing": one["VolumeId"]}
                what, made = f"EBS volume {one['VolumeId']}", str(one.get("CreateTime", ""))
                yield KeptStorage(name, what, one["Size"], made, keys, rates.get("nfs"))
    for page in ec2.get_paginator("describe_snapshots").paginate(OwnerIds=["self"], Filters=ours):
        for one in page["Snapshots"]:
            if name := _named(one.get("Tags", []), cluster, SAVED):
                identity, size = one["SnapshotId"], one["VolumeSize"]
                keys = {"kind": "nfs", "size_gib": size, "snapshot": True, "restore": identity}
                yield KeptStorage(name, f"EBS snapshot {identity}", size, str(one.get("StartTime", "")), keys)


def _efs(efs: Any, cluster: str, rates: Mapping[str, float]) -> Iterator[KeptStorage]:
    for page in efs.get_paginator("describe_file_systems").paginate():
        for one in page["FileSystems"]:
            if name := _named(one.get("Tags", []), cluster, KEPT):
                size = round(one["SizeInBytes"]["Value"] / 1024**3, 2)
                keys: dict[str, Value] = {"kind": "efs", "existing": one["FileSystemId"]}
                what, made = f"EFS file system {one['FileSystemId']}", str(one.get("CreationTime", ""))
                yield KeptStorage(name, what, size, made, keys, rates.get("efs"))


def _lustre(fsx: Any, ec2: Any, cluster: str, rates: Mapping[str, float]) -> Iterator[KeptStorage]:
    for page in fsx.get_paginator("describe_file_systems").paginate():
        for one in page["FileSystems"]:
            name = _named(one.get("Tags", []), cluster, KEPT)
            if name is None or one["FileSystemType"] != "LUSTRE":
                continue
            keys: dict[str, Value] = {"kind": "fsx_lustre", "existing": one["FileSystemId"]}
            if group := _group(ec2, one.get("NetworkInterfaceIds", [])):
                keys["security_group"] = group
            what, made = f"Lustre file system {one['FileSystemId']}", str(one.get("CreationTime", ""))
            yield KeptStorage(name, what, one["StorageCapacity"], made, keys, _lustre_rate(one, rates))
    for page in fsx.get_paginator("describe_backups").paginate():
        for one in page["Backups"]:
            if name := _named(one.get("Tags", []), cluster, SAVED):
                yield _backup(name, one)


def _backup(name: str, backup: Mapping[str, Any]) -> KeptStorage:
    system, identity = backup["FileSystem"], backup["BackupId"]
    lustre = system.get("LustreConfiguration", {})
    keys: dict[str, Value] = {"kind": "fsx_lustre", "size_gib": system["StorageCapacity"]}
    keys["deployment"] = lustre["DeploymentType"]
    if system.get("StorageType") == "HDD":
        keys["storage_type"] = "HDD"
    keys |= {"throughput": lustre["PerUnitStorageThroughput"], "snapshot": True, "restore": identity}
    made = str(backup.get("CreationTime", ""))
    return KeptStorage(name, f"FSx backup {identity}", system["StorageCapacity"], made, keys)


def _group(ec2: Any, interfaces: Sequence[str]) -> str | None:
    """The security group that stays with a Lustre file system."""
    if not interfaces:
        return None
    found = ec2.describe_network_interfaces(NetworkInterfaceIds=list(interfaces[:1]))
    groups = [group["GroupId"] for one in found["NetworkInterfaces"] for group in one["Groups"]]
    return str(groups[0]) if groups else None


def _lustre_rate(system: Mapping[str, Any], rates: Mapping[str, float]) -> float | None:
    # The snapshot of prices has only SSDs, and only the slowest PERSISTENT_2.
    lustre = system.get("LustreConfiguration", {})
    if system.get("StorageType") != "SSD" or lustre.get("PerUnitStorageThroughput") not in (None, 125):
        return None
    return rates.get(f"fsx_lustre.{lustre.get('DeploymentType')}")
