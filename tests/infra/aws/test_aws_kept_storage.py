"""Storage on AWS that exists already, that stays after a destroy, or that a destroy saves."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from pulumi.runtime import mocks

from infra.aws.cluster import AwsCluster
from infra.aws.network import AwsNetwork, Zones, find_zones, security_rules
from infra.aws.storage import AwsDisks, AwsStorage
from node.design.model import AwsPartition, ClusterDesign
from node.design.sites import MountSource
from node.design.storage import Gp3, Mount
from tests.support import sentences
from tests.support.aws_machines import Machines
from tests.support.aws_mocks import EXISTING, LUSTRE, NFS, ZONES, Aws, aws_design, declare
from tests.support.recorder import Recorder

FILER = Mount("/home", "nfs", existing="filer.lab:/export/home", name="home")
VOLUME = dataclasses.replace(NFS[0], existing="vol-01234567", name="home", size_gib=None)
TARGETS = Mount("/home", "efs", existing="fs-01234567", security_group="sg-01234567", name="home")
BARE_EFS = dataclasses.replace(TARGETS, security_group=None)
FSX = dataclasses.replace(
    TARGETS,
    path="/fsx",
    name="scratch",
    kind="fsx_lustre",
    existing="fs-0123456789abcdef0",
    security_group="sg-09999999",
)
P2 = dataclasses.replace(
    LUSTRE, deployment="PERSISTENT_2", throughput=250, size_gib=4800, name="scratch", snapshot=True
)
IN_VPC = Zones("eu-west-1a", {"cpu": ("eu-west-1a",), "gpu": ("eu-west-1a",)}, {"eu-west-1a": "subnet-a"})


class Account(Aws):
    """AWS with a volume and two file systems that nobody of this cluster has made."""

    def __init__(self, zone: str = "eu-west-1b", *, preview: bool = False, **more: Any) -> None:
        super().__init__(preview=preview, **more)
        self._zone = zone

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        if args.resource_id:
            known = {"dnsName": f"{args.resource_id}.example", "mountName": "theirs"}
            return args.resource_id, {**known, **args.inputs}
        return super().new_resource(args)

    def call(self, args: mocks.MockCallArgs) -> Any:
        if args.token == "aws:ebs/getVolume:getVolume":
            assert args.args["filters"] == [{"name": "volume-id", "values": ["vol-01234567"]}]
            return {"availabilityZone": self._zone, "id": "vol-01234567"}
        return super().call(args)


def storage(
    design: ClusterDesign, where: Zones = ZONES, site: dict[str, MountSource] | None = None
) -> Recorder:
    def program() -> None:
        aws_storage = AwsStorage("s", design, AwsNetwork("n", design, where))
        AwsDisks("d", aws_storage, "i-1")
        if site is not None:
            aws_storage.mounts().apply(site.update)

    return declare(program, aws=Account())


def own(recorder: Recorder) -> set[str]:
    """The names of the storage's resources that the cluster makes."""
    return {name for name in recorder.types() if name.startswith(("s-", "d-"))}


EXISTING_ONES: list[tuple[Mount, set[str], MountSource]] = [
    (FILER, set(), MountSource("filer.lab:/export/home")),
    (VOLUME, {"d-home"}, MountSource(disk="vol-01234567", device="/dev/sdf")),
    (TARGETS, set(), MountSource("fs-01234567.example:/")),
    (BARE_EFS, {"s-home-a"}, MountSource("fs-01234567.example:/")),
    (FSX, set(), MountSource("fs-0123456789abcdef0.example@tcp:/theirs")),
]


@pytest.mark.parametrize(("mount", "resources", "source"), EXISTING_ONES)
def test_what_is_there_is_mounted_and_nothing_of_it_is_made(
    mount: Mount, resources: set[str], source: MountSource
) -> None:
    site: dict[str, MountSource] = {}
    made = storage(aws_design(mounts=(mount,), network=EXISTING), IN_VPC, site)
    assert own(made) == resources
    assert site == {mount.path: source}


def test_a_port_is_opened_in_the_owners_group_and_the_group_stays_the_owners() -> None:
    design = aws_design(mounts=(TARGETS, FSX), network=EXISTING)
    opened = {
        (rule.direction, rule.group, rule.peer, rule.ports)
        for rule in security_rules(design)
        if "sg-" in rule.group + rule.peer
    }
    lustre = ((988, 988), (1018, 1023))
    machines = ("controller", "compute")
    assert opened == {
        *(("in", "sg-01234567", role, (2049, 2049)) for role in machines),
        *((way, "sg-09999999", role, p) for way in ("in", "out") for role in machines for p in lustre),
        *(("in", role, "sg-09999999", p) for role in machines for p in lustre),
    }
    made = storage(design, IN_VPC)
    assert "n-storage" not in made.types(), "there is no file system of the cluster's own"
    rule = made.inputs("n-home-in-compute-2049")
    assert (rule["securityGroupId"], rule["referencedSecurityGroupId"]) == ("sg-01234567", "n-compute-id")
    callback = made.inputs("n-compute-in-scratch-988")
    assert callback["referencedSecurityGroupId"] == "sg-09999999"


def test_performance_reaches_every_disk() -> None:
    fast = Gp3(6000, 500)
    base = aws_design()
    host, (cpu, gpu) = base.hosts[0], base.partitions
    design = dataclasses.replace(
        base,
        hosts=(dataclasses.replace(host, gp3=fast),),
        partitions=(dataclasses.replace(cpu, aws=AwsPartition(gp3=fast)), gpu),
        mounts=(dataclasses.replace(NFS[0], gp3=fast), NFS[1]),
    )
    made = declare(lambda: AwsCluster("x", design), aws=Machines())
    disks = [
        made.inputs("x-head-controller")["rootBlockDevice"],
        made.inputs("x-launch-templates-cpu")["blockDeviceMappings"][0]["ebs"],
        made.inputs("x-storage-home"),
    ]
    assert [(disk["iops"], disk["throughput"]) for disk in disks] == [(6000, 500)] * 3
    assert "iops" not in made.inputs("x-storage-apps")


# --- the head is where its disk is --------------------------------------------------------------------------


def found(aws: Account, **changes: Any) -> Zones:
    seen: list[Zones] = []
    declare(lambda: seen.append(find_zones(aws_design(mounts=(VOLUME, NFS[1]), **changes))), aws=aws)
    return seen[0]


def test_the_head_is_in_the_zone_of_its_existing_volume() -> None:
    assert found(Account("eu-west-1c")).head == "eu-west-1c"


@pytest.mark.parametrize(
    ("aws", "changes", "named"),
    [
        (Account("eu-west-1c", kept=["subnet-p"]), {}, "controller in eu-west-1a"),
        (Account("eu-west-1c"), {"network": EXISTING}, "network.aws"),
    ],
)
def test_a_volume_of_another_zone_than_the_heads_is_one_message(
    aws: Account, changes: dict[str, Any], named: str
) -> None:
    with sentences.raises("volume.other-zone", "storage.home.existing", "vol-01234567", "eu-west-1c", named):
        found(aws, **changes)


# --- what a destroy leaves ----------------------------------------------------------------------------------


def test_a_destroy_leaves_what_is_kept_and_only_that() -> None:
    mounts = (dataclasses.replace(NFS[0], keep=True, name="home"), NFS[1], dataclasses.replace(P2, keep=True))
    made = storage(aws_design(mounts=mounts, network=EXISTING), IN_VPC)
    retained = {name for name, asked in made.asked.items() if asked.retainOnDelete}
    # FSx keeps its group busy, and the group's own rules let its servers talk to each other.
    inner = {f"n-storage-{way}-storage-{port}" for way in ("in", "out") for port in (988, 1018)}
    assert retained == {"s-home", "s-fsx", "n-storage", *inner}
    assert made.inputs("s-home")["tags"]["slurm-stacks:keep"] == "home"
    assert "slurm-stacks:keep" not in made.inputs("s-apps")["tags"]


def test_a_destroy_saves_what_is_to_be_saved() -> None:
    mounts = (dataclasses.replace(NFS[0], snapshot=True, name="home"), NFS[1], P2)
    made = storage(aws_design(mounts=mounts))
    assert made.inputs("s-home")["finalSnapshot"] is True
    assert "finalSnapshot" not in made.inputs("s-apps")
    lustre = made.inputs("s-fsx")
    assert lustre["skipFinalBackup"] is False
    assert lustre["finalBackupTags"] == lustre["tags"]
    assert lustre["tags"]["slurm-stacks:snapshot"] == "scratch"
    assert not any(asked.retainOnDelete for asked in made.asked.values())


def test_what_was_saved_is_where_a_new_one_begins_and_only_a_new_one() -> None:
    home = dataclasses.replace(NFS[0], restore="snap-01234567")
    made = storage(aws_design(mounts=(home, dataclasses.replace(P2, restore="backup-01234567"))))
    assert made.inputs("s-home")["snapshotId"] == "snap-01234567"
    assert made.inputs("s-fsx")["backupId"] == "backup-01234567"
    assert list(made.asked["s-home"].ignoreChanges) == ["snapshotId"]
    assert "backupId" in made.asked["s-fsx"].ignoreChanges
