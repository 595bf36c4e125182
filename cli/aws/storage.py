"""Looks up the disks and file systems that a stack file names, before anything is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cli.doctor.finding import Finding, fine, stops, warns
from infra.aws.tags import CLUSTER
from node.elastic.drivers.ec2.errors import code_of
from node.model import ClusterDesign, Mount
from operations.aws.account import explained

Client = Callable[[str], Any]
"""Gives a boto3 client of a service by its name."""
CHECK = "storage"
ONE_VPC = "EFS has mount targets in one VPC at a time (EFS user guide)"


BACKUPS = "controller.backup.bucket"


def findings(client: Client, design: ClusterDesign) -> Iterator[Finding]:
    """Check each existing disk and file system, each snapshot and backup, by what AWS says of it.

    Raises:
        UserError: AWS refuses, or does not answer.
    """
    for mount in design.mounts:
        if mount.existing is not None:
            if mount.served_by == "controller":
                yield from _volume(client, design, mount)
            elif mount.kind == "efs":
                yield from _efs(client, design, mount)
            elif mount.kind == "fsx_lustre":
                yield from _lustre(client, design, mount)
            elif mount.kind == "s3":
                way = "writable" if mount.writable else "read-only"
                use = f"is mounted at {mount.path}, {way}"
                yield _bucket(client, design, f"storage.{mount.name}.bucket", mount.bucket()[0], use)
            else:
                yield fine(
                    CHECK,
                    f"{_key(mount)}: {mount.existing} is not checked here: machines mount it when they boot",
                )
        elif mount.restore is not None:
            yield from _saved(client, design, mount)
    if design.backup is not None:
        name = design.backup.place()[0].removeprefix("s3://")
        yield _bucket(client, design, BACKUPS, name, "gets the backups", near=True)


def _key(mount: Mount, key: str = "existing") -> str:
    return f"storage.{mount.name}.{key}"


def _missing(design: ClusterDesign, mount: Mount, what: str, key: str = "existing") -> Finding:
    identity = getattr(mount, key)
    found = f"{_key(mount, key)}: there is no {what} {identity} in {design.region}"
    return stops(CHECK, found, "Correct the id, or use the region and the account that have it.")


def _asked(call: Callable[..., Any], key: str, gone: Sequence[str], **which: Any) -> Any:
    """Return the first of the things that were asked for; `None` if there is none.

    Args:
        gone: The service's codes for what does not exist.
    """
    from botocore.exceptions import ClientError

    with explained():
        try:
            return next(iter(call(**which)[key]), None)
        except ClientError as error:
            if code_of(error) not in gone:
                raise
            return None


def _volume(client: Client, design: ClusterDesign, mount: Mount) -> Iterator[Finding]:
    ec2, identity = client("ec2"), str(mount.existing)
    gone = ("InvalidVolume.NotFound", "InvalidParameterValue")
    volume = _asked(ec2.describe_volumes, "Volumes", gone, VolumeIds=[identity])
    if volume is None:
        yield _missing(design, mount, "EBS volume")
        return
    users = [one["InstanceId"] for one in volume["Attachments"]]
    if others := [user for user in users if not _ours(ec2, design, user)]:
        found = f"{_key(mount)}: {identity} is attached to {', '.join(others)}"
        yield stops(CHECK, found, "A disk has one machine: detach it there first, or make a snapshot.")
        return
    if not volume["Encrypted"]:
        found = f"{_key(mount)}: {identity} is not encrypted"
        yield warns(CHECK, found, "A snapshot of it can be copied with encryption, and `restore` takes that.")
    where = f"{volume['Size']} GiB in {volume['AvailabilityZone']}"
    yield fine(CHECK, f"{_key(mount)}: {identity} has {where}, and {mount.path} is on it")


def _bucket(
    client: Client, design: ClusterDesign, where: str, name: str, use: str, *, near: bool = False
) -> Finding:
    """Check a bucket.

    Args:
        where: The stack file's key.
        use: What it is for, for the finding.
        near: Whether machines can use it in the cluster's region only.
    """
    from botocore.exceptions import ClientError

    with explained():
        try:
            answer = client("s3").head_bucket(Bucket=name)
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if status == 404:
                return stops(CHECK, f"{where}: there is no bucket {name}", "Correct the name, or make it.")
            if status in (301, 403):
                why = "is another account's, or in another region, or does not let you in"
                cure = "Machines need it in this account, or a policy of the bucket for their role."
                return warns(CHECK, f"{where}: {name} {why}", cure)
            raise
    region = answer.get("BucketRegion", design.region)
    if region != design.region and near:
        cure = f"Take a bucket in {design.region}: the controller calls S3 there."
        return stops(CHECK, f"{where}: {name} is in {region}, not in {design.region}", cure)
    if region != design.region:
        cure = f"Every read crosses regions, and costs: take a bucket in {design.region}."
        return warns(CHECK, f"{where}: {name} is in {region}, not in {design.region}", cure)
    return fine(CHECK, f"{where}: {name} {use}")


def _ours(ec2: Any, design: ClusterDesign, instance: str) -> bool:
    wanted = [{"Name": f"tag:{CLUSTER}", "Values": [design.name]}]
    with explained():
        found = ec2.describe_instances(InstanceIds=[instance], Filters=wanted)
    return bool(found["Reservations"])


def _zones(ec2: Any, design: ClusterDesign) -> dict[str, str]:
    """Subnet -> zone, of an existing network."""
    names = {design.network.public_subnet, *design.network.private_subnets} - {None}
    with explained():
        found = ec2.describe_subnets(SubnetIds=sorted(map(str, names)))["Subnets"]
    return {subnet["SubnetId"]: subnet["AvailabilityZone"] for subnet in found}


def _efs(client: Client, design: ClusterDesign, mount: Mount) -> Iterator[Finding]:
    efs, ec2, identity = client("efs"), client("ec2"), str(mount.existing)
    which = {"FileSystemId": identity}
    system = _asked(efs.describe_file_systems, "FileSystems", ["FileSystemNotFound"], **which)
    if system is None:
        yield _missing(design, mount, "EFS file system")
        return
    with explained():
        targets = efs.describe_mount_targets(**which)["MountTargets"]
        groups = {
            target["MountTargetId"]: efs.describe_mount_target_security_groups(
                MountTargetId=target["MountTargetId"]
            )["SecurityGroups"]
            for target in targets
        }
    if mount.security_group is None:
        unfit = [one for one in targets if not _own_group(ec2, design, groups[one["MountTargetId"]])]
        if unfit:
            where = ", ".join(sorted({one["VpcId"] for one in unfit}))
            found = f"{_key(mount)}: {identity} has mount targets already, in {where}"
            cure = f"{ONE_VPC}: write that VPC as network.aws, and its targets' security_group."
            yield stops(CHECK, found, cure)
            return
    elif problem := _unfit_targets(ec2, design, mount, targets, groups):
        yield problem
        return
    size = system["SizeInBytes"]["Value"] / 1024**3
    opened = f", NFS is opened in {mount.security_group}" if mount.security_group else ""
    yield fine(CHECK, f"{_key(mount)}: {identity} has {size:.1f} GiB of files{opened}")


def _unfit_targets(
    ec2: Any, design: ClusterDesign, mount: Mount, targets: Sequence[Any], groups: dict[str, list[str]]
) -> Finding | None:
    """Why a file system cannot be mounted by the targets that it has; `None` if it can."""
    vpc, group = design.network.vpc, str(mount.security_group)
    if elsewhere := sorted({one["VpcId"] for one in targets} - {str(vpc)}):
        found = (
            f"{_key(mount)}: {mount.existing} has its mount targets in {', '.join(elsewhere)}, not in {vpc}"
        )
        return stops(CHECK, found, f"Write that VPC as network.aws: {ONE_VPC}.")
    wanted = set(_zones(ec2, design).values())
    lacks = sorted(wanted - {one["AvailabilityZoneName"] for one in targets})
    if lacks:
        found = f"{_key(mount)}: {mount.existing} has no mount target in {', '.join(lacks)}"
        cure = "Make one (`aws efs create-mount-target`), or take subnets of other zones."
        return stops(CHECK, found, cure)
    if without := [one["MountTargetId"] for one in targets if group not in groups[one["MountTargetId"]]]:
        found = f"{_key(mount, 'security_group')}: {group} is not the group of {', '.join(without)}"
        has = sorted({one for target in without for one in groups[target]})
        return stops(CHECK, found, f"Write the group that all its mount targets have: {', '.join(has)}.")
    return None


def _own_group(ec2: Any, design: ClusterDesign, groups: Sequence[str]) -> bool:
    """Whether one of the groups is this cluster's, so that `up` made the target."""
    with explained():
        found = ec2.describe_security_groups(GroupIds=list(groups))["SecurityGroups"]
    wanted = {"Key": CLUSTER, "Value": design.name}
    return any(wanted in group.get("Tags", []) for group in found)


def _lustre(client: Client, design: ClusterDesign, mount: Mount) -> Iterator[Finding]:
    fsx, ec2, identity = client("fsx"), client("ec2"), str(mount.existing)
    gone = ["FileSystemNotFound"]
    system = _asked(fsx.describe_file_systems, "FileSystems", gone, FileSystemIds=[identity])
    if system is None or system["FileSystemType"] != "LUSTRE":
        yield _missing(design, mount, "Lustre file system")
        return
    if system["VpcId"] != design.network.vpc:
        found = f"{_key(mount)}: {identity} is in {system['VpcId']}, not in {design.network.vpc}"
        yield stops(CHECK, found, "Write its VPC as network.aws: FSx is mounted from its own VPC here.")
        return
    if system["Lifecycle"] not in ("AVAILABLE", "UPDATING"):
        found = f"{_key(mount)}: {identity} is {system['Lifecycle']}"
        yield stops(CHECK, found, "Wait until it is AVAILABLE, or see FSx's console.")
        return
    with explained():
        names = system["NetworkInterfaceIds"]
        interfaces = ec2.describe_network_interfaces(NetworkInterfaceIds=names)["NetworkInterfaces"]
    has = sorted({group["GroupId"] for one in interfaces for group in one["Groups"]})
    if mount.security_group not in has:
        found = f"{_key(mount, 'security_group')}: {mount.security_group} is not the group of {identity}"
        yield stops(
            CHECK, found, f"Its network interfaces have {', '.join(has) or 'none'}: write one of them."
        )
        return
    name = system["LustreConfiguration"]["MountName"]
    opened = f"Lustre's ports are opened in {mount.security_group}"
    yield fine(CHECK, f"{_key(mount)}: {identity} has {system['StorageCapacity']} GiB as {name}; {opened}")


def _saved(client: Client, design: ClusterDesign, mount: Mount) -> Iterator[Finding]:
    """Check a snapshot or a backup, which counts only before the disk or the file system exists."""
    ec2, fsx, identity = client("ec2"), client("fsx"), str(mount.restore)
    name = f"{design.name}-{mount.path.strip('/').replace('/', '-')}"
    if mount.kind in ("nfs", "disk"):
        wanted = [{"Name": "tag:Name", "Values": [name]}, {"Name": f"tag:{CLUSTER}", "Values": [design.name]}]
        with explained():
            if ec2.describe_volumes(Filters=wanted)["Volumes"]:
                return
        gone = ("InvalidSnapshot.NotFound", "InvalidParameterValue")
        found = _asked(ec2.describe_snapshots, "Snapshots", gone, SnapshotIds=[identity])
        state, ready, size = ("", "completed", 0)
        if found is not None:
            state, size = found["State"], found["VolumeSize"]
    else:
        with explained():
            pages = fsx.get_paginator("describe_file_systems").paginate()
            systems = [one for page in pages for one in page["FileSystems"]]
        if any({"Key": "Name", "Value": name} in one.get("Tags", []) for one in systems):
            return
        found = _asked(fsx.describe_backups, "Backups", ["BackupNotFound"], BackupIds=[identity])
        state, ready, size = ("", "AVAILABLE", 0)
        if found is not None:
            state, size = found["Lifecycle"], found["FileSystem"].get("StorageCapacity", 0)
    where = _key(mount, "restore")
    if found is None:
        yield _missing(
            design, mount, "snapshot" if mount.kind in ("nfs", "disk") else "FSx backup", "restore"
        )
    elif state != ready:
        yield stops(CHECK, f"{where}: {identity} is {state}", f"Wait until it is {ready}.")
    elif size > (mount.size_gib or 0):
        found_text = f"{where}: {identity} has {size} GiB, and {mount.path} {mount.size_gib} GiB"
        yield stops(CHECK, found_text, f"Write size_gib: {size}, or more.")
    else:
        yield fine(CHECK, f"{where}: {mount.path} begins with the files of {identity} ({size} GiB)")
