"""A cluster's leftovers outside of EC2 that still cost money; each service is asked itself.

The Resource Groups Tagging API would answer for all services in one call, but it lists deleted resources for
hours. Nobody would read a report with such false alarms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from infra.aws.tags import CLUSTER, KEPT, SAVED, log_group, store
from infra.instance_types.catalog import catalog
from operations.aws.account import DENIED, explained
from operations.clouds.cloud import KeptStorage, Value, disk_kind

# What a destroyed cluster leaves on AWS on purpose, by its tags.

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
    found = ec2.describe_network_interfaces(NetworkInterfaceIds=list(interfaces[:1]))
    groups = [group["GroupId"] for interface in found["NetworkInterfaces"] for group in interface["Groups"]]
    return str(groups[0]) if groups else None


def _lustre_rate(system: Mapping[str, Any], rates: Mapping[str, float]) -> float | None:
    # The snapshot of prices has only SSDs, and only the slowest PERSISTENT_2.
    lustre = system.get("LustreConfiguration", {})
    if system.get("StorageType") != "SSD" or lustre.get("PerUnitStorageThroughput") not in (None, 125):
        return None
    return rates.get(f"fsx_lustre.{lustre.get('DeploymentType')}")


def leftovers(client: Client, cluster: str, say: Callable[[str], None]) -> list[str]:
    """One line for each file system, bucket, secret and log group of a cluster.

    Args:
        say: Is called with what the user may not list. That is no failure: a user who may not list Lustre
            file systems has normally made none.

    Raises:
        UserError: AWS refuses for another reason, or does not answer.
    """
    from botocore.exceptions import ClientError

    found: list[str] = []
    denied: list[str] = []
    for what, look in KINDS.items():
        with explained():
            try:
                found += look(client, cluster)
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") not in DENIED:
                    raise
                denied.append(f"{what} ({error.operation_name})")
    if denied:
        say(f"not looked for, because your user or role on AWS may not: {', '.join(denied)}")
    return found


def _lustre_left(client: Client, cluster: str) -> Iterator[str]:
    pages = client("fsx").get_paginator("describe_file_systems").paginate()
    for system in (system for page in pages for system in page["FileSystems"]):
        if _belongs_to(system.get("Tags", []), cluster):
            yield f"Lustre file system {system['FileSystemId']} ({system['StorageCapacity']} GiB)"


def _efs_left(client: Client, cluster: str) -> Iterator[str]:
    pages = client("efs").get_paginator("describe_file_systems").paginate()
    for system in (system for page in pages for system in page["FileSystems"]):
        if _belongs_to(system.get("Tags", []), cluster):
            yield f"EFS file system {system['FileSystemId']} ({system['LifeCycleState']})"


def _buckets(client: Client, cluster: str) -> Iterator[str]:
    yield from (f"bucket {name}" for name in buckets(client, cluster))


def buckets(client: Client, cluster: str) -> Iterator[str]:
    """Yield the names of a cluster's buckets.

    A bucket counts if its name begins with the cluster's prefix, to which Pulumi adds a suffix, and if it has
    the cluster's tag: another cluster's name may begin with the same characters.
    """
    from botocore.exceptions import ClientError

    s3 = client("s3")
    prefix = store(cluster)
    for bucket in s3.list_buckets().get("Buckets", []):
        if bucket["Name"].startswith(prefix):
            try:
                tags = s3.get_bucket_tagging(Bucket=bucket["Name"])["TagSet"]
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") not in ("NoSuchTagSet", "NoSuchBucket"):
                    raise
                continue
            if _belongs_to(tags, cluster):
                yield str(bucket["Name"])


def _secrets(client: Client, cluster: str) -> Iterator[str]:
    wanted = [{"Key": "tag-key", "Values": [CLUSTER]}, {"Key": "tag-value", "Values": [cluster]}]
    pages = client("secretsmanager").get_paginator("list_secrets").paginate(Filters=wanted)
    for secret in (secret for page in pages for secret in page["SecretList"]):
        # The filter compares prefixes only.
        if _belongs_to(secret.get("Tags", []), cluster):
            yield f"secret {secret['Name']}"


def _logs(client: Client, cluster: str) -> Iterator[str]:
    name = log_group(cluster)
    pages = client("logs").get_paginator("describe_log_groups").paginate(logGroupNamePrefix=name)
    if any(group["logGroupName"] == name for page in pages for group in page["logGroups"]):
        yield f"log group {name}"


def _belongs_to(tags: Sequence[Mapping[str, str]], cluster: str) -> bool:
    if is_kept(tags):
        return False
    return any(tag.get("Key") == CLUSTER and tag.get("Value") == cluster for tag in tags)


KINDS: Mapping[str, Callable[[Client, str], Iterator[str]]] = {
    "Lustre file systems": _lustre_left,
    "EFS file systems": _efs_left,
    "buckets": _buckets,
    "secrets": _secrets,
    "log groups": _logs,
}
