"""Tests of hooks with a URL: the machine fetches them and runs them like those of the project."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from infra import bundle
from node.bootstrap import steps
from node.bootstrap.context import StepFailedError
from node.design.model import INLINE, Hook
from node.system import http_client
from node.system.cloud_api import ServiceError
from node.system.http_client import Answer
from tests.support.doubles import design
from tests.support.fake_imds import fake_imds
from tests.support.moto_server import moto_server
from tests.support.recorded import machine

SCRIPT = b'#!/bin/sh\necho "$SLURM_STACKS_HOST $*" >>"$1"\n'


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with moto_server() as url, fake_imds() as imds:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", imds.url)
        s3 = boto3.client(
            "s3", "eu-west-1", endpoint_url=url, aws_access_key_id="a", aws_secret_access_key="b"
        )
        s3.create_bucket(Bucket="scripts", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
        s3.put_object(Bucket="scripts", Key="post/install.sh", Body=SCRIPT)
        yield


@pytest.mark.usefixtures("cloud")
def test_a_script_in_s3_runs_with_its_arguments(tmp_path: Path) -> None:
    out = tmp_path / "out"
    hook = Hook("compute", "s3://scripts/post/install.sh", (str(out), "x"))
    context, _ = machine(tmp_path, hooks=(hook,), driver={"region": "eu-west-1"})
    assert steps.hooks(context).splitlines()[0] == "ran 1"
    assert out.read_text() == f"compute-0 {out} x\n"
    missing, _ = machine(
        tmp_path, hooks=(Hook("all", "s3://scripts/none.sh"),), driver={"region": "eu-west-1"}
    )
    with pytest.raises(ServiceError, match=r"s3://scripts/none\.sh: there is no such object"):
        steps.hooks(missing)


def test_a_script_on_the_web_and_one_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [Answer(200, SCRIPT), Answer(404)]
    monkeypatch.setattr(http_client, "call", lambda *_a, **_k: answers.pop(0))
    out = tmp_path / "out"
    context, _ = machine(tmp_path, hooks=(Hook("all", "https://example.com/a/post.sh", (str(out),)),))
    steps.hooks(context)
    assert out.read_text().startswith("compute-0 ")
    with pytest.raises(ServiceError, match=r"https://example\.com/a/post\.sh: HTTP status 404"):
        steps.hooks(context)


def test_a_fetched_script_that_cannot_be_started_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "call", lambda *_a, **_k: Answer(200, b"#!/bin/sh\r\necho\r\n"))
    context, _ = machine(tmp_path, hooks=(Hook("all", "https://example.com/a/post.sh"),))
    words = r"hook 0 \(https://example\.com/a/post\.sh\) cannot be started: line 1 has a carriage return"
    with pytest.raises(StepFailedError, match=words):
        steps.hooks(context)


def test_another_clouds_address_is_said(tmp_path: Path) -> None:
    context, _ = machine(tmp_path, hooks=(Hook("all", "gs://b/x.sh"),))
    with pytest.raises(ValueError, match=r"gs://b/x\.sh: machines of provider aws cannot fetch that"):
        steps.hooks(context)


def test_the_archive_holds_the_projects_own_only() -> None:
    with zipfile.ZipFile(
        io.BytesIO(
            bundle.node_archive(
                design(hooks=(Hook("all", "s3://b/x.sh"), Hook("all", INLINE, text="#!/bin/sh\n")))
            )
        )
    ) as made:
        assert not [name for name in made.namelist() if name.startswith("hooks/")]
