"""The local cloud's agent as a process: its API, its lock, and its machines when it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcloud import addresses
from localcloud.machines import CLUSTER_VARIABLE, MACHINE_VARIABLE
from node.system import rpc
from node.system.processes import ProcessId, descendants
from tests.support.checkout import until
from tests.support.doubles import design
from tests.support.fake_machines import FakeMachines
from tests.support.wide import wide


class Agent:
    """An agent that is this test's own child."""

    def __init__(self, local: FakeMachines) -> None:
        self.local = local
        self.child = self.start()
        until(self.answers, 60, "the agent")

    def start(self) -> subprocess.Popen[bytes]:
        run = str(self.local.run.path)
        with (self.local.run.path / "said").open("w") as said:
            return subprocess.Popen(
                [sys.executable, "-m", "localcloud.agent", run],
                env={**os.environ, "PYTHONPATH": str(self.local.project), CLUSTER_VARIABLE: run},
                stdout=subprocess.DEVNULL,
                stderr=said,
            )

    def end(self) -> None:
        self.child.kill()
        self.child.wait()

    def answers(self) -> bool:
        try:
            self.local.call("limits")
        except rpc.RpcUnavailableError:
            return False
        return True

    def booted(self, host: str) -> ProcessId:
        """Launch a machine, wait for its boot, and return its init."""
        self.local.launch(host)
        until(lambda: self.local.booted(host), 60, host)
        (record,) = [m for m in self.local.call("list", tags={})["machines"] if m["node"] == host]
        return ProcessId(**record["process"])


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    local = FakeMachines(tmp_path, monkeypatch)
    local.publish(design())
    made = Agent(local)
    yield made
    made.end()
    assert local.close() == []


def test_a_machine_is_told_who_it_is_and_inherits_nothing_else(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    init = agent.booted("debug-0")
    arguments = Path(f"/proc/{init.pid}/cmdline").read_text().split("\0")
    run = agent.local.run
    given = dict(zip(arguments[5:-1:2], arguments[6::2], strict=False))
    assert given == {
        "--bucket": str(run.bucket), "--code": str(run.path / "code"),
        "--role": "compute", "--host": "debug-0",
    }  # fmt: skip
    pairs = Path(f"/proc/{init.pid}/environ").read_text().split("\0")
    environment = dict(pair.split("=", 1) for pair in pairs if pair)
    (identity,) = agent.local.machines().values()
    assert environment[MACHINE_VARIABLE] == identity
    assert environment[CLUSTER_VARIABLE] == str(run.path)
    assert set(environment) == {"PATH", "HOME", "LANG", MACHINE_VARIABLE, CLUSTER_VARIABLE}
    assert os.getsid(init.pid) == init.pid


def test_terminate_ends_all_of_a_machine(agent: Agent) -> None:
    init = agent.booted("debug-0")
    below = [ProcessId.of(pid) for pid in descendants(init.pid)]
    assert below, "what a job left behind"
    agent.local.call("terminate", ids=list(agent.local.machines().values()))
    assert not init.alive()
    assert [process for process in below if process and process.alive()] == []


def test_the_agent_keeps_the_public_note_of_ports_new(agent: Agent) -> None:
    """It lies outside of the run directory, which the agent's lock protects from cleaners of /tmp."""
    note = addresses.public_note(agent.local.run.path)
    assert json.loads(note.read_text()).keys() == {"base", "count"}
    os.utime(note, (0, 0))
    agent.end()
    again = Agent(agent.local)
    try:
        until(lambda: note.stat().st_mtime > 0, 60, "the note to be new")
    finally:
        again.end()


def test_a_second_agent_of_the_same_cluster_gives_way(agent: Agent) -> None:
    second = agent.start()
    assert second.wait(60) == 1
    assert f"another agent serves {agent.local.run.path}" in (agent.local.run.path / "said").read_text()
    assert agent.answers()


@pytest.mark.parametrize("number", [signal.SIGTERM, *wide(signal.SIGINT, signal.SIGHUP), signal.SIGKILL])
def test_machines_outlive_their_agent(agent: Agent, number: signal.Signals) -> None:
    init = agent.booted("debug-0")
    agent.child.send_signal(number)
    agent.child.wait(60)
    assert init.alive()
    again = Agent(agent.local)
    try:
        (identity,) = agent.local.machines().values()
        agent.local.call("terminate", ids=[identity])
        assert not init.alive(), "the next agent ends what the first one started"
    finally:
        again.end()


def test_shutdown_ends_the_machines_then_the_agent(agent: Agent) -> None:
    init = agent.booted("debug-0")
    assert agent.local.call("shutdown") == {"pid": agent.child.pid}
    assert not init.alive()
    assert agent.child.wait(60) == 0
    assert not agent.local.run.agent_socket.exists()


def test_a_run_directory_that_is_gone_ends_everything(agent: Agent) -> None:
    """Nobody could call it again, so neither machines nor the agent may stay."""
    init = agent.booted("debug-0")
    shutil.rmtree(agent.local.run.path)
    agent.child.wait(60)
    assert not init.alive()
    assert agent.local.processes() == []


def test_a_machine_that_ends_by_itself_is_seen(agent: Agent) -> None:
    init = agent.booted("debug-0")
    os.kill(init.pid, signal.SIGKILL)
    until(lambda: agent.local.machines() == {}, 60, "the agent to see it")
    states = [m["state"] for m in agent.local.call("list", tags={})["machines"]]
    assert states == ["terminated"]
