"""The bucket is private and has the same layout as the local stack's."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pulumi
import pytest

from infra import bundle
from infra.clouds.publishing import Bundle
from infra.gcp.bucket import GcpBucket
from infra.program import mode
from node.model import ClusterDesign, Image, Settings, Site
from node.published import parse_settings
from node.sites import GcpSite
from tests.support.gcp_mocks import declare, gcp_design
from tests.support.recorder import Recorder, counts, unknown

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


def content(made: Recorder, name: str) -> str:
    """The content of an object, which the provider treats as a secret."""
    return str(made.inputs(name)["content"]["value"])


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
    made = bundled(preview=preview)
    assert counts(made) == {**BUCKET, "slurm-stacks:index:Bundle": 1, OBJECT: 4}
    objects = {name for name, kind in made.types().items() if kind == OBJECT}
    assert objects == {"o-loader", "o-code", "o-settings", "o-current"}
    assert made.after("o-current") >= {"o-loader", "o-code", "o-settings"}
    assert made.closed.count("o") == 1


def test_the_objects_are_those_of_the_local_bucket() -> None:
    seen: list[str] = []
    made = bundled(named=seen)
    design = gcp_design()
    code = bundle.node_archive(design)
    settings = bundle.settings_object(Settings(design, site("b-store-name")))
    assert seen == [content(made, "o-current")]
    named = json.loads(seen[0])
    assert named == bundle.current(code, settings)
    names = {part: made.inputs(f"o-{part}")["name"] for part in ("loader", "current", "code", "settings")}
    assert (names["loader"], names["current"]) == ("loader.py", "current.json")
    assert all(names[part] == named[part]["key"] for part in ("code", "settings"))
    assert {made.inputs(f"o-{part}")["bucket"] for part in names} == {"b-store-name"}
    assert content(made, "o-settings").encode() == settings
    assert parse_settings(settings).site.controller_address == "b-store-name"
    asset = made.inputs("o-code")["source"]
    assert isinstance(asset, pulumi.FileAsset)
    assert hashlib.sha256(Path(asset.path).read_bytes()).hexdigest() == named["code"]["sha256"]
    assert Path(made.inputs("o-loader")["source"].path).read_bytes() == bundle.loader_archive("gcp")


def test_settings_and_what_names_them_wait_for_the_site() -> None:
    seen: list[str] = []
    made = bundled(preview=True, named=seen)
    assert "name" in unknown(made, "o-settings")
    # Unknown values are read as None.
    assert [made.inputs(f"o-{part}")["content"]["value"] for part in ("settings", "current")] == [None, None]
    assert seen == []
    assert made.inputs("o-loader")["name"] == "loader.py"


def test_what_becomes_an_image_has_objects_of_its_own() -> None:
    made = bundled(gcp_design(image=Image(source="ubuntu-24.04", bake=True)))
    assert counts(made)[OBJECT] == 6
    assert made.inputs("o-image")["name"] == "image.json"
    assert made.after("o-image") >= {"o-loader", "o-code", "o-image-settings"}
    assert not made.after("o-image") & {"o-settings", "o-current"}, "their site is yet to come"


def test_a_plan_writes_no_archive(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mode, "current", lambda: "plan")
    assert bundled().inputs("o-code")["source"].path.startswith(str(cache))
    assert list(cache.rglob("*")) == []
