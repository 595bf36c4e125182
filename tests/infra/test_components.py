"""Each component has exactly these resources, with these inputs, in this order."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pulumi
import pytest

from infra import bundle, outputs
from infra.benchmark import BenchmarkRun, Workload
from infra.local import LocalCluster, LocalShell, _facts
from infra.outputs import publish
from infra.program.stack import Stack
from infra.slurm_cluster import Benchmark
from node.design.local_cloud import CloudBehaviour
from node.design.model import BenchmarkDesign, ClusterDesign
from node.system.codec import to_json
from operations.local.__main__ import PASSING, VERBS
from operations.local.run_directory import RunDirectory
from tests.support.checkout import ROOT, sources
from tests.support.doubles import DEBUG, design
from tests.support.recorder import Recorder, declare

COMMAND = "command:local:Command"
PRINTED = {
    "id": "0123456789",
    "login_ssh": "/run/cluster ssh",
    "login": "127.0.0.1",
    "controller": "127.0.0.1:16800",
    "scheduler_version": "slurm 1",
    "shared": "/s",
}
TRAINING = BenchmarkDesign("keras-mnist", "debug", 2, 0, 3, "sync", "synthetic")


def operation(line: str) -> tuple[str, list[str]]:
    """Return a command line's verb and arguments, after a check that its program exists."""
    module, verb, option, stack, *rest = shlex.split(line)
    assert module == "operations.local"
    assert (option, stack) == ("--stack", "test")
    assert verb in {*VERBS, *PASSING}
    return verb, rest


# --- the local cluster -----------------------------------------------------------------------------------

# The command works from any folder of this machine, because consumers run outside of the checkout.
WAY_IN = shlex.join([str(ROOT / "cluster"), "ssh", "--stack", "test"])
HEAD_OUT = {"c-head": json.dumps(PRINTED), "c-bundle": '{"code": "1"}'}


def cluster(
    cluster_design: ClusterDesign | None = None, *, preview: bool = False, seen: list[Any] | None = None
) -> Recorder:
    def program() -> Any:
        inventory = LocalCluster("c", cluster_design or design()).inventory
        return pulumi.Output.all(**inventory).apply((seen if seen is not None else []).append)

    return declare(program, preview=preview, stdout={} if preview else HEAD_OUT)


@pytest.mark.parametrize("preview", [False, True])
def test_a_local_cluster_is_exactly_these_resources(preview: bool) -> None:
    made = cluster(preview=preview)
    assert made.types() == {
        "c": "slurm-stacks:index:LocalCluster",
        "c-cloud": COMMAND,
        "c-bundle": COMMAND,
        "c-termination": COMMAND,
        "c-head": COMMAND,
    }
    parents = made.parents()
    assert {name: parents[name] for name in made.types() if name != "c"} == {
        f"c-{part}": "c" for part in ("cloud", "bundle", "termination", "head")
    }
    assert made.closed.count("c") == 1


@pytest.mark.parametrize("preview", [False, True])
def test_the_order_of_destruction_is_head_termination_cloud(preview: bool) -> None:
    made = cluster(preview=preview)
    assert made.after("c-cloud") == set()
    assert made.after("c-bundle") == {"c-cloud"}
    assert made.after("c-termination") == {"c-cloud"}
    assert made.after("c-head") == {"c-bundle", "c-termination"}
    deletes = {name: made.inputs(name).get("delete") for name in made.types() if name != "c"}
    assert {name: operation(line)[0] for name, line in deletes.items() if line} == {
        "c-cloud": "cloud-down",
        "c-termination": "terminate-nodes",
        "c-head": "head-down",
    }
    # The commands must not touch another cluster of the same stack, which has the same run directory.
    assert {tuple(operation(line)[1]) for line in deletes.values() if line} == {("--cluster", "c")}


def test_what_each_command_does() -> None:
    made = cluster(design(local=CloudBehaviour(1.5, quota_nodes=7)))
    creates: dict[str, Any] = {name: made.inputs(name).get("create") for name in made.types() if name != "c"}
    assert creates.pop("c-termination") is None, "the termination does nothing until the end"
    assert {name: operation(line) for name, line in creates.items()} == {
        "c-cloud": ("cloud-up", ["--isolation", "process", "--cluster", "c"]),
        "c-bundle": ("publish", []),
        "c-head": ("head-up", []),
    }
    for name in creates:
        # Every verb is idempotent: a change runs it again instead of replacing the cluster.
        assert made.inputs(name)["update"] == made.inputs(name)["create"]
        assert "triggers" not in made.inputs(name)
    limits = json.loads(made.inputs("c-cloud")["stdin"])
    assert limits == to_json(CloudBehaviour(1.5, quota_nodes=7))
    published = json.loads(made.inputs("c-bundle")["stdin"])
    assert published["name"] == "t"
    assert made.inputs("c-bundle")["environment"] == {
        "NODE_CODE": bundle.digest(bundle.node_archive(design()))
    }
    assert made.inputs("c-head")["environment"] == {"PUBLISHED": '{"code": "1"}'}


def test_inputs_hold_nothing_of_this_machine_or_moment() -> None:
    """A second `up` from another folder, by another user or a minute later is no change."""
    made = cluster()
    text = json.dumps([made.inputs(name) for name in made.types()])
    assert str(ROOT) not in text
    assert f"{Path.home()}/" not in text
    again = cluster()
    assert json.dumps([again.inputs(name) for name in made.types()]) == text


def test_the_inventory_is_what_the_head_printed() -> None:
    seen: list[Any] = []
    cluster(seen=seen)
    assert seen == [
        {
            "id": "c-cloud-id",
            "login_address": "127.0.0.1",
            "login_machine": "0123456789",
            "controller_address": "127.0.0.1:16800",
            "login_ssh": WAY_IN,
            "scheduler_version": "slurm 1",
            "host_keys": [],
            "shared": "/s",
        }
    ]


def test_in_a_preview_the_inventory_is_unknown() -> None:
    """Nothing is invented: what depends on unknown values is not computed."""
    seen: list[Any] = []
    cluster(preview=True, seen=seen)
    assert seen == []


def test_a_head_that_prints_no_json_is_an_error() -> None:
    assert _facts("<c-head.stdout>")["login"] == "<c-head.stdout.login>"
    with pytest.raises(ValueError, match="Expecting value"):
        _facts("Segmentation fault")
    with pytest.raises(ValueError, match="Expecting value"):
        declare(lambda: LocalCluster("c", design()), stdout={"c-head": "Segmentation fault"})


# --- the benchmark ---------------------------------------------------------------------------------------

JOB_OUT = {"b-job": "17", "b-stage": "{}", "b-environment": "{}"}


def run_of(training: BenchmarkDesign = TRAINING, made: ClusterDesign | None = None) -> BenchmarkRun:
    return BenchmarkRun.of(made or design(), training, LocalShell("test"), ROOT)


def benchmark(preview: bool = False, seen: list[Any] | None = None) -> Recorder:
    def program() -> Any:
        import pulumi_command

        head = pulumi_command.local.Command("head", create="true")
        made = Benchmark("b", run_of(), LocalShell("test"), head)
        return pulumi.Output.all(made.job_id, made.result).apply((seen if seen is not None else []).append)

    return declare(program, preview=preview, stdout={} if preview else JOB_OUT)


@pytest.mark.parametrize("preview", [False, True])
def test_a_benchmark_is_exactly_these_resources(preview: bool) -> None:
    made = benchmark(preview)
    assert made.types() == {
        "head": COMMAND,
        "b": "slurm-stacks:index:Benchmark",
        "b-environment": COMMAND,
        "b-stage": COMMAND,
        "b-job": COMMAND,
    }
    assert {made.parents()[f"b-{part}"] for part in ("environment", "stage", "job")} == {"b"}
    assert made.closed.count("b") == 1
    assert made.after("b-environment") == set()
    assert made.after("b-stage") == {"head"}
    assert made.after("b-job") == {"head", "b-environment", "b-stage"}


def test_the_job_goes_with_its_head_and_is_deleted_before_it_is_replaced() -> None:
    job = benchmark().asked["b-job"]
    assert job.deletedWith.rpartition("::")[2] == "head"
    assert job.deleteBeforeReplace is True


def test_the_submit_is_one_idempotent_command() -> None:
    made, run = benchmark(), run_of()
    job = made.inputs("b-job")
    assert operation(job["create"]) == ("tool", ["submit", "--run", run.folder])
    assert job["update"] == job["create"], "a changed connection must not submit again"
    assert operation(job["delete"]) == ("cancel", ["--run", run.folder])
    assert job["stdin"] == run.script
    assert job["triggers"] == [run.workload_digest, run.folder]
    stage, environment = made.inputs("b-stage"), made.inputs("b-environment")
    assert (operation(stage["create"])[0], stage["triggers"]) == ("stage", [run.workload_digest])
    lock = (ROOT / "workload" / "envs" / "cpu" / "uv.lock").read_bytes()
    assert operation(environment["create"])[0] == "environment"
    assert environment["triggers"] == [hashlib.sha256(lock).hexdigest()[:16]]
    assert "delete" not in stage, "staged code and environments are kept"
    assert "delete" not in environment


def test_job_and_result_are_known_when_the_job_is() -> None:
    seen: list[Any] = []
    benchmark(seen=seen)
    shared = RunDirectory.of(Stack(ROOT, "test")).shared
    assert seen == [["17", f"{shared}/bench/{run_of().folder}/result.json"]]
    unknown: list[Any] = []
    benchmark(preview=True, seen=unknown)
    assert unknown == [], "a result without a job would promise too much"


def test_the_same_wish_is_the_same_run_and_another_is_another() -> None:
    from dataclasses import replace

    base = run_of()
    assert base == run_of()
    digest = Workload.of().digest
    assert base.workload_digest == digest
    assert base.folder == f"{digest[:16]}/{hashlib.sha256(base.script.encode()).hexdigest()[:12]}"
    wishes = [replace(TRAINING, epochs=4), replace(TRAINING, nodes=3), replace(TRAINING, profile="published")]
    wishes += [replace(TRAINING, data="auto"), replace(TRAINING, batch=32)]
    folders = {base.folder, *(run_of(wish).folder for wish in wishes)}
    folders.add(run_of(made=design(replace(DEBUG, instance_type="local.large"))).folder)
    assert len(folders) == 7
    assert {folder.partition("/")[0] for folder in folders} == {base.staged}, "one staged workload"


# --- the outputs of a program ----------------------------------------------------------------------------


def test_a_stacks_outputs_from_its_components_fit_the_contract() -> None:
    seen: list[Any] = []

    def program() -> Any:
        local_cluster = LocalCluster("c", design())
        training = Benchmark("b", run_of(), LocalShell("test"), local_cluster.head)
        found = publish.of(design(), local_cluster.inventory, TRAINING, training)
        return pulumi.Output.all(**found).apply(seen.append)

    declare(program, stdout={**HEAD_OUT, **JOB_OUT})
    (found,) = seen
    assert set(found) == {"cluster", "login_ssh", "benchmark_result"}
    contract = outputs.load(found["cluster"])
    assert contract.benchmark is not None
    assert (contract.benchmark.job_id, contract.benchmark.workload_digest) == (
        "17",
        Workload.of().digest,
    )
    assert contract.benchmark.result_path == found["benchmark_result"]
    assert contract.scheduler.version == "slurm 1"
    assert found["login_ssh"] == WAY_IN
    assert (contract.id, contract.shared) == ("c-cloud-id", "/s")


# --- how components are written --------------------------------------------------------------------------

COMPONENTS = [
    (path.relative_to(ROOT), node)
    for path in sources()
    if "ComponentResource" in (text := path.read_text())
    for node in ast.walk(ast.parse(text))
    if isinstance(node, ast.ClassDef) and any("ComponentResource" in ast.unparse(b) for b in node.bases)
]


def test_there_are_components() -> None:
    assert {node.name for _, node in COMPONENTS} >= {"LocalCluster", "Benchmark"}


@pytest.mark.parametrize(("path", "node"), COMPONENTS, ids=[node.name for _, node in COMPONENTS])
def test_a_component_registers_its_outputs_once_and_last(path: Path, node: ast.ClassDef) -> None:
    calls = [
        n for n in ast.walk(node) if isinstance(n, ast.Call) and "register_outputs" in ast.unparse(n.func)
    ]
    assert len(calls) == 1
    (init,) = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
    last = init.body[-1]
    assert isinstance(last, ast.Expr)
    assert last.value is calls[0]
    assert [a.arg for a in init.args.args][0::1][:2] == ["self", "name"]
    assert [*init.args.args, *init.args.kwonlyargs][-1].arg == "opts"
    types = [n.value for n in ast.walk(init) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    assert f"slurm-stacks:index:{node.name}" in types
    assert ".merge(" not in ast.unparse(init), "merging the caller's options re-parents the children"


def test_every_command_is_run_by_what_finds_the_code() -> None:
    """Without it a command would be looked for in the folder of whoever's program has the cluster."""
    calls = [
        (
            f"{path.relative_to(ROOT)}:{node.lineno}",
            {word.arg: ast.unparse(word.value) for word in node.keywords},
        )
        for path in sources()
        if "command.local" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "command.local.Command"
    ]
    assert len(calls) > 5
    assert [where for where, words in calls if words.get("interpreter") != "INTERPRETER"] == []


def test_every_question_to_a_cloud_goes_to_the_provider_that_the_cluster_is_given() -> None:
    """Without options it would go to the program's own provider, of another account or region."""
    asked = [
        (f"{path.relative_to(ROOT)}:{node.lineno}", {key.arg for key in node.keywords})
        for path in sources()
        if path.is_relative_to(ROOT / "infra")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and re.fullmatch(r"(aws|compute|filestore|gcp|storage)(\.\w+)*\.get_\w+", ast.unparse(node.func))
    ]
    assert len(asked) > 8
    assert [where for where, words in asked if "opts" not in words] == []


def test_constructors_are_short() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources()
        if "def __init__" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
        if (node.end_lineno or 0) - node.lineno >= 60
    ]
    assert long == []
