"""Existing storage is looked up before anything is made: against moto's EC2, EFS and FSx over HTTP."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

from cli.aws import diagnosis, storage
from cli.aws.provider import AwsProvider
from cli.doctor.finding import Finding, Severity, fine
from infra.aws.tags import CLUSTER
from infra.errors import EXIT_REFUSED, UserError
from infra.program.stack import Stack
from node.model import Backup, ClusterDesign, Mount, Network
from operations.aws import account as aws_account
from tests.support import sentences
from tests.support.aws_account import REGION, Account, account, moto
from tests.support.aws_mocks import LUSTRE, NFS, aws_design

__all__ = ["account", "moto"]

KEYS = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
OURS = {"Key": CLUSTER, "Value": "c"}


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
        return list(storage.findings(self.client, design))


@pytest.fixture
def lab(account: Account) -> Lab:
    return Lab(account)


def home(kind: str, existing: str, group: str | None = None) -> Mount:
    by = "controller" if existing.startswith("vol-") else None
    return Mount("/home", kind, served_by=by, existing=existing, security_group=group, name="home")


# --- disks --------------------------------------------------------------------------------------------------


def test_a_free_volume_is_described(lab: Lab) -> None:
    made = lab.volume()
    said = f"storage.home.existing: {made} has 70 GiB in {lab.zone}, and /home is on it"
    assert lab.found(home("nfs", made)) == [fine("storage", said)]


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
        return {**found, "FileSystems": [{**one, **self._more} for one in found["FileSystems"]]}


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
    (only,) = storage.findings(lambda name: fsx if name == "fsx" else lab.client(name), design)
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
    (only,) = storage.findings(lab.client, design)
    sentences.finding(only, "storage", severity, "controller.backup.bucket", name)


# --- where they are asked -----------------------------------------------------------------------------------


def test_up_says_it_before_anything_is_made(
    lab: Lab, account: Account, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", account.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    design = aws_design(mounts=(home("efs", lab.efs(lab.group)),), trains=False)
    with sentences.raises("change.not-checked", "storage.home.existing") as refused:
        AwsProvider().check_changes(Stack(tmp_path, "t"), design, dict, print, replace=False)
    assert refused.value.exit_code == EXIT_REFUSED


def test_without_credentials_or_without_existing_storage_there_is_nothing_to_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> None:
        raise UserError("no credentials", code="aws.no-credentials")

    monkeypatch.setattr(aws_account, "session", refuse)
    with_one: ClusterDesign = aws_design(mounts=(home("efs", "fs-01234567"),))
    assert list(diagnosis.storage(with_one)) == []
    assert list(diagnosis.storage(aws_design(mounts=(LUSTRE,)))) == []
