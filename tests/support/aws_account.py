"""An AWS account in moto, with a network, an image and machines, and with credentials of nobody."""

from __future__ import annotations

import functools
import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from infra.aws.tags import BUCKET, CLUSTER, HOST, ROLE
from infra.clouds.commands import ClusterRef
from node.elastic.drivers.ec2.names import NODES
from operations.aws.cloud import AwsCloud
from tests.support.moto_server import moto_server

REGION = "eu-west-1"
BUCKET_NAME = "bucket-1"
IMAGE = "ami-12c6146b"
"""The id of an image that moto has."""
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEE"


class Account:
    """Attributes:
    ec2, s3: boto3 clients.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.ec2, self.s3 = _clients(url)
        vpc = self.ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        self.subnet = self.ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/20")["Subnet"]["SubnetId"]

    def run(self, count: int = 1, cluster: str = "c", **tags: str) -> list[str]:
        """Start machines of a cluster, with more tags (without their prefix). Returns the machines' ids."""
        labels = {CLUSTER: cluster, **{f"slurm-stacks:{key}": value for key, value in tags.items()}}
        made = self.ec2.run_instances(
            ImageId=IMAGE,
            MinCount=count,
            MaxCount=count,
            InstanceType="m5.large",
            SubnetId=self.subnet,
            TagSpecifications=[{"ResourceType": "instance", "Tags": _tags(labels)}],
        )
        return [instance["InstanceId"] for instance in made["Instances"]]

    def nodes(self, names: str, count: int, cluster: str = "c") -> list[str]:
        """Start machines as the elastic driver does. Returns their ids."""
        return self.run(
            count, cluster, **{ROLE.rpartition(":")[2]: "compute", NODES.rpartition(":")[2]: names}
        )

    def head(self, host: str = "controller", cluster: str = "c", bucket: str = BUCKET_NAME) -> str:
        tags = {HOST: host, ROLE: host.partition("-")[0], BUCKET: bucket}
        (made,) = self.run(1, cluster, **{key.rpartition(":")[2]: value for key, value in tags.items()})
        return made

    def cloud(self, cluster: str = "c") -> AwsCloud:
        return AwsCloud(ClusterRef(cluster, REGION), [self.ec2, self.s3])

    def states(self) -> dict[str, str]:
        pages = self.ec2.get_paginator("describe_instances").paginate()
        found = [i for page in pages for r in page["Reservations"] for i in r["Instances"]]
        return {instance["InstanceId"]: instance["State"]["Name"] for instance in found}

    def bucket(self, name: str = BUCKET_NAME) -> None:
        self.s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
        self.s3.put_object(Bucket=name, Key="current.json", Body=b"{}")

    def report(self, host: str, state: str, started: float | None = None, **more: Any) -> None:
        """Put a boot report into the bucket."""
        content = {
            "host": host,
            "state": state,
            "started": time.time() + 60 if started is None else started,
            "host_keys": [KEY],
            "facts": {"slurm": "slurm 23.11.4"},
            "steps": [],
            **more,
        }
        self.s3.put_object(Bucket=BUCKET_NAME, Key=f"boot/{host}.json", Body=json.dumps(content).encode())


@functools.lru_cache(maxsize=1)
def _clients(url: str) -> tuple[Any, Any]:
    secrets = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "endpoint_url": url}
    session = boto3.Session()
    return session.client("ec2", REGION, **secrets), session.client("s3", REGION, **secrets)


def _tags(labels: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in labels.items()]


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    """One server for all tests of a file, because making one and its clients takes a second."""
    with moto_server() as url:
        yield url


@pytest.fixture
def account(moto: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Account:
    """moto's account, which every boto3 client of this process and its children finds."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    reset = urllib.request.Request(f"{moto}/moto-api/reset", method="POST")
    urllib.request.urlopen(reset, timeout=60).close()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_ENDPOINT_URL": moto,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }.items():
        monkeypatch.setenv(name, value)
    return Account(moto)


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Removes all credentials."""
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
