"""Parts of stack files that tests of the checks put together, and the comparison of a refusal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from tests.support import sentences
from tests.support.stack_values import BENCHMARK, CLUSTER, REMOVE, mistakes, values

EFA = {"instance_type": "m5.xlarge", "aws": {"efa": True}}
GROUP = "arn:aws:resource-groups:us-east-1:123456789012:group/MyCRGroup"
SHARED_CR = "arn:aws:ec2:us-east-1:999999999999:capacity-reservation/cr-9876543210"
KEY = "arn:aws:kms:us-east-1:123456789012:key/12345678-1234-1234-1234-123456789012"
BLOCK: dict[str, Any] = {
    "name": "block", "instance_type": "p4d.24xlarge", "reservation": "cr-0123456789abcdef0",
    "zones": ["us-east-1a"], "aws": {"capacity_block": True},
}  # fmt: skip
UNMAINTAINED = {"slurm.accept_unmaintained": "2026-11-26"}
"""The stacks of the tests have GPUs or Session Manager, so that they boot Ubuntu 24.04."""
CLOSE: dict[str, Any] = {"name": "close", "instance_type": "m5.xlarge", "aws": {"placement_group": "lab p4d"}}
VPC = {"vpc": "vpc-12345678", "public_subnet": "subnet-12345678", "private_subnets": ["subnet-12345679"]}
ENROOT_DEB = "https://github.com/NVIDIA/enroot/releases/download/v4.1.2/enroot_4.1.2-1_amd64.deb"


def pyxis(source: str, sha256: str = "0" * 64, **more: Any) -> dict[str, Any]:
    return {"runtime": "pyxis", "packages": [{"source": source, "sha256": sha256}], **more}


PLAIN = {"name": "plain", "instance_type": "m5.large"}
ATTACHED = {"name": "a", "instance_type": "n1-standard-8", "accelerator": {"type": "t4", "count": 1}}


def ours(**variables: Any) -> dict[str, Any]:
    """A Batch job with this project's container. A variable that is `None` is left out."""
    said = {"JOB_DIR": "/data/run", "SCRATCH_DIR": "/scratch"} | variables
    return {
        "batch.container.image": REMOVE,
        "storage.scratch": {"kind": "fsx_lustre", "size_gib": 1200},
        "batch.container.volumes": [{"source": "/scratch"}, {"source": "/fsx", "path": "/data"}],
        "batch.container.environment": {key: value for key, value in said.items() if value is not None},
    }


Refused = tuple[str, dict[str, Any], str, str]
"""A stack, changes of it, and the path and the code of the one mistake that they make."""


def each_refusal(rows: Sequence[Refused]) -> pytest.MarkDecorator:
    """Return the decorator that runs a test with each row."""
    names = [f"{stack}-{path}-{i}" for i, (stack, _, path, _) in enumerate(rows)]
    return pytest.mark.parametrize(("stack", "changes", "path", "code"), rows, ids=names)


def check_sentences(config: pytest.Config, module: str, rows: Iterable[Refused]) -> None:
    """Compare the mistakes of all rows with the sentences of a test module, as `sentences.check` does."""
    found = (str(mistake) for stack, changes, *_ in rows for mistake in mistakes(values(stack, changes)))
    sentences.check(config, module, found)


def check_refusal(stack: str, changes: dict[str, Any], path: str, code: str) -> None:
    """Check that a changed stack has exactly one mistake, at this path, with this code."""
    found = mistakes(values(stack, changes))
    whole = path if ":" in path else f"{BENCHMARK}.{path[1:]}" if path[0] == "@" else _in_cluster(path)
    assert [(m.path, m.code) for m in found] == [(whole, code)]


def _in_cluster(path: str) -> str:
    return CLUSTER + ("" if path.startswith("[") else ".") + path
