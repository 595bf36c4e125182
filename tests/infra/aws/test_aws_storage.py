"""Shared directories on AWS: disks of the controller, EFS, FSx for Lustre, and its folders in S3."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import botocore.session
import pulumi
import pytest

from infra import bundle
from infra.aws.network import AwsNetwork, Zones
from infra.aws.storage import (
    EVENTS,
    LUSTRE_VERSION,
    AwsBucket,
    AwsDisks,
    AwsStorage,
    Repository,
    devices,
    repositories,
)
from infra.clouds.publishing import Bundle
from infra.config.rules.storage import THROUGHPUT
from infra.program import mode
from node.design.model import AwsSettings, ClusterDesign, Settings, Site
from node.design.published import parse_settings
from node.design.sites import AwsSite, MountSource
from node.design.storage import Mount
from tests.support.aws_mocks import EFS, EXISTING, LUSTRE, NFS, ZONES, aws_design, declare
from tests.support.iam import allowed
from tests.support.recorder import Recorder, counts, unknown

VOLUME, TARGET = "aws:ebs/volume:Volume", "aws:efs/mountTarget:MountTarget"
SYSTEM, FSX = "aws:efs/fileSystem:FileSystem", "aws:fsx/lustreFileSystem:LustreFileSystem"
LINK, ATTACHED = (
    "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation",
    "aws:ec2/volumeAttachment:VolumeAttachment",
)
S3_IN = dataclasses.replace(LUSTRE, s3_import="s3://data/train")
P2 = dataclasses.replace(LUSTRE, deployment="PERSISTENT_2", throughput=250, size_gib=4800)
P1_HDD = dataclasses.replace(
    LUSTRE, deployment="PERSISTENT_1", storage_type="HDD", throughput=12, size_gib=6000
)
VARIANTS: dict[str, tuple[tuple[Mount, ...], dict[str, int]]] = {
    "nfs": (NFS, {VOLUME: 2}),
    "efs": ((EFS, NFS[1]), {VOLUME: 1, SYSTEM: 1, TARGET: 2}),
    "two-efs": ((EFS, Mount("/apps", "efs")), {SYSTEM: 2, TARGET: 4}),
    "fsx": ((*NFS, LUSTRE), {VOLUME: 2, FSX: 1}),
    "fsx-s3": ((S3_IN,), {FSX: 1, LINK: 1}),
    "fsx-p2": ((P2,), {FSX: 1}),
    "nvme": ((*NFS, Mount("/local_scratch", "nvme", roles=("compute",))), {VOLUME: 2}),
    "none": ((), {}),
}

_made: dict[str, Recorder] = {}


def storage(
    design: ClusterDesign,
    *,
    zones: Zones = ZONES,
    preview: bool = False,
    site: dict[str, MountSource] | None = None,
    disks: bool = False,
) -> Recorder:
    """The resources, declared once for all tests that only read them.

    Args:
        site: A list that receives what is known of the mounts when the program runs.
    """
    key = f"{preview} {disks} {zones} {design}"
    if site is None and key in _made:
        return _made[key]

    def program() -> Any:
        aws_storage = AwsStorage("s", design, AwsNetwork("n", design, zones))
        if disks:
            AwsDisks("d", aws_storage, "i-1")
        if site is not None:
            aws_storage.mounts().apply(site.update)

    _made[key] = declare(program, preview=preview)
    return _made[key]


def own(recorder: Recorder) -> dict[str, int]:
    """The resources without those of the network."""
    found = {n: k for n, k in recorder.types().items() if n == "s" or n.startswith("s-")}
    return {kind: list(found.values()).count(kind) for kind in found.values()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_storage_is_exactly_these_resources(variant: str) -> None:
    mounts, wanted = VARIANTS[variant]
    made = storage(aws_design(mounts=mounts))
    assert own(made) == {"slurm-stacks:index:AwsStorage": 1, **wanted}
    parents = made.parents()
    assert {parents[name] for name in made.types() if name.startswith("s-")} <= {"s"}
    assert made.closed.count("s") == 1


def test_disks_have_the_customers_key() -> None:
    key = "arn:aws:kms:eu-west-1:123456789012:key/12345678-1234-1234-1234-123456789012"
    made = storage(aws_design(aws=AwsSettings(kms_key=key)))
    disks = [made.inputs(name) for name, kind in made.types().items() if kind == VOLUME]
    assert [disk["kmsKeyId"] for disk in disks] == [key, key]


@pytest.mark.parametrize("variant", VARIANTS)
def test_everything_is_encrypted_and_tagged(variant: str) -> None:
    made = storage(aws_design(mounts=VARIANTS[variant][0]))
    for name, kind in made.types().items():
        if kind in (VOLUME, SYSTEM):
            assert made.inputs(name)["encrypted"] is True
        if kind in (VOLUME, SYSTEM, FSX, LINK):
            assert made.inputs(name)["tags"]["slurm-stacks:cluster"] == "c"


# --- disks ------------------------------------------------------------------------------------------------


def test_disks_are_where_the_controller_is() -> None:
    made = storage(aws_design())
    volumes = {name: made.inputs(name) for name, kind in made.types().items() if kind == VOLUME}
    found = {n: (v["availabilityZone"], v["size"], v["type"]) for n, v in volumes.items()}
    assert found == {"s-home": ("eu-west-1b", 50, "gp3"), "s-apps": ("eu-west-1b", 60, "gp3")}


@pytest.mark.parametrize("preview", [False, True])
def test_disks_are_attached_by_a_part_of_their_own(preview: bool) -> None:
    made = storage(aws_design(), disks=True, preview=preview)
    assert counts(made)[ATTACHED] == 2
    home = made.inputs("d-home")
    assert (home["instanceId"], home["deviceName"]) == ("i-1", "/dev/sdf")
    assert home["stopInstanceBeforeDetaching"] is True, "a mounted disk cannot be detached"
    assert unknown(made, "d-home") == ({"volumeId"} if preview else set())
    assert made.closed.count("d") == 1


def test_a_disks_letter_does_not_depend_on_the_others() -> None:
    both = devices(aws_design())
    apps = devices(aws_design(mounts=(EFS, NFS[1])))
    more = devices(aws_design(mounts=(Mount("/data", "nfs", served_by="controller"), *NFS)))
    assert both == {"/home": "/dev/sdf", "/apps": "/dev/sdg"}
    assert apps == {"/apps": "/dev/sdg"}
    assert more == {**both, "/data": "/dev/sdi"}


def test_efs_is_paid_by_what_is_read_and_written() -> None:
    made = storage(aws_design(mounts=(EFS,)))
    (system,) = [made.inputs(name) for name, kind in made.types().items() if kind == SYSTEM]
    assert system["throughputMode"] == "elastic", "EFS's own default slows down with few files, after a while"


# --- what machines mount ----------------------------------------------------------------------------------


def test_the_site_says_what_is_mounted() -> None:
    site: dict[str, MountSource] = {}
    storage(aws_design(mounts=(EFS, NFS[1], LUSTRE)), site=site)
    assert site == {
        "/home": MountSource("s-home.dns:/"),
        "/fsx": MountSource("s-fsx.dns@tcp:/mounted"),
        "/apps": MountSource(disk="s-apps-id", device="/dev/sdg"),
    }


def test_a_preview_does_not_know_the_site() -> None:
    site: dict[str, MountSource] = {}
    storage(aws_design(mounts=(EFS, NFS[1], LUSTRE)), site=site, preview=True)
    assert site == {}


def test_without_storage_the_site_is_empty() -> None:
    site: dict[str, MountSource] = {}
    storage(aws_design(mounts=()), site=site)
    assert site == {}


def test_efs_has_a_target_in_every_zone() -> None:
    made = storage(aws_design(mounts=(EFS,)))
    targets = {name: made.inputs(name) for name, kind in made.types().items() if kind == TARGET}
    assert {n: t["subnetId"] for n, t in targets.items()} == {
        "s-home-a": "n-private-a-id",
        "s-home-b": "n-private-b-id",
    }
    assert all(t["securityGroups"] == ["n-storage-id"] for t in targets.values())


def test_efs_reaches_a_head_in_a_zone_without_a_private_subnet() -> None:
    zones = Zones("eu-west-1c", {"cpu": ("eu-west-1a",), "gpu": ("eu-west-1a",)}, {"eu-west-1a": "subnet-a"})
    made = storage(aws_design(mounts=(EFS,), network=EXISTING), zones=zones)
    targets = [made.inputs(name)["subnetId"] for name, kind in made.types().items() if kind == TARGET]
    assert sorted(targets) == ["subnet-a", "subnet-p"]


# --- Lustre -----------------------------------------------------------------------------------------------


def test_lustre_as_the_stack_file_says() -> None:
    made = storage(aws_design(mounts=(LUSTRE,)))
    scratch = made.inputs("s-fsx")
    assert scratch["subnetIds"] == "n-private-b-id", "one subnet, the head's"
    assert scratch["securityGroupIds"] == ["n-storage-id"]
    assert (scratch["storageCapacity"], scratch["deploymentType"]) == (1200, "SCRATCH_2")
    assert scratch["fileSystemTypeVersion"] == LUSTRE_VERSION
    assert "subnetIds" in made.asked["s-fsx"].ignoreChanges, "elsewhere it would be an empty one"
    for key in ("perUnitStorageThroughput", "importPath", "exportPath", "driveCacheType"):
        assert key not in scratch
    persistent = storage(aws_design(mounts=(P2,))).inputs("s-fsx")
    assert (persistent["deploymentType"], persistent["perUnitStorageThroughput"]) == ("PERSISTENT_2", 250)
    assert persistent["skipFinalBackup"] is True, "a backup would outlive the cluster"
    disks = storage(aws_design(mounts=(P1_HDD,))).inputs("s-fsx")
    assert (disks["storageType"], disks["driveCacheType"]) == ("HDD", "NONE")


def test_lustre_comes_after_the_rules_that_let_it_through() -> None:
    """FSx refuses a group that has no rules yet (`InvalidNetworkSettings`)."""
    made = storage(aws_design(mounts=(LUSTRE,)))
    rules = {name for name in made.types() if name.startswith("n-storage-")}
    assert {"n-storage-in-storage-988", "n-storage-out-storage-1018", "n-storage-in-compute-988"} <= rules
    assert made.after("s-fsx") >= rules


def test_lustre_shows_a_folder_of_s3() -> None:
    mount = dataclasses.replace(S3_IN, s3_export="s3://data/train/")
    link = storage(aws_design(mounts=(mount,))).inputs("s-fsx-s3-0")
    assert (link["fileSystemId"], link["fileSystemPath"]) == ("s-fsx-id", "/")
    assert link["dataRepositoryPath"] == "s3://data/train"
    assert link["batchImportMetaDataOnCreate"] is True
    assert link["s3"] == {
        "autoImportPolicy": {"events": list(EVENTS)},
        "autoExportPolicy": {"events": list(EVENTS)},
    }


def test_scratch_1_has_its_own_way_to_s3() -> None:
    old = dataclasses.replace(S3_IN, deployment="SCRATCH_1", s3_export="s3://data/out")
    made = storage(aws_design(mounts=(old,)))
    assert own(made).get(LINK, 0) == 0
    system = made.inputs("s-fsx")
    assert (system["importPath"], system["exportPath"]) == ("s3://data/train", "s3://data/out")
    assert system["autoImportPolicy"] == "NEW_CHANGED_DELETED"


@pytest.mark.parametrize(
    ("source", "target", "wanted"),
    [
        (None, None, []),
        ("s3://a/x", None, [Repository("/", "s3://a/x", True, False)]),
        (None, "s3://a/x", [Repository("/", "s3://a/x", False, True)]),
        ("s3://a/x", "s3://a/x", [Repository("/", "s3://a/x", True, True)]),
        (
            "s3://a/x",
            "s3://b",
            [Repository("/import", "s3://a/x", True, False), Repository("/export", "s3://b", False, True)],
        ),
    ],
)
def test_folders_of_s3(source: str | None, target: str | None, wanted: list[Repository]) -> None:
    assert repositories(dataclasses.replace(LUSTRE, s3_import=source, s3_export=target)) == wanted


# --- what AWS's own model of the service says --------------------------------------------------------------


@pytest.fixture(scope="module")
def fsx() -> Any:
    return botocore.session.get_session().get_service_model("fsx")


def words(shape: Any) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", shape.documentation))


def test_enumerations_are_fsxs(fsx: Any) -> None:
    from infra.config.storage import SharedStorage

    lustre = fsx.shape_for("CreateFileSystemLustreConfiguration").members
    said = SharedStorage.model_json_schema()["properties"]["deployment"]["anyOf"][0]["enum"]
    assert set(said) == set(lustre["DeploymentType"].enum)
    assert {"SSD", "HDD"} <= set(fsx.shape_for("StorageType").enum)
    assert "NONE" in lustre["DriveCacheType"].enum
    assert "NEW_CHANGED_DELETED" in lustre["AutoImportPolicy"].enum
    assert set(EVENTS) == set(fsx.shape_for("EventTypes").member.enum)


def test_throughputs_are_fsxs(fsx: Any) -> None:
    text = words(fsx.shape_for("CreateFileSystemLustreConfiguration").members["PerUnitStorageThroughput"])
    found = re.findall(r"(PERSISTENT_\d) (SSD|HDD) storage: ([\d, ]+) MB/s/TiB", text)
    stated = {(kind, disks): tuple(int(n) for n in speeds.split(",")) for kind, disks, speeds in found}
    assert stated == THROUGHPUT


def test_capacities_are_fsxs(fsx: Any) -> None:
    from infra.config import ConfigError, parse

    text = words(fsx.shape_for("CreateFileSystemRequest").members["StorageCapacity"])
    assert "SSD storage type, the valid values are 1200 GiB, 2400 GiB, and increments of 2400 GiB" in text
    assert "increments of 6000 GiB for 12 MB/s/TiB file systems and increments of 1800 GiB for 40" in text
    assert "SCRATCH_1 deployment type, valid values are 1200 GiB, 2400 GiB, and increments of 3600" in text

    def fits(size: int, **more: Any) -> bool:
        scratch = {"kind": "fsx_lustre", "size_gib": size, **more}
        cluster = {
            "name": "c",
            "provider": "aws",
            "partitions": [{"name": "cpu", "instance_type": "m5.xlarge"}],
        }
        try:
            parse(
                {
                    "aws:region": "eu-west-1",
                    "slurm-stacks:cluster": {**cluster, "storage": {"scratch": scratch}},
                },
                "test",
            )
        except ConfigError:
            return False
        return True

    ssd = {1200, 2400, 4800, 7200}
    hdd: dict[str, Any] = {"deployment": "PERSISTENT_1", "storage_type": "HDD"}
    sizes = (600, 1200, 1800, 2400, 3600, 4800, 6000, 7200, 12000)
    ssd.add(12000)
    assert {s for s in sizes if fits(s)} == ssd
    assert {s for s in sizes if fits(s, deployment="PERSISTENT_2", throughput=125)} == ssd
    assert {s for s in sizes if fits(s, deployment="SCRATCH_1")} == {1200, 2400, 3600, 7200}
    assert {s for s in sizes if fits(s, throughput=12, **hdd)} == {6000, 12000}
    assert {s for s in sizes if fits(s, throughput=40, **hdd)} == {1800, 3600, 7200}


def test_the_servers_version_is_recommended_for_all(fsx: Any) -> None:
    text = words(fsx.shape_for("CreateFileSystemRequest").members["FileSystemTypeVersion"])
    assert f"{LUSTRE_VERSION} is supported by all Lustre deployment types" in text


BUCKET = {
    "slurm-stacks:index:AwsBucket": 1,
    "aws:s3/bucket:Bucket": 1,
    "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock": 1,
    "aws:s3/bucketOwnershipControls:BucketOwnershipControls": 1,
    "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration": 1,
    "aws:s3/bucketPolicy:BucketPolicy": 1,
}
OBJECT = "aws:s3/bucketObjectv2:BucketObjectv2"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def site(address: str) -> Site:
    return Site("/", "slurm", "controller", address, cloud=AwsSite("eu-west-1"))


def bundled(*, preview: bool = False) -> Recorder:
    def program() -> None:
        design = aws_design()
        bucket = AwsBucket("b", design)
        # The site is known only when the bucket is, as an address from a cloud would be.
        made = Bundle("o", design, bucket)
        made.publish(bucket.bucket.apply(site))

    return declare(program, preview=preview)


@pytest.mark.parametrize("preview", [False, True])
def test_a_bucket_is_exactly_these_resources(preview: bool) -> None:
    made = declare(lambda: AwsBucket("b", aws_design()), preview=preview)
    assert counts(made) == BUCKET
    assert {parent for name, parent in made.parents().items() if name != "b"} == {"b"}
    assert made.closed.count("b") == 1


def test_the_bucket_is_closed_and_goes_with_its_content() -> None:
    made = declare(lambda: AwsBucket("b", aws_design()))
    store = made.inputs("b-store")
    assert store["forceDestroy"] is True
    assert store["tags"]["slurm-stacks:cluster"] == "c"
    assert "acl" not in store
    access = made.inputs("b-public-access-block")
    flags = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")
    assert all(access[flag] is True for flag in flags)
    assert made.inputs("b-ownership")["rule"] == {"objectOwnership": "BucketOwnerEnforced"}
    (rule,) = made.inputs("b-encryption")["rules"]
    assert rule["applyServerSideEncryptionByDefault"] == {"sseAlgorithm": "AES256"}
    parts = ("b-public-access-block", "b-ownership", "b-encryption", "b-policy")
    assert {made.inputs(part)["bucket"] for part in parts} == {"b-store-id"}


def test_nobody_reads_it_in_clear() -> None:
    made = declare(lambda: AwsBucket("b", aws_design()))
    policy = json.loads(made.inputs("b-policy")["policy"])
    (statement,) = policy["Statement"]
    assert (statement["Effect"], statement["Principal"]) == ("Deny", "*")
    # Beside a policy that allows everything, only encrypted requests pass.
    both = {"Statement": [statement, {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    for resource in ("arn:b-store", "arn:b-store/current.json"):
        assert allowed(both, "s3:GetObject", resource, {"aws:SecureTransport": "true"})
        assert not allowed(both, "s3:GetObject", resource, {"aws:SecureTransport": "false"})


@pytest.mark.parametrize("preview", [False, True])
def test_a_bundle_is_exactly_these_objects(preview: bool) -> None:
    recorder = bundled(preview=preview)
    assert counts(recorder) == {**BUCKET, "slurm-stacks:index:Bundle": 1, OBJECT: 4}
    objects = {name for name, kind in recorder.types().items() if kind == OBJECT}
    assert objects == {"o-loader", "o-code", "o-settings", "o-current"}
    assert recorder.after("o-current") >= {"o-loader", "o-code", "o-settings", "b-policy"}
    assert all(recorder.after(name) >= {"b-public-access-block", "b-policy"} for name in objects), (
        "first closed, then filled"
    )
    assert recorder.closed.count("o") == 1


def test_the_objects_are_those_of_the_local_bucket() -> None:
    recorder = bundled()
    design = aws_design()
    code = bundle.node_archive(design)
    settings = bundle.settings_object(Settings(design, site("b-store-id")))
    named = json.loads(recorder.inputs("o-current")["content"])
    assert named == bundle.current(code, settings)
    assert {recorder.inputs(f"o-{part}")["key"] for part in ("loader", "current")} == {
        "loader.py",
        "current.json",
    }
    for part in ("code", "settings"):
        assert recorder.inputs(f"o-{part}")["key"] == named[part]["key"]
    assert recorder.inputs("o-settings")["content"].encode() == settings
    assert parse_settings(settings).site.controller_address == "b-store-id"
    asset = recorder.inputs("o-code")["source"]
    assert isinstance(asset, pulumi.FileAsset)
    assert hashlib.sha256(Path(asset.path).read_bytes()).hexdigest() == named["code"]["sha256"]
    # The loader is not the bare file: on an empty machine it needs the client of S3 with it.
    assert Path(recorder.inputs("o-loader")["source"].path).read_bytes() == bundle.loader_archive("aws")


def test_settings_and_what_names_them_wait_for_the_site() -> None:
    recorder = bundled(preview=True)
    assert {"key", "content"} <= unknown(recorder, "o-settings")
    assert "content" in unknown(recorder, "o-current")
    assert recorder.inputs("o-loader")["key"] == "loader.py"


def test_a_plan_writes_no_archive(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mode, "current", lambda: "plan")
    recorder = bundled()
    assert recorder.inputs("o-code")["source"].path.startswith(str(cache))
    assert list(cache.rglob("*")) == []


def test_the_archives_are_written_once_and_mended(cache: Path) -> None:
    bundled()
    kept = sorted(path for path in cache.rglob("*") if path.is_file())
    assert len(kept) == 2, "the loader and the code"
    contents = [path.read_bytes() for path in kept]
    before = [path.stat().st_mtime_ns for path in kept]
    bundled()
    assert [path.stat().st_mtime_ns for path in kept] == before
    for path in kept:
        path.write_bytes(b"half")
    bundled()
    assert [path.read_bytes() for path in kept] == contents


def test_tags_of_objects_are_left_out() -> None:
    """Tags on objects would need another permission and cost more. The objects go with the bucket."""
    recorder = bundled()
    found: list[Any] = [
        recorder.inputs(n).get("tags") for n, kind in recorder.types().items() if kind == OBJECT
    ]
    assert found == [None] * 4
