"""Tests of the watch on a spot node: EC2's notices reach Slurm, and jobs go on while they can."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.bootstrap.context import Context
from node.bootstrap.systemd_services import unit_text
from node.bootstrap.vm import notices
from node.elastic.plan import Action
from node.elastic.requeue import Requeue
from node.elastic.rules import Verb
from node.elastic.view import REASON_PREFIX
from node.slurm.control import SlurmDown
from node.slurm.states import NodeState
from node.system.cloud_api import Notice, UnreachableError
from tests.support.doubles import FakeControl, job, node
from tests.support.fake_imds import FakeImds, fake_imds
from tests.support.recorded import COMPUTE, T4
from tests.support.recorded import machine as make
from tests.support.watches import ended, report, said, until, watching

NAME = "compute-3"
AT = 1_795_269_720.0  # 2026-11-21 14:02:00 UTC
REBALANCE, INTERRUPTION = "meta-data/events/recommendations/rebalance", "meta-data/spot/instance-action"
RECOMMENDED = '{"noticeTime": "2026-11-21T13:00:00Z"}'
INTERRUPTED = '{"action": "terminate", "time": "2026-11-21T14:02:00Z"}'
RISK = "preempted: the cloud may take this machine soon"
AT_RISK = f"{REASON_PREFIX}{RISK}"
TAKEN = f"{REASON_PREFIX}preempted: the cloud takes this machine at 14:02:00 UTC"
SPOT = (dataclasses.replace(COMPUTE, spot=True), T4)


@pytest.fixture
def ec2() -> Iterator[FakeImds]:
    with fake_imds() as fake:
        yield fake


@pytest.fixture
def booted(tmp_path: Path) -> Context:
    """A node of a spot partition."""
    context, _ = make(tmp_path, host=NAME, partitions=SPOT, driver={"bucket": "t-bucket"})
    report(context)
    return context


@pytest.fixture
def service(ec2: FakeImds, booted: Context) -> Iterator[subprocess.Popen[bytes]]:
    with watching(booted, {"AWS_EC2_METADATA_SERVICE_ENDPOINT": ec2.url}) as child:
        yield child


def looks(ec2: FakeImds) -> int:
    return ec2.asked.count(INTERRUPTION)


def some_looks(ec2: FakeImds) -> None:
    before = looks(ec2)
    until(lambda: looks(ec2) >= before + 3)


# --- a machine that may be taken ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "told", "done"),
    [
        (node(NAME), True, True),
        (node(NAME, "ALLOCATED"), True, True),
        (node(NAME, "ALLOCATED", "POWERING_UP"), False, False),
        (node(NAME, "ALLOCATED", "NOT_RESPONDING"), False, False),
        (node(NAME, "UNKNOWN", "NOT_RESPONDING"), False, False),
        (node(NAME, "ALLOCATED", "DRAIN", reason=AT_RISK), False, True),
        (node(NAME, "ALLOCATED", "DRAIN", reason="a person's"), False, True),
        (node(NAME, "ALLOCATED", "DRAIN", "POWER_DOWN", reason="slurm-stacks x"), False, True),
        (node(NAME, "IDLE", "POWERING_DOWN"), False, True),
    ],
    ids=lambda value: "+".join([value.base, *sorted(value.flags)]) if isinstance(value, NodeState) else None,
)
def test_a_node_at_risk_takes_no_more_jobs_and_keeps_those_that_it_has(
    state: NodeState, told: bool, done: bool
) -> None:
    """It does not matter who drained the node first, or whether the node is up yet."""
    control = FakeControl([state, node("compute-4")], [job(7, nodes=(NAME,))])
    assert notices.drain(control, NAME, RISK) is done
    assert control.calls == ([("node", (NAME,), "DRAIN", AT_RISK)] if told else [])
    control.calls.clear()
    if done:  # after a restart of the watch
        assert notices.drain(control, NAME, RISK) is True
        assert control.calls == []


def test_a_slurm_that_does_not_answer_is_told_later_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "PAUSE_SECONDS", 0.0)
    risk = Notice("rebalance recommendation", None)
    told = [None, risk, risk, UnreachableError("no"), risk, risk, risk, risk, Notice("terminate", AT)]
    answers: list[Exception | bool] = [SlurmDown(["scontrol"], 1, "down"), KeyError(NAME), False, True]

    def wait(_seconds: float) -> Notice | None:
        said = told.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    def spare(reason: str) -> bool:
        assert reason == RISK
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert notices.watch(wait, spare, lambda _at: pytest.fail("the driver hears of it by itself")) == AT
    assert (told, answers) == ([], [])


def test_a_node_at_risk_that_is_taken_after_all_is_evacuated(ec2: FakeImds, booted: Context) -> None:
    """The earlier drain was no evacuation, so the reason is replaced and the jobs are requeued."""
    control = FakeControl([node(NAME, "ALLOCATED")], [job(7, nodes=(NAME,)), job(8, nodes=("compute-1",))])
    notices.drain(control, NAME, RISK)
    own = report_of(booted)
    notices.evacuate(booted.settings, control, NAME, AT)
    assert [call for call in control.calls if call[0] == "node"] == [
        ("node", (NAME,), "DRAIN", AT_RISK),
        ("node", (NAME,), "DRAIN", TAKEN),
    ]
    assert [call for call in control.calls if call[0] == "requeue"] == [("requeue", 7)]
    assert report_of(booted) == own, "the driver hears of it by itself"
    assert ec2.asked == []


@pytest.mark.parametrize(("reason", "updates"), [(AT_RISK, 1), (TAKEN, 0)])
def test_the_reconciler_knows_an_evacuation_from_a_risk(reason: str, updates: int) -> None:
    control = FakeControl([node(NAME, "ALLOCATED", "DRAIN", reason=reason)])
    action = Action(Verb.EVACUATE, NAME, None, TAKEN.removeprefix(REASON_PREFIX))
    Requeue(control).evacuate([action], control.nodes())
    assert len(control.calls) == updates


def report_of(context: Context) -> dict[str, object]:
    content: dict[str, object] = json.loads((Path(str(context.folders.lib)) / "boot.json").read_text())
    return content


# --- the service itself ------------------------------------------------------------------------------------


def test_the_service_sees_the_risk_and_then_the_interruption(
    ec2: FakeImds, service: subprocess.Popen[bytes], booted: Context
) -> None:
    some_looks(ec2)
    ec2.content[REBALANCE] = RECOMMENDED
    some_looks(ec2)
    ec2.content[INTERRUPTION] = INTERRUPTED
    before = looks(ec2)
    until(lambda: "no Slurm here" in said(booted))
    time.sleep(0.5)
    assert looks(ec2) <= before + 2, "it is told, and looks no more"
    assert service.poll() is None, "started again it would tell it once more"
    status, words = ended(service, booted)
    assert status == -signal.SIGTERM
    assert words.splitlines() == [
        "the node takes no more jobs: preempted: the cloud may take this machine soon",
        f"updates {NAME} DRAIN {AT_RISK}",
        "terminate: this machine will be taken at 14:02:00 UTC",
        f"evacuates ['{NAME}']",
        "scontrol: no Slurm here",
    ]
    assert not [path for path in ec2.asked if "credentials" in path], "it asks AWS for nothing"


def test_a_service_that_is_to_end_while_it_tells_tells_all_and_ends(
    ec2: FakeImds, booted: Context, tmp_path: Path
) -> None:
    """systemd sends SIGTERM once, and then waits for a minute and a half."""
    hold = tmp_path / "hold"
    hold.touch()
    ec2.content[INTERRUPTION] = INTERRUPTED
    where = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": ec2.url, "HOLD": str(hold)}
    with watching(booted, where) as child:
        until(lambda: "evacuates" in said(booted))
        child.terminate()
        time.sleep(0.2)
        assert child.poll() is None
        hold.unlink()
        assert child.wait(60) == -signal.SIGTERM
    assert said(booted).endswith("scontrol: no Slurm here\n")


def test_a_machine_at_risk_that_is_given_back_requeues_nothing(
    ec2: FakeImds, service: subprocess.Popen[bytes], booted: Context
) -> None:
    ec2.content[REBALANCE] = RECOMMENDED
    some_looks(ec2)
    status, words = ended(service, booted)
    assert (status, words.count("updates"), words.count("evacuates")) == (0, 1, 0)


def test_a_service_that_stumbles_is_asked_again(
    ec2: FakeImds, service: subprocess.Popen[bytes], booted: Context
) -> None:
    some_looks(ec2)
    ec2.broken = 2
    ec2.content[REBALANCE] = "half an answer"  # it only matters that the tag exists
    some_looks(ec2)
    assert ended(service, booted)[1].count("updates") == 1


# --- which nodes have it -----------------------------------------------------------------------------------


def test_nodes_of_spot_partitions_have_a_watch_and_no_others(tmp_path: Path, booted: Context) -> None:
    others = [
        ("compute", "t4-0"),
        ("compute", "compute-99"),
        ("controller", "controller"),
        ("login", "login-0"),
    ]
    for number, (role, host) in enumerate(others):
        context, _ = make(tmp_path / str(number), role, host, partitions=SPOT)
        assert notices.start(context) == ""
        assert context.services.started == []  # type: ignore[attr-defined]
    assert notices.start(booted) == "the watch for notices"
    (made,) = booted.services.started  # type: ignore[attr-defined]
    after = [line for line in unit_text(made).splitlines() if line.startswith("After=")]
    assert after == ["After=network-online.target slurm-stacks-munged.service slurm-stacks-slurmd.service"]
