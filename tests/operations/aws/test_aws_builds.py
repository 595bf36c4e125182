"""What the machines of image builds report after an `up` that failed."""

from __future__ import annotations

import dataclasses
import time

import pytest

from cli.providers.aws.provider import AwsProvider
from infra.aws.tags import CLUSTER, store
from node.design.model import ClusterDesign, Image
from tests.support import aws_account
from tests.support.aws_account import Account, account, moto, nobody
from tests.support.aws_mocks import aws_design

__all__ = ["account", "moto", "nobody"]

DESIGN = dataclasses.replace(aws_design(image=Image("ubuntu-24.04", bake=True)), region=aws_account.REGION)
STEPS = [
    {"name": "packages"},
    {"name": "drivers", "note": "dkms: status 10", "tail": ["Building module", "Error!"]},
]


@pytest.fixture
def bucket(account: Account, monkeypatch: pytest.MonkeyPatch) -> str:
    """The cluster's bucket, with the report of a finished image."""
    name = f"{store(DESIGN.name)}-1"
    monkeypatch.setattr(aws_account, "BUCKET_NAME", name)
    account.bucket(name)
    tags = [{"Key": CLUSTER, "Value": DESIGN.name}]
    account.s3.put_bucket_tagging(Bucket=name, Tagging={"TagSet": tags})
    account.report("image-controller", "ready", steps=STEPS)
    return name


def said(design: ClusterDesign = DESIGN, ago: float = 60.0) -> str | None:
    return AwsProvider().explain(design, time.time() - ago)


@pytest.mark.usefixtures("bucket")
def test_the_step_that_failed_is_said_with_its_last_lines(account: Account) -> None:
    assert said() is None
    account.report("image-compute", "failed", steps=STEPS)
    account.report("image-of-before", "failed", steps=STEPS)
    assert said() == (
        "image-compute failed to boot at step drivers: dkms: status 10\n"
        "  Building module\n"
        "  Error!\n"
        "Fix the cause and run `up` again: that image is built anew, from the first step."
    )
    assert said(ago=-60) is None, "an earlier `up` has said it"


def test_nobody_is_asked_where_nothing_is_baked(nobody: None) -> None:
    assert said(dataclasses.replace(DESIGN, image=Image("ubuntu-24.04"))) is None


def test_who_cannot_ask_hides_nothing(account: Account, nobody: None) -> None:
    assert said() is None


def test_there_is_no_bucket_yet(account: Account) -> None:
    assert said() is None
