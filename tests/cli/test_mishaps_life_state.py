"""A damaged or lost state, and a controller that does not answer: `up` says so, `down` works."""

from __future__ import annotations

import contextvars
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console as RichConsole

from cli import main as cli
from cli.commands import benchmark, operate
from cli.console.progress import Console
from cli.engine import lock
from cli.engine.state import DamagedStateError, Made, State
from cli.providers import login_machine
from cli.providers.local.provider import LocalProvider
from infra.config import StackConfig, parse
from infra.design import benchmark_design
from infra.errors import NotUpError, UserError
from infra.program import folders, locations
from infra.program.stack import Stack
from operations.access import StackUp
from tests.support import sentences
from tests.support.checkout import until
from tests.support.doubles import design as small
from tests.support.fake_machines import FakeMachines
from tests.support.report_records import record
from tests.support.stack_values import values
from tests.support.tiny_project import ROOT, Tiny, make

DAMAGED = ["", "{", '{"version": 1, "project": "x"', "[]", "\0\0\0\0", "[" * 100_000]


@pytest.fixture
def output() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def console(output: io.StringIO) -> Console:
    return Console(RichConsole(file=output, width=200, soft_wrap=True))


# --- the state -------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    return make(tmp_path, monkeypatch)


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_state_is_one_message_with_its_cure(tiny: Tiny, text: str) -> None:
    tiny.write("command('a')").up()
    tiny.state_file.write_text(text)
    for use in (tiny.up, tiny.destroy, tiny.engine.outputs):
        with pytest.raises(DamagedStateError) as caught:
            use()
        assert str(caught.value).startswith(f"{tiny.state_file}, the state of the stack, is damaged")
        assert "`./cluster down --stack t` ends the cluster without it" in str(caught.value)
    assert tiny.state_file.read_text() == text, "it is not overwritten: nobody knows yet what it was"


def test_a_kill_never_cuts_the_state_off(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from cli.engine.state import Made, State
from infra.program import folders
from infra.program.stack import Stack
stack = Stack(Path(sys.argv[1]), "s")
folders.make_state_dir(stack)
state = State(stack)
for number in range(10**9):
    state.put(str(number % 50), Made({{"text": "x" * (number % 50) * 200}}))
"""
    stack = Stack(tmp_path, "s")
    path = State(stack).path
    for number in range(8):
        with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) as writer:
            until(path.exists, 120, "the first state", 0.001)
            time.sleep(0.01 * number)
            writer.send_signal(signal.SIGKILL)
        assert State.load(stack).made
        path.unlink()


def test_a_state_folder_that_is_removed_meanwhile_is_no_traceback(tiny: Tiny) -> None:
    with lock.locked(tiny.stack, "up"):
        shutil.rmtree(locations.state_dir(tiny.stack))


# --- down ------------------------------------------------------------------------------------------------


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMachines]:
    """A cluster with a node, which was brought up without the Pulumi CLI."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    machines = FakeMachines(tmp_path, monkeypatch)
    machines.do("cloud-up")
    machines.publish(small())
    machines.launch("debug-0")
    until(lambda: machines.booted("debug-0"), 120, "the node")
    (machines.run.path / "owner").write_text("embedded\n")
    yield machines
    assert machines.close() == []


def state_file(local: FakeMachines) -> Path:
    return folders.make_state_dir(Stack(local.project, "test")) / "state.json"


@pytest.mark.parametrize("text", [*DAMAGED[:2], None], ids=["empty", "cut off", "lost"])
def test_down_needs_no_state(
    local: FakeMachines, console: Console, output: io.StringIO, text: str | None
) -> None:
    if text is not None:
        state_file(local).write_text(text)
    operate.take_down(StackUp(Stack(local.project, "test"), "local"), console)
    assert ("is damaged: the cluster is ended without it" in output.getvalue()) == (text is not None)
    assert output.getvalue().endswith("nothing is left\n")
    assert local.processes() == []
    assert not local.run.path.exists()
    assert not locations.state_dir(Stack(local.project, "test")).exists()
    operate.take_down(StackUp(Stack(local.project, "test"), "local"), console)


def test_down_does_not_end_what_another_command_is_bringing_up(local: FakeMachines, console: Console) -> None:
    state_file(local).write_text("{")
    with (
        lock.locked(Stack(local.project, "test"), "up"),
        sentences.raises("state.busy", "stack test", varies=[f"pid {os.getpid()}"]) as caught,
    ):
        # Another flow of control: what holds a lock itself may go on.
        up = StackUp(Stack(local.project, "test"), "local")
        contextvars.Context().run(operate.take_down, up, console)
    assert caught.value.exit_code == 3
    assert local.machines()


def test_down_after_a_reboot_needs_no_stack_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing runs any more, and the stack file is broken. `down` deletes the state all the same."""
    machines = FakeMachines(tmp_path, monkeypatch)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SLURM_STACKS_PROJECT", str(machines.project))
    (machines.project / "Pulumi.test.yaml").write_text("nonsense: [")
    folders.make_state_dir(stack := Stack(machines.project, "test"))
    State(stack).put("urn:pulumi:test::p::command:local:Command::a", Made({}))
    monkeypatch.setattr(sys, "argv", ["cluster", "down", "--stack", "test"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 0, capsys.readouterr().err
    assert "it destroys the local cluster of stack test" in capsys.readouterr().err
    assert not state_file(machines).exists()


# --- a controller that is silent for a while -------------------------------------------------------------

RUNNING = {"id": 7, "state": "RUNNING", "nodes": "debug-0", "cause": None, "alive": True}
RECORD = record()
SEEN: dict[str, Any] = {
    "folder": "/bench", "job": None, "progress": None, "tail": [], "result": RECORD,
}  # fmt: skip


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Set the answers of the cluster's tool, in order; the last one is repeated, and errors are raised."""
    queue: list[Any] = []

    def tool(*_arguments: Any, **_options: Any) -> str:
        answer = queue.pop(0) if len(queue) > 1 else queue[0]
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    monkeypatch.setattr(login_machine, "tool", tool)
    monkeypatch.setattr(benchmark, "POLL_SECONDS", 0.01)
    return queue


@pytest.fixture
def config() -> StackConfig:
    return parse(values("local"), "test")


def follow(config: StackConfig, console: Console) -> Any:
    up = StackUp.of(Stack(ROOT, "test"), config)
    training = benchmark_design(config, up.design)
    assert training is not None
    return benchmark.follow(LocalProvider(), up, training, console)


def test_a_controller_that_is_restarted_is_waited_for(
    answers: list[Any], config: StackConfig, console: Console, output: io.StringIO
) -> None:
    down = UserError(
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)", code="test.cause"
    )
    answers += [down, "7", json.dumps({**SEEN, "result": None, "job": RUNNING}), down, down, json.dumps(SEEN)]
    assert follow(config, console).result == RECORD
    assert "the controller does not answer: slurm_load_jobs error: Unable to contact" in output.getvalue()


@pytest.mark.parametrize("submitted", [True, False])
def test_a_job_that_fails_at_once_is_submitted_once_by_one_up(
    config: StackConfig, console: Console, monkeypatch: pytest.MonkeyPatch, submitted: bool
) -> None:
    """The stack's resource has submitted the job, which may be over by the time that `up` asks."""
    asked: list[tuple[str, ...]] = []

    def tool(_machine: object, _up: StackUp, *words: str, **_options: Any) -> str:
        asked.append(words)
        return "7" if words[0] == "submit" else json.dumps(SEEN)

    monkeypatch.setattr(login_machine, "tool", tool)
    up = StackUp.of(Stack(ROOT, "test"), config)
    training = benchmark_design(config, up.design)
    assert training is not None
    followed = benchmark.follow(LocalProvider(), up, training, console, submitted=submitted)
    assert followed.result == RECORD
    assert ("--no-retry" in asked[0]) == submitted


def test_one_that_stays_silent_is_told_with_its_last_words(
    answers: list[Any], config: StackConfig, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "PATIENCE_SECONDS", 0.1)
    answers += ["7", UserError("no answer within 30 s", code="cluster.no-answer")]
    with pytest.raises(UserError) as caught:
        follow(config, console)
    text = str(caught.value)
    assert text.startswith(
        "the cluster of stack test has not answered for 0.1 s. Its last words:\n  no answer"
    )
    assert "`./cluster up --stack test` waits again" in text
    assert "`./cluster doctor --stack test`" in text


def test_a_cluster_that_is_gone_is_not_waited_for(
    answers: list[Any], config: StackConfig, console: Console
) -> None:
    answers += ["7", NotUpError("stack test is not up", code="cluster.not-up")]
    with pytest.raises(NotUpError):
        follow(config, console)


def test_a_silent_cluster_does_not_fail_an_up_that_has_its_result(
    answers: list[Any], config: StackConfig, console: Console, output: io.StringIO
) -> None:
    answers += [UserError("no answer", code="cluster.no-answer")]
    operate.wait_for_idle(LocalProvider(), StackUp.of(Stack(ROOT, "test"), config), console)
    assert "the cluster does not answer just now: no answer" in output.getvalue()
