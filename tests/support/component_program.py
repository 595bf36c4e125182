"""Clusters as components of one program, declared as the plugin does, against mocks of both clouds."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pulumi
from pulumi.runtime import config as pulumi_config
from pulumi.runtime import mocks

from component.construction import TOKEN, construct
from tests.support.aws_machines import Machines as Aws
from tests.support.gcp_machines import Machines as Gcp
from tests.support.recorder import Recorder, run

VPC, PUBLIC, NODES = "vpc-0123456789abcdef0", "subnet-0123456789abcdef1", "subnet-0123456789abcdef2"
GROUP, FILES, KEY = "sg-0123456789abcdef0", "fs-0123456789abcdef0", "my-key"
BOUNDARY = "arn:aws:iam::123456789012:policy/edge"
KMS = "arn:aws:kms:eu-west-1:123456789012:key/12345678-1234-1234-1234-123456789012"
CPU = {"name": "cpu", "instanceType": "m5.xlarge", "nodes": {"max": 4.0}, "diskGib": 60.0}
SMALL: dict[str, Any] = {"provider": "aws", "network": {"zones": ["eu-west-1b"]}, "partitions": [CPU]}


PRINTED = {
    "id": "0123456789", "login_ssh": "/code/cluster ssh --outputs /run/outputs.json", "login": "x",
    "controller": "x:1", "scheduler_version": "slurm 1", "shared": "/s",
}  # fmt: skip


class Cloud(mocks.Mocks):
    """Both clouds, for clusters of any name."""

    def __init__(self) -> None:
        subnets = dict.fromkeys((PUBLIC, NODES), "eu-west-1b")
        self._aws, self._gcp = Aws(subnets=subnets), Gcp(machines={"europe-west4-a": {"n1-standard-2": 2}})
        self.invokes: list[mocks.MockCallArgs] = []

    def new_resource(self, args: mocks.MockResourceArgs) -> Any:
        if args.typ == "command:local:Command" and args.inputs.get("create", "").startswith(
            "operations.local"
        ):
            return "x", {**args.inputs, "stdout": json.dumps(PRINTED)}
        google = args.typ.startswith("gcp:") or args.inputs.get("create", "").startswith("operations.gcp")
        return (self._gcp if google else self._aws).new_resource(args)

    def call(self, args: mocks.MockCallArgs) -> Any:
        self.invokes.append(args)
        if args.token == "aws:ec2/getSubnets:getSubnets":
            return {"ids": [], "id": "x"}
        return (self._gcp if args.token.startswith("gcp:") else self._aws).call(args)


def declared(
    clusters: Mapping[str, Callable[[], Mapping[str, Any]]],
    *,
    preview: bool = False,
    seen: dict[str, Any] | None = None,
    opts: pulumi.ResourceOptions | None = None,
) -> Recorder:
    """Declare clusters in one program; a function returns the arguments of each, with outputs in them."""
    recorder = Recorder(Cloud())
    told = {} if seen is None else seen

    def program() -> Any:
        pulumi_config.set_all_config({"aws:region": "eu-west-1"})
        made = []
        for name, inputs in clusters.items():
            urn, outputs = construct(name, TOKEN, inputs(), opts)
            found = pulumi.Output.all(urn=urn, **outputs)
            made.append(found.apply(functools.partial(told.__setitem__, name)))
        return pulumi.Output.all(*made)

    run(recorder, program, preview=preview)
    return recorder


def inputs(recorder: Recorder, name: str) -> dict[str, Any]:
    """Return a resource's inputs, with the files of assets by their names."""

    def plain(value: Any) -> Any:
        if isinstance(value, pulumi.FileAsset):
            return Path(str(value.path)).name
        if isinstance(value, dict):
            return {key: plain(part) for key, part in value.items()}
        return [plain(part) for part in value] if isinstance(value, list) else value

    found: dict[str, Any] = plain(recorder.inputs(name))
    return found


def everything_of(recorder: Recorder) -> dict[str, dict[str, Any]]:
    return {name: inputs(recorder, name) for name in recorder.types()}


def known(value: Any) -> pulumi.Output[Any]:
    return pulumi.Output.from_input(value)


def unknown(_value: Any) -> pulumi.Output[Any]:
    never: asyncio.Future[Any] = asyncio.Future()
    false: asyncio.Future[bool] = asyncio.Future()
    never.set_result(pulumi.output.UNKNOWN)
    false.set_result(False)
    return pulumi.Output(set(), never, false)


def everything(of: Callable[[Any], Any]) -> dict[str, Any]:
    """A cluster's arguments of which all come from other resources that may."""
    return {
        "provider": "aws",
        "access": {"mode": "ssm", "key": of(KEY)},
        "aws": {"kmsKey": of(KMS), "permissionsBoundary": of(BOUNDARY)},
        "tags": {"Team": of("vision"), "cost-center": "42"},
        "controller": {"securityGroups": [of(GROUP)]},
        "network": {
            "zones": ["eu-west-1b"],
            "aws": {"vpc": of(VPC), "publicSubnet": of(PUBLIC), "privateSubnets": [of(NODES)]},
        },
        "partitions": [{**CPU, "aws": {"securityGroups": [of(GROUP)]}}],
        "storage": {
            "home": {"kind": "efs", "existing": of(FILES), "securityGroup": of(GROUP)},
            "scratch": {"kind": "fsx_lustre", "sizeGib": 1200.0, "s3Import": of("s3://my-data/sets/one")},
            "buckets": [{"bucket": of("s3://my-bucket/sets"), "path": "/data"}],
        },
        "benchmark": {"enabled": False},
    }


def google(of: Callable[[Any], Any]) -> dict[str, Any]:
    """The same on Google Cloud."""
    return {
        "provider": "gcp",
        "project": "acme-ml",
        "zone": "europe-west4-a",
        "image": {"source": "ubuntu-24.04"},
        "tags": {"team": of("vision")},
        "network": {"gcp": {"network": of("my-network"), "subnetwork": of("my-subnetwork")}},
        "partitions": [{"name": "cpu", "instanceType": "n1-standard-2", "nodes": {"max": 4.0}}],
        "storage": {
            "home": {"existing": of("my-disk")},
            "buckets": [{"bucket": of("gs://my-bucket/sets"), "path": "/data"}],
        },
    }
