"""The outputs contract: every stack's `cluster` output fits the schema and says what the design says."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import jsonschema
import pulumi
import pytest
from stack_values import STACKS

from infra import outputs
from infra.config import load_file
from infra.design import benchmark_design, design
from infra.machines import catalog

ROOT = Path(__file__).parents[2]
FILES = [*sorted(STACKS.glob("Pulumi.*.yaml")), *sorted(ROOT.glob("Pulumi.*.yaml"))]
SCHEMA = json.loads(outputs.SCHEMA.read_text(encoding="utf-8"))

THERE = outputs.Deployed(
    login_address="198.51.100.7",
    controller_address="10.0.0.5",
    login_ssh="ssh ubuntu@198.51.100.7",
    scheduler_version="23.11.4",
    host_keys=["ssh-ed25519 AAAA"],
)
JOB = outputs.Job(job_id="3", workload_digest="ab" * 32, result_path="/home/bench/abab/result.json")


def built(file: Path, deployed: outputs.Deployed = THERE) -> dict[str, Any]:
    config = load_file(file)
    cluster = design(config, catalog())
    benchmark = benchmark_design(config, cluster)
    return outputs.build(cluster, deployed, benchmark, JOB if benchmark else None)


@pytest.mark.parametrize("file", FILES, ids=[f.stem for f in FILES])
def test_every_stacks_outputs_fit_the_schema(file: Path) -> None:
    output = built(file)
    jsonschema.Draft202012Validator(SCHEMA).validate(output)
    assert json.loads(json.dumps(output)) == output
    assert outputs.validate(output).model_dump(by_alias=True, mode="json") == output


def test_what_the_output_says() -> None:
    output = built(STACKS / "Pulumi.gcp-gpu.yaml")
    assert output["apiVersion"] == "slurm-stacks/v1"
    assert (output["name"], output["stack"], output["provider"]) == ("slurm8", "gcp-gpu", "gcp")
    assert (output["region"], output["zone"]) == ("europe-west4", "europe-west4-a")
    assert output["scheduler"] == {"name": "slurm", "version": "23.11.4"}
    assert output["login"] == {
        "address": "198.51.100.7",
        "ssh": "ssh ubuntu@198.51.100.7",
        "host_keys": ["ssh-ed25519 AAAA"],
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
    assert partition["price_usd_per_hour"] == pytest.approx(2.575)
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
    output = built(STACKS / "Pulumi.aws-batch.yaml", outputs.Deployed(scheduler_version="AWS Batch"))
    assert (output["login"], output["controller"], output["benchmark"]) == (None, None, None)
    assert output["partitions"][0]["name"] == "tf-queue"
    jsonschema.Draft202012Validator(SCHEMA).validate(output)


def test_a_node_local_directory_is_not_shared() -> None:
    mounts = {m["path"]: m["shared"] for m in built(STACKS / "Pulumi.aws-p4de.yaml")["mounts"]}
    assert mounts == {"/home": True, "/apps": True, "/fsx": True, "/local_scratch": False}


@pytest.mark.parametrize(
    "change",
    [
        {"apiVersion": "slurm-stacks/v2"},
        {"provider": "azure"},
        {"secret": "x"},
        {"partitions": None},
        {"login": {"address": "x"}},
        {"cost": {"idle_usd_per_hour": -1, "max_usd_per_hour": 0, "unknown": [], "prices_of": ""}},
    ],
    ids=str,
)
def test_other_outputs_are_refused(change: dict[str, Any]) -> None:
    output = built(STACKS / "Pulumi.aws-cpu.yaml") | change
    assert list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(output))
    with pytest.raises(ValueError, match=next(iter(change))):
        outputs.validate(output)


def test_a_missing_part_is_refused() -> None:
    for key in built(STACKS / "Pulumi.aws-cpu.yaml"):
        output = built(STACKS / "Pulumi.aws-cpu.yaml")
        del output[key]
        assert list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(output)), key


class _Submitted:
    def __init__(self) -> None:
        self.job_id = pulumi.Output.from_input("7")
        self.result = pulumi.Output.from_input("/home/bench/x/result.json")


@pytest.mark.parametrize("trained", [True, False])
def test_a_programs_outputs(trained: bool) -> None:
    config = load_file(ROOT / "Pulumi.local.yaml")
    cluster = design(config, catalog())
    benchmark = benchmark_design(config, cluster) if trained else None

    async def run() -> dict[str, Any]:
        inventory: Any = {key: pulumi.Output.from_input(value) for key, value in THERE.model_dump().items()}
        inventory |= {
            "shared": pulumi.Output.from_input("/s"),
            "sweep": pulumi.Output.from_input({"id": "x"}),
        }
        made = outputs.of(cluster, inventory, benchmark, _Submitted() if trained else None)
        return {name: await value.future() for name, value in made.items()}

    found = asyncio.run(run())
    assert set(found) == {"cluster", "login_ssh"} | ({"benchmark_result"} if trained else set())
    assert found["login_ssh"] == THERE.login_ssh
    jsonschema.Draft202012Validator(SCHEMA).validate(found["cluster"])
    if trained:
        assert found["benchmark_result"] == "/home/bench/x/result.json"
        assert found["cluster"]["benchmark"]["job_id"] == "7"
        assert len(found["cluster"]["benchmark"]["workload_digest"]) == 64
    else:
        assert found["cluster"]["benchmark"] is None
