"""Looks up in AWS what a stack file names: images, the key pair, security groups, the boundary, storage.

The doctor and `up` do so before anything is made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from cli.findings import Finding, fine, stops, warns
from infra.aws.tags import CLUSTER
from infra.config import placeholders
from node.design.model import ClusterDesign
from node.design.storage import Mount
from node.elastic.drivers.ec2.errors import code_of
from operations.aws.account import explained

Client = Callable[[str], Any]
"""Gives a boto3 client of a service by its name."""
IMAGE, KEY, PLATFORM, STORAGE = "image", "key", "platform", "storage"
"""The names of the checks."""
BACKUPS = "controller.backup.bucket"
ONE_VPC = "EFS has mount targets in one VPC at a time (EFS user guide)"
NO_IMAGE = ("InvalidAMIID.NotFound", "InvalidAMIID.Unavailable", "InvalidAMIID.Malformed")
NO_GROUP = ("InvalidGroup.NotFound", "InvalidGroupId.Malformed")
OTHER = re.compile(
    r"amzn|al2023|alinux|amazon[ _-]?linux|rhel|centos|rocky|alma|suse|sles|debian|fedora"
    r"|(?:ubuntu|jammy|focal|bionic)\D*(?:22|20|18)\.?04|jammy|focal|bionic",
    re.IGNORECASE,
)
"""Words of an image's name that tell another distribution than Ubuntu 24.04."""


def named_images(design: ClusterDesign) -> dict[str, dict[str, int]]:
    """Return image -> key of the stack file -> GiB of the smallest root disk that starts from it."""
    by_image: dict[str, dict[str, int]] = {}

    def add(image: str | None, key: str, gib: int) -> None:
        if image is not None and not placeholders.is_placeholder(image):
            keys = by_image.setdefault(image, {})
            keys[key] = min(gib, keys.get(key, gib))

    for host in design.hosts:
        add(host.image or design.image.id, f"{host.role}.image" if host.image else "image.id", host.disk_gib)
    for partition in design.partitions:
        key = f"partitions.{partition.slurm_name}.image" if partition.image else "image.id"
        add(partition.image or design.image.id, key, partition.disk_gib)
    return by_image


def images(ec2: Any, design: ClusterDesign) -> Iterable[Finding]:
    """Check each image by what EC2 says of it: it would refuse some, and others cannot become a machine.

    Raises:
        UserError: AWS refuses, or does not answer.
    """
    for image, keys in named_images(design).items():
        described = _first(ec2.describe_images, "Images", NO_IMAGE, ImageIds=[image])
        problems = list(_faults(described, image, keys, str(design.region)))
        yield from problems or [fine(IMAGE, f"{image} ({', '.join(keys)}) is there, and fits")]


def _faults(image: dict[str, Any] | None, name: str, keys: dict[str, int], region: str) -> Iterator[Finding]:
    what = f"{name} ({', '.join(keys)})"
    if image is None:
        yield stops(
            IMAGE,
            f"{what}: there is no such image in {region}, or it is not shared with this account",
            f"Copy it: `aws ec2 copy-image --region {region} --source-region REGION --source-image-id {name} "
            "--name NAME`; or name another.",
        )
        return
    if (state := image.get("State", "available")) != "available":
        yield stops(IMAGE, f"{what} is {state}", "Wait until it is available, or name another.")
    if (kind := image.get("Architecture", "x86_64")) != "x86_64":
        yield stops(IMAGE, f"{what} is for {kind} processors", "Name one for x86_64.")
    if str(image.get("Platform", "")).lower() == "windows":
        yield stops(IMAGE, f"{what} is of Windows", "Name one of Ubuntu 24.04.")
    elif match := OTHER.search(image.get("Name") or ""):
        problem = f"{what} is {image['Name']}: {match[0]} is another distribution than Ubuntu 24.04"
        yield warns(IMAGE, problem, "The boot uses apt: name an image made from Ubuntu 24.04.")
    yield from _root_disk(image, what, keys)


def _root_disk(image: dict[str, Any], what: str, keys: dict[str, int]) -> Iterator[Finding]:
    root = image.get("RootDeviceName")
    disks = [
        device.get("Ebs", {})
        for device in image.get("BlockDeviceMappings", [])
        if device.get("DeviceName") == root
    ]
    gib = next((disk["VolumeSize"] for disk in disks if "VolumeSize" in disk), 0)
    if short := {key: size for key, size in keys.items() if size < gib}:
        sizes = ", ".join(f"{size} GiB ({key})" for key, size in short.items())
        problem = f"{what} needs a root disk of {gib} GiB, and machines that start from it have {sizes}"
        yield stops(IMAGE, problem, f"Write disk_gib: {gib} or more for these machines.")


def key_pair(ec2: Any, name: str, region: str, offered: Iterable[str], options: str = "") -> Finding:
    """Check that the key pair exists, and that the user has its private key.

    Args:
        offered: The public keys in the user's SSH agent.
        options: More options of the AWS CLI, for the command that makes the pair.

    Raises:
        UserError: AWS refuses, or does not answer.
    """
    gone = ("InvalidKeyPair.NotFound",)
    pair = _first(ec2.describe_key_pairs, "KeyPairs", gone, KeyNames=[name], IncludePublicKey=True)
    if pair is None:
        line = (
            f"aws ec2 import-key-pair --region {region} --key-name {name} "
            f"--public-key-material fileb://~/.ssh/id_ed25519.pub{options}"
        )
        problem = f"there is no EC2 key pair {name} in {region}"
        return stops(KEY, problem, f"Make it from a key of yours: `{line}`; or name another (access.key).")
    public = str(pair.get("PublicKey", "")).split()[:2]
    if public and public not in [line.split()[:2] for line in offered]:
        problem = f"the private key of the EC2 key pair {name} is not in your SSH agent"
        return stops(KEY, problem, "Add it: `ssh-add FILE`; or name a pair whose key you have (access.key).")
    return fine(KEY, f"there is an EC2 key pair {name} in {region}, and your SSH agent has its key")


def named_groups(design: ClusterDesign) -> dict[str, list[str]]:
    """Return group -> the keys of the stack file that name it."""
    by_group: dict[str, list[str]] = {}
    for host in design.hosts:
        for group in host.security_groups:
            by_group.setdefault(group, []).append(f"{host.role}.security_groups")
    numbers = {name: number for number, name in enumerate(design.slurm_partitions())}
    for partition in design.partitions:
        for group in partition.aws.security_groups:
            by_group.setdefault(group, []).append(
                f"partitions[{numbers[partition.slurm_name]}].aws.security_groups"
            )
    return {group: list(dict.fromkeys(keys)) for group, keys in by_group.items()}


def platform(client: Client, design: ClusterDesign) -> Iterator[Finding]:
    """Check that groups are of the cluster's VPC and that the boundary exists.

    EC2 takes a launch template with a group that does not exist, and then refuses each launch.

    Raises:
        UserError: AWS refuses, or does not answer.
    """
    for group, keys in named_groups(design).items():
        if not placeholders.is_placeholder(group):
            yield _group(client("ec2"), design, group, ", ".join(keys))
    boundary = design.aws.permissions_boundary
    if boundary is not None and not placeholders.is_placeholder(boundary):
        yield _boundary(client("iam"), boundary)


def _group(ec2: Any, design: ClusterDesign, group: str, keys: str) -> Finding:
    described = _asked(ec2.describe_security_groups, NO_GROUP, GroupIds=[group])
    if described is None:
        cure = "Correct the id, or use the region and the account that have it."
        return stops(PLATFORM, f"{keys}: there is no security group {group} in {design.region}", cure)
    (security_group,) = described["SecurityGroups"]
    if security_group["VpcId"] != design.network.vpc:
        wrong = f"{keys}: {group} is of {security_group['VpcId']}, not of {design.network.vpc}"
        return stops(PLATFORM, wrong, "A machine has groups of its own VPC only: name one of these.")
    return fine(PLATFORM, f"{keys}: {group} is {security_group['GroupName']} of {security_group['VpcId']}")


def _boundary(iam: Any, boundary: str) -> Finding:
    if _asked(iam.get_policy, ("NoSuchEntity",), PolicyArn=boundary) is None:
        cure = "Correct the ARN, or make the policy: IAM makes no role with a boundary that does not exist."
        return stops(PLATFORM, f"aws.permissions_boundary: there is no policy {boundary}", cure)
    return fine(PLATFORM, f"aws.permissions_boundary: {boundary} bounds every role")


def storage(client: Client, design: ClusterDesign) -> Iterator[Finding]:
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
                    STORAGE,
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
    problem = f"{_key(mount, key)}: there is no {what} {identity} in {design.region}"
    return stops(STORAGE, problem, "Correct the id, or use the region and the account that have it.")


def _volume(client: Client, design: ClusterDesign, mount: Mount) -> Iterator[Finding]:
    ec2, identity = client("ec2"), str(mount.existing)
    gone = ("InvalidVolume.NotFound", "InvalidParameterValue")
    volume = _first(ec2.describe_volumes, "Volumes", gone, VolumeIds=[identity])
    if volume is None:
        yield _missing(design, mount, "EBS volume")
        return
    users = [attachment["InstanceId"] for attachment in volume["Attachments"]]
    if others := [user for user in users if not _ours(ec2, design, user)]:
        problem = f"{_key(mount)}: {identity} is attached to {', '.join(others)}"
        yield stops(STORAGE, problem, "A disk has one machine: detach it there first, or make a snapshot.")
        return
    if not volume["Encrypted"]:
        problem = f"{_key(mount)}: {identity} is not encrypted"
        yield warns(
            STORAGE, problem, "A snapshot of it can be copied with encryption, and `restore` takes that."
        )
    where = f"{volume['Size']} GiB in {volume['AvailabilityZone']}"
    yield fine(STORAGE, f"{_key(mount)}: {identity} has {where}, and {mount.path} is on it")


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
                return stops(STORAGE, f"{where}: there is no bucket {name}", "Correct the name, or make it.")
            if status in (301, 403):
                why = "is another account's, or in another region, or does not let you in"
                cure = "Machines need it in this account, or a policy of the bucket for their role."
                return warns(STORAGE, f"{where}: {name} {why}", cure)
            raise
    region = answer.get("BucketRegion", design.region)
    if region != design.region and near:
        cure = f"Take a bucket in {design.region}: the controller calls S3 there."
        return stops(STORAGE, f"{where}: {name} is in {region}, not in {design.region}", cure)
    if region != design.region:
        cure = f"Every read crosses regions, and costs: take a bucket in {design.region}."
        return warns(STORAGE, f"{where}: {name} is in {region}, not in {design.region}", cure)
    return fine(STORAGE, f"{where}: {name} {use}")


def _ours(ec2: Any, design: ClusterDesign, instance: str) -> bool:
    wanted = [{"Name": f"tag:{CLUSTER}", "Values": [design.name]}]
    with explained():
        described = ec2.describe_instances(InstanceIds=[instance], Filters=wanted)
    return bool(described["Reservations"])


def _zones(ec2: Any, design: ClusterDesign) -> dict[str, str]:
    """Subnet -> zone, of an existing network."""
    names = {design.network.public_subnet, *design.network.private_subnets} - {None}
    with explained():
        subnets = ec2.describe_subnets(SubnetIds=sorted(map(str, names)))["Subnets"]
    return {subnet["SubnetId"]: subnet["AvailabilityZone"] for subnet in subnets}


def _efs(client: Client, design: ClusterDesign, mount: Mount) -> Iterator[Finding]:
    efs, ec2, identity = client("efs"), client("ec2"), str(mount.existing)
    which = {"FileSystemId": identity}
    system = _first(efs.describe_file_systems, "FileSystems", ["FileSystemNotFound"], **which)
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
        unfit = [target for target in targets if not _own_group(ec2, design, groups[target["MountTargetId"]])]
        if unfit:
            where = ", ".join(sorted({target["VpcId"] for target in unfit}))
            fault = f"{_key(mount)}: {identity} has mount targets already, in {where}"
            cure = f"{ONE_VPC}: write that VPC as network.aws, and its targets' security_group."
            yield stops(STORAGE, fault, cure)
            return
    elif problem := _unfit_targets(ec2, design, mount, targets, groups):
        yield problem
        return
    size = system["SizeInBytes"]["Value"] / 1024**3
    opened = f", NFS is opened in {mount.security_group}" if mount.security_group else ""
    yield fine(STORAGE, f"{_key(mount)}: {identity} has {size:.1f} GiB of files{opened}")


def _unfit_targets(
    ec2: Any, design: ClusterDesign, mount: Mount, targets: Sequence[Any], groups: dict[str, list[str]]
) -> Finding | None:
    """Why a file system cannot be mounted by the targets that it has; `None` if it can."""
    vpc, group = design.network.vpc, str(mount.security_group)
    if elsewhere := sorted({target["VpcId"] for target in targets} - {str(vpc)}):
        problem = (
            f"{_key(mount)}: {mount.existing} has its mount targets in {', '.join(elsewhere)}, not in {vpc}"
        )
        return stops(STORAGE, problem, f"Write that VPC as network.aws: {ONE_VPC}.")
    wanted = set(_zones(ec2, design).values())
    lacks = sorted(wanted - {target["AvailabilityZoneName"] for target in targets})
    if lacks:
        problem = f"{_key(mount)}: {mount.existing} has no mount target in {', '.join(lacks)}"
        cure = "Make one (`aws efs create-mount-target`), or take subnets of other zones."
        return stops(STORAGE, problem, cure)
    if without := [
        target["MountTargetId"] for target in targets if group not in groups[target["MountTargetId"]]
    ]:
        problem = f"{_key(mount, 'security_group')}: {group} is not the group of {', '.join(without)}"
        has = sorted({identity for target in without for identity in groups[target]})
        return stops(STORAGE, problem, f"Write the group that all its mount targets have: {', '.join(has)}.")
    return None


def _own_group(ec2: Any, design: ClusterDesign, groups: Sequence[str]) -> bool:
    """Whether one of the groups is this cluster's, so that `up` made the target."""
    with explained():
        described = ec2.describe_security_groups(GroupIds=list(groups))["SecurityGroups"]
    wanted = {"Key": CLUSTER, "Value": design.name}
    return any(wanted in group.get("Tags", []) for group in described)


def _lustre(client: Client, design: ClusterDesign, mount: Mount) -> Iterator[Finding]:
    fsx, ec2, identity = client("fsx"), client("ec2"), str(mount.existing)
    gone = ["FileSystemNotFound"]
    system = _first(fsx.describe_file_systems, "FileSystems", gone, FileSystemIds=[identity])
    if system is None or system["FileSystemType"] != "LUSTRE":
        yield _missing(design, mount, "Lustre file system")
        return
    if system["VpcId"] != design.network.vpc:
        problem = f"{_key(mount)}: {identity} is in {system['VpcId']}, not in {design.network.vpc}"
        yield stops(STORAGE, problem, "Write its VPC as network.aws: FSx is mounted from its own VPC here.")
        return
    if system["Lifecycle"] not in ("AVAILABLE", "UPDATING"):
        problem = f"{_key(mount)}: {identity} is {system['Lifecycle']}"
        yield stops(STORAGE, problem, "Wait until it is AVAILABLE, or see FSx's console.")
        return
    with explained():
        names = system["NetworkInterfaceIds"]
        interfaces = ec2.describe_network_interfaces(NetworkInterfaceIds=names)["NetworkInterfaces"]
    has = sorted({group["GroupId"] for interface in interfaces for group in interface["Groups"]})
    if mount.security_group not in has:
        problem = f"{_key(mount, 'security_group')}: {mount.security_group} is not the group of {identity}"
        cure = f"Its network interfaces have {', '.join(has) or 'none'}: write one of them."
        yield stops(STORAGE, problem, cure)
        return
    name = system["LustreConfiguration"]["MountName"]
    opened = f"Lustre's ports are opened in {mount.security_group}"
    yield fine(STORAGE, f"{_key(mount)}: {identity} has {system['StorageCapacity']} GiB as {name}; {opened}")


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
        described = _first(ec2.describe_snapshots, "Snapshots", gone, SnapshotIds=[identity])
        state, ready, size = ("", "completed", 0)
        if described is not None:
            state, size = described["State"], described["VolumeSize"]
    else:
        with explained():
            pages = fsx.get_paginator("describe_file_systems").paginate()
            systems = [system for page in pages for system in page["FileSystems"]]
        if any({"Key": "Name", "Value": name} in system.get("Tags", []) for system in systems):
            return
        described = _first(fsx.describe_backups, "Backups", ["BackupNotFound"], BackupIds=[identity])
        state, ready, size = ("", "AVAILABLE", 0)
        if described is not None:
            state, size = described["Lifecycle"], described["FileSystem"].get("StorageCapacity", 0)
    where = _key(mount, "restore")
    if described is None:
        yield _missing(
            design, mount, "snapshot" if mount.kind in ("nfs", "disk") else "FSx backup", "restore"
        )
    elif state != ready:
        yield stops(STORAGE, f"{where}: {identity} is {state}", f"Wait until it is {ready}.")
    elif size > (mount.size_gib or 0):
        found_text = f"{where}: {identity} has {size} GiB, and {mount.path} {mount.size_gib} GiB"
        yield stops(STORAGE, found_text, f"Write size_gib: {size}, or more.")
    else:
        yield fine(STORAGE, f"{where}: {mount.path} begins with the files of {identity} ({size} GiB)")


def _asked(call: Callable[..., Any], gone: Collection[str], **which: Any) -> Any:
    """Return the answer; `None` if AWS says that there is no such thing.

    Args:
        gone: The service's codes for what does not exist.

    Raises:
        UserError: AWS refuses, or does not answer.
    """
    from botocore.exceptions import ClientError

    with explained():
        try:
            return call(**which)
        except ClientError as error:
            if code_of(error) not in gone:
                raise
            return None


def _first(call: Callable[..., Any], key: str, gone: Collection[str], **which: Any) -> Any:
    """Return the first of the things under a key of the answer; `None` if there is none."""
    answer = _asked(call, gone, **which)
    return None if answer is None else next(iter(answer[key]), None)
