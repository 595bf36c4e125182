"""Small valid stacks, and a way to change one value in them."""

from __future__ import annotations

import copy
import itertools
import re
from pathlib import Path
from typing import Any

from infra.config import ConfigError, Mistake, StackConfig, parse
from infra.config.hosts import ImageConfig
from infra.config.slurm import SlurmConfig
from tests.support.checkout import ROOT

CLUSTER = "slurm-stacks:cluster"
BENCHMARK = "slurm-stacks:benchmark"
STACKS = ROOT / "tests" / "infra" / "stacks"


def stack_file(name: str) -> Path:
    """Return the stack file of a published system: the shipped one, or else the tests' draft."""
    shipped = ROOT / f"Pulumi.{name}.yaml"
    return shipped if shipped.exists() else STACKS / shipped.name


def installing(config: StackConfig) -> StackConfig:
    """Return a stack whose machines install what they need at their boot, their distribution's Slurm too."""
    plain = config.cluster.model_copy(update={"image": ImageConfig(), "slurm": SlurmConfig()})
    return config.model_copy(update={"cluster": plain})


FILLED_IN = {
    "PLACEHOLDER_SSH_KEY": "pcluster-workshop-key",
    "PLACEHOLDER_CAPACITY_RESERVATION_ID": "cr-12356790abcd",
    "PLACEHOLDER_CUSTOM_AMI_ID": "ami-12356790abcd",
    "PLACEHOLDER_ENROOT_SHA256": "a" * 64,
    "PLACEHOLDER_ENROOT_CAPS_SHA256": "b" * 64,
    "PLACEHOLDER_PYXIS_SHA256": "c" * 64,
    "PLACEHOLDER_PYXIS_PACKAGE": "s3://my-bucket/nvslurm-plugin-pyxis_0.24.0-1_amd64.deb",
    "PLACEHOLDER_VPC": "vpc-12356790",
    "PLACEHOLDER_PUBLIC_SUBNET": "subnet-12356790",
    "PLACEHOLDER_PRIVATE_SUBNET": "subnet-12356791",
    "PLACEHOLDER_S3_IMPORT": "s3://imagenet-2012",
    "PLACEHOLDER_S3_EXPORT": "s3://imagenet-2012/results",
    "203.0.113.0/24": "81.2.69.0/24",
    "my-project": "ml-training",
}
"""Placeholder in shipped stack files -> an example value."""


def filled_in(text: str) -> str:
    """Return a stack file's text with an example for each placeholder."""
    for word, example in FILLED_IN.items():
        text = text.replace(word, example)
    return text


class _Remove:
    def __repr__(self) -> str:  # in the names of tests, which must be the same in every process
        return "REMOVE"


REMOVE = _Remove()

_STACKS: dict[str, dict[str, Any]] = {
    "local": {
        CLUSTER: {
            "name": "here",
            "provider": "local",
            "partitions": [{"name": "debug", "instance_type": "local.small", "nodes": {"max": 4}}],
        },
        BENCHMARK: {"nodes": 2},
    },
    "aws": {
        "aws:region": "us-east-1",
        CLUSTER: {
            "name": "amazon",
            "provider": "aws",
            "partitions": [
                {"name": "cpu", "instance_type": "m5.xlarge", "nodes": {"max": 4}},
                {"name": "gpu", "instance_type": "p3dn.24xlarge", "nodes": {"max": 4}},
            ],
            "storage": {"scratch": {"kind": "fsx_lustre", "size_gib": 1200}},
        },
        BENCHMARK: {"nodes": 2},
    },
    "gcp": {
        "gcp:project": "my-lab",
        "gcp:zone": "europe-west4-a",
        CLUSTER: {
            "name": "lab",
            "provider": "gcp",
            "partitions": [
                {
                    "name": "debug",
                    "instance_type": "n1-standard-2",
                    "nodes": {"max": 4},
                    "accelerator": {"type": "v100", "count": 1},
                },
                {"name": "new", "instance_type": "n2-standard-4", "nodes": {"max": 4}},
            ],
        },
        BENCHMARK: {"nodes": 2},
    },
    "batch": {
        "aws:region": "us-east-1",
        CLUSTER: {
            "name": "batch",
            "provider": "aws",
            "scheduler": "batch",
            "image": {"id": "ami-0123456789abcdef0"},
            "batch": {
                "nodes": 4,
                "instance_types": ["p3dn.24xlarge"],
                "vcpus": {"max": 4096},
                "container": {"image": "train", "vcpus": 62, "memory_mib": 424000},
            },
        },
    },
}


def values(name: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a stack's configuration with values changed by path.

    A path is relative to the cluster ("partitions[0].nodes.max"), or begins with "@" for a path in the
    benchmark, or is a key with a namespace ("aws:region").
    """
    made = copy.deepcopy(_STACKS[name])
    for path, value in (changes or {}).items():
        if ":" in path and not path.startswith("@"):
            steps: list[Any] = [path]
        else:
            inner = [int(i) if i else k for k, i in re.findall(r"([\w-]+)|\[(\d+)\]", path.lstrip("@"))]
            steps = [BENCHMARK if path.startswith("@") else CLUSTER, *inner]
        owner: Any = made
        for step, following in itertools.pairwise(steps):
            if isinstance(owner, dict) and owner.get(step) is None:
                owner[step] = [] if isinstance(following, int) else {}
            if isinstance(owner, list) and step == len(owner):
                owner.append([] if isinstance(following, int) else {})
            owner = owner[step]
        if value is REMOVE:
            del owner[steps[-1]]
        elif isinstance(owner, list) and steps[-1] == len(owner):
            owner.append(value)
        else:
            owner[steps[-1]] = value
    return made


def mistakes(config: dict[str, Any], stack: str = "test") -> list[Mistake]:
    """Return the mistakes of a configuration."""
    try:
        parse(config, stack)
    except ConfigError as error:
        return list(error.mistakes)
    return []
