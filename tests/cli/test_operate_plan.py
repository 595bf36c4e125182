"""`plan` of the real program: the local stack's resources, what is refused, and what a plan does not need."""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cli import engine as runner
from cli.commands import doctor, operate
from cli.commands.doctor import general
from cli.console.progress import Console
from cli.findings import Severity
from cli.providers import provider
from cli.providers.clouds.base import CloudProvider
from cli.providers.interface import SharesCores
from infra import outputs
from infra.config import load_file
from infra.design import design
from infra.errors import EXIT_REFUSED, UserError
from infra.instance_types.catalog import catalog
from infra.program.stack import Stack
from operations.local import namespaces, system_packages
from operations.local.__main__ import main
from tests.support import sentences
from tests.support.checkout import CODE, ROOT

STACK = "urn:pulumi:local::slurm-stacks::"
COMMAND = "command:local:Command"


# --- the plan of the whole program -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def planned() -> Any:
    """The plan of the project's local stack, as `./cluster plan --json` prints it."""
    return json.loads(
        json.dumps(
            operate.make_plan(
                Stack(ROOT, "local"),
                load_file(ROOT / "Pulumi.local.yaml"),
            )
        )
    )


def test_what_nodes_lack_on_this_machine_is_said_before_they_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(namespaces, "unsupported_reason", lambda first: f"they share /tmp ({first})")

    def lacks(name: str) -> list[str]:
        cluster_design = design(load_file(ROOT / f"Pulumi.{name}.yaml"), catalog())
        chosen = provider.load(cluster_design.provider)
        return (
            chosen.limits_here(Stack(ROOT, name), cluster_design) if isinstance(chosen, SharesCores) else []
        )

    (text,) = lacks("local")
    assert re.fullmatch(r"they share /tmp \(127\.[\d.]+\)", text)
    plan = operate.make_plan(Stack(ROOT, "local"), load_file(ROOT / "Pulumi.local.yaml"))
    assert text in plan["warnings"]
    assert lacks("local-machines") == []
    assert lacks("aws-cpu") == []
    monkeypatch.setattr(sys, "platform", "darwin")
    assert lacks("local") == []


def test_the_local_stack_is_exactly_this_tree(planned: Any) -> None:
    component = "slurm-stacks:index:SlurmCluster"
    cluster, benchmark = (
        f"{component}$slurm-stacks:index:LocalCluster",
        f"{component}$slurm-stacks:index:Benchmark",
    )
    assert [resource["urn"] for resource in planned["resources"]] == [
        f"{STACK}pulumi:pulumi:Stack::slurm-stacks-local",
        f"{STACK}{component}::local",
        f"{STACK}{cluster}::local",
        f"{STACK}{cluster}${COMMAND}::local-bundle",
        f"{STACK}{cluster}${COMMAND}::local-cloud",
        f"{STACK}{cluster}${COMMAND}::local-head",
        f"{STACK}{cluster}${COMMAND}::local-termination",
        f"{STACK}{benchmark}::local-benchmark",
        f"{STACK}{benchmark}${COMMAND}::local-benchmark-environment",
        f"{STACK}{benchmark}${COMMAND}::local-benchmark-job",
        f"{STACK}{benchmark}${COMMAND}::local-benchmark-stage",
    ]
    named = {resource["name"]: resource for resource in planned["resources"]}
    for name, resource in named.items():
        parent = (resource["parent"] or "").rpartition("::")[2]
        expected = "local-benchmark" if name.startswith("local-benchmark-") else "local"
        assert parent == expected or name in ("slurm-stacks-local", "local", "local-benchmark")
    job = {urn.rpartition("::")[2] for urn in named["local-benchmark-job"]["dependencies"]}
    assert job >= {"local-head", "local-benchmark-stage", "local-benchmark-environment"}


def test_the_plans_outputs_fit_the_contract(planned: Any) -> None:
    assert set(planned) == {
        "stack",
        "resources",
        "outputs",
        "additions",
        "slurm",
        "cost",
        "warnings",
        "changes",
    }
    assert set(planned["outputs"]) == {"cluster", "login_ssh", "benchmark_result"}
    contract = outputs.load(planned["outputs"]["cluster"])
    jsonschema.Draft202012Validator(outputs.schema()).validate(planned["outputs"]["cluster"])
    assert contract.scheduler.version == "<local-head.stdout.scheduler_version>"
    assert contract.benchmark is not None
    assert contract.benchmark.job_id == "<local-benchmark-job.stdout>"
    assert planned["outputs"]["benchmark_result"].endswith("/result.json")
    assert planned["cost"]["idle_usd_per_hour"] == contract.cost.idle_usd_per_hour
    assert any("simulated" in warning for warning in planned["warnings"])


def project_with_stack(folder: Path, text: str) -> Path:
    """Copy the project into the test's folder, with one stack file, and return that file's path."""
    for name in ("__main__.py", "Pulumi.yaml"):
        (folder / name).write_text((ROOT / name).read_text())
    for name in CODE:
        (folder / name).symlink_to(ROOT / name)
    file = folder / "Pulumi.bare.yaml"
    file.write_text(text)
    return file


def test_a_stack_without_a_benchmark_has_none(tmp_path: Path) -> None:
    file = project_with_stack(
        tmp_path,
        "config:\n  slurm-stacks:cluster:\n    provider: local\n"
        "    partitions: [{name: debug, instance_type: local.small, nodes: {min: 1, max: 2}}]\n"
        "  slurm-stacks:benchmark: {enabled: false}\n",
    )
    plan = operate.make_plan(Stack(tmp_path, "bare"), load_file(file))
    assert [r["name"].rpartition("-")[2] for r in plan["resources"] if r["type"] == COMMAND] == [
        "bundle", "cloud", "head", "termination",
    ]  # fmt: skip
    assert set(plan["outputs"]) == {"cluster", "login_ssh"}
    assert plan["outputs"]["cluster"]["benchmark"] is None
    assert any("1 static node runs" in warning for warning in plan["warnings"])


def test_doctor_and_up_refuse_what_the_plan_refuses_in_its_words_and_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each key is valid. Only the computation of subnets shows the mistake, before `up` asks a cloud."""
    file = project_with_stack(
        tmp_path,
        "config:\n  aws:region: eu-west-1\n  slurm-stacks:cluster:\n    provider: aws\n"
        "    network: {cidr: 10.0.0.0/24, public_cidr: 10.0.0.0/26, private_cidr: 10.0.0.64/28,\n"
        "              zones: [eu-west-1a, eu-west-1b]}\n"
        "    partitions: [{name: debug, instance_type: m5.large, nodes: {max: 5}}]\n"
        "  slurm-stacks:benchmark: {enabled: false}\n",
    )
    config = load_file(file)
    with sentences.raises("network.too-small", "2 zones") as refused:
        operate.make_plan(Stack(tmp_path, config.stack), config)
    for asks in ("check_host", "check_changes"):
        monkeypatch.setattr(
            CloudProvider, asks, lambda *_arguments, **_options: pytest.fail("a cloud is asked")
        )
    monkeypatch.setattr(runner, "select", lambda *_arguments: pytest.fail("the engine is asked for"))
    with pytest.raises(UserError) as again:
        operate.bring_up(Stack(tmp_path, config.stack), config, Console())
    assert str(again.value) == str(refused.value)
    (found,) = general.planned(Stack(tmp_path, "bare"))
    assert found.severity is Severity.STOPS
    assert found.cure is not None
    assert str(refused.value).startswith(found.found)
    assert str(refused.value).endswith(found.cure)


def test_a_machine_that_is_no_linux_has_the_clouds_and_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.delattr(os, "sched_getaffinity")  # macOS has none
    with sentences.raises("provider.needs-linux", "Darwin") as no:
        operate.make_plan(Stack(ROOT, "local"), load_file(ROOT / "Pulumi.local.yaml"))
    assert no.value.exit_code == EXIT_REFUSED
    found = doctor.findings_of(Stack(ROOT, "local"))
    assert Severity.STOPS in [f.severity for f in found if f.found.startswith("the local stack needs Linux")]
    assert operate.make_plan(Stack(ROOT, "gcp-cpu"), load_file(ROOT / "Pulumi.gcp-cpu.yaml"))["resources"]


def in_this_process(command: list[str], *, input: str, **_options: Any) -> subprocess.CompletedProcess[str]:
    """Run `operations.local look` in this process, where the test has replaced what is installed."""
    assert command[:4] == [sys.executable, str(ROOT / "operations"), "operations.local", "look"]
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", command[2:])
        patch.setattr(sys, "stdin", io.StringIO(input))
        code = main()
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())


@pytest.mark.parametrize("installed", [True, False])
def test_the_plan_says_what_accounting_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    file = project_with_stack(
        tmp_path,
        "config:\n  slurm-stacks:cluster:\n    provider: local\n    slurm: {accounting: true}\n"
        "    partitions: [{name: debug, instance_type: local.small, nodes: {max: 2}}]\n"
        "  slurm-stacks:benchmark: {enabled: false}\n",
    )
    monkeypatch.setattr("infra.local.subprocess.run", in_this_process)
    monkeypatch.setattr(namespaces, "unsupported_reason", lambda _first: None)
    monkeypatch.setattr(system_packages, "missing", lambda _purpose: [] if installed else ["slurmdbd"])
    monkeypatch.setattr(system_packages, "_root", lambda _refusal: [])
    monkeypatch.setattr(shutil, "which", lambda _name: "/usr/bin/apt-get")
    text = "slurm-stacks:cluster.slurm.accounting: true needs slurmdbd: `up` installs them by apt-get"
    assert (text in operate.make_plan(Stack(tmp_path, "bare"), load_file(file))["warnings"]) == (
        not installed
    )
    if not installed:
        monkeypatch.setattr(shutil, "which", lambda _name: None)
        with sentences.raises("local.failed", "slurmdbd"):
            operate.make_plan(Stack(tmp_path, "bare"), load_file(file))


def test_a_plan_imports_no_clouds_sdk_and_no_tensorflow_and_touches_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from cli.commands import operate; from infra.config import load_file\n"
        "from infra.program.stack import Stack\n"
        f"root = Path({str(ROOT)!r})\n"
        "made = operate.make_plan(Stack(root, 'local'), load_file(root / 'Pulumi.local.yaml'))\n"
        "names = sorted({name.partition('.')[0] for name in sys.modules})\n"
        "print(len(made['resources']), len(sys.modules), *names)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        # The plan runs without a home, credentials and the Pulumi CLI.
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    count, loaded, *modules = done.stdout.split()
    assert count == "11"
    # A cold start may take 3 s, and nearly all of it is imports: there are 716.
    assert int(loaded) < 1000
    assert "pulumi_command" in modules
    heavy = {"pulumi_aws", "pulumi_gcp", "tensorflow", "tf_keras", "keras", "numpy", "boto3", "google.cloud"}
    assert not heavy & set(modules)
    assert list(tmp_path.iterdir()) == []
