"""One thread a core: which machine types have it or can have it, and how many CPUs Slurm counts."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import moto
import pytest

from infra.aws.launch_templates import TemplateOverrides
from infra.config import parse
from infra.design import design
from infra.instance_types import threads
from infra.instance_types.catalog import catalog
from node.design.model import Partition
from tests.support.stack_values import mistakes, values

DESCRIBED = Path(moto.__file__).parent / "ec2" / "resources" / "instance_types.json.gz"
"""EC2's answers to DescribeInstanceTypes."""


def test_the_types_of_ec2_with_one_thread_are_those_that_it_describes_so() -> None:
    described = json.loads(gzip.decompress(DESCRIBED.read_bytes()))
    ours = [name for name, machine in catalog().machines.items() if machine.provider == "aws"]
    known = {name: described[name]["VCpuInfo"] for name in ours if name in described}
    assert len(known) > 500
    wrong = {
        name
        for name, of in known.items()
        if threads.has_one(name, "aws") != (of["DefaultThreadsPerCore"] == 1)
    }
    assert wrong == set()
    halved = [name for name in known if not threads.has_one(name, "aws")]
    able = [name for name in halved if not threads.why_not_one(name, "aws", known[name]["DefaultVCpus"])]
    for name in able:
        of = known[name]
        assert of["DefaultCores"] * 2 == of["DefaultVCpus"] == catalog().machines[name].vcpus
        assert 1 in of.get("ValidThreadsPerCore", [1])
        assert of["DefaultCores"] in of.get("ValidCores", [of["DefaultCores"]])
    unable = set(halved) - set(able)
    assert unable
    assert not any("ValidThreadsPerCore" in known[name] for name in unable)


def made(stack: str, changes: dict[str, Any]) -> Partition:
    given = values(stack, changes)
    assert mistakes(given) == []
    return design(parse(given, "test"), catalog()).partitions[0]


AWS = "partitions[0].aws"
GCP = "partitions[0].gcp"
C5 = {"partitions[0].instance_type": "c5.4xlarge", "partitions[0].threads_per_core": 1}
N2 = {
    "partitions[0]": {"name": "cpu", "instance_type": "n2-standard-8", "threads_per_core": 1},
    "@partition": "cpu",
    "@gpus_per_node": 0,
}


@pytest.mark.parametrize(
    ("stack", "changes", "cpus", "threads_per_core"),
    [
        ("aws", C5, 8, 1),
        ("aws", C5 | {"partitions[0].instance_type": "c7a.4xlarge"}, 16, None),
        ("aws", C5 | {"partitions[0].threads_per_core": None}, 16, None),
        ("gcp", N2, 4, 1),
        ("local", {"partitions[0].instance_type": "local.medium", "partitions[0].threads_per_core": 1}, 1, 1),
    ],
)
def test_slurm_counts_the_cores(
    stack: str, changes: dict[str, Any], cpus: int, threads_per_core: int | None
) -> None:
    partition = made(stack, changes)
    assert (partition.cpus, partition.threads_per_core) == (cpus, threads_per_core)


def test_a_launch_template_has_the_cores_with_their_threads_beside_its_other_options() -> None:
    assert TemplateOverrides.of(made("aws", C5)).fields == {
        "cpu_options": {"core_count": 8, "threads_per_core": 1}
    }
    other = made("aws", C5 | {"partitions[0].instance_type": "c7a.4xlarge"})
    assert TemplateOverrides.of(other).fields == {}
    fewer = {AWS: {"launch_template_overrides": {"cpu_options": {"core_count": 4, "threads_per_core": 1}}}}
    both = made("aws", C5 | fewer)
    assert both.cpus == 4
    assert TemplateOverrides.of(both).fields == {"cpu_options": {"core_count": 4, "threads_per_core": 1}}
    secure = {AWS: {"launch_template_overrides": {"cpu_options": {"amd_sev_snp": "enabled"}}}}
    partition = made("aws", C5 | {"partitions[0].instance_type": "c6a.4xlarge"} | secure)
    assert TemplateOverrides.of(partition).fields == {
        "cpu_options": {"core_count": 8, "threads_per_core": 1, "amd_sev_snp": "enabled"}
    }


def test_visible_cores_on_google_cloud_are_counted_once() -> None:
    fewer = {"instance_template_overrides": {"advanced_machine_features": {"visible_core_count": 2}}}
    partition = made("gcp", N2 | {GCP: fewer})
    assert (partition.cpus, partition.threads_per_core) == (2, 1)
