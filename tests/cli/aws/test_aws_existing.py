"""What a stack file names is looked up before anything is made: against moto over HTTP."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

from cli.findings import Finding, Severity, fine
from cli.providers.aws import diagnosis, existing
from cli.providers.aws.provider import AwsProvider
from infra.aws.tags import CLUSTER
from infra.clouds.commands import ClusterRef
from infra.errors import EXIT_REFUSED, UserError
from infra.program.stack import Stack
from node.design.model import Access, AwsPartition, AwsSettings, Backup, ClusterDesign, Image, Network
from node.design.storage import Mount
from operations.aws import account as aws_account
from operations.clouds import own_keys
from tests.support import sentences
from tests.support.aws_account import IMAGE, REGION, Account, account, moto, nobody
from tests.support.aws_mocks import CONTROLLER, CPU, GPU, LUSTRE, NFS, aws_design

__all__ = ["account", "moto", "nobody"]

ED25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMzQ0vHi4JNTnBq3VlBDTRVNzLSgw5WWE/kFSuPKVeaJ"
KEYS = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
OURS = {"Key": CLUSTER, "Value": "c"}
IMAGED = aws_design(region=REGION, image=Image(id=IMAGE))
UBUNTU: dict[str, Any] = {
    "State": "available",
    "Architecture": "x86_64",
    "Name": "lab-ubuntu-noble-24.04-amd64-server-20260301",
    "RootDeviceName": "/dev/sda1",
    "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 50}}],
}
WITH_KEY = aws_design(region=REGION, access=Access("ssh", ("203.0.113.0/24",), "mine"))


class Lab:
    """An account with a VPC, a subnet in it, and file systems and disks that nobody of a cluster has made."""

    def __init__(self, account: Account) -> None:
        self.account, self.ec2, self.subnet = account, account.ec2, account.subnet
        place = self.ec2.describe_subnets(SubnetIds=[self.subnet])["Subnets"][0]
        self.vpc, self.zone = place["VpcId"], place["AvailabilityZone"]
        self.group = self.make_group(self.vpc)
        self.network = Network(vpc=self.vpc, public_subnet=self.subnet, private_subnets=(self.subnet,))

    def client(self, service: str) -> Any:
        return boto3.client(service, REGION, endpoint_url=self.account.url, **KEYS)

    def make_group(self, vpc: str, *tags: dict[str, str]) -> str:
        made = self.ec2.create_security_group(GroupName=f"g{len(tags)}", Description="d", VpcId=vpc)
        if tags:
            self.ec2.create_tags(Resources=[made["GroupId"]], Tags=list(tags))
        return str(made["GroupId"])

    def volume(self, encrypted: bool = True) -> str:
        made = self.ec2.create_volume(AvailabilityZone=self.zone, Size=70, Encrypted=encrypted)
        return str(made["VolumeId"])

    def efs(self, *groups: str) -> str:
        made = self.client("efs").create_file_system(CreationToken=f"t{groups}")["FileSystemId"]
        if groups:
            self.client("efs").create_mount_target(
                FileSystemId=made, SubnetId=self.subnet, SecurityGroups=list(groups)
            )
        return str(made)

    def lustre(self) -> dict[str, Any]:
        place = {"SubnetIds": [self.subnet], "SecurityGroupIds": [self.group]}
        made: dict[str, Any] = self.client("fsx").create_file_system(
            FileSystemType="LUSTRE", StorageCapacity=2400, **place
        )["FileSystem"]
        return made

    def found(self, mount: Mount, **changes: Any) -> list[Finding]:
        design = aws_design(mounts=(mount,), **changes)
        return list(existing.storage(self.client, design))


@pytest.fixture
def lab(account: Account) -> Lab:
    return Lab(account)


def home(kind: str, identity: str, group: str | None = None) -> Mount:
    by = "controller" if identity.startswith("vol-") else None
    return Mount("/home", kind, served_by=by, existing=identity, security_group=group, name="home")


def found_by(name: str, design: ClusterDesign) -> list[Finding]:
    """Return what a check of the doctor finds, by its way from the list of checks."""
    (check,) = (one for one in diagnosis.checks(design) if one.name == name)
    return list(check.look())


# --- disks --------------------------------------------------------------------------------------------------


def test_a_free_volume_is_described(lab: Lab) -> None:
    made = lab.volume()
    text = f"storage.home.existing: {made} has 70 GiB in {lab.zone}, and /home is on it"
    assert lab.found(home("nfs", made)) == [fine("storage", text)]


def test_a_volume_without_encryption_is_a_warning(lab: Lab) -> None:
    first, second = lab.found(home("nfs", lab.volume(encrypted=False)))
    assert (first.severity, second.severity) == (Severity.WARNS, Severity.FINE)
    sentences.finding(first, "storage", Severity.WARNS)


def test_a_volume_of_somebody_elses_machine_stops_up_and_the_controllers_own_does_not(lab: Lab) -> None:
    made = lab.volume()
    (theirs,) = lab.account.run(cluster="another")
    lab.ec2.attach_volume(VolumeId=made, InstanceId=theirs, Device="/dev/sdf")
    (only,) = lab.found(home("nfs", made))
    assert only.severity is Severity.STOPS
    sentences.finding(only, "storage", Severity.STOPS, made, theirs)
    lab.ec2.detach_volume(VolumeId=made, InstanceId=theirs)
    lab.ec2.attach_volume(VolumeId=made, InstanceId=lab.account.head(), Device="/dev/sdf")
    assert [one.severity for one in lab.found(home("nfs", made))] == [Severity.FINE]


MISSING: list[tuple[Mount, str]] = [
    (home("nfs", "vol-0123456789abcdef0"), "EBS volume vol-0123456789abcdef0"),
    (home("efs", "fs-0123456789abcdef0"), "EFS file system fs-0123456789abcdef0"),
    (home("fsx_lustre", "fs-0123456789abcdef0", "sg-1"), "Lustre file system fs-0123456789abcdef0"),
    (dataclasses.replace(NFS[0], restore="snap-0123456789abcdef0", name="home"), "snapshot snap-0"),
]


@pytest.mark.parametrize(("mount", "what"), MISSING)
def test_what_does_not_exist_is_one_message(lab: Lab, mount: Mount, what: str) -> None:
    (only,) = lab.found(mount)
    assert only.severity is Severity.STOPS
    sentences.finding(only, "storage", Severity.STOPS, what)


# --- EFS ----------------------------------------------------------------------------------------------------


def test_efs_by_the_mount_targets_that_it_has(lab: Lab) -> None:
    made = lab.efs(lab.group)
    (only,) = lab.found(home("efs", made, lab.group), network=lab.network)
    assert only == fine(
        "storage", f"storage.home.existing: {made} has 0.0 GiB of files, NFS is opened in {lab.group}"
    )


def test_efs_gets_mount_targets_of_the_clusters_own(lab: Lab) -> None:
    """Also at the second `up`, when they are there."""
    assert [one.severity for one in lab.found(home("efs", lab.efs()))] == [Severity.FINE]
    ours = lab.make_group(lab.vpc, OURS)
    assert [one.severity for one in lab.found(home("efs", lab.efs(ours)))] == [Severity.FINE]


def other_vpc(lab: Lab) -> tuple[Mount, Network]:
    return home("efs", lab.efs(lab.group), lab.group), dataclasses.replace(lab.network, vpc="vpc-other")


def other_zone(lab: Lab) -> tuple[Mount, Network]:
    zones = {z["ZoneName"] for z in lab.ec2.describe_availability_zones()["AvailabilityZones"]} - {lab.zone}
    more = lab.ec2.create_subnet(VpcId=lab.vpc, CidrBlock="10.0.16.0/20", AvailabilityZone=min(zones))
    subnets = (lab.subnet, more["Subnet"]["SubnetId"])
    network = dataclasses.replace(lab.network, private_subnets=subnets)
    return home("efs", lab.efs(lab.group), lab.group), network


def other_group(lab: Lab) -> tuple[Mount, Network]:
    return home("efs", lab.efs(lab.group), "sg-other"), lab.network


def no_group(lab: Lab) -> tuple[Mount, Network]:
    return home("efs", lab.efs(lab.group)), Network()


@pytest.mark.parametrize(
    ("case", "words", "cure"),
    [
        (other_vpc, "not in vpc-other", "network.aws"),
        (other_zone, "has no mount target in", "create-mount-target"),
        (other_group, "sg-other is not the group of", "Write the group"),
        (no_group, "has mount targets already", "security_group"),
    ],
)
def test_efs_that_machines_could_not_mount_is_one_message(
    lab: Lab, case: Callable[[Lab], tuple[Mount, Network]], words: str, cure: str
) -> None:
    mount, network = case(lab)
    (only,) = lab.found(mount, network=network)
    assert only.severity is Severity.STOPS
    assert words in only.found
    assert cure in str(only.cure)


# --- Lustre -------------------------------------------------------------------------------------------------


class Fsx:
    """moto's FSx, which knows neither the interfaces of a file system nor backups, with both.

    The fields are those of botocore's model of FSx, which each answer is checked against.
    """

    def __init__(self, lab: Lab, **more: Any) -> None:
        self._fsx = lab.client("fsx")
        made = lab.ec2.create_network_interface(SubnetId=lab.subnet, Groups=[lab.group])
        self._more = {
            "VpcId": lab.vpc,
            "Lifecycle": "AVAILABLE",
            "NetworkInterfaceIds": [made["NetworkInterface"]["NetworkInterfaceId"]],
            "LustreConfiguration": {"MountName": "abcdefgh"},
            **more,
        }
        shape = self._fsx.meta.service_model.shape_for("FileSystem")
        assert set(self._more) <= set(shape.members)
        assert "MountName" in shape.members["LustreConfiguration"].members

    def describe_file_systems(self, **which: Any) -> Any:
        found = self._fsx.describe_file_systems(**which)
        return {
            **found,
            "FileSystems": [{**file_system, **self._more} for file_system in found["FileSystems"]],
        }


@pytest.mark.parametrize(
    ("more", "group", "severity", "words"),
    [
        ({}, None, Severity.FINE, "2400 GiB as abcdefgh; Lustre's ports are opened in sg-"),
        ({"VpcId": "vpc-other"}, None, Severity.STOPS, "is in vpc-other, not in vpc-"),
        ({"Lifecycle": "CREATING"}, None, Severity.STOPS, "is CREATING"),
        ({}, "sg-other", Severity.STOPS, "sg-other is not the group of fs-"),
    ],
)
def test_lustre_is_in_the_vpc_with_this_group(
    lab: Lab, more: dict[str, Any], group: str | None, severity: Severity, words: str
) -> None:
    made = lab.lustre()
    mount = home("fsx_lustre", made["FileSystemId"], group or lab.group)
    fsx = Fsx(lab, **more)
    design = aws_design(mounts=(mount,), network=lab.network)
    (only,) = existing.storage(lambda name: fsx if name == "fsx" else lab.client(name), design)
    assert only.severity is severity
    assert words in only.found


# --- snapshots ----------------------------------------------------------------------------------------------


def test_a_snapshot_must_fit_and_counts_only_before_the_disk_exists(lab: Lab) -> None:
    snapshot = lab.ec2.create_snapshot(VolumeId=lab.volume())["SnapshotId"]
    small = dataclasses.replace(NFS[0], restore=snapshot, name="home")
    (only,) = lab.found(small)
    sentences.finding(only, "storage", Severity.STOPS, "size_gib")
    (only,) = lab.found(dataclasses.replace(small, size_gib=70))
    assert only.severity is Severity.FINE
    tags = [OURS, {"Key": "Name", "Value": "c-home"}]
    lab.ec2.create_tags(Resources=[lab.volume()], Tags=tags)
    assert lab.found(small) == [], "the disk is there, and the snapshot may be deleted"


# --- buckets ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "region", "severity", "named"),
    [
        ("data-1", REGION, Severity.FINE, ["data-1", "/data"]),
        ("data-2", "eu-central-1", Severity.WARNS, ["data-2", "eu-central-1"]),
        ("data-3", None, Severity.STOPS, ["data-3"]),
    ],
)
def test_a_bucket_is_there_and_near(
    lab: Lab, name: str, region: str | None, severity: Severity, named: list[str]
) -> None:
    if region is not None:
        s3 = boto3.client("s3", region, endpoint_url=lab.account.url, **KEYS)
        s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": region})
    mount = Mount("/data", "s3", existing=f"s3://{name}/train", options="ro", name="buckets[0]")
    (only,) = lab.found(mount)
    sentences.finding(only, "storage", severity, "storage.buckets[0].bucket", *named)


@pytest.mark.parametrize(
    ("name", "region", "severity"),
    [
        ("backups-1", REGION, Severity.FINE),
        ("backups-2", "eu-central-1", Severity.STOPS),
        ("backups-3", None, Severity.STOPS),
    ],
)
def test_the_bucket_of_backups_is_there_and_in_the_clusters_region(
    lab: Lab, name: str, region: str | None, severity: Severity
) -> None:
    if region is not None:
        s3 = boto3.client("s3", region, endpoint_url=lab.account.url, **KEYS)
        s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": region})
    design = aws_design(mounts=(), backup=Backup(f"s3://{name}/slurm"))
    (only,) = existing.storage(lab.client, design)
    sentences.finding(only, "storage", severity, "controller.backup.bucket", name)


# --- images -------------------------------------------------------------------------------------------------


def test_an_image_that_is_not_there_stops(account: Account) -> None:
    gone = dataclasses.replace(IMAGED, image=Image(id="ami-0123456789abcdef0"))
    (told,) = found_by(existing.IMAGE, gone)
    assert (told.severity, told.check) == (Severity.STOPS, "image")
    sentences.finding(told, "image", Severity.STOPS, REGION, "ami-0123456789abcdef0", "image.id")
    there = account.ec2.register_image(
        Name="lab-ubuntu-24.04", RootDeviceName="/dev/sda1", Architecture="x86_64", VirtualizationType="hvm"
    )["ImageId"]
    (told,) = found_by(existing.IMAGE, dataclasses.replace(IMAGED, image=Image(id=there)))
    sentences.finding(told, "image", Severity.FINE, there, "image.id")


@pytest.mark.usefixtures("account")
def test_only_named_images_are_asked_for() -> None:
    assert found_by(existing.IMAGE, aws_design(region=REGION)) == []
    placeholder = dataclasses.replace(IMAGED, image=Image(id="PLACEHOLDER_CUSTOM_AMI_ID"))
    assert found_by(existing.IMAGE, placeholder) == []


@pytest.mark.parametrize(
    ("change", "severity", "words"),
    [
        ({}, Severity.FINE, "is there, and fits"),
        ({"State": "pending"}, Severity.STOPS, "is pending"),
        ({"Architecture": "arm64"}, Severity.STOPS, "for arm64 processors"),
        ({"Platform": "windows", "Name": "Windows_Server-2022"}, Severity.STOPS, "of Windows"),
        ({"Name": "amzn2-ami-hvm-2.0.20240131"}, Severity.WARNS, "another distribution than Ubuntu 24.04"),
        ({"Name": "al2023-ami-2023.6"}, Severity.WARNS, "al2023 is another"),
        ({"Name": "Deep Learning Base AMI (Ubuntu 22.04)"}, Severity.WARNS, "Ubuntu 22.04 is another"),
        ({"Name": "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) 2026"}, Severity.FINE, "fits"),
        ({"BlockDeviceMappings": UBUNTU["BlockDeviceMappings"] * 2}, Severity.FINE, "fits"),
    ],
)
def test_what_ec2_says_of_an_image(change: dict[str, Any], severity: Severity, words: str) -> None:
    (told,) = existing.images(_Ec2({**UBUNTU, **change}), _sized(50))
    assert (told.severity, words in told.found) == (severity, True), told


def test_a_root_disk_that_is_too_small_names_every_machine() -> None:
    design = _sized(40)
    own = dataclasses.replace(GPU, image=IMAGE, disk_gib=45)
    (told,) = existing.images(_Ec2(UBUNTU), dataclasses.replace(design, partitions=(*design.partitions, own)))
    assert told.severity is Severity.STOPS
    sentences.finding(told, "image", Severity.STOPS, IMAGE, GPU.name, "image.id")


class _Ec2:
    def __init__(self, image: dict[str, Any]) -> None:
        self._image = image

    def describe_images(self, ImageIds: list[str]) -> dict[str, Any]:  # noqa: N803  boto3's name
        return {"Images": [{**self._image, "ImageId": ImageIds[0]}]}


def _sized(gib: int) -> ClusterDesign:
    hosts = tuple(dataclasses.replace(host, disk_gib=gib) for host in IMAGED.hosts)
    return dataclasses.replace(IMAGED, hosts=hosts, partitions=(dataclasses.replace(CPU, disk_gib=gib),))


# --- the key pair -------------------------------------------------------------------------------------------


def test_a_key_pair_has_to_be_there_and_in_the_agent(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[str] = []
    monkeypatch.setattr(own_keys, "agent_keys", lambda: held)
    (missing,) = found_by(existing.KEY, WITH_KEY)
    sentences.finding(missing, "key", Severity.STOPS, REGION, "EC2", "ec2")
    client = boto3.client("ec2", REGION, endpoint_url=account.url)
    client.import_key_pair(KeyName="mine", PublicKeyMaterial=f"{ED25519} ann@home".encode())
    (away,) = found_by(existing.KEY, WITH_KEY)
    sentences.finding(away, "key", Severity.STOPS, "EC2")
    held.append(f"{ED25519} another comment")
    (there,) = found_by(existing.KEY, WITH_KEY)
    assert there.severity is Severity.FINE
    assert found_by(existing.KEY, dataclasses.replace(WITH_KEY, access=Access("ssm"))) == [], "none is named"


# --- groups and the boundary --------------------------------------------------------------------------------


def guarded(lab: Lab, *groups: str, boundary: str | None = None) -> ClusterDesign:
    """Return a design whose machines have these groups, and whose roles have this boundary."""
    return aws_design(
        hosts=(dataclasses.replace(CONTROLLER, security_groups=groups),),
        partitions=(dataclasses.replace(CPU, aws=AwsPartition(security_groups=groups[:1])),),
        network=Network(vpc=lab.vpc),
        aws=AwsSettings(permissions_boundary=boundary),
    )


def test_a_group_of_the_clusters_vpc_is_fine_and_named_once(lab: Lab) -> None:
    (only,) = existing.platform(lab.client, guarded(lab, lab.group))
    assert only.severity is Severity.FINE
    keys = "controller.security_groups, partitions[0].aws.security_groups"
    assert only.found == f"{keys}: {lab.group} is g0 of {lab.vpc}"


def test_a_group_that_is_not_there_or_of_another_vpc_stops(lab: Lab) -> None:
    elsewhere = lab.make_group(lab.ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"])
    missing, other = existing.platform(lab.client, guarded(lab, "sg-0123456789abcdef0", elsewhere))
    assert (missing.severity, other.severity) == (Severity.STOPS, Severity.STOPS)
    assert "there is no security group sg-0123456789abcdef0 in eu-west-1" in missing.found
    assert other.found.endswith(f", not of {lab.vpc}")


def test_a_boundary_must_exist(lab: Lab) -> None:
    allows = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
    made = lab.client("iam").create_policy(PolicyName="boundary", PolicyDocument=json.dumps(allows))
    (there,) = existing.platform(lab.client, guarded(lab, boundary=made["Policy"]["Arn"]))
    assert there.severity is Severity.FINE
    (missing,) = existing.platform(lab.client, guarded(lab, boundary=f"{made['Policy']['Arn']}-2"))
    assert missing.severity is Severity.STOPS
    assert missing.found.startswith("aws.permissions_boundary: there is no policy arn:aws:iam::")


def test_doctor_asks_where_the_stack_file_names_some_and_only_there(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def clients(_place: ClusterRef, service: str, **_: Any) -> tuple[Any]:
        asked.append(service)
        return (lab.client(service),)

    monkeypatch.setattr(aws_account, "clients", clients)
    monkeypatch.setattr(aws_account, "session", lambda _settings: None)

    def check(design: ClusterDesign) -> list[Severity]:
        return [found.severity for found in found_by(existing.PLATFORM, design)]

    assert check(aws_design()) == []
    assert asked == []
    assert check(guarded(lab, lab.group)) == [Severity.FINE]
    assert asked == ["ec2"]


# --- where they are asked -----------------------------------------------------------------------------------


def test_up_names_unfit_storage_before_anything_is_made(
    lab: Lab, account: Account, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", account.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    design = aws_design(mounts=(home("efs", lab.efs(lab.group)),), trains=False)
    with sentences.raises("change.not-checked", "storage.home.existing") as refused:
        AwsProvider().check_changes(Stack(tmp_path, "t"), design, dict, print, replace=False)
    assert refused.value.exit_code == EXIT_REFUSED


def test_up_names_a_missing_group_before_anything_is_made(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", lab.account.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    design = dataclasses.replace(guarded(lab, "sg-0123456789abcdef0"), mounts=(), trains=False)
    with pytest.raises(UserError, match="nothing was changed") as refused:
        AwsProvider().check_changes(Stack(tmp_path, "t"), design, dict, print, replace=False)
    assert refused.value.exit_code == EXIT_REFUSED
    assert "there is no security group sg-0123456789abcdef0 in eu-west-1" in str(refused.value)


@pytest.mark.usefixtures("nobody")
def test_without_credentials_nobody_is_asked() -> None:
    assert found_by(existing.IMAGE, IMAGED) == []
    assert found_by(existing.KEY, WITH_KEY) == []


def test_without_credentials_or_without_existing_storage_there_is_nothing_to_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_settings: str | None) -> None:
        raise UserError("no credentials", code="aws.no-credentials")

    monkeypatch.setattr(aws_account, "session", refuse)
    with_one: ClusterDesign = aws_design(mounts=(home("efs", "fs-01234567"),))
    assert list(diagnosis.storage(with_one)) == []
    assert list(diagnosis.storage(aws_design(mounts=(LUSTRE,)))) == []
