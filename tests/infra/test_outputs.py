"""The outputs contract: every stack's `cluster` output fits the schema and says what the design says."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import jsonschema
import pulumi
import pytest

from infra.config import load_file
from infra.design import benchmark_design, design
from infra.instance_types.catalog import catalog
from infra.outputs import contract, publish
from infra.outputs.fields import SCHEMA as SCHEMA_FILE
from tests.support import shipped
from tests.support.stack_values import STACKS, stack_file

ROOT = Path(__file__).parents[2]
FILES = [*sorted(STACKS.glob("Pulumi.*.yaml")), *shipped.files()]
SCHEMA = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))

THERE = publish.Deployed(
    id="c0ffee",
    login_address="198.51.100.7",
    controller_address="10.0.0.5",
    login_machine="i-0123456789abcdef0",
    login_ssh="ssh ubuntu@198.51.100.7",
    scheduler_version="23.11.4",
    host_keys=["ssh-ed25519 AAAA"],
    shared="/home/shared",
)
JOB = publish.Job(job_id="3", workload_digest="ab" * 32, result_path="/home/bench/abab/result.json")


def built(file: Path, deployed: publish.Deployed = THERE) -> dict[str, Any]:
    config = load_file(file)
    cluster = design(config, catalog())
    benchmark = benchmark_design(config, cluster)
    return publish.build(cluster, deployed, benchmark, JOB if benchmark else None)


@pytest.mark.parametrize("file", FILES, ids=[f.stem for f in FILES])
def test_every_stacks_outputs_fit_the_schema(file: Path) -> None:
    output = built(file)
    jsonschema.Draft202012Validator(SCHEMA).validate(output)
    assert json.loads(json.dumps(output)) == output
    # Readers allow more fields; what we publish has these and no others.
    strictly = contract.ClusterOutput.model_validate(output, strict=True, extra="forbid")
    assert strictly.model_dump(by_alias=True, mode="json") == output
    assert contract.load(output) == strictly


def test_what_the_output_says() -> None:
    output = built(STACKS / "Pulumi.gcp-gpu.yaml")
    assert output["apiVersion"] == "slurm-stacks/v1"
    assert (output["id"], output["shared"]) == ("c0ffee", "/home/shared")
    assert (output["name"], output["stack"], output["provider"]) == ("slurm8", "gcp-gpu", "gcp")
    assert (output["region"], output["zone"]) == ("europe-west4", "europe-west4-a")
    assert output["scheduler"] == {"name": "slurm", "version": "23.11.4"}
    assert output["login"] == {
        "address": "198.51.100.7",
        "ssh": "ssh ubuntu@198.51.100.7",
        "host_keys": ["ssh-ed25519 AAAA"],
        "access": {"mode": "iap", "user": None, "key": None, "machine": "i-0123456789abcdef0"},
    }
    assert output["controller"] == {"address": "10.0.0.5"}
    (partition,) = output["partitions"]
    assert partition["accelerator"] == {"type": "v100", "count": 1, "gres": "gpu", "simulated": False}
    assert (partition["name"], partition["machine"], partition["min"], partition["max"]) == (
        "debug",
        "n1-standard-2",
        0,
        8,
    )
    assert partition["price_usd_per_hour"] == pytest.approx(0.104584 + 2.604)
    assert [(m["path"], m["kind"], m["shared"]) for m in output["mounts"]] == [
        ("/home", "nfs", True),
        ("/apps", "nfs", True),
    ]
    assert output["benchmark"] == {
        "job_id": "3",
        "workload_digest": "ab" * 32,
        "script": "keras-mnist",
        "partition": "debug",
        "nodes": 8,
        "result_path": "/home/bench/abab/result.json",
    }
    assert output["cost"]["max_usd_per_hour"] > 8 * 2.575
    assert output["cost"]["prices_of"] == catalog().date


def test_batch_has_no_login() -> None:
    output = built(STACKS / "Pulumi.aws-batch.yaml", publish.Deployed(id="1", scheduler_version="AWS Batch"))
    assert {output[key] for key in ("login", "controller", "benchmark", "shared")} == {None}
    assert output["partitions"][0]["name"] == "tf-queue"
    jsonschema.Draft202012Validator(SCHEMA).validate(output)


def test_a_node_local_directory_is_not_shared() -> None:
    mounts = {m["path"]: m["shared"] for m in built(stack_file("aws-p4de"))["mounts"]}
    assert mounts == {"/home": True, "/apps": True, "/fsx": True, "/local_scratch": False}


class _Submitted:
    def __init__(self) -> None:
        self.job_id = pulumi.Output.from_input("7")
        self.result = pulumi.Output.from_input("/home/bench/x/result.json")


def of_a_program(trained: bool) -> dict[str, Any]:
    """Return the resolved outputs of the local stack's program."""
    config = load_file(ROOT / "Pulumi.local.yaml")
    cluster = design(config, catalog())
    benchmark = benchmark_design(config, cluster) if trained else None

    async def run() -> dict[str, Any]:
        inventory: Any = {key: pulumi.Output.from_input(value) for key, value in THERE.model_dump().items()}
        made = publish.of(cluster, inventory, benchmark, _Submitted() if trained else None)
        return {name: await value.future() for name, value in made.items()}

    return asyncio.run(run())


@pytest.mark.parametrize("trained", [True, False])
def test_a_programs_outputs(trained: bool) -> None:
    found = of_a_program(trained)
    assert set(found) == {"cluster", "login_ssh"} | ({"benchmark_result"} if trained else set())
    assert found["login_ssh"] == THERE.login_ssh
    jsonschema.Draft202012Validator(SCHEMA).validate(found["cluster"])
    assert (found["cluster"]["id"], found["cluster"]["shared"]) == (THERE.id, THERE.shared)
    if trained:
        assert found["benchmark_result"] == "/home/bench/x/result.json"
        assert found["cluster"]["benchmark"]["job_id"] == "7"
        assert len(found["cluster"]["benchmark"]["workload_digest"]) == 64
    else:
        assert found["cluster"]["benchmark"] is None
