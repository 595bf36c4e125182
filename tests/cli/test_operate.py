"""`up` and `down` with a fake engine and a fake cluster."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console as RichConsole

from cli import engine as runner
from cli import results
from cli.changes.decision import CheckedChanges
from cli.commands import benchmark, operate, runs
from cli.console.progress import Console
from cli.providers import login_machine, provider
from cli.providers.interface import ExplainsFailures, KeepsStorage
from cli.providers.local.provider import LocalProvider
from infra.benchmark import BenchmarkRun
from infra.config import StackConfig, parse
from infra.design import benchmark_design
from infra.errors import EXIT_INTERRUPTED, EXIT_REFUSED, NotUpError, UserError
from infra.program.stack import Stack
from node.design.model import BenchmarkDesign
from operations.access import StackUp
from operations.local import system_packages
from tests.support import sentences
from tests.support.checkout import ROOT
from tests.support.report_records import keep, local
from tests.support.stack_values import values

RESULT = local(seconds=10.0)


def test_a_limit_of_this_machine_is_named_where_the_clusters_machines_are_here() -> None:
    def failed(provider: str, error: Exception) -> str:
        up = StackUp.of(Stack(Path(), "test"), parse(values(provider, {}), "x"))
        kind = type(error) if provider == "aws" else UserError
        with pytest.raises(kind) as caught, operate._limits_named(up):
            raise error
        return str(caught.value)

    for error in (
        UserError("test-head: slurmctld: Resource temporarily unavailable", 3, code="test.cause"),
        OSError(errno.EMFILE, "Too many open files"),
        RuntimeError("can't start new thread"),
    ):
        said = failed("local", error)
        assert said.startswith(f"{error}\n")
        assert "the command again" in said
        assert failed("aws", error) == str(error), "a machine of a cloud may have said it"
    assert failed("local", UserError("no such thing", code="test.cause")) == "no such thing"


# --- up and down with a fake engine and a fake cluster -------------------------------------------------


class Engine:
    """A runner that records what it does."""

    name = "fake"

    def __init__(self) -> None:
        self.did: list[str] = []
        self.known: dict[str, Any] = {}
        self.protected = False

    def changing(self, _verb: str, _on_event: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def outputs(self) -> dict[str, Any]:
        return self.known

    def up(self, _on_event: Any, *, benchmark: bool = True, lost: tuple[str, ...] = ()) -> dict[str, Any]:
        self.did.append("up" if benchmark else "up without the benchmark")
        return {"login_ssh": "./cluster ssh"}

    def check_destroy(self) -> None:
        if self.protected:
            raise UserError("a disk is protected", EXIT_REFUSED, code="runner.protected")

    def destroy(self, _on_event: Any, _look: Any) -> None:
        self.did.append("destroy")


class Tool:
    """The cluster's own command: it answers `benchmark` and `status` in order and repeats the last one."""

    def __init__(self) -> None:
        self.submitted: list[tuple[str, str]] = []
        self.benchmark: list[dict[str, Any]] = [seen(result=RESULT)]
        self.status: list[dict[str, Any]] = [status(0)]

    def __call__(
        self, _machine: object, _up: StackUp, verb: str, *rest: str, text: str = "", seconds: float = 0
    ) -> str:
        if verb == "submit":
            self.submitted.append((rest[1], text))
            return "7\n"
        queue = getattr(self, verb)
        answer = queue.pop(0) if len(queue) > 1 else queue[0]
        if isinstance(answer, BaseException):
            raise answer
        return json.dumps(answer)


def seen(state: str = "RUNNING", alive: bool = True, **more: Any) -> dict[str, Any]:
    job = {
        "id": 7, "user": "ada", "partition": "debug", "state": state, "nodes": "debug-[0-1]", "cause": None,
        "alive": alive,
    }  # fmt: skip
    return {"folder": "/bench/x", "job": job, "progress": None, "result": None, "tail": [], **more}


def status(running: int, *jobs: str) -> dict[str, Any]:
    return {"machines": {"running": running, "pending": 0}, "jobs": [{"state": state} for state in jobs]}


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Tool:
    made = Tool()
    monkeypatch.setattr(login_machine, "tool", made)
    monkeypatch.setattr(operate, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(benchmark, "POLL_SECONDS", 0.0)
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
def output() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def console(output: io.StringIO) -> Console:
    return Console(RichConsole(file=output, width=200, soft_wrap=True))


def bring_up(config: StackConfig, console: Console) -> None:
    operate.bring_up(Stack(ROOT, config.stack), config, console)


def test_up_prints_the_result_and_keeps_it_where_it_outlives_the_cluster(
    engine: Engine, tool: Tool, config: StackConfig, console: Console, output: io.StringIO,
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
    lines = [line.split(" ", 3)[-1] for line in output.getvalue().splitlines() if line.startswith("  0:")]
    assert lines == [
        "waits: quota: no more",
        "nodes are starting: debug-[0-1]",
        "running on debug-[0-1]: the training starts",
        "running on debug-[0-1]: epoch 1 of 2, loss 0.2500, accuracy 0.5000",
        "2 up",
        "1 up",
    ]
    assert "back to 0 nodes" in output.getvalue()
    out = capsys.readouterr().out
    assert "Result of job 7" in out
    assert "./cluster ssh" in out
    (kept,) = (tmp_path / "state" / "slurm-stacks" / "results" / "test").iterdir()
    assert "-job-7-" in kept.name
    assert json.loads(kept.read_text())["result"] == RESULT
    assert (
        "`./cluster run --stack test --nodes 1,2` measures how much faster 2 nodes are than 1."
        in output.getvalue()
    )
    (submitted,) = tool.submitted
    assert submitted[1].startswith("#!"), "the script itself, so that a failed job is submitted anew"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        # A run's own times of a step and of an exchange say nothing of one node: a step took longer where
        # two computed at once, and the start of the training counts, too.
        (
            {"profile": "local-sgd", "average_every": 16, "step_seconds": 0.04, "exchange_seconds": 0.064},
            "`./cluster run --stack test --nodes 1,2` measures how much faster 2 nodes are than 1.",
        ),
        (
            {"cores": 1, "cores_shared": True},
            "2 nodes shared 1 core, so this run does not tell how much faster they are than 1.",
        ),
        (
            {"cores_others": 0.34},
            "Other programs took 34 % of the cores' time, so this run does not tell how much faster 2 nodes "
            "are than 1.",
        ),
    ],
)
def test_up_claims_no_more_than_was_measured(
    engine: Engine, config: StackConfig, console: Console, output: io.StringIO, tool: Tool,
    change: dict[str, Any], expected: str,
) -> None:  # fmt: skip
    if "profile" not in change:
        keep("test", local(1, 17.0))
    tool.benchmark = [seen(result=RESULT | change)]
    bring_up(config, console)
    (line,) = [line for line in output.getvalue().splitlines() if "faster" in line or "as fast as" in line]
    assert line == expected


def test_up_ends_with_how_much_faster_the_nodes_were_than_one_where_one_was_measured(
    engine: Engine, config: StackConfig, console: Console, output: io.StringIO, tool: Tool
) -> None:
    unlike = (local(1, 5.0, profile="published"), local(1, 4.0, cores=2), local(1, 3.0, cores_others=0.5))
    keep("test", local(1, 17.0), local(1, 19.0), *unlike)
    bring_up(config, console)
    (line,) = [line for line in output.getvalue().splitlines() if "as fast as" in line]
    assert line == (
        "2 nodes trained 1.8× as fast as 1: an epoch took 5.00 s, on 1 node 9.00 s (median of 2 kept runs)."
    )
    assert "--nodes 1,2" not in output.getvalue()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_result_that_cannot_be_kept_is_shown_and_its_place_said(
    engine: Engine, tool: Tool, config: StackConfig, console: Console, output: io.StringIO, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int,
) -> None:  # fmt: skip
    replace = Path.replace

    def refuse(path: Path, target: Path) -> Path:
        if "results" not in path.parts:
            return replace(path, target)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(engine, "up", lambda *_, **__: {"benchmark_result": "/shared/bench/x/result.json"})
    monkeypatch.setattr(Path, "replace", refuse)
    bring_up(config, console)
    assert "Result of job 7" in capsys.readouterr().out
    folder = tmp_path / "state" / "slurm-stacks" / "results" / "test"
    assert "the result is not kept: " in output.getvalue()
    assert str(folder) in output.getvalue()
    assert "Until `./cluster down --stack test` it lies in /shared/bench/x/result.json." in output.getvalue()
    assert [*folder.rglob("*.*")] == [], "nothing half made"


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
    with sentences.raises("benchmark.failed", "GONE"):
        bring_up(config, console)


def test_a_result_that_comes_a_moment_after_the_jobs_end_counts(
    engine: Engine, tool: Tool, config: StackConfig, console: Console
) -> None:
    tool.benchmark = [seen("COMPLETED", False), seen("COMPLETED", False, result=RESULT)]
    bring_up(config, console)


def test_ctrl_c_while_waiting_says_what_goes_on(
    engine: Engine, tool: Tool, config: StackConfig, console: Console, output: io.StringIO
) -> None:
    tool.benchmark = [KeyboardInterrupt()]  # type: ignore[list-item]
    with sentences.raises("up.interrupted") as caught:
        bring_up(config, console)
    assert caught.value.exit_code == EXIT_INTERRUPTED
    tool.benchmark = [seen(result=RESULT)]
    tool.status = [KeyboardInterrupt()]  # type: ignore[list-item]
    with sentences.raises("up.interrupted-after-result") as caught:
        bring_up(config, console)
    assert caught.value.exit_code == EXIT_INTERRUPTED


def test_up_does_not_wait_for_nodes_that_others_use(
    engine: Engine, tool: Tool, config: StackConfig, console: Console, output: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    tool.status = [status(2, "COMPLETING"), status(2, "COMPLETING", "RUNNING")]
    bring_up(config, console)
    assert (
        f"other jobs keep nodes up: `./cluster status --stack {config.stack}` names them" in output.getvalue()
    )
    tool.status = [status(2, "COMPLETING")]
    monkeypatch.setattr(operate, "SETTLE_SECONDS", -10_000.0)
    bring_up(config, console)
    assert f"nodes are still up: `./cluster status --stack {config.stack}` says why" in output.getvalue()


def test_the_job_of_up_is_no_other_job(
    engine: Engine, tool: Tool, config: StackConfig, console: Console, output: io.StringIO
) -> None:
    """Its result is there while Slurm still calls it running; and a job that waits keeps no node."""
    own = {"id": int(RESULT["job_id"]), "state": "RUNNING"}
    waits = {"id": 8, "state": "PENDING"}
    tool.status = [status(2) | {"jobs": [own]}, status(2) | {"jobs": [waits]}, status(0) | {"jobs": [waits]}]
    bring_up(config, console)
    assert "other jobs" not in output.getvalue()
    assert "back to 0 nodes" in output.getvalue()
    tool.benchmark = [seen(result=RESULT)]
    tool.status = [status(2) | {"jobs": [own, {"id": 71, "state": "RUNNING"}]}]
    bring_up(config, console)
    assert "other jobs keep nodes up" in output.getvalue()


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


def test_static_nodes_stay(tool: Tool, console: Console, output: io.StringIO) -> None:
    changed = parse(values("local", {"partitions[0].nodes.min": 2}), "test")
    tool.status = [status(3), status(2)]
    operate.wait_for_idle(LocalProvider(), StackUp.of(Stack(ROOT, "test"), changed), console)
    assert "back to 2 nodes" in output.getvalue()


def test_down_audits_and_names_what_is_left(
    engine: Engine, console: Console, output: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: Callable[..., list[str]] = lambda *_arguments: []  # noqa: E731
    monkeypatch.setattr(LocalProvider, "leftovers", left)
    operate.take_down(StackUp(Stack(ROOT, "test"), "local"), console)
    assert engine.did == ["destroy"]
    assert output.getvalue().endswith("nothing is left\n")

    class Cloud(LocalProvider, KeepsStorage):
        def kept(self, up: StackUp, outputs: Any) -> list[str]:
            return ["kept: a disk", "its lines"]

    monkeypatch.setattr(provider, "load", lambda *_: Cloud())
    operate.take_down(StackUp(Stack(ROOT, "test"), "local"), console)
    assert output.getvalue().endswith("nothing else is left\nkept: a disk\nits lines\n")
    monkeypatch.setattr(LocalProvider, "leftovers", lambda *_arguments: ["process 1: x", "folder y"])
    with sentences.raises("cluster.left-over", "process 1: x\n  folder y") as caught:
        operate.take_down(StackUp(Stack(ROOT, "test"), "local"), console)
    assert caught.value.exit_code == 1


def test_down_drains_first_and_goes_on_whatever_the_engine_says_of_outputs(
    engine: Engine, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drain(_self: LocalProvider, up: StackUp, outputs: Any, _say: Any, _agree: Any) -> None:
        engine.did.append(f"drain {up.stack.name} {outputs()}")

    def refuse() -> None:
        raise UserError("the state is damaged", code="test.cause")

    monkeypatch.setattr(LocalProvider, "drain", drain)
    monkeypatch.setattr(LocalProvider, "leftovers", lambda *_arguments: [])
    monkeypatch.setattr(engine, "outputs", refuse, raising=False)
    operate.take_down(StackUp(Stack(ROOT, "test"), "local"), console)
    assert engine.did == ["drain test {}", "destroy"]


def test_down_looks_for_leftovers_of_the_cluster_that_the_earlier_outputs_name(
    engine: Engine, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the destroy the engine has no outputs, and the stack file may name another cluster."""
    seen: list[Any] = []

    def outputs() -> dict[str, Any]:
        engine.did.append("outputs")
        return {} if "destroy" in engine.did else {"cluster": "that was up"}

    def left(_self: LocalProvider, _up: StackUp, known: Any) -> list[str]:
        seen.append(known())
        return ["a machine"] if len(seen) == 1 else []

    monkeypatch.setattr(engine, "outputs", outputs, raising=False)
    monkeypatch.setattr(LocalProvider, "drain", lambda _self, _up, known, _say, _agree: known())
    monkeypatch.setattr(LocalProvider, "leftovers", left)
    monkeypatch.setattr(LocalProvider, "force_cleanup", lambda _self, _up, known: seen.append(known()))
    operate.take_down(StackUp(Stack(ROOT, "test"), "local"), console)
    assert engine.did == ["outputs", "destroy"]
    assert seen == [{"cluster": "that was up"}] * 3


def test_a_refusal_on_the_way_to_the_cluster_is_said_at_once(
    engine: Engine, tool: Tool, config: StackConfig, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting does not help: credentials do not come by themselves."""
    asked: list[str] = []

    def refused(_machine: object, _up: StackUp, verb: str, *_rest: str, **_more: Any) -> str:
        asked.append(verb)
        raise UserError("there are no credentials", EXIT_REFUSED, code="aws.no-credentials")

    monkeypatch.setattr(login_machine, "tool", refused)
    with sentences.raises("aws.no-credentials") as caught:
        bring_up(config, console)
    assert caught.value.exit_code == EXIT_REFUSED
    assert asked == ["submit"]


def test_up_checks_before_it_changes_anything(
    engine: Engine, config: StackConfig, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it install packages or build the machines' image, which takes minutes."""
    asked: list[bool] = []

    def check_changes(_self: LocalProvider, *_arguments: Any, replace: bool) -> None:
        asked.append(replace)
        raise UserError("jobs run", EXIT_REFUSED, code="change.ends-jobs")

    monkeypatch.setattr(LocalProvider, "check_changes", check_changes)
    monkeypatch.setattr(LocalProvider, "prepare", lambda *_arguments: pytest.fail("something is installed"))
    for replace in (False, True):
        with sentences.raises("change.ends-jobs") as caught:
            operate.bring_up(Stack(ROOT, config.stack), config, console, replace=replace)
        assert caught.value.exit_code == EXIT_REFUSED
    assert (engine.did, asked) == ([], [False, True])


@pytest.mark.parametrize("fails", [False, True])
def test_up_prepares_this_machine_before_it_ends_jobs_or_destroys_what_is_up(
    engine: Engine,
    tool: Tool,
    config: StackConfig,
    console: Console,
    monkeypatch: pytest.MonkeyPatch,
    fails: bool,
) -> None:
    """An image that cannot be built costs nobody a job, and partitions that were held go on."""

    def step(name: str) -> Callable[..., None]:
        return lambda *_arguments, **_options: engine.did.append(name)

    def check_changes(*_arguments: Any, **_options: Any) -> CheckedChanges:
        engine.did.append("check")
        return CheckedChanges(recreate=True, end_jobs=step("end jobs"), release=step("release"))

    def prepare(*_arguments: Any) -> None:
        engine.did.append("prepare")
        if fails:
            raise UserError("no space for the image", code="system.no-space")

    monkeypatch.setattr(LocalProvider, "check_host", step("check host"))
    monkeypatch.setattr(LocalProvider, "check_changes", check_changes)
    monkeypatch.setattr(LocalProvider, "prepare", prepare)
    monkeypatch.setattr(LocalProvider, "drain", step("drain"))
    monkeypatch.setattr(LocalProvider, "leftovers", lambda *_arguments: [])
    refused = sentences.raises("system.no-space")
    with refused if fails else contextlib.nullcontext():
        operate.bring_up(Stack(ROOT, config.stack), config, console, replace=True)
    then = [] if fails else ["end jobs", "drain", "destroy", "up", "release"]
    assert engine.did == ["check host", "check", "prepare", *then]


@pytest.mark.parametrize("command", ["down", "up --replace"])
def test_what_the_engine_may_not_delete_is_known_before_anything_ends(
    engine: Engine,
    tool: Tool,
    config: StackConfig,
    console: Console,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    def touched(*_arguments: Any) -> None:
        engine.did.append("touched")

    checked = CheckedChanges(recreate=True, end_jobs=touched)
    monkeypatch.setattr(LocalProvider, "check_host", lambda *_arguments: None)
    monkeypatch.setattr(LocalProvider, "check_changes", lambda *_arguments, **_options: checked)
    monkeypatch.setattr(LocalProvider, "prepare", touched)
    monkeypatch.setattr(LocalProvider, "drain", touched)
    engine.protected = True
    with sentences.raises("runner.protected") as caught:
        if command == "down":
            operate.take_down(StackUp(Stack(ROOT, "test"), "local"), console)
        else:
            operate.bring_up(Stack(ROOT, config.stack), config, console, replace=True)
    assert (caught.value.exit_code, engine.did) == (EXIT_REFUSED, [])


FORMER = "/x/home/bench/0123456789abcdef/0123456789ab/result.json"


def test_up_does_not_cancel_a_run_of_other_settings_unasked(
    engine: Engine, tool: Tool, config: StackConfig, console: Console, output: io.StringIO
) -> None:
    engine.known = {"benchmark_result": FORMER}
    stack = Stack(ROOT, config.stack)
    with sentences.raises("change.ends-benchmark", "job 7", "debug-[0-1]") as caught:
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
    assert "job 7 (RUNNING on debug-[0-1]) is cancelled" in output.getvalue()


def test_a_benchmark_that_is_off_now_is_not_cancelled_unasked(
    engine: Engine, tool: Tool, console: Console
) -> None:
    engine.known = {"benchmark_result": FORMER}
    off = parse({**values("local"), "slurm-stacks:benchmark": {"enabled": False}}, "test")
    with sentences.raises("change.ends-benchmark", "job 7"):
        bring_up(off, console)
    # The cluster does not answer, so it is unknown whether the run is over.
    tool.benchmark = [UserError("no answer", code="cluster.no-answer")]  # type: ignore[list-item]
    with sentences.raises("change.ends-benchmark"):
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


def test_the_same_run_and_a_cluster_that_is_down_end_no_run(
    engine: Engine, tool: Tool, config: StackConfig
) -> None:
    up = StackUp.of(Stack(ROOT, config.stack), config)
    training = benchmark_design(config, up.design)
    assert training is not None
    run = BenchmarkRun.of(up.design, training, LocalProvider().layout(up.design), ROOT)
    same = {"benchmark_result": f"/x/bench/{run.folder}/result.json"}
    assert runs.find(LocalProvider(), up, training, lambda: same) is None
    tool.benchmark = [NotUpError("down", code="cluster.not-up")]  # type: ignore[list-item]
    other = {"benchmark_result": FORMER}
    assert runs.find(LocalProvider(), up, training, lambda: other) is None
    tool.benchmark = [seen()]
    found = runs.find(LocalProvider(), up, training, lambda: other)
    assert found is not None
    (job,) = found.described()["jobs"]
    assert (job["id"], job["state"], job["consequence"]) == ("7", "RUNNING", "ends")


def test_a_plan_says_that_another_run_will_be_submitted(
    engine: Engine, tool: Tool, config: StackConfig
) -> None:
    """Where nothing runs that would be cancelled, `up` still starts nodes."""
    up = StackUp.of(Stack(ROOT, config.stack), config)
    training = benchmark_design(config, up.design)
    assert training is not None
    run = BenchmarkRun.of(up.design, training, LocalProvider().layout(up.design), ROOT)

    def told(training: BenchmarkDesign | None = training) -> list[tuple[str, str, list[Any]]]:
        found = runs.described(LocalProvider(), up, training)
        return [(one["kind"], one["line"], one["jobs"]) for one in found]

    engine.known = {"benchmark_result": f"/x/bench/{run.folder}/result.json"}
    assert told() == []
    engine.known = {"benchmark_result": FORMER}
    tool.benchmark = [{**seen(), "job": None}]
    why = "benchmark: other settings, or other workload code"
    assert told() == [("live", f"{why}: {runs.SUBMITTED}", [])]
    tool.benchmark = [seen()]
    ((kind, line, (job,)),) = told()
    assert (kind, line, job["id"]) == ("ends", f"{why}: {runs.CONSEQUENCE}", "7")
    tool.benchmark = [{**seen(), "job": None}]
    assert told(None) == []
    engine.known = {"cluster": {}}
    assert told() == [("live", f"benchmark: new: {runs.SUBMITTED}", [])]


@pytest.mark.parametrize("more", ["image-compute failed at step packages", None])
def test_what_the_machines_say_of_a_failure_comes_after_the_engines_words(
    engine: Engine, config: StackConfig, console: Console, monkeypatch: pytest.MonkeyPatch, more: str | None
) -> None:
    began = time.time()
    asked: list[float] = []

    def fail(_on_event: Any, **_options: Any) -> Any:
        raise UserError("Pulumi: an image was not built", code="test.cause")

    class Cloud(LocalProvider, ExplainsFailures):
        def explain(self, design: Any, since: float) -> str | None:
            asked.append(since)
            return more

    monkeypatch.setattr(engine, "up", fail)
    monkeypatch.setattr(provider, "load", lambda *_: Cloud())
    with pytest.raises(UserError) as caught:
        operate.bring_up(Stack(ROOT, config.stack), config, console)
    first, *rest = str(caught.value).splitlines()
    assert first == "Pulumi: an image was not built"
    assert rest[:-1] == ([more] if more else [])
    assert "doctor" in rest[-1]
    assert began <= asked[0] <= time.time()


def test_a_result_of_another_user_is_shown_as_theirs_and_not_kept(
    engine: Engine, config: StackConfig, console: Console, output: io.StringIO, tool: Tool,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    tool.benchmark = [seen(result=RESULT, owner="alice")]
    made = operate.bring_up(Stack(ROOT, config.stack), config, console)
    assert "Result of job 7, alice's" in capsys.readouterr().out
    assert made["result"] is None
    assert "this result is alice's, whose run /bench/x is" in output.getvalue()
    assert results.load("test") == ([], [])


def test_a_result_that_is_not_valid_is_a_mistake_of_one_line(
    engine: Engine, config: StackConfig, console: Console, tool: Tool
) -> None:
    tool.benchmark = [seen(result={**RESULT, "job_id": "1/../../../etc"})]
    with sentences.raises("result.not-valid", "result.job_id", "1/../../../etc"):
        bring_up(config, console)
