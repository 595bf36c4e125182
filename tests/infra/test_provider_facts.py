"""Between a stack and a cloud's API is the provider: it waits only so long, and refuses some values.

The facts are read from the providers' sources (`data/provider_facts.yaml`), and every resource that a stack
declares is held to them. botocore's models, which other tests use, accept what the provider refuses.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.aws.batch import environment
from tests.support import replacements
from tests.support.provider_checks import FACTS, refused
from tests.support.replacements import Run
from tests.support.stack_values import BENCHMARK, CLUSTER, filled_in, stack_file, values

LINKED = {"kind": "fsx_lustre", "size_gib": 4800, "s3_import": "s3://lab/in", "s3_export": "s3://lab/out"}
SHIPPED = (
    *("aws-batch", "aws-cpu", "aws-gpu", "aws-p4de", "aws-p4de-containers", "aws-p4de-inference", "aws-trn1"),
    *("gcp-cpu", "gcp-gpu"),
)
KEPT = {"kind": "nfs", "snapshot": True}
EDITS: dict[str, tuple[str, dict[str, Any]]] = {
    "everything on AWS": (
        "aws",
        {
            "storage": {"scratch": LINKED, "home": KEPT, "apps": {"kind": "efs"}},
            "image": {"bake": True},
            "login": {"count": 1},
            "budget": {"max_usd": 100},
        },
    ),
    "everything on Google Cloud": (
        "gcp",
        {
            "storage": {
                "scratch": {"kind": "filestore", "path": "/scratch", "tier": "ZONAL", "size_gib": 1024},
                "home": KEPT,
            },
            "image": {"bake": True},
            "login": {"count": 1},
        },
    ),
    "Batch with its own events": (
        "batch",
        {
            "batch.start_on_manifest": True,
            "batch.file_system": "job",
            "storage": {"scratch": LINKED},
            "budget": {"max_usd": 100, "running_jobs": "cancel"},
            "batch.attempts": 10,
            "batch.timeout": 86400,
            "batch.placement_group": "g",
        },
    ),
    "Lustre on HDD": (
        "aws",
        {
            "storage.scratch": {
                "kind": "fsx_lustre", "size_gib": 6000, "deployment": "PERSISTENT_1", "storage_type": "HDD",
                "throughput": 12,
            }
        },
    ),
    "Lustre of one's own speed": (
        "aws",
        {
            "storage.scratch": {
                "kind": "fsx_lustre", "size_gib": 4800, "deployment": "PERSISTENT_2", "throughput": 1000
            }
        },
    ),
    "Lustre of the first kind": (
        "aws", {"storage.scratch": {**LINKED, "deployment": "SCRATCH_1", "size_gib": 3600}},
    ),
    "Batch in GovCloud": ("batch", {"aws:region": "us-gov-west-1"}),
}  # fmt: skip


@functools.cache
def run(name: str) -> Run:
    if name in EDITS:
        config: Mapping[str, Any] = values(*EDITS[name])
    else:
        config = yaml.safe_load(filled_in(stack_file(name).read_text()))["config"]
        # The form of jobs makes no resource of a cloud.
        config = {key: value for key, value in config.items() if key != BENCHMARK}
        config[CLUSTER].pop("hooks", None)
    with tempfile.TemporaryDirectory() as folder:
        return replacements.run(config, Path(folder))


NAMES = [*EDITS, *(pytest.param(name, marks=[] if "batch" in name else pytest.mark.wide) for name in SHIPPED)]


@pytest.mark.parametrize("name", NAMES)
def test_what_takes_long_has_the_time(name: str) -> None:
    quick = {f"{cloud}:{kind}" for cloud, kinds in FACTS["quick"].items() for kind in kinds}
    for one in run(name).declared.values():
        if one.type.partition(":")[0] not in FACTS["quick"]:
            continue
        waits = FACTS["waits"].get(one.type)
        assert (waits is not None) != (one.type.rpartition(":")[0] in quick), (
            f"{one.type}: say in provider_facts.yaml how long it takes"
        )
        files = one.type != "gcp:compute/disk:Disk" or "-storage-" in one.name
        for verb, minutes in (waits or {"needs": {}})["needs"].items():
            if files and not (verb == "update" and "updatePolicy" not in one.inputs and minutes == 361):
                limit = one.timeouts.get(verb, waits["own"].get(verb, 20))
                assert limit >= minutes, f"{one.name}: {verb} may need {minutes} minutes, and has {limit}"


def test_every_type_that_takes_long_is_declared_by_a_stack_here() -> None:
    seen = {one.type for name in EDITS for one in run(name).declared.values()}
    assert set(FACTS["waits"]) <= seen
    assert set(FACTS["values"]) <= seen


@pytest.mark.parametrize("name", NAMES)
def test_the_provider_refuses_no_value(name: str) -> None:
    assert [
        line for one in run(name).declared.values() for line in refused(one.type, one.name, one.inputs)
    ] == []


def test_a_value_that_the_provider_refuses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The value that AWS Batch was published with here: botocore's model has it."""
    monkeypatch.setattr(environment, "LONGEST_UPDATE_MINUTES", 7200)
    with tempfile.TemporaryDirectory() as folder:
        made = replacements.run(values("batch"), Path(folder))
    (line,) = (line for one in made.declared.values() for line in refused(one.type, one.name, one.inputs))
    assert "updatePolicy.jobExecutionTimeoutMinutes to be in the range (1 - 360), got 7200" in line


def test_one_association_of_lustre_is_made_after_the_other() -> None:
    """In parallel FSx refuses the second (terraform-provider-aws, issue 24678)."""
    made = run("everything on AWS")
    first, second = (made.named(f"-s3-{number}").urn for number in range(2))
    assert first in made.declared[second].after
    assert second not in made.declared[first].after


def test_govcloud_gets_no_update_policy() -> None:
    """The provider sets it by a call of its own, which GovCloud refuses (issue 43969)."""
    assert "updatePolicy" not in run("Batch in GovCloud").named("-environment-compute").inputs
    assert "updatePolicy" in run("Batch with its own events").named("-environment-compute").inputs
