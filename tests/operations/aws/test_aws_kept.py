"""What `down` says of storage that stays on AWS: its cost, and lines by which a later `up` has it again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
import yaml
from botocore.exceptions import ClientError

from infra.aws.tags import CLUSTER, KEPT, SAVED
from infra.config import parse
from infra.design import design
from infra.instance_types.catalog import catalog
from node.design.storage import Mount
from operations.aws import images, kept, leftovers, machines
from operations.clouds.kept import KeptStorage, kept_report
from tests.support.aws_account import REGION, Account, account, moto
from tests.support.stack_values import values

__all__ = ["account", "moto"]

VPC = {"vpc": "vpc-12345678", "public_subnet": "subnet-12345678", "private_subnets": ["subnet-12345679"]}


def tags(cluster: str = "c", **more: str) -> list[dict[str, str]]:
    return [{"Key": CLUSTER, "Value": cluster}, *({"Key": key, "Value": one} for key, one in more.items())]


def staying(name: str, cluster: str = "c") -> list[dict[str, str]]:
    return [*tags(cluster), {"Key": KEPT, "Value": name}]


def saving(name: str, cluster: str = "c") -> list[dict[str, str]]:
    return [*tags(cluster), {"Key": SAVED, "Value": name}]


class Fsx:
    """moto's FSx. moto leaves out a backup's file system, which botocore's model of FSx requires."""

    def __init__(self, client: Any) -> None:
        self._client = client
        assert "FileSystem" in client.meta.service_model.shape_for("Backup").required_members

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def get_paginator(self, name: str) -> Any:
        return self._client.get_paginator(name) if name != "describe_backups" else self

    def paginate(self) -> Iterator[dict[str, Any]]:
        (system, *_) = self._client.describe_file_systems()["FileSystems"] or [{}]
        for page in self._client.get_paginator("describe_backups").paginate():
            yield {"Backups": [{**backup, "FileSystem": system} for backup in page["Backups"]]}


class Left:
    """An account after a `down`: file systems and disks of the cluster `c` that stay, and of others."""

    def __init__(self, account: Account) -> None:
        self.account = account

    def client(self, service: str) -> Any:
        keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
        made = boto3.client(service, REGION, endpoint_url=self.account.url, **keys)
        return Fsx(made) if service == "fsx" else made

    def volume(self, *marks: dict[str, str]) -> str:
        where = {"AvailabilityZone": f"{REGION}a", "Size": 50, "Encrypted": True}
        said = [{"ResourceType": "volume", "Tags": list(marks)}]
        return str(self.account.ec2.create_volume(**where, TagSpecifications=said)["VolumeId"])

    def snapshot(self, *marks: dict[str, str]) -> str:
        """As the provider makes it: with the tags of the volume."""
        said = [{"ResourceType": "snapshot", "Tags": list(marks)}]
        made = self.account.ec2.create_snapshot(VolumeId=self.volume(*tags("none")), TagSpecifications=said)
        return str(made["SnapshotId"])

    def lustre(self, *marks: dict[str, str]) -> str:
        made = self.client("fsx").create_file_system(
            FileSystemType="LUSTRE", StorageCapacity=1200, StorageType="SSD", SubnetIds=[self.account.subnet],
            LustreConfiguration={"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 125},
            Tags=list(marks),
        )  # fmt: skip
        return str(made["FileSystem"]["FileSystemId"])

    def backup(self, *marks: dict[str, str]) -> str:
        made = self.client("fsx").create_backup(FileSystemId=self.lustre(*tags("none")), Tags=list(marks))
        return str(made["Backup"]["BackupId"])

    def efs(self, *marks: dict[str, str]) -> str:
        return str(
            self.client("efs").create_file_system(CreationToken=str(marks), Tags=list(marks))["FileSystemId"]
        )

    def found(self) -> dict[str, KeptStorage]:
        return {one.what.split()[-1]: one for one in kept.kept(self.client, "c")}


@pytest.fixture
def left(account: Account) -> Left:
    return Left(account)


def taken_back(found: KeptStorage) -> Mount:
    """The mount of a stack file with the lines that `down` prints."""
    lines = kept_report([found], "Pulumi.t.yaml", {})
    said = yaml.safe_load("\n".join(lines[lines.index("    storage:") :]))
    network = {"network": {"aws": VPC}} if "security_group" in found.keys else {}
    cluster_design = design(parse(values("aws", {**said, **network}), "t"), catalog())
    (mount,) = (one for one in cluster_design.mounts if one.name == found.name)
    return mount


def test_what_stays_is_named_with_its_cost_and_taken_back_by_its_lines(left: Left) -> None:
    disk, efs = left.volume(*staying("home")), left.efs(*staying("apps"))
    lustre = left.lustre(*staying("scratch"))
    left.volume(*staying("home", cluster="another"))
    left.volume(*tags())
    found = left.found()
    assert set(found) == {disk, efs, lustre}
    month = 50 * 0.08
    assert found[disk].line() == (
        f"EBS volume {disk} (home, 50 GiB): {month / 730:.4f} USD an hour, {month:.2f} USD a month"
    )
    assert "174.00 USD a month" in found[lustre].line()
    for identity in (disk, efs):
        assert taken_back(found[identity]).existing == identity


def test_what_was_saved_is_restored_by_its_lines(left: Left) -> None:
    snapshot, backup = left.snapshot(*saving("home")), left.backup(*saving("scratch"))
    left.snapshot(*tags())
    left.volume(*saving("home"))
    found = left.found()
    assert set(found) == {snapshot, backup}, "a disk that is to be saved is not one that stays"
    assert found[snapshot].line().endswith("price unknown")
    for identity in (snapshot, backup):
        mount = taken_back(found[identity])
        assert (mount.restore, mount.snapshot) == (identity, True)


def test_what_stays_is_no_leftover_and_is_never_removed(left: Left) -> None:
    ec2 = left.account.ec2
    kept_disk, loose = left.volume(*staying("home")), left.volume(*tags())
    saved, image = left.snapshot(*saving("home")), left.snapshot(*tags())
    left.lustre(*staying("scratch"))
    left.efs(*staying("apps"))
    assert machines.leftovers(ec2, "c") == [f"volume {loose} (50 GiB, available)"]
    assert leftovers.leftovers(left.client, "c", lambda _line: None) == []
    assert images.leftovers(ec2, "c") == [f"snapshot {image} (50 GiB)"]
    images.remove_unused(ec2, lambda: None, "c", lambda _line: None)
    machines.remove_loose(ec2, "c")
    assert set(left.found()) >= {kept_disk, saved}


def test_what_the_user_may_not_list_hides_nothing_else(left: Left) -> None:
    disk = left.volume(*staying("home"))

    class Denied:
        def get_paginator(self, name: str) -> Any:
            raise ClientError({"Error": {"Code": "AccessDeniedException"}}, name)

    found = kept.kept(lambda name: left.client(name) if name == "ec2" else Denied(), "c")
    assert [one.keys["existing"] for one in found] == [disk]


def test_the_newest_is_taken_back_and_all_are_paid_for() -> None:
    old, new = (
        KeptStorage("home", f"EBS snapshot snap-{made}", 50, made, {"kind": "nfs", "restore": f"snap-{made}"})
        for made in ("2026-01-01", "2026-02-01")
    )
    lines = kept_report([new, old], "Pulumi.t.yaml", {"home": "/users"})
    assert lines == [
        "kept, and paid for until you delete it:",
        "  EBS snapshot snap-2026-01-01 (home, 50 GiB): price unknown",
        "  EBS snapshot snap-2026-02-01 (home, 50 GiB): price unknown",
        "with these lines below slurm-stacks:cluster in Pulumi.t.yaml a later `up` has the files again:",
        "    storage:",
        "      home: {kind: nfs, restore: snap-2026-02-01, path: /users}",
    ]
    assert kept_report([], "Pulumi.t.yaml", {}) == []
