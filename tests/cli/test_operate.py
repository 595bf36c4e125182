"""`up` and `down` with a fake engine and a fake cluster, and `plan` of the real program."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console as RichConsole

from cli import doctor, former_benchmark, login_machine, operate, runner
from cli.clouds.provider import CloudProvider
from cli.console.progress import Console
from cli.doctor import project as general
from cli.doctor.finding import Severity
from cli.local import operations, system_packages
from cli.local.provider import LocalProvider
from cli.provider import StackUp
from infra import outputs
from infra.benchmark import BenchmarkRun
from infra.config import StackConfig, load_file, parse
from infra.design import benchmark_design, design
from infra.errors import EXIT_INTERRUPTED, EXIT_REFUSED, NotUpError, UserError
from infra.instance_types.catalog import catalog
from infra.program.stack import Stack
from tests.support.checkout import CODE, ROOT
from tests.support.report_records import keep, local
from tests.support.stack_values import values

STACK = "urn:pulumi:local::slurm-stacks::"
COMMAND = "command:local:Command"
RESULT = local(seconds=10.0)


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


def test_the_local_stack_is_exactly_this_tree(planned: Any) -> None:
    cluster, benchmark = "slurm-stacks:index:LocalCluster", "slurm-stacks:index:Benchmark"
    assert [resource["urn"] for resource in planned["resources"]] == [
        f"{STACK}pulumi:pulumi:Stack::slurm-stacks-local",
        f"{STACK}{cluster}::local",
        f"{STACK}{cluster}${COMMAND}::local-bundle",
        f"{STACK}{cluster}${COMMAND}::local-cloud",
        f"{STACK}{cluster}${COMMAND}::local-head",
        f"{STACK}{cluster}${COMMAND}::local-sweep",
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
    assert set(planned) == {"stack", "resources", "outputs", "additions", "cost", "warnings", "changes"}
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
    made = operate.make_plan(Stack(tmp_path, "bare"), load_file(file))
    assert [r["name"].rpartition("-")[2] for r in made["resources"] if r["type"] == COMMAND] == [
        "bundle", "cloud", "head", "sweep",
    ]  # fmt: skip
    assert set(made["outputs"]) == {"cluster", "login_ssh"}
    assert made["outputs"]["cluster"]["benchmark"] is None
    assert any("1 static node runs" in warning for warning in made["warnings"])


def test_doctor_and_up_refuse_what_the_plan_refuses_in_its_words_and_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each key is valid. Only the computation of subnets shows the mistake, before `up` asks a cloud."""
    file = project_with_stack(
        tmp_path,
        "config:\n  aws:region: eu-west-1\n  slurm-stacks:cluster:\n    provider: aws\n"
        "    network: {cidr: 10.0.0.0/24, public_cidr: 10.0.0.0/26, private_cidr: 10.0.0.64/26}\n"
        "    partitions: [{name: debug, instance_type: m5.large, nodes: {max: 500}}]\n"
        "  slurm-stacks:benchmark: {enabled: false}\n",
    )
    config = load_file(file)
    with pytest.raises(UserError, match="addresses") as refused:
        operate.make_plan(Stack(tmp_path, config.stack), config)
    for asks in ("prepare", "check_changes"):
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
    with pytest.raises(
        UserError, match=r"the local stack needs Linux, and this machine's system is Darwin"
    ) as no:
        operate.make_plan(Stack(ROOT, "local"), load_file(ROOT / "Pulumi.local.yaml"))
    assert no.value.exit_code == EXIT_REFUSED
    found = doctor.findings_of(Stack(ROOT, "local"))
    assert Severity.STOPS in [f.severity for f in found if f.found.startswith("the local stack needs Linux")]
    assert operate.make_plan(Stack(ROOT, "gcp-cpu"), load_file(ROOT / "Pulumi.gcp-cpu.yaml"))["resources"]


def in_this_process(command: list[str], *, input: str, **_options: Any) -> subprocess.CompletedProcess[str]:
    """Run `cli.local.operations look` in this process, where the test has replaced what is installed."""
    assert command[:4] == [sys.executable, "-m", "cli.local.operations", "look"]
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", command[2:])
        patch.setattr(sys, "stdin", io.StringIO(input))
        code = operations.main()
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
    monkeypatch.setattr("infra.local.cluster.subprocess.run", in_this_process)
    monkeypatch.setattr(system_packages, "missing", lambda _purpose: [] if installed else ["slurmdbd"])
    monkeypatch.setattr(system_packages, "_root", lambda _refusal: [])
    monkeypatch.setattr(shutil, "which", lambda _name: "/usr/bin/apt-get")
    told = "slurm-stacks:cluster.slurm.accounting: true needs slurmdbd: `up` installs them by apt-get"
    assert (told in operate.make_plan(Stack(tmp_path, "bare"), load_file(file))["warnings"]) == (
        not installed
    )
    if not installed:
        monkeypatch.setattr(shutil, "which", lambda _name: None)
        with pytest.raises(UserError, match="accounting: true needs slurmdbd, and there is no apt-get here"):
            operate.make_plan(Stack(tmp_path, "bare"), load_file(file))


def test_a_plan_imports_no_clouds_sdk_and_no_tensorflow_and_touches_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from cli import operate; from infra.config import load_file; from infra.program.stack import Stack\n"
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
    assert count == "10"
    # A cold start may take 3 s, and nearly all of it is imports: there are 716.
    assert int(loaded) < 1000
    assert "pulumi_command" in modules
    heavy = {"pulumi_aws", "pulumi_gcp", "tensorflow", "tf_keras", "keras", "numpy", "boto3", "google.cloud"}
    assert not heavy & set(modules)
    assert list(tmp_path.iterdir()) == []


# --- up and down with a fake engine and a fake cluster -------------------------------------------------


class Engine:
    """A runner that records what it does."""

    name = "fake"

    def __init__(self) -> None:
        self.did: list[str] = []
        self.known: dict[str, Any] = {}

    def outputs(self) -> dict[str, Any]:
        return self.known

    def up(self, _on_event: Any, *, benchmark: bool = True) -> dict[str, Any]:
        self.did.append("up" if benchmark else "up without the benchmark")
        return {"login_ssh": "./cluster ssh"}

    def destroy(self, _on_event: Any) -> None:
        self.did.append("destroy")


class Tool:
    """The cluster's own command: it answers `benchmark` and `status` in order and repeats the last one."""

    def __init__(self) -> None:
        self.submitted: list[tuple[str, str]] = []
        self.benchmark: list[dict[str, Any]] = [seen(result=RESULT)]
        self.status: list[dict[str, Any]] = [status(0)]

    def __call__(self, _up: StackUp, verb: str, *rest: str, text: str = "", seconds: float = 0) -> str:
        if verb == "submit":
            self.submitted.append((rest[1], text))
            return "7\n"
        queue = getattr(self, verb)
        answer = queue.pop(0) if len(queue) > 1 else queue[0]
        if isinstance(answer, BaseException):
            raise answer
        return json.dumps(answer)


def seen(state: str = "RUNNING", alive: bool = True, **more: Any) -> dict[str, Any]:
    job = {"id": 7, "state": state, "nodes": "debug-[0-1]", "cause": None, "alive": alive}
    return {"folder": "/bench/x", "job": job, "progress": None, "result": None, "tail": [], **more}


def status(running: int, *jobs: str) -> dict[str, Any]:
    return {"machines": {"running": running, "pending": 0}, "jobs": [{"state": state} for state in jobs]}


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Tool:
    made = Tool()
    monkeypatch.setattr(login_machine, "tool", made)
    monkeypatch.setattr(operate, "POLL_SECONDS", 0.0)
    return made


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Engine:
    made = Engine()
    monkeypatch.setattr(runner, "select", lambda *_arguments: made)
    monkeypatch.setattr(system_packages, "ensure", lambda _say, **_options: None)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return made


@pytest.fixture
def config() -> StackConfig:
    return parse(values("local"), "test")


@pytest.fixture
def said() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def console(said: io.StringIO) -> Console:
    return Console(RichConsole(file=said, width=200, soft_wrap=True))


def bring_up(config: StackConfig, console: Console) -> None:
    operate.bring_up(Stack(ROOT, config.stack), config, console)


def test_up_prints_the_result_and_keeps_it_where_it_outlives_the_cluster(
    engine: Engine, tool: Tool, config: StackConfig, console: Console, said: io.StringIO,
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    progress = {"epoch": 1, "epochs": 2, "loss": 0.25, "accuracy": 0.5}
    waiting = seen("PENDING")
    waiting["job"]["cause"] = "quota: no more"
    tool.benchmark = [
        waiting, seen("CONFIGURING"), seen(), seen(progress=progress), seen(result=RESULT),
    ]  # fmt: skip
    tool.status = [status(2), status(1), status(0)]
    bring_up(config, console)
    assert engine.did == ["up"]
    lines = [line.split(" ", 3)[-1] for line in said.getvalue().splitlines() if line.startswith("  0:")]
    assert lines == [
        "waits: quota: no more",
        "nodes are starting: debug-[0-1]",
        "running on debug-[0-1]: the training starts",
        "running on debug-[0-1]: epoch 1 of 2, loss 0.2500, accuracy 0.5000",
        "2 up",
        "1 up",
    ]
    assert "back to 0 nodes" in said.getvalue()
    out = capsys.readouterr().out
    assert "Result of job 7" in out
    assert "./cluster ssh" in out
    (kept,) = (tmp_path / "state" / "slurm-stacks" / "results" / "test").iterdir()
    assert "-job-7-" in kept.name
    assert json.loads(kept.read_text()) == RESULT
    assert (
        "`./cluster run --stack test --nodes 1,2` measures how much faster 2 nodes are than 1."
        in said.getvalue()
    )
    (submitted,) = tool.submitted
    assert submitted[1].startswith("#!"), "the script itself, so that a failed job is submitted anew"


def test_up_predicts_how_much_faster_the_nodes_were_where_none_was_measured(
    engine: Engine, config: StackConfig, console: Console, said: io.StringIO, tool: Tool
) -> None:
    alone = {"cores": 2, "cores_shared": False, "profile": "local-sgd", "average_every": 16}
    result = RESULT | alone | {"step_seconds": 0.04, "exchange_seconds": 0.064}
    tool.benchmark = [seen(result=result)]
    bring_up(config, console)
    (line,) = [line for line in said.getvalue().splitlines() if "as fast as" in line]
    assert line == (
        "2 nodes trained about 1.8× as fast as 1 would, by this run's own times: 40 ms a step, "
        "64 ms an exchange every 16 steps. `./cluster run --stack test --nodes 1,2` measures it."
    )


def test_up_ends_with_how_much_faster_the_nodes_were_than_one_where_one_was_measured(
    engine: Engine, config: StackConfig, console: Console, said: io.StringIO, tool: Tool
) -> None:
    keep("test", local(1, 17.0), local(1, 19.0), local(1, 5.0, profile="published"))
    bring_up(config, console)
    (line,) = [line for line in said.getvalue().splitlines() if "as fast as" in line]
    assert line == (
        "2 nodes trained 1.8× as fast as 1: an epoch took 5.00 s, on 1 node 9.00 s (median of 2 kept runs); "
        "the nodes shared 1 core."
    )
    assert "--nodes 1,2" not in said.getvalue()


@pytest.mark.parametrize("refused", ["checkouts", "results"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_result_that_cannot_be_kept_is_shown_and_its_place_said(
    engine: Engine, tool: Tool, config: StackConfig, console: Console, said: io.StringIO, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int, refused: str,
) -> None:  # fmt: skip
    write_text = Path.write_text

    def refuse(path: Path, text: str, encoding: str | None = None) -> int:
        if refused not in path.parts:
            return write_text(path, text, encoding)
        path.touch()
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(engine, "up", lambda *_, **__: {"benchmark_result": "/shared/bench/x/result.json"})
    monkeypatch.setattr(Path, "write_text", refuse)
    bring_up(config, console)
    assert "Result of job 7" in capsys.readouterr().out
    folder = tmp_path / "state" / "slurm-stacks" / "results" / "test"
    assert "the result is not kept: " in said.getvalue()
    assert str(folder) in said.getvalue()
    assert "Until `./cluster down --stack test` it lies in /shared/bench/x/result.json." in said.getvalue()
    assert [*(tmp_path / "state" / "slurm-stacks" / refused).rglob("*.*")] == [], "nothing half made"


def test_up_fails_with_the_jobs_last_words(
    engine: Engine, tool: Tool, config: StackConfig, console: Console
) -> None:
    tool.benchmark = [seen("FAILED", False, tail=["ValueError: no", "end"])]
    with pytest.raises(UserError) as caught:
        bring_up(config, console)
    text = str(caught.value)
    assert caught.value.exit_code == 1
    assert text.startswith("job 7 ended (FAILED) without a result. The end of its output, in /bench/x:")
    assert "\n  ValueError: no\n  end\n" in text
    assert "./cluster up --stack test" in text
    tool.benchmark = [{**seen(), "job": None}]
    with pytest.raises(UserError, match=r"ended \(GONE\) without a result(.|\n)*\(no output\)"):
        bring_up(config, console)


def test_a_result_that_comes_a_moment_after_the_jobs_end_counts(
    engine: Engine, tool: Tool, config: StackConfig, console: Console
) -> None:
    tool.benchmark = [seen("COMPLETED", False), seen("COMPLETED", False, result=RESULT)]
    bring_up(config, console)


def test_ctrl_c_while_waiting_says_what_goes_on(
    engine: Engine, tool: Tool, config: StackConfig, console: Console, said: io.StringIO
) -> None:
    tool.benchmark = [KeyboardInterrupt()]  # type: ignore[list-item]
    with pytest.raises(UserError, match="the cluster and its job go on") as caught:
        bring_up(config, console)
    assert caught.value.exit_code == EXIT_INTERRUPTED
    tool.benchmark = [seen(result=RESULT)]
    tool.status = [KeyboardInterrupt()]  # type: ignore[list-item]
    with pytest.raises(UserError, match="the nodes go back by themselves") as caught:
        bring_up(config, console)
    assert caught.value.exit_code == EXIT_INTERRUPTED


def test_up_does_not_wait_for_nodes_that_others_use(
    engine: Engine, tool: Tool, config: StackConfig, console: Console, said: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    tool.status = [status(2, "COMPLETING"), status(2, "COMPLETING", "RUNNING")]
    bring_up(config, console)
    assert (
        f"other jobs keep nodes up: `./cluster status --stack {config.stack}` names them" in said.getvalue()
    )
    monkeypatch.setattr(operate, "SETTLE_SECONDS", -10_000.0)
    bring_up(config, console)
    assert f"nodes are still up: `./cluster status --stack {config.stack}` says why" in said.getvalue()


def test_up_without_the_benchmark_neither_submits_nor_waits(
    engine: Engine, tool: Tool, config: StackConfig, console: Console
) -> None:
    tool.benchmark = [KeyboardInterrupt()]  # type: ignore[list-item]
    made = operate.bring_up(Stack(ROOT, config.stack), config, console, benchmark=False)
    assert engine.did == ["up without the benchmark"]
    assert (made["result"], len(tool.benchmark)) == (None, 1), "nobody has asked for it"


def test_up_for_programs_says_all_of_it_in_one_object(
    engine: Engine, tool: Tool, config: StackConfig, console: Console, capsys: pytest.CaptureFixture[str]
) -> None:
    made = operate.bring_up(Stack(ROOT, config.stack), config, console, quiet=True)
    assert capsys.readouterr().out == "", "that is whose call it is"
    assert (made["stack"], made["result"]) == (config.stack, RESULT)
    assert made["outputs"] == {"login_ssh": "./cluster ssh"}
    assert (made["changes"], made["seconds"] >= 0) == ({}, True)


def test_static_nodes_stay(tool: Tool, console: Console, said: io.StringIO) -> None:
    changed = parse(values("local", {"partitions[0].nodes.min": 2}), "test")
    tool.status = [status(3), status(2)]
    operate.wait_for_idle(StackUp.of(Stack(ROOT, "test"), changed), design(changed, catalog()), console)
    assert "back to 2 nodes" in said.getvalue()


def test_down_audits_and_names_what_is_left(
    engine: Engine, console: Console, said: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: Callable[..., list[str]] = lambda *_arguments: []  # noqa: E731
    monkeypatch.setattr(LocalProvider, "leftovers", left)
    operate.take_down(Stack(ROOT, "test"), "local", console)
    assert engine.did == ["destroy"]
    assert said.getvalue().endswith("nothing is left\n")
    monkeypatch.setattr(LocalProvider, "kept", lambda *_arguments: ["kept: a disk", "its lines"])
    operate.take_down(Stack(ROOT, "test"), "local", console)
    assert said.getvalue().endswith("nothing else is left\nkept: a disk\nits lines\n")
    monkeypatch.setattr(LocalProvider, "leftovers", lambda *_arguments: ["process 1: x", "folder y"])
    with pytest.raises(UserError, match="left of stack test:\n  process 1: x\n  folder y\n") as caught:
        operate.take_down(Stack(ROOT, "test"), "local", console)
    assert caught.value.exit_code == 1


def test_down_drains_first_and_goes_on_whatever_the_engine_says_of_outputs(
    engine: Engine, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drain(_self: LocalProvider, stack: Stack, outputs: Any, _say: Any, _agree: Any) -> None:
        engine.did.append(f"drain {stack.name} {outputs()}")

    def refuse() -> None:
        raise UserError("the state is damaged")

    monkeypatch.setattr(LocalProvider, "drain", drain)
    monkeypatch.setattr(LocalProvider, "leftovers", lambda *_arguments: [])
    monkeypatch.setattr(engine, "outputs", refuse, raising=False)
    operate.take_down(Stack(ROOT, "test"), "local", console)
    assert engine.did == ["drain test {}", "destroy"]


def test_down_looks_for_leftovers_of_the_cluster_that_the_earlier_outputs_name(
    engine: Engine, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the destroy the engine has no outputs, and the stack file may name another cluster."""
    seen: list[Any] = []

    def outputs() -> dict[str, Any]:
        engine.did.append("outputs")
        return {} if "destroy" in engine.did else {"cluster": "that was up"}

    def left(_self: LocalProvider, _stack: Stack, known: Any) -> list[str]:
        seen.append(known())
        return ["a machine"] if len(seen) == 1 else []

    monkeypatch.setattr(engine, "outputs", outputs, raising=False)
    monkeypatch.setattr(LocalProvider, "drain", lambda _self, _stack, known, _say, _agree: known())
    monkeypatch.setattr(LocalProvider, "leftovers", left)
    monkeypatch.setattr(LocalProvider, "force_cleanup", lambda _self, _stack, known: seen.append(known()))
    operate.take_down(Stack(ROOT, "test"), "local", console)
    assert engine.did == ["outputs", "destroy"]
    assert seen == [{"cluster": "that was up"}] * 3


def test_a_refusal_on_the_way_to_the_cluster_is_said_at_once(
    engine: Engine, tool: Tool, config: StackConfig, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting does not help: credentials do not come by themselves."""
    asked: list[str] = []

    def refused(_up: StackUp, verb: str, *_rest: str, **_more: Any) -> str:
        asked.append(verb)
        raise UserError("there are no credentials", EXIT_REFUSED)

    monkeypatch.setattr(login_machine, "tool", refused)
    with pytest.raises(UserError, match=r"^there are no credentials$") as caught:
        bring_up(config, console)
    assert caught.value.exit_code == EXIT_REFUSED
    assert asked == ["submit"]


def test_up_checks_before_it_changes_anything(
    engine: Engine, config: StackConfig, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def check_changes(_self: LocalProvider, *_arguments: Any, replace: bool) -> None:
        asked.append(replace)
        raise UserError("jobs run", EXIT_REFUSED)

    monkeypatch.setattr(LocalProvider, "check_changes", check_changes)
    for replace in (False, True):
        with pytest.raises(UserError, match=r"^jobs run$") as caught:
            operate.bring_up(Stack(ROOT, config.stack), config, console, replace=replace)
        assert caught.value.exit_code == EXIT_REFUSED
    assert (engine.did, asked) == ([], [False, True])


FORMER = "/x/home/bench/0123456789abcdef/0123456789ab/result.json"


def test_up_does_not_cancel_a_run_of_other_settings_unasked(
    engine: Engine, tool: Tool, config: StackConfig, console: Console, said: io.StringIO
) -> None:
    engine.known = {"benchmark_result": FORMER}
    stack = Stack(ROOT, config.stack)
    with pytest.raises(UserError, match=r"job 7 \(RUNNING on debug-\[0-1\]\) would be cancelled") as caught:
        operate.bring_up(stack, config, console)
    assert caught.value.exit_code == EXIT_REFUSED
    for cure in ("up --stack test --no-benchmark", "up --stack test --replace", "status --stack test"):
        assert f"`./cluster {cure}`" in str(caught.value)
    assert (engine.did, tool.submitted) == ([], [])
    operate.bring_up(stack, config, console, benchmark=False)
    assert engine.did == ["up without the benchmark"]
    tool.benchmark = [seen(), seen(result=RESULT)]
    operate.bring_up(stack, config, console, replace=True)
    assert engine.did[1:] == ["up"]
    assert "job 7 (RUNNING on debug-[0-1]) would be cancelled" in said.getvalue()


def test_a_benchmark_that_is_off_now_is_not_cancelled_unasked(
    engine: Engine, tool: Tool, console: Console
) -> None:
    engine.known = {"benchmark_result": FORMER}
    off = parse({**values("local"), "slurm-stacks:benchmark": {"enabled": False}}, "test")
    with pytest.raises(UserError, match=r"^nothing was changed: benchmark: it is off now, so job 7"):
        bring_up(off, console)
    # The cluster does not answer, so it is unknown whether the run is over.
    tool.benchmark = [UserError("no answer")]  # type: ignore[list-item]
    with pytest.raises(UserError, match=r"which is not known, because the cluster does not answer"):
        bring_up(off, console)
    assert engine.did == []


@pytest.mark.parametrize("job", [None, {"id": 7, "state": "COMPLETED", "nodes": "", "alive": False}])
def test_a_run_that_is_over_does_not_keep_up_from_another(
    engine: Engine, tool: Tool, config: StackConfig, console: Console, job: dict[str, Any] | None
) -> None:
    engine.known = {"benchmark_result": FORMER}
    tool.benchmark = [{**seen(), "job": job}, seen(result=RESULT)]
    bring_up(config, console)
    assert engine.did == ["up"]


def test_the_same_run_and_a_cluster_that_is_down_are_no_former_run(
    engine: Engine, tool: Tool, config: StackConfig
) -> None:
    up = StackUp.of(Stack(ROOT, config.stack), config)
    cluster = design(config, catalog())
    training = benchmark_design(config, cluster)
    assert training is not None
    run = BenchmarkRun.of(cluster, training, LocalProvider().layout(cluster), ROOT)
    same = {"benchmark_result": f"/x/bench/{run.folder}/result.json"}
    assert former_benchmark.find(up, cluster, training, lambda: same) is None
    tool.benchmark = [NotUpError("down")]  # type: ignore[list-item]
    other = {"benchmark_result": FORMER}
    assert former_benchmark.find(up, cluster, training, lambda: other) is None
    tool.benchmark = [seen()]
    found = former_benchmark.find(up, cluster, training, lambda: other)
    assert found is not None
    (job,) = found.described()["jobs"]
    assert (job["id"], job["state"], job["consequence"]) == ("7", "RUNNING", "ends")


@pytest.mark.parametrize("more", ["image-compute failed at step packages", None])
def test_what_the_machines_say_of_a_failure_comes_after_the_engines_words(
    engine: Engine, config: StackConfig, console: Console, monkeypatch: pytest.MonkeyPatch, more: str | None
) -> None:
    began = time.time()
    asked: list[float] = []

    def fail(_on_event: Any, **_options: Any) -> Any:
        raise UserError("Pulumi: an image was not built")

    def explain(_self: LocalProvider, _design: Any, since: float) -> str | None:
        asked.append(since)
        return more

    monkeypatch.setattr(engine, "up", fail)
    monkeypatch.setattr(LocalProvider, "explain", explain)
    with pytest.raises(UserError) as caught:
        operate.bring_up(Stack(ROOT, config.stack), config, console)
    first, *rest = str(caught.value).splitlines()
    assert first == "Pulumi: an image was not built"
    assert rest[:-1] == ([more] if more else [])
    assert "doctor" in rest[-1]
    assert began <= asked[0] <= time.time()
