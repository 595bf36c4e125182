"""The local cloud's agent and the stack's commands when they are killed, hang, or lose their folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.program.stack import Stack
from localcloud.machines import MACHINE_VARIABLE
from node.system import rpc
from node.system.processes import ProcessId, caller, with_environment
from operations import waiting
from operations.local import agent, cluster
from operations.local.run_directory import RunDirectory
from tests.support import sentences
from tests.support.checkout import until
from tests.support.doubles import design
from tests.support.fake_machines import FakeMachines
from tests.support.processes import with_words
from tests.support.wide import wide


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short limit for hanging agents; on a busy machine it would also end agents that are only slow."""
    monkeypatch.setattr(agent, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(agent, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(agent, "HUNG_SECONDS", 1.0)
    monkeypatch.setattr(agent, "PATIENCE_SECONDS", 0.1)


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMachines]:
    fake_machines = FakeMachines(tmp_path, monkeypatch)
    machines = fake_machines.project / "localcloud" / "machines.py"
    assert "GRACE_SECONDS = 8.0" in machines.read_text()
    machines.write_text(machines.read_text().replace("GRACE_SECONDS = 8.0", "GRACE_SECONDS = 1.5"))
    fake_machines.do("cloud-up")
    fake_machines.publish(design())
    yield fake_machines
    assert fake_machines.close() == []


def kill(process: ProcessId, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(process.pid, number)
    if number == signal.SIGKILL:
        until(lambda: not process.alive(), 60, "the end", 0.01)


def node(local: FakeMachines, host: str = "debug-0") -> ProcessId:
    local.launch(host)
    until(lambda: local.booted(host), 60, host)
    return local.process(host)


def stored(local: FakeMachines) -> Any:
    return json.loads((local.run.cloud / "machines.json").read_text())


# --- one agent, and one that answers ---------------------------------------------------------------------


@pytest.mark.usefixtures("impatient")
def test_an_agent_that_hangs_is_replaced_and_its_machines_live_on(
    local: FakeMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    machine, old = node(local), local.agent()
    kill(old, signal.SIGSTOP)
    local.do("cloud-up")
    assert not old.alive()
    assert local.agent().pid != old.pid
    assert machine.alive()
    assert list(local.machines()) == ["debug-0"]
    assert f"agent (process {old.pid}) does not answer: it is ended" in capsys.readouterr().err


@pytest.mark.usefixtures("impatient")
def test_down_with_an_agent_that_hangs_ends_its_machines_without_it(
    local: FakeMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    machine, old = node(local), local.agent()
    kill(old, signal.SIGSTOP)
    for verb in ("head-down", "terminate-nodes", "cloud-down"):
        local.do(verb)
    assert not old.alive()
    assert not machine.alive()
    assert not local.run.path.exists()
    assert "the local cloud does not answer" in capsys.readouterr().err


def test_one_agent_where_two_commands_want_one_at_once(local: FakeMachines) -> None:
    kill(local.agent())
    threads = [threading.Thread(target=agent.start_agent, args=(local.project, local.run)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    def agents() -> list[int]:
        return with_words(local.processes(), "localcloud.agent")

    # Those that came second end by themselves.
    until(lambda: agents() == [local.agent().pid], 60, "one agent")


class Clock:
    """Replaces the module `time`: every call advances it by half a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, _seconds: float) -> None:
        self.now += 0.5


def test_an_agent_that_another_command_has_just_started_has_its_own_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine an agent takes seconds to answer, and the caller may have waited long before."""
    clock, hung, starts = Clock(), ProcessId(11, 1), ProcessId(12, 2)
    ended: list[ProcessId] = []
    monkeypatch.setattr(agent, "time", clock)
    monkeypatch.setattr(waiting, "time", clock)
    monkeypatch.setattr(agent, "_kill", ended.append)
    monkeypatch.setattr(agent, "agent_process", lambda _run: starts if ended else hung)
    monkeypatch.setattr(agent, "agent_answers", lambda _run: clock.now > 1.8 * agent.HUNG_SECONDS)
    agent.start_agent(tmp_path, RunDirectory(tmp_path))
    assert ended == [hung]


def test_an_agent_that_gave_way_to_one_that_ended_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, other = Clock(), ProcessId(11, 1)
    spawned: list[float] = []

    def spawn(*_: object) -> subprocess.Popen[bytes]:
        spawned.append(clock.now)
        child = subprocess.Popen(["false"])
        child.wait()
        return child

    def looked(_run: RunDirectory) -> ProcessId | None:
        # It is there while the first of ours ends, and then is not.
        return other if 0 < clock.now < 3 else None

    monkeypatch.setattr(agent, "time", clock)
    monkeypatch.setattr(waiting, "time", clock)
    monkeypatch.setattr(agent, "_spawn", spawn)
    monkeypatch.setattr(agent, "agent_process", looked)
    monkeypatch.setattr(agent, "agent_answers", lambda _run: len(spawned) == 2)
    agent.start_agent(tmp_path, RunDirectory(tmp_path))
    assert spawned == [0.0, 3.0]


def test_up_right_after_a_down_that_was_cut_off_gets_an_agent_that_stays(
    local: FakeMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent still ends machines and then itself after its caller was killed."""
    machine, old = node(local), local.agent()
    kill(machine, signal.SIGSTOP)  # so that its end takes the whole grace

    # On a slow machine it has come to its end before it is looked at, and answered: no fault of its.
    with contextlib.suppress(rpc.RpcUnavailableError):
        rpc.call(str(local.run.agent_socket), "shutdown", 0.3)
    monkeypatch.setattr(agent, "HUNG_SECONDS", 60.0)
    local.do("cloud-up")
    assert not old.alive()
    assert local.agent().pid != old.pid
    assert local.call("limits")
    assert not machine.alive()


def test_an_agent_whose_folder_was_made_anew_gives_way(local: FakeMachines) -> None:
    """`rm -r` of the run directory and `up` at once: the old agent must not go on beside the new one."""
    machine, old = node(local), local.agent()
    shutil.rmtree(local.run.path)
    local.do("cloud-up")
    new = local.agent()
    assert new.pid != old.pid
    until(lambda: not old.alive() and not machine.alive(), 60, "the end of the old ones")
    assert new.alive()
    assert local.machines() == {}
    assert local.call("limits"), "the socket is the new one's"


# --- what an agent remembers -----------------------------------------------------------------------------


def test_a_machine_that_was_started_and_not_written_down_is_not_there_twice(local: FakeMachines) -> None:
    machine = node(local)
    kill(local.agent())
    content = stored(local)
    for record in content["machines"]:
        record.update(state="pending", process=None)
    (local.run.cloud / "machines.json").write_text(json.dumps(content))
    (local.run.bucket / "boot" / "debug-0.json").unlink()
    local.do("cloud-up")
    until(lambda: local.booted("debug-0"), 60, "the node")
    assert not machine.alive()
    (identity,) = local.machines().values()
    assert local.process("debug-0").pid in with_environment(MACHINE_VARIABLE, identity)


@pytest.mark.parametrize("text", ["", *wide("{"), '{"machines": [{}]}'])
def test_a_damaged_memory_is_said_and_what_runs_is_ended(local: FakeMachines, text: str) -> None:
    machine = node(local)
    kill(local.agent())
    for name in ("machines.json", "limits.json"):
        (local.run.cloud / name).write_text(text)
    local.do("cloud-up")
    assert not machine.alive()
    assert local.machines() == {}
    assert local.call("limits")["quota_nodes"] is None
    assert "machines.json is damaged" in (local.run.cloud / "agent.log").read_text()


def test_the_agent_outlives_a_look_that_fails(local: FakeMachines) -> None:
    """A folder in place of the file makes every round of the agent fail."""
    machine = node(local)
    draft = local.run.cloud / f".machines.json.{local.agent().pid}"
    draft.mkdir()
    kill(machine)
    until(lambda: local.machines() == {}, 60, "the end to be seen")
    time.sleep(0.6)
    assert local.agent().alive()
    draft.rmdir()
    assert local.launch("debug-1")


# --- the head --------------------------------------------------------------------------------------------


def test_a_head_that_is_still_ending_is_waited_for(local: FakeMachines) -> None:
    """`up` was killed as it replaced the controller: the old one ends, the new one has the same name."""
    local.do("head-up")
    old = local.process("controller")
    kill(old, signal.SIGSTOP)
    thread = threading.Thread(
        target=local.call, args=("terminate",), kwargs={"ids": list(local.machines().values())}
    )
    thread.start()
    # Of a short grace: a slow machine may see only what it has come to.
    ending = ("stopping", "terminated")
    until(lambda: stored(local)["machines"][0]["state"] in ending, 60, "the end's beginning")
    local.do("head-up")
    thread.join()
    assert not old.alive()
    assert list(local.machines(role="controller")) == ["controller"]


def test_dead_machines_and_daemons_are_started_again(local: FakeMachines) -> None:
    said: list[str] = []
    local.do("head-up")
    for name in ("etc/slurm.conf", "code/current/bin/slurm-stacks"):
        (local.run.path / name).parent.mkdir(parents=True, exist_ok=True)
        (local.run.path / name).touch()
    cluster.repair(Stack(local.project, "test"), said.append)
    assert said == [], "all is well"
    assert not agent.controller_is_dead(local.run)
    head = local.process("controller")
    kill(local.agent())
    cluster.repair(Stack(local.project, "test"), said.append)
    assert head.alive()
    kill(local.agent())
    kill(head)
    assert agent.controller_is_dead(local.run)
    cluster.repair(Stack(local.project, "test"), said.append)
    assert [text.split(":")[0] for text in said] == [
        "the local cloud's agent has ended",
        "the local cloud's agent has ended",
        "the controller has ended",
    ]
    assert local.process("controller").alive()
    (local.run.bucket / "loader.py").unlink()
    with sentences.raises("cluster.part-gone", "bucket/loader.py", "`./cluster down --stack test`"):
        cluster.repair(Stack(local.project, "test"), said.append)


# --- the commands themselves -----------------------------------------------------------------------------


def argv(local: FakeMachines, verb: str) -> list[str]:
    code = (
        "import runpy, sys; from pathlib import Path; from infra.program import locations\n"
        f"locations.run_root = lambda: Path({str(local.run.path.parent)!r})\n"
        f"sys.argv = ['operations', {verb!r}, '--stack', 'test']\n"
        "runpy.run_module('operations.local', run_name='__main__')"
    )
    return [sys.executable, "-c", code]


def environment(local: FakeMachines, **more: str) -> dict[str, str]:
    project = str(local.project)
    return {**os.environ, "PYTHONPATH": project, "SLURM_STACKS_PROJECT": project, **more}


def command(local: FakeMachines, verb: str, **env: str) -> subprocess.Popen[str]:
    """Run a verb in its own process, as a resource does."""
    return subprocess.Popen(
        argv(local, verb), env=environment(local, **env), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def test_a_command_ends_with_the_runner_that_was_killed(local: FakeMachines) -> None:
    local.outcome("booting")
    code = "import subprocess as s, sys, time; s.Popen(sys.argv[1:], start_new_session=True); time.sleep(60)"
    mine = str(os.getpid())
    runner = subprocess.Popen(
        [sys.executable, "-c", code, *argv(local, "head-up")], env=environment(local, MARK=mine)
    )
    until(lambda: local.machines(role="controller"), 60, "the controller")
    commands = [pid for pid in with_environment("MARK", mine) if pid != runner.pid]
    assert len(commands) == 1
    runner.kill()
    runner.wait()
    until(lambda: with_environment("MARK", mine) == [], 60, "the command's end")
    assert local.machines(role="controller"), "the cluster itself is nobody's child"


def test_a_command_whose_runner_is_dead_already_does_nothing(local: FakeMachines) -> None:
    dead = subprocess.Popen(["sleep", "60"])
    identity = caller(dead.pid)
    dead.kill()
    dead.wait()
    child = command(local, "head-up", SLURM_STACKS_CALLER=identity)
    child.communicate(timeout=60)
    assert child.returncode == -signal.SIGTERM
    assert local.machines() == {}


def test_an_interrupted_command_says_a_word(local: FakeMachines) -> None:
    local.outcome("booting")
    child = command(local, "head-up")
    until(lambda: local.machines(role="controller"), 60, "the controller")
    until(lambda: local.booted("controller"), 60, "its report")
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err.splitlines()[-1] == "interrupted"
    assert "Traceback" not in err


# --- the run directory -----------------------------------------------------------------------------------


def test_clients_that_wait_for_a_cluster_end_with_it(local: FakeMachines, tmp_path: Path) -> None:
    """An srun in another terminal would wait for ever. A shell there belongs to the user and stays."""
    srun = tmp_path / "srun"
    shutil.copy("/bin/sleep", srun)
    env = {"SLURM_CONF": f"{local.run.path}/etc/slurm.conf"}
    task = {**env, "SLURMD_NODENAME": "debug-0"}
    waiting, shell, job = (
        subprocess.Popen([str(program), "600"], env=its)
        for program, its in ((srun, env), ("/bin/sleep", env), ("/bin/sleep", task))
    )
    try:
        until(lambda: {waiting.pid, job.pid} <= set(local.processes()), 60, "them to be found")
        local.do("cloud-down")
        assert (waiting.wait(60), job.wait(60)) == (-signal.SIGKILL, -signal.SIGKILL)
        assert shell.poll() is None
    finally:
        shell.kill()
        shell.wait()


@pytest.mark.skipif(not shutil.which("systemd-tmpfiles"), reason="systemd-tmpfiles is not installed")
def test_what_tidies_tmp_leaves_a_running_cluster_alone(local: FakeMachines, tmp_path: Path) -> None:
    runs = local.run.path.parent
    other = runs / "other"
    other.mkdir()
    for folder in (local.run.path, other):
        (folder / "old").touch()
    config = tmp_path / "tidy.conf"
    config.write_text(f"d {runs} - - - 1s\n")
    time.sleep(1.2)  # ages are those of the last change, which nobody can set
    subprocess.run(["systemd-tmpfiles", "--clean", str(config)], check=True)
    assert not (other / "old").exists(), "it does tidy"
    assert (local.run.path / "old").exists()
    opened = os.open(local.run.path, os.O_RDONLY)

    def locked() -> bool:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(opened, fcntl.LOCK_UN)
        return False

    assert locked()
    kill(local.agent())
    until(lambda: not locked(), 60, "the end of the lock with its agent")
    local.do("cloud-up")
    until(locked, 60, "the next agent's lock")
    os.close(opened)


def test_no_command_line_is_mistaken_for_the_agents(
    local: FakeMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a reboot, an agent's former pid may belong to any process."""
    kill(local.agent())
    (local.run.cloud / "agent.lock").write_text(f"{os.getpid()}\n")
    assert agent.agent_process(local.run) is None
    local.do("cloud-up")
    assert local.agent().alive()
