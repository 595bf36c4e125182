"""The bucket is private and has the same layout as the local stack's."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pulumi
import pytest

from infra import bundle
from infra.aws.bucket import AwsBucket
from infra.clouds.publishing import Bundle
from infra.program import mode
from node.model import Settings, Site
from node.published import parse_settings
from node.sites import AwsSite
from tests.support.aws_mocks import aws_design, declare
from tests.support.iam import allowed
from tests.support.recorder import Recorder, counts, unknown

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
    made = bundled(preview=preview)
    assert counts(made) == {**BUCKET, "slurm-stacks:index:Bundle": 1, OBJECT: 4}
    objects = {name for name, kind in made.types().items() if kind == OBJECT}
    assert objects == {"o-loader", "o-code", "o-settings", "o-current"}
    assert made.after("o-current") >= {"o-loader", "o-code", "o-settings", "b-policy"}
    assert all(made.after(name) >= {"b-public-access-block", "b-policy"} for name in objects), (
        "first closed, then filled"
    )
    assert made.closed.count("o") == 1


def test_the_objects_are_those_of_the_local_bucket() -> None:
    made = bundled()
    design = aws_design()
    code = bundle.node_archive(design)
    settings = bundle.settings_object(Settings(design, site("b-store-id")))
    named = json.loads(made.inputs("o-current")["content"])
    assert named == bundle.current(code, settings)
    assert {made.inputs(f"o-{part}")["key"] for part in ("loader", "current")} == {
        "loader.py",
        "current.json",
    }
    for part in ("code", "settings"):
        assert made.inputs(f"o-{part}")["key"] == named[part]["key"]
    assert made.inputs("o-settings")["content"].encode() == settings
    assert parse_settings(settings).site.controller_address == "b-store-id"
    asset = made.inputs("o-code")["source"]
    assert isinstance(asset, pulumi.FileAsset)
    assert hashlib.sha256(Path(asset.path).read_bytes()).hexdigest() == named["code"]["sha256"]
    # The loader is not the bare file: on an empty machine it needs the client of S3 with it.
    assert Path(made.inputs("o-loader")["source"].path).read_bytes() == bundle.loader_archive("aws")


def test_settings_and_what_names_them_wait_for_the_site() -> None:
    made = bundled(preview=True)
    assert {"key", "content"} <= unknown(made, "o-settings")
    assert "content" in unknown(made, "o-current")
    assert made.inputs("o-loader")["key"] == "loader.py"


def test_a_plan_writes_no_archive(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mode, "current", lambda: "plan")
    made = bundled()
    assert made.inputs("o-code")["source"].path.startswith(str(cache))
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
    made = bundled()
    found: list[Any] = [made.inputs(n).get("tags") for n, kind in made.types().items() if kind == OBJECT]
    assert found == [None] * 4
