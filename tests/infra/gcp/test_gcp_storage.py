"""Shared directories on Google Cloud: disks of the controller, and Filestore."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pulumi
import pulumi_gcp as gcp
import pytest
from pulumi_gcp import filestore

from infra import bundle
from infra.clouds.publishing import Bundle
from infra.config import ConfigError, parse
from infra.config.rules.storage import FILESTORE as CAPACITIES
from infra.config.storage import SharedStorage
from infra.gcp.network import GcpNetwork
from infra.gcp.storage import REGIONAL, GcpBucket, GcpStorage, device, share
from infra.program import mode
from node.design.model import ClusterDesign, Image, Settings, Site
from node.design.published import parse_settings
from node.design.sites import GcpSite, MountSource
from node.design.storage import Mount
from node.elastic.drivers.gce.names import resource_of
from tests.support.gcp_mocks import EXISTING, FILESTORE, LOGIN, NFS, PROJECT, declare, gcp_design
from tests.support.recorder import Recorder, counts, unknown

DISK, SYSTEM = "gcp:compute/disk:Disk", "gcp:filestore/instance:Instance"
FIREWALL = "gcp:compute/firewall:Firewall"
APPS = dataclasses.replace(FILESTORE, path="/apps", deployment="REGIONAL", size_gib=2048)
VARIANTS: dict[str, tuple[tuple[Mount, ...], dict[str, int]]] = {
    "nfs": (NFS, {DISK: 2}),
    "filestore": ((FILESTORE, NFS[1]), {DISK: 1, SYSTEM: 1, FIREWALL: 1}),
    "two-filestores": ((FILESTORE, APPS), {SYSTEM: 2, FIREWALL: 2}),
    "nvme": ((*NFS, Mount("/local_scratch", "nvme", roles=("compute",))), {DISK: 2}),
    "none": ((), {}),
}

_made: dict[str, Recorder] = {}


def storage(
    design: ClusterDesign,
    *,
    preview: bool = False,
    site: dict[str, MountSource] | None = None,
    attached: list[Any] | None = None,
) -> Recorder:
    """The resources, declared once for all tests that only read them.

    Args:
        site: A list that receives what is known of the mounts when the program runs.
        attached: A list that receives the attachments of the disks.
    """
    key = f"{preview} {design}"
    if site is None and attached is None and key in _made:
        return _made[key]

    def program() -> Any:
        gcp_storage = GcpStorage("s", design, GcpNetwork("n", design, ()))
        if attached is not None:
            attached.extend(gcp_storage.attached())
        if site is not None:
            gcp_storage.mounts().apply(site.update)

    _made[key] = declare(program, preview=preview)
    return _made[key]


@pytest.mark.parametrize("variant", VARIANTS)
def test_storage_is_exactly_these_resources(variant: str) -> None:
    mounts, wanted = VARIANTS[variant]
    made = storage(gcp_design(mounts=mounts))
    kinds = [kind for name, kind in made.types().items() if name == "s" or name.startswith("s-")]
    assert {kind: kinds.count(kind) for kind in kinds} == {"slurm-stacks:index:GcpStorage": 1, **wanted}
    parents = made.parents()
    assert {parents[name] for name in made.types() if name.startswith("s-")} <= {"s"}
    assert made.closed.count("s") == 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_everything_has_the_clusters_name_and_labels(variant: str) -> None:
    made = storage(gcp_design(mounts=VARIANTS[variant][0]))
    for name, kind in made.types().items():
        if kind in (DISK, SYSTEM):
            inputs = made.inputs(name)
            assert inputs["labels"]["slurm-stacks-cluster"] == "c"
            assert inputs["name"] == f"c-{name.removeprefix('s-')}"
            assert inputs["project"] == PROJECT


# --- disks ------------------------------------------------------------------------------------------------


def test_disks_are_where_the_controller_is() -> None:
    made = storage(gcp_design())
    disks = {name: made.inputs(name) for name, kind in made.types().items() if kind == DISK}
    found = {n: (d["zone"], d["size"], d["type"]) for n, d in disks.items()}
    assert found == {
        "s-home": ("europe-west4-a", 50, "pd-balanced"),
        "s-apps": ("europe-west4-a", 60, "pd-balanced"),
    }


def test_the_controller_finds_its_disks_by_their_names() -> None:
    attached: list[Any] = []
    site: dict[str, MountSource] = {}
    storage(gcp_design(), attached=attached, site=site)
    assert [disk.device_name for disk in attached] == ["slurm-stacks-home", "slurm-stacks-apps"]
    assert site == {
        f"/{part}": MountSource(
            disk=f"https://compute/s-{part}", device=f"/dev/disk/by-id/google-slurm-stacks-{part}"
        )
        for part in ("home", "apps")
    }
    assert device("/data/sets") == "slurm-stacks-data-sets"


# --- Filestore --------------------------------------------------------------------------------------------


def test_filestore_as_the_stack_file_says() -> None:
    made = storage(gcp_design(mounts=(FILESTORE, APPS)))
    home, apps = made.inputs("s-home"), made.inputs("s-apps")
    assert (home["tier"], home["location"]) == ("BASIC_HDD", "europe-west4-a")
    assert home["fileShares"] == {"name": "home", "capacityGb": 1024}
    assert home["networks"] == [{"network": "c", "modes": ["MODE_IPV4"]}]
    assert home["deletionProtectionEnabled"] is False, "a cluster goes whole"
    assert (apps["tier"], apps["location"]) == ("REGIONAL", "europe-west4")


def test_filestore_in_an_existing_network() -> None:
    made = storage(gcp_design(mounts=(FILESTORE,), network=EXISTING))
    assert made.inputs("s-home")["networks"][0]["network"] == "corp"


def test_locks_come_from_the_server_to_every_machine() -> None:
    made = storage(gcp_design(mounts=(FILESTORE,), hosts=(*gcp_design().hosts, LOGIN)))
    rule = made.inputs("s-home-locks")
    assert rule["sourceRanges"] == ["10.9.8.2/32"]
    assert rule["targetServiceAccounts"] == [
        f"c-{role}@{PROJECT}.iam.gserviceaccount.com" for role in ("controller", "login", "compute")
    ]
    plan = storage(gcp_design(mounts=(FILESTORE,)), preview=True)
    assert plan.inputs("s-home-locks")["sourceRanges"] == ["<s-home.networks[0].ipAddresses[0]>/32"]


def test_the_site_says_what_is_mounted() -> None:
    site: dict[str, MountSource] = {}
    storage(gcp_design(mounts=(FILESTORE, NFS[1])), site=site)
    assert site["/home"] == MountSource("10.9.8.2:/home")


def test_a_preview_does_not_know_the_site() -> None:
    site: dict[str, MountSource] = {}
    storage(gcp_design(mounts=(FILESTORE, NFS[1])), site=site, preview=True)
    assert site == {}


def test_without_storage_the_site_is_empty() -> None:
    site: dict[str, MountSource] = {}
    storage(gcp_design(mounts=()), site=site)
    assert site == {}


@pytest.mark.parametrize(
    ("path", "name"), [("/home", "home"), ("/scratch/fast-1", "scratch_fast_1"), ("/9", "s9")]
)
def test_names_of_shares(path: str, name: str) -> None:
    assert share(path) == name
    assert len(share("/a-directory-with-a-very-long-name")) == 16


# --- names of all paths ------------------------------------------------------------------------------------

RFC1035 = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
"""What the API takes as the name of a disk, a Filestore instance and a firewall's rule."""
ODD = ["/Home", "/my.home_dir", "/data-", "/-", "/9", "/a/B_c/d", "/" + "x" * 70, "/" + "x" * 52, "/._"]


@pytest.mark.parametrize("path", ODD)
def test_every_path_has_names_that_google_takes(path: str) -> None:
    nfs, other = dataclasses.replace(NFS[0], path=path), dataclasses.replace(FILESTORE, path=path)
    attached: list[Any] = []
    for mount in (nfs, other):
        design = gcp_design(mounts=(mount,), name="c" * 12)
        made = storage(design, attached=attached)
        own = [n for n, kind in made.types().items() if kind in (DISK, SYSTEM, FIREWALL) and n[:2] == "s-"]
        names = [made.inputs(n)["name"] for n in own]
        assert names
        for name in names:
            assert re.fullmatch(RFC1035, name), name
    for disk in attached:
        assert re.fullmatch(RFC1035, disk.device_name), disk.device_name


def test_a_name_is_changed_only_where_it_must_be() -> None:
    """A disk of another name is another disk, so the names of disks that clusters have never change."""
    for path in ("/home", "/apps", "/scratch/fast-1", "/9", "/data-sets", "/" + "x" * 61):
        assert resource_of("c", path) == f"c-{path[1:].replace('/', '-')}"
    odd = [resource_of("c", path) for path in (*ODD, "/home", "/data", "/my-home-dir", "/x-", "/x_", "/x.")]
    assert len(set(odd)) == len(odd)
    assert resource_of("c", "/Home").startswith("c-home-")


# --- what the provider's own documentation says -----------------------------------------------------------


def test_tiers_are_filestores() -> None:
    said = SharedStorage.model_json_schema()["properties"]["tier"]["anyOf"][0]["enum"]
    text = inspect.getsource(filestore.Instance)
    listed = re.search(r"Possible values include: ([A-Z_, ]+) and ([A-Z]+)", text)
    assert listed
    known = {*listed[1].replace(" ", "").split(","), listed[2]}
    # STANDARD and PREMIUM are former names of the basic tiers.
    assert set(said) == set(CAPACITIES) == known - {"STANDARD", "PREMIUM"}
    assert set(REGIONAL) <= known


def test_capacities_are_filestores() -> None:
    text = " ".join(inspect.getsource(gcp.filestore.InstanceFileSharesArgs).split())
    for tier, ranges in CAPACITIES.items():
        said = re.search(rf"\* {tier}: ([^*]+?)(?: \*|\. )", text)
        assert said, tier
        numbers = {int(number) for number in re.findall(r"\d+", said[1])}
        for least, most, step in ranges:
            assert {least, most, step} <= numbers | {10239}, (tier, said[1])


def fits(size: int, tier: str | None) -> bool:
    home = {"kind": "filestore", "size_gib": size, **({"tier": tier} if tier else {})}
    stack = {
        "gcp:project": "acme-ml",
        "gcp:zone": "europe-west4-a",
        "slurm-stacks:cluster": {
            "name": "c",
            "provider": "gcp",
            "partitions": [{"name": "cpu", "instance_type": "n1-standard-2"}],
            "storage": {"home": home},
        },
    }
    try:
        parse(stack, "test")
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize(
    ("tier", "good", "bad"),
    [
        (None, [1024, 1025, 65433], [1023, 65434]),
        ("BASIC_SSD", [2560, 2561], [2559, 65434]),
        ("ZONAL", [100, 1024, 10239, 10240, 12800, 102400], [99, 10241, 104960]),
        ("REGIONAL", [1024, 10239, 10240, 102400], [1023, 11000]),
        ("ENTERPRISE", [1024, 1280, 10240], [1000, 1025, 10496]),
        ("HIGH_SCALE_SSD", [10240, 12800], [7680, 10241]),
    ],
)
def test_capacities_of_a_stack_file(tier: str | None, good: list[int], bad: list[int]) -> None:
    assert [size for size in good if not fits(size, tier)] == []
    assert [size for size in bad if fits(size, tier)] == []


BUCKET = {"slurm-stacks:index:GcpBucket": 1, "gcp:storage/bucket:Bucket": 1}
OBJECT = "gcp:storage/bucketObject:BucketObject"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def site(address: str) -> Site:
    return Site("/", "slurm", "controller", address, cloud=GcpSite(region="europe-west4"))


def bundled(
    design: ClusterDesign | None = None, *, preview: bool = False, named: list[str] | None = None
) -> Recorder:
    design = design or gcp_design()

    def program() -> None:
        bucket = GcpBucket("b", design)
        # The site is known only when the bucket is, as an address from a cloud would be.
        made = Bundle("o", design, bucket)
        made.publish(bucket.bucket.apply(site))
        if named is not None:
            made.content.apply(named.append)

    return declare(program, preview=preview)


def content(recorder: Recorder, name: str) -> str:
    """The content of an object, which the provider treats as a secret."""
    return str(recorder.inputs(name)["content"]["value"])


@pytest.mark.parametrize("preview", [False, True])
def test_a_bucket_is_exactly_these_resources(preview: bool) -> None:
    made = declare(lambda: GcpBucket("b", gcp_design()), preview=preview)
    assert counts(made) == BUCKET
    assert made.parents()["b-store"] == "b"
    assert made.closed.count("b") == 1


def test_the_bucket_is_closed_and_leaves_nothing_behind() -> None:
    store = declare(lambda: GcpBucket("b", gcp_design())).inputs("b-store")
    assert store["uniformBucketLevelAccess"] is True
    assert store["publicAccessPrevention"] == "enforced"
    assert store["forceDestroy"] is True
    assert store["softDeletePolicy"] == {"retentionDurationSeconds": 0}
    assert store["versioning"] == {"enabled": False}
    assert store["location"] == "EUROPE-WEST4"
    assert store["labels"]["slurm-stacks-cluster"] == "c"
    assert "name" not in store, "names are the world's: this one gets a part of its own"


@pytest.mark.parametrize("preview", [False, True])
def test_a_bundle_is_exactly_these_objects(preview: bool) -> None:
    recorder = bundled(preview=preview)
    assert counts(recorder) == {**BUCKET, "slurm-stacks:index:Bundle": 1, OBJECT: 4}
    objects = {name for name, kind in recorder.types().items() if kind == OBJECT}
    assert objects == {"o-loader", "o-code", "o-settings", "o-current"}
    assert recorder.after("o-current") >= {"o-loader", "o-code", "o-settings"}
    assert recorder.closed.count("o") == 1


def test_the_objects_are_those_of_the_local_bucket() -> None:
    seen: list[str] = []
    recorder = bundled(named=seen)
    design = gcp_design()
    code = bundle.node_archive(design)
    settings = bundle.settings_object(Settings(design, site("b-store-name")))
    assert seen == [content(recorder, "o-current")]
    named = json.loads(seen[0])
    assert named == bundle.current(code, settings)
    names = {part: recorder.inputs(f"o-{part}")["name"] for part in ("loader", "current", "code", "settings")}
    assert (names["loader"], names["current"]) == ("loader.py", "current.json")
    assert all(names[part] == named[part]["key"] for part in ("code", "settings"))
    assert {recorder.inputs(f"o-{part}")["bucket"] for part in names} == {"b-store-name"}
    assert content(recorder, "o-settings").encode() == settings
    assert parse_settings(settings).site.controller_address == "b-store-name"
    asset = recorder.inputs("o-code")["source"]
    assert isinstance(asset, pulumi.FileAsset)
    assert hashlib.sha256(Path(asset.path).read_bytes()).hexdigest() == named["code"]["sha256"]
    assert Path(recorder.inputs("o-loader")["source"].path).read_bytes() == bundle.loader_archive("gcp")


def test_settings_and_what_names_them_wait_for_the_site() -> None:
    seen: list[str] = []
    recorder = bundled(preview=True, named=seen)
    assert "name" in unknown(recorder, "o-settings")
    # Unknown values are read as None.
    assert [recorder.inputs(f"o-{part}")["content"]["value"] for part in ("settings", "current")] == [
        None,
        None,
    ]
    assert seen == []
    assert recorder.inputs("o-loader")["name"] == "loader.py"


def test_what_becomes_an_image_has_objects_of_its_own() -> None:
    recorder = bundled(gcp_design(image=Image(source="ubuntu-24.04", bake=True)))
    assert counts(recorder)[OBJECT] == 6
    assert recorder.inputs("o-image")["name"] == "image.json"
    assert recorder.after("o-image") >= {"o-loader", "o-code", "o-image-settings"}
    assert not recorder.after("o-image") & {"o-settings", "o-current"}, "their site is yet to come"


def test_a_plan_writes_no_archive(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mode, "current", lambda: "plan")
    assert bundled().inputs("o-code")["source"].path.startswith(str(cache))
    assert list(cache.rglob("*")) == []
