"""Storage that exists already, that stays, or that is saved: what a stack file may say, and its design."""

from __future__ import annotations

import re
from typing import Any

import botocore.session
import pytest

from infra.config import parse
from infra.config.storage import Gp3Config
from infra.cost import cost
from infra.design import design
from infra.instance_types.catalog import catalog
from node.design.model import Backup
from node.design.storage import Gp3, Mount
from tests.support.stack_parts import UNMAINTAINED, Refused, check_refusal, check_sentences, each_refusal
from tests.support.stack_values import mistakes, values

VPC = {"vpc": "vpc-12345678", "public_subnet": "subnet-12345678", "private_subnets": ["subnet-12345679"]}
IN_VPC: dict[str, Any] = {"network": {"aws": VPC}}
GROUP = {"security_group": "sg-12345678"}
FSX: dict[str, Any] = {"kind": "fsx_lustre", "existing": "fs-0123456789abcdef0"}
EFS: dict[str, Any] = {"kind": "efs", "existing": "fs-01234567"}
EXPORT = {"kind": "nfs", "existing": "filer.lab.example:/export/home"}
P2: dict[str, Any] = {"kind": "fsx_lustre", "size_gib": 1200, "deployment": "PERSISTENT_2", "throughput": 125}
STORE: dict[str, Any] = {"kind": "filestore", "existing": "lab-store"}

# stack, changes, path and code of the one mistake
REFUSED: list[Refused] = [
    # backups
    ("local", {"controller.backup.bucket": "/srv/backups"}, "controller.backup", "backup.processes"),
    (
        "local",
        {"local": {"isolation": "container"}, "controller.backup.bucket": "s3://lab-backups"},
        "controller.backup.bucket",
        "backup.scheme",
    ),
    ("aws", {"controller.backup.bucket": "gs://lab-backups"}, "controller.backup.bucket", "backup.scheme"),
    ("gcp", {"controller.backup.bucket": "/srv/backups"}, "controller.backup.bucket", "backup.scheme"),
    ("gcp", {"controller.backup.bucket": "gs://google-lab"}, "controller.backup.bucket", "bucket.name"),
    ("aws", {"controller.backup.bucket": "lab-backups"}, "controller.backup.bucket", "value.form"),
    (
        "aws",
        {"controller.backup": {"bucket": "s3://lab-backups", "every_hours": 0}},
        "controller.backup.every_hours",
        "value.range",
    ),
    (
        "aws",
        {
            "controller.backup.bucket": "s3://lab/slurm/backups",
            "storage.buckets": [{"bucket": "s3://lab/slurm", "path": "/data"}],
        },
        "controller.backup.bucket",
        "backup.open-to-users",
    ),
    (
        "gcp",
        {
            "controller.backup.bucket": "gs://lab/backups",
            "storage.buckets": [{"bucket": "gs://lab/train", "path": "/data"}],
        },
        "controller.backup.bucket",
        "backup.open-to-users",
    ),
    (
        "aws",
        {
            "controller.backup.bucket": "s3://lab",
            "storage.scratch": {"kind": "fsx_lustre", "size_gib": 1200, "s3_import": "s3://lab/train"},
        },
        "controller.backup.bucket",
        "backup.open-to-users",
    ),
    ("aws", {"storage.home": {"existing": "fs-01234567"}}, "storage.home.existing", "existing.form"),
    ("aws", {"storage.home": {**EFS, "existing": "vol-01234567"}}, "storage.home.existing", "existing.form"),
    ("gcp", {"storage.home": {"existing": "vol-01234567/x"}}, "storage.home.existing", "existing.form"),
    ("aws", {"storage.home": {**EXPORT, "size_gib": 9}}, "storage.home.size_gib", "existing.other-keys"),
    ("aws", {"storage.home": {**EXPORT, "keep": True}}, "storage.home.keep", "existing.other-keys"),
    ("aws", {"storage.home": {**EXPORT, **GROUP}}, "storage.home.security_group", "security-group.kind"),
    ("aws", {"storage.home": {**EFS, **GROUP}}, "storage.home.security_group", "security-group.network"),
    (
        "aws",
        {"storage.home": {"kind": "efs", **GROUP}},
        "storage.home.security_group",
        "security-group.needs-existing",
    ),
    ("aws", {"storage.scratch": FSX, **IN_VPC}, "storage.scratch.security_group", "security-group.missing"),
    (
        "aws",
        {"storage.scratch": {**FSX, **GROUP}},
        "storage.scratch.security_group",
        "security-group.network",
    ),
    (
        "aws",
        {"storage.home": EFS, "storage.scratch": {**EFS, "path": "/data"}},
        "storage.scratch.existing",
        "existing.twice",
    ),
    ("gcp", {"storage.home": STORE}, "storage.home.existing", "existing.filestore-network"),
    ("aws", {"storage.scratch": {**P2, "keep": True}}, "storage.scratch.keep", "keep.needs-network"),
    (
        "gcp",
        {"storage.home": {"kind": "filestore", "size_gib": 1024, "keep": True}},
        "storage.home.keep",
        "keep.needs-network",
    ),
    (
        "aws",
        {"storage.home": {"keep": True, "snapshot": True}},
        "storage.home.snapshot",
        "snapshot.with-keep",
    ),
    ("aws", {"storage.home": {"kind": "efs", "snapshot": True}}, "storage.home.snapshot", "snapshot.kind"),
    (
        "gcp",
        {"storage.home": {"kind": "filestore", "size_gib": 1024, "snapshot": True}},
        "storage.home.snapshot",
        "snapshot.kind",
    ),
    ("aws", {"storage.scratch.snapshot": True}, "storage.scratch.snapshot", "backup.not-persistent"),
    (
        "aws",
        {"storage.scratch": {**P2, "snapshot": True, "s3_import": "s3://data"}},
        "storage.scratch.snapshot",
        "backup.linked",
    ),
    ("aws", {"storage.home": {"restore": "vol-01234567"}}, "storage.home.restore", "restore.form"),
    ("aws", {"storage.home": {"kind": "efs", "restore": "x"}}, "storage.home.restore", "restore.kind"),
    (
        "aws",
        {"storage.scratch": {**P2, "restore": "snap-01234567"}},
        "storage.scratch.restore",
        "restore.form",
    ),
    ("gcp", {"storage.home": {"gp3": {"iops": 4000}}}, "storage.home.gp3", "gp3.not-aws"),
    ("aws", {"storage.home": {"kind": "efs", "gp3": {}}}, "storage.home.gp3", "storage.other-kind"),
    ("aws", {"controller": {"gp3": {"iops": 2000}}}, "controller.gp3.iops", "value.range"),
    (
        "aws",
        {"controller": {"disk_gib": 10, "gp3": {"iops": 6000}}},
        "controller.gp3.iops",
        "gp3.iops",
    ),
    (
        "aws",
        {"partitions[0].aws": {"gp3": {"throughput_mibs": 1000}}},
        "partitions[0].aws.gp3.throughput_mibs",
        "gp3.throughput",
    ),
    (
        "aws",
        {"storage.buckets": [{"bucket": "gs://d-1", "path": "/d"}]},
        "storage.buckets[0].bucket",
        "bucket.scheme",
    ),
    (
        "gcp",
        {"storage.buckets": [{"bucket": "s3://d-1", "path": "/d"}]},
        "storage.buckets[0].bucket",
        "bucket.scheme",
    ),
    (
        "gcp",
        {"storage.buckets": [{"bucket": "gs://goog-1", "path": "/d"}]},
        "storage.buckets[0].bucket",
        "bucket.name",
    ),
    (
        "aws",
        {"storage.buckets": [{"bucket": "d-1", "path": "/d"}]},
        "storage.buckets[0].bucket",
        "value.form",
    ),
    (
        "aws",
        {"storage.buckets": [{"bucket": "s3://d-1", "path": "/home/d"}]},
        "storage.buckets[0].path",
        "mount.inside-other",
    ),
    (
        "aws",
        {"storage.home.path": "/data/home", "storage.buckets": [{"bucket": "s3://d-1", "path": "/data"}]},
        "storage.buckets[0].path",
        "mount.inside-other",
    ),
    (
        "aws",
        {"storage.buckets": [{"bucket": "s3://d-1", "path": "/usr"}]},
        "storage.buckets[0].path",
        "mount.system-path",
    ),
    (
        "local",
        {"storage.buckets": [{"bucket": "s3://d-1", "path": "/d"}]},
        "storage.buckets",
        "storage.local",
    ),
    # The disk with Slurm's state.
    ("local", {"controller.state": "kept"}, "controller.state", "state.processes"),
    ("local", {"storage.state": {}}, "storage.state", "storage.local"),
    ("aws", {"storage.state": {"size_gib": 40}}, "storage.state", "state.not-kept"),
    (
        "aws",
        {"controller.state": "machine", "storage.state": {"keep": True}},
        "storage.state",
        "state.not-kept",
    ),
    (
        "gcp",
        {"controller.state": "kept", "storage.state.existing": "filer.lab.example:/export/state"},
        "storage.state.existing",
        "state.export",
    ),
    (
        "gcp",
        {"controller.state": "kept", "storage.state.size_gib": 5},
        "storage.state.size_gib",
        "storage.disk-too-small",
    ),
    (
        "aws",
        {"controller.state": "kept", "storage.state": {"keep": True, "snapshot": True}},
        "storage.state.snapshot",
        "snapshot.with-keep",
    ),
    (
        "gcp",
        {"controller.state": "kept", "storage.state.gp3": {"iops": 4000}},
        "storage.state.gp3",
        "gp3.not-aws",
    ),
    ("aws", {"controller.state": "kept", "storage.home.path": "/state"}, "storage.home.path", "mount.twice"),
    (
        "aws",
        {"controller.state": "kept", "storage.buckets": [{"bucket": "s3://d-1", "path": "/state/d"}]},
        "storage.buckets[0].path",
        "mount.inside-other",
    ),
    # Scripts that run as root.
    *(
        (
            "aws",
            {
                "hooks": [{"role": "all", "source": source}],
                "storage.buckets": [{"bucket": "s3://r-1/out", "path": "/r", "read_only": False}],
            },
            "hooks[0].source",
            "hook.writable-by-users",
        )
        for source in (
            "s3://r-1/out/hook.sh",
            "https://r-1.s3.eu-central-1.amazonaws.com/out/hook.sh",
            "https://s3.eu-central-1.amazonaws.com/r-1/out/hook.sh",
            "https://r-1.s3.amazonaws.com/o%75t/hook.sh",
            "https://s3-eu-west-1.amazonaws.com/r-1/out/h.sh",
        )
    ),
    (
        "aws",
        {
            "hooks": [{"role": "all", "source": "s3://data/out/a.sh"}],
            "storage.scratch": {"kind": "fsx_lustre", "size_gib": 1200, "s3_export": "s3://data/out"},
        },
        "hooks[0].source",
        "hook.writable-by-users",
    ),
    *(
        (
            "gcp",
            {
                "hooks": [{"role": "compute", "source": source}],
                "storage.buckets": [{"bucket": "gs://r-1/out", "path": "/r", "read_only": False}],
            },
            "hooks[0].source",
            "hook.writable-by-users",
        )
        for source in (
            "gs://r-1/hooks/a.sh",
            "https://storage.googleapis.com/r-1/out/a.sh",
            "https://r-1.storage.googleapis.com/a.sh",
        )
    ),
]


@each_refusal(REFUSED)
def test_what_cannot_be_is_one_mistake(stack: str, changes: dict[str, Any], path: str, code: str) -> None:
    check_refusal(stack, changes, path, code)


def test_the_sentences(pytestconfig: pytest.Config) -> None:
    check_sentences(pytestconfig, __file__, REFUSED)


@pytest.mark.parametrize(
    ("stack", "mount", "source"),
    [
        ("aws", {"bucket": "s3://r-1/out"}, "s3://r-1/out/a.sh"),  # read only, as by default
        ("aws", {"bucket": "s3://r-1/out", "read_only": False}, "s3://r-1/hooks/a.sh"),
        ("aws", {"bucket": "s3://r-1/out", "read_only": False}, "s3://r-1/outside/a.sh"),
        ("aws", {"bucket": "s3://r-1", "read_only": False}, "s3://r-2/a.sh"),
        ("aws", {"bucket": "s3://r-1", "read_only": False}, "https://example.com/r-1/a.sh"),
        ("gcp", {"bucket": "gs://r-1/out", "read_only": False}, "gs://r-2/out/a.sh"),
    ],
)
def test_a_hook_that_users_cannot_replace_is_taken(stack: str, mount: dict[str, Any], source: str) -> None:
    changes = {"hooks": [{"role": "all", "source": source}], "storage.buckets": [{**mount, "path": "/r"}]}
    assert mistakes(values(stack, changes)) == []


def words_of(documentation: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", documentation)).replace(" :", ":")


def mounted(stack: str, changes: dict[str, Any]) -> dict[str, Mount]:
    cluster_design = design(parse(values(stack, changes), "t"), catalog())
    return {mount.name: mount for mount in cluster_design.mounts}


def test_a_disk_is_exported_by_the_controller_and_an_export_is_not() -> None:
    found = mounted("aws", {"storage.home": {"existing": "vol-01234567"}, "storage.apps": EXPORT})
    assert (found["home"].served_by, found["home"].size_gib) == ("controller", None)
    assert (found["apps"].served_by, found["apps"].existing) == (None, EXPORT["existing"])
    assert "nfsvers" not in found["apps"].options, "a server of somebody's may speak any version"


def test_the_state_is_kept_where_there_is_accounting_or_where_it_is_asked_for() -> None:
    options = "noatime,errors=remount-ro"
    disk = Mount("/state", "disk", ("controller",), "controller", options, 20, name="state")
    assert mounted("aws", {"slurm.accounting": True, **UNMAINTAINED})["state"] == disk
    assert mounted("gcp", {"controller.state": "kept"})["state"] == disk
    assert "state" not in mounted("aws", {})
    assert "state" not in mounted(
        "aws", {"slurm.accounting": True, "controller.state": "machine", **UNMAINTAINED}
    )
    # Files of process machines are this machine's, and those of a container machine are a disk image's.
    assert "state" not in mounted("local", {"slurm.accounting": True})
    boots = {"slurm.accounting": True, "local": {"isolation": "container"}}
    assert mounted("local", boots)["state"].size_gib == 2
    again = mounted("aws", {"controller.state": "kept", "storage.state.existing": "vol-01234567"})["state"]
    assert (again.existing, again.size_gib) == ("vol-01234567", None)


def test_a_bucket_is_where_users_are() -> None:
    said = {"storage.buckets": [{"bucket": "s3://data/train/", "path": "/data", "read_only": False}]}
    mount = mounted("aws", said)["buckets[0]"]
    assert (mount.kind, mount.roles, mount.bucket()) == ("s3", ("controller", "compute"), ("data", "train/"))
    assert mount.writable
    behind = mounted("aws", {**said, "login": {"count": 1}})["buckets[0]"]
    assert behind.roles == ("login", "compute"), "the controller has nobody's jobs"


def test_what_is_there_already_costs_this_cluster_nothing() -> None:
    changes = {"storage.home": {"existing": "vol-01234567"}, "storage.scratch": {**FSX, **GROUP}, **IN_VPC}
    parts = cost(design(parse(values("aws", changes), "t"), catalog()))["parts"]
    assert {part["name"]: part["max"] for part in parts if part["name"] in ("/home", "/fsx")} == {
        "/home": 0.0, "/fsx": 0.0,
    }  # fmt: skip


def test_a_plan_names_what_down_keeps_and_saves() -> None:
    changes = {"storage.home": {"keep": True}, "storage.apps": {"snapshot": True}}
    parts = cost(design(parse(values("aws", changes), "t"), catalog()))["parts"]
    said = {part["name"]: part["what"] for part in parts}
    assert (said["/home"], said["/apps"]) == ("nfs 50 GiB kept by down", "nfs 50 GiB saved by down")


def test_performance_beyond_every_volumes_has_an_unknown_price() -> None:
    fast = {"iops": 6000, "throughput_mibs": 500}
    changes = {"controller": {"gp3": {}}, "storage.apps": {"gp3": fast}, "partitions[0].aws": {"gp3": fast}}
    cluster_design = design(parse(values("aws", changes), "t"), catalog())
    assert {mount.name: mount.gp3 for mount in cluster_design.mounts}["apps"] == Gp3(6000, 500)
    more = "gp3, 3000 IOPS and 375 MiB/s more than every volume has"
    assert cost(cluster_design)["unknown"] == [
        f"disks of {cluster_design.partitions[0].name} ({more})",
        f"disk of /apps ({more})",
    ]


def test_the_limits_of_gp3_are_ec2s() -> None:
    request = botocore.session.get_session().get_service_model("ec2").shape_for("CreateVolumeRequest")
    text = {key: words_of(member.documentation) for key, member in request.members.items()}
    assert "gp3: 3,000 ( default ) - 80,000 IOPS" in text["Iops"]
    assert "Valid Range: 125 - 2000 MiB/s" in text["Throughput"]
    keys = Gp3Config.model_json_schema()["properties"]
    assert [(keys[key]["anyOf"][0]["minimum"], keys[key]["anyOf"][0]["maximum"]) for key in keys] == [
        (3000, 80000), (125, 2000),
    ]  # fmt: skip


def test_backups_are_of_the_file_systems_that_fsx_backs_up() -> None:
    made = botocore.session.get_session().get_service_model("fsx").operation_model("CreateBackup")
    text = words_of(made.documentation)
    assert "A Persistent deployment type Are not linked to a data repository" in text
    assert mistakes(values("aws", {"storage.scratch": {**P2, "snapshot": True}})) == []


def test_a_schedule_of_backups_is_part_of_the_design() -> None:
    changes = {
        "controller.backup": {"bucket": "s3://lab/backups/", "every_hours": 6, "keep": 3},
        "storage.buckets": [{"bucket": "s3://lab/train", "path": "/data"}],
    }
    assert mistakes(values("aws", changes)) == []
    made = design(parse(values("aws", changes), "test"), catalog()).backup
    assert made == Backup("s3://lab/backups/", 6, 3)
    assert made.place() == ("s3://lab", "backups/")
    assert Backup("gs://lab").place() == ("gs://lab", "")
    assert Backup("/srv/backups").place() == ("/srv/backups", "")
