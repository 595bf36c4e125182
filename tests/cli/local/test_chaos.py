"""`./cluster chaos`: the command line with a real agent and machines that sleep."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli import main as cli
from cli.providers.local import chaos
from infra.program import locations
from infra.program.stack import Stack
from localcloud import isolation
from node.design.local_cloud import CloudBehaviour
from node.system.codec import to_json
from node.system.processes import ProcessId
from operations.local.agent import agent_process
from operations.local.run_directory import RunDirectory
from tests.support import sentences
from tests.support.checkout import ROOT, until
from tests.support.doubles import design
from tests.support.fake_machines import FakeMachines
from tests.support.sleepers import ServedCloud, Sleepers, state_of, stopped_timers

STACK = """
config:
  slurm-stacks:cluster:
    name: t
    provider: local
    partitions:
      - {name: debug, instance_type: local.small, zones: [a, b], nodes: {max: 8}}
      - {name: big, instance_type: local.medium, nodes: {max: 2}}
    local: {boot_delay: 0.5, capacity: {big: 1}}
"""
CLOUD_STACK = """
config:
  aws:region: us-east-1
  slurm-stacks:cluster:
    name: t
    provider: aws
    partitions: [{name: cpu, instance_type: m5.large, nodes: {max: 2}}]
"""
POOLS = ["debug", "debug/a", "debug/b", "big"]
Run = Callable[..., tuple[int, str, str]]


def stack_files(project: Path) -> None:
    project.mkdir(exist_ok=True)
    (project / "Pulumi.yaml").write_text((ROOT / "Pulumi.yaml").read_text())
    (project / "Pulumi.test.yaml").write_text(STACK)
    (project / "Pulumi.far.yaml").write_text(CLOUD_STACK)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "a project"
    monkeypatch.setattr(locations, "run_root", lambda: tmp_path / "runs")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SLURM_STACKS_PROJECT", str(made))
    monkeypatch.setenv("COLUMNS", "200")
    stack_files(made)
    return made


@pytest.fixture
def run(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `./cluster chaos … --stack test`: exit code, standard output, standard error."""

    def called(*arguments: str, stack: str = "test") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["cluster", "chaos", *arguments, "--stack", stack])
        code = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        text = capsys.readouterr()
        assert "Traceback" not in text.err
        return code, text.out, text.err

    return called


@pytest.fixture
def cloud(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedCloud]:
    """The stack's cloud as `up` leaves it."""
    maker = Sleepers()
    monkeypatch.setattr(isolation, "runtime", lambda _run: maker)
    served_cloud = ServedCloud(RunDirectory.make(Stack(project, "test")).path, maker)
    served_cloud.call("limits", boot_delay=0.5, **{"capacity.big": 1})
    yield served_cloud
    served_cloud.server.close()
    maker.close()


def running(cloud: ServedCloud, count: int) -> dict[str, ProcessId]:
    cloud.call("limits", boot_delay=0.0)
    cloud.launch(count)
    until(lambda: {m["state"] for m in cloud.call("inspect")["machines"]} == {"running"}, 60, "machines")
    cloud.call("limits", boot_delay=0.5)
    return {m["node"]: ProcessId(**m["process"]) for m in cloud.call("inspect")["machines"]}


# --- set -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("boot_delay=2", "boot_delay", 2),
        ("boot_spread=0.5", "boot_spread", 0.5),
        ("quota_nodes=0", "quota_nodes", 0),
        ("quota_gpus=8", "quota_gpus", 8),
        ("capacity.debug=3", "capacity.debug", 3),
        ("capacity.debug/b=0", "capacity.debug/b", 0),
        ("never_register=.25", "never_register", 0.25),
        ("api_error=throttled", "api_error", "throttled"),
        ("api_latency=1", "api_latency", 1),
        ("list_lag=5", "list_lag", 5),
        ("quota_nodes=", "quota_nodes", None),
        ("boot_delay=null", "boot_delay", None),
        ("api_error=null", "api_error", None),
        ("capacity.debug/a=", "capacity.debug/a", None),
    ],
)
def test_words_are_read(word: str, key: str, value: Any) -> None:
    assert chaos.parse([word], POOLS) == {key: value}


def test_every_key_can_be_set() -> None:
    assert set(chaos.KEYS) == set(to_json(CloudBehaviour()))


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("quota_nods=3", ["quota_nods", "did you mean quota_nodes?"]),
        ("machines=process", ["machines", "a key that is not known", "boot_delay"]),
        ("price_hour=1", ["a key that is not known"]),
        ("quota_nodes", ["a word without =", "write quota_nodes=…"]),
        ("=3", ["a key that is not known"]),
        ("quota_nodes=3.5", ["3.5", "a whole number"]),
        ("quota_nodes=-1", ["-1", "0 or more"]),
        ("quota_nodes=many", ['"many"', "a whole number", "write it in digits"]),
        ("boot_delay=5s", ["a number (seconds)", "without a unit"]),
        ("boot_delay=3601", ["at most 3600"]),
        ("boot_spread=nan", ["a number (seconds)"]),
        ("api_latency=-1", ["0 or more (seconds)"]),
        ("list_lag=inf", ["a number (seconds)"]),
        ("never_register=2", ["at most 1"]),
        ("api_error=throttle", ["quota, capacity, placement", "did you mean throttled?"]),
        ("api_error=1", ["quota, capacity"]),
        ("capacity=3", ["no pool", "capacity.debug, capacity.debug/a"]),
        ("capacity.=3", ["no pool", "capacity.big"]),
        ("capacity.debgu=3", ["capacity.debgu", "did you mean capacity.debug?"]),
        ("capacity.debug/c=3", ["no pool of this cluster"]),
        ("capacity.debug=x", ["capacity.debug", "a whole number"]),
        ("capacity.debug/a=-2", ["capacity.debug/a", "0 or more"]),
    ],
)
def test_wrong_words_are_exit_2_and_change_nothing(
    run: Run, cloud: ServedCloud, word: str, said: list[str]
) -> None:
    before = cloud.call("limits")
    code, out, err = run("set", "quota_gpus=3", word)
    assert (code, out) == (2, "")
    assert "chaos set changes nothing: 1 mistake." in err
    for text in said:
        assert text in err
    assert cloud.call("limits") == before


def test_several_mistakes_are_told_at_once(run: Run, cloud: ServedCloud) -> None:
    code, _, err = run("set", "quota_nodes=x", "boot_dely=1", "list_lag=1", "list_lag=2", "api_latency")
    assert code == 2
    assert "4 mistakes" in err
    for text in ("quota_nodes", "did you mean boot_delay?", "each key once", "write api_latency=…"):
        assert text in err
    assert cloud.call("limits")["list_lag"] == 0


def test_set_says_what_it_did(run: Run, cloud: ServedCloud) -> None:
    code, out, err = run("set", "quota_nodes=2", "boot_delay=1.5", "capacity.big=1", "api_error=throttled")
    assert (code, err) == (0, "")
    assert out == (
        "quota_nodes is 2 (was not set); boot_delay is 1.5 (was 0.5); capacity.big is 1, as it was; "
        "api_error is throttled (was not set)\n"
    )
    assert cloud.call("limits")["quota_nodes"] == 2
    assert run("set", "quota_nodes=", "capacity.big=null")[1] == (
        "quota_nodes is not set (was 2); capacity.big is not set (was 1)\n"
    )
    assert cloud.call("limits")["capacity"] == {}
    assert run("set")[0] == 2


# --- show and clear --------------------------------------------------------------------------------------


def test_show(run: Run, cloud: ServedCloud) -> None:
    running(cloud, 2)
    assert "Nothing is wrong with any machine" in run("show")[1]
    run("set", "quota_nodes=2", "capacity.debug/a=3", "api_error=capacity")
    run("freeze", "debug-0")
    run("preempt", "debug-1", "--notice", "900")
    code, out, err = run("show")
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert rows["boot_delay"][1:4] == ["0.5", "the", "same"]
    assert rows["quota_nodes"][1:4] == ["2", "–", "Pretended"]
    assert rows["capacity.debug/a"][1:3] == ["3", "–"]
    assert rows["capacity.big"][1:4] == ["1", "the", "same"]
    assert rows["api_error"][1:3] == ["capacity", "–"]
    assert "frozen" in out
    assert re.search(r"the cloud takes it in (900|[1-8]?\d?\d) s", out)
    shown = json.loads(run("show", "--json")[1])
    keys = {row["key"]: (row["value"], row["stack_file"]) for row in shown["keys"]}
    assert keys["quota_nodes"] == (2, None)
    assert keys["boot_delay"] == (0.5, 0.5)
    assert set(keys) == {*to_json(CloudBehaviour()), *(f"capacity.{p}" for p in POOLS)} - {"capacity"}
    assert all(row["meaning"] for row in shown["keys"])
    frozen, taken = shown["machines"]
    assert (frozen["node"], frozen["frozen"], frozen["notice"]) == ("debug-0", True, None)
    assert taken["notice"] > time.time()


def test_clear_goes_back_to_the_stack_file(run: Run, cloud: ServedCloud) -> None:
    processes = running(cloud, 3)
    assert run("clear")[1] == "nothing was set: all is as the stack file says\n"
    run("set", "quota_nodes=2", "boot_delay=9", "capacity.big=", "capacity.debug=1", "api_error=permission")
    run("freeze", "debug-0")
    run("cut", "debug-1")
    run("preempt", "debug-2", "--notice", "900")
    code, out, err = run("clear")
    assert (code, err) == (0, "")
    for text in ("quota_nodes is not set (was 2)", "boot_delay is 0.5 (was 9)", "capacity.big is 1 (was"):
        assert text in out
    assert "debug-0 goes on" in out
    assert "debug-1 has its network" in out
    expected = to_json(CloudBehaviour(boot_delay=0.5, capacity={"big": 1}))
    assert cloud.call("limits") == expected
    until(lambda: state_of(processes["debug-0"]) == "S", 60, "the machine")
    assert cloud.maker.cut_off == set()
    notices = [m["notice"] for m in cloud.call("inspect")["machines"]]
    assert notices[2] is not None, "a cloud that has given notice does not change its mind"
    cloud.restart()
    assert cloud.call("limits") == expected


# --- machines --------------------------------------------------------------------------------------------


def test_actions_say_what_they_did(run: Run, cloud: ServedCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = running(cloud, 4)
    assert run("freeze", "debug-0")[:2] == (
        0, "debug-0 is frozen; `./cluster chaos thaw debug-0 --stack test` lets it go on\n",
    )  # fmt: skip
    until(lambda: state_of(processes["debug-0"]) == "T", 60, "the machine to stand still")
    assert run("thaw", "debug-0")[:2] == (0, "debug-0 goes on\n")
    assert "has no network" in run("cut", "debug-0")[1]
    assert cloud.maker.cut_off == {"debug-0"}
    assert run("join", "debug-0")[:2] == (0, "debug-0 has its network\n")
    assert run("kill", "debug-1")[:2] == (0, "debug-1 is dead: its machine has lost its power\n")
    assert not processes["debug-1"].alive()
    # However slow this machine is: the end of its time is no part of what is said.
    stopped_timers(monkeypatch)
    for options in ((), ("--notice", "900")):
        code, out, _ = run("preempt", "debug-2", *options)
        assert code == 0
        assert re.fullmatch(r"the cloud takes debug-2 in (30|[12]?\d) s\n", out)
    assert run("preempt", "debug-3", "--notice", "0")[:2] == (0, "the cloud has taken debug-3\n")
    assert not processes["debug-3"].alive()
    assert processes["debug-2"].alive()


def test_a_node_that_does_not_run_is_told_with_those_that_do(run: Run, cloud: ServedCloud) -> None:
    code, out, err = run("kill", "debug-0")
    assert (code, out) == (1, "")
    sentences.printed(err, "chaos.no-machine", "debug-0")
    running(cloud, 3)
    code, out, err = run("freeze", "dbug-1")
    assert (code, out) == (1, "")
    sentences.printed(err, "chaos.no-machine", "dbug-1", "debug-[0-2]", "debug-1?")
    run("kill", "debug-1")
    assert "running now: debug-[0,2];" in run("thaw", "debug-1")[2]


def test_what_the_cloud_refuses_is_one_sentence(run: Run, cloud: ServedCloud) -> None:
    cloud.call("limits", boot_delay=60)
    cloud.launch(1)
    code, out, err = run("freeze", "debug-0")
    assert (code, out) == (1, "")
    sentences.printed(err, "chaos.refused", "debug-0", "pending")


@pytest.mark.parametrize("notice", ["-1", "1e9", "soon"])
def test_a_wrong_notice_is_exit_2(run: Run, notice: str) -> None:
    code, out, err = run("preempt", "debug-0", "--notice", notice)
    assert (code, out) == (2, "")
    assert "--notice" in err


COMMANDS = [
    ("show",), ("set", "quota_nodes=1"), ("clear",), ("kill", "debug-0"), ("freeze", "debug-0"),
    ("thaw", "debug-0"), ("cut", "debug-0"), ("join", "debug-0"), ("preempt", "debug-0"),
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
def test_a_stack_of_a_real_cloud_is_exit_3(run: Run, command: tuple[str, ...]) -> None:
    code, out, err = run(*command, stack="far")
    assert (code, out) == (3, "")
    assert "stack far runs on aws" in err


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
def test_a_stack_that_is_not_up_is_exit_1(run: Run, command: tuple[str, ...]) -> None:
    code, out, err = run(*command)
    assert (code, out) == (1, "")
    sentences.printed(err, "cluster.not-up", "`./cluster up --stack test`")


def test_a_cloud_that_does_not_answer_is_exit_1(run: Run, cloud: ServedCloud) -> None:
    running(cloud, 1)
    cloud.server.close()
    code, out, err = run("show")
    assert (code, out) == (1, "")
    assert "[chaos.no-answer]" in err
    assert "`./cluster up --stack test`" in err


# --- the agent as a process ------------------------------------------------------------------------------


@pytest.fixture
def machines(tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMachines]:
    fake_machines = FakeMachines(tmp_path, monkeypatch)
    code = fake_machines.project / "localcloud" / "machines.py"
    assert "GRACE_SECONDS = 8.0" in code.read_text()
    # Longer than anybody waits for the agent: whoever needs it is noticed.
    code.write_text(code.read_text().replace("GRACE_SECONDS = 8.0", "GRACE_SECONDS = 60.0"))
    fake_machines.publish(design())
    fake_machines.do("cloud-up", '{"boot_delay": 0.5, "capacity": {"big": 1}}')
    yield fake_machines
    assert fake_machines.close() == []


def test_real_machines_feel_it(machines: FakeMachines, run: Run) -> None:
    run("set", "boot_delay=")
    machines.launch("debug-0", "debug-1")
    until(lambda: machines.booted("debug-0") and machines.booted("debug-1"), 60, "two machines")
    process = ProcessId(**machines.call("inspect")["machines"][0]["process"])
    assert run("freeze", "debug-0")[0] == 0
    # A process stops where the kernel next looks at its signals.
    until(lambda: state_of(process) == "T", 60, "the machine to stand still")
    code, _, err = run("cut", "debug-0")
    assert (code, "no network of its own" in err) == (1, True)
    assert run("set", "never_register=1")[0] == 0
    machines.launch("debug-2")
    until(lambda: len(machines.machines()) == 3, 60, "the third machine")
    (mute,) = [m for m in machines.call("inspect")["machines"] if m["node"] == "debug-2"]
    assert "never registers" in run("show")[1]
    assert run("kill", "debug-0")[0] == 0
    assert not process.alive()
    assert run("preempt", "debug-1", "--notice", "1")[0] == 0
    until(lambda: list(machines.machines()) == ["debug-2"], 60, "the cloud to take the machine")
    assert not machines.booted("debug-2")
    machines.call("terminate", ids=[mute["id"]])  # at once: it is well behaved apart from that
    assert machines.machines() == {}


@pytest.mark.parametrize("setting", ["api_error=permission", "api_error=throttled", "api_latency=300"])
def test_a_cluster_comes_down_whatever_was_set(machines: FakeMachines, run: Run, setting: str) -> None:
    run("set", "boot_delay=")
    machines.launch("debug-0", "debug-1")
    until(lambda: machines.booted("debug-0") and machines.booted("debug-1"), 60, "two machines")
    run("set", setting)
    assert machines.do("terminate-nodes") == {"terminated": 2}
    assert machines.call("inspect") == {"machines": []}


def test_what_was_set_and_announced_outlives_the_agent(machines: FakeMachines, run: Run) -> None:
    run("set", "boot_delay=", "quota_nodes=3", "never_register=1")
    machines.launch("debug-0", "debug-1")
    until(lambda: {m["state"] for m in machines.call("inspect")["machines"]} == {"running"}, 60, "machines")
    run("preempt", "debug-0", "--notice", "2")
    agent = agent_process(machines.run)
    assert agent is not None
    os.kill(agent.pid, signal.SIGKILL)
    until(lambda: not agent.alive(), 60, "the agent's end")
    code, out, err = run("show")
    assert (code, out) == (1, "")
    assert "does not answer" in err
    machines.do("cloud-up")
    assert machines.call("limits")["quota_nodes"] == 3
    assert "never registers" in run("show")[1]
    until(lambda: list(machines.machines()) == ["debug-1"], 60, "the next agent to take the machine")
