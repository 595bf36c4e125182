"""Tests of a node's watch: Compute Engine's notices reach Slurm and the boot report within moments."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from node.bootstrap import report_server
from node.bootstrap.context import Context
from node.bootstrap.report import notice as read_notice
from node.bootstrap.systemd_services import unit_text
from node.bootstrap.vm import clouds, notices
from node.design.accelerators import Accelerator
from node.elastic.plan import Action
from node.elastic.requeue import Requeue
from node.elastic.rules import NEAR_SECONDS, Verb
from node.elastic.view import REASON_PREFIX
from node.slurm.control import SlurmDown
from node.system.cloud_api import Notice, UnreachableError
from tests.support.doubles import FakeControl, job, node
from tests.support.fake_metadata import FakeMetadata, environment, fake_metadata
from tests.support.recorded import COMPUTE
from tests.support.recorded import machine as make
from tests.support.report_controller import Controller
from tests.support.watches import ended, report, until, watching

DRIVER = {"cluster": "t", "bucket": "t-bucket"}
NOW = 1_795_269_600.0  # 2026-11-21 14:00:00 UTC
NOTICE = Notice("preempted", NOW + 30)


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMetadata]:
    with fake_metadata() as fake:
        for name, value in environment(fake).items():
            monkeypatch.setenv(name, value)
        yield fake


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    """The cluster's controller, at an address of this host, which takes reports."""
    if os.geteuid() != 0:
        pytest.skip("only root may take a port below 1024")
    (tmp_path / "reports").mkdir()
    address = f"127.{random.randrange(1, 255)}.{random.randrange(1, 255)}.{random.randrange(2, 254)}"
    made = Controller(tmp_path / "reports", report_server.PORT, address)
    yield made
    made.close()


@pytest.fixture
def booted(tmp_path: Path, controller: Controller) -> Context:
    """A node with its boot report."""
    context, _ = make(tmp_path, host="compute-3", provider="gcp", driver=DRIVER)
    site = dataclasses.replace(context.settings.site, controller_address=controller.address)
    context.settings = dataclasses.replace(context.settings, site=site)
    report(context)
    return context


def test_slurm_is_told_as_the_reconciler_would_and_then_the_report(
    google: FakeMetadata, booted: Context, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    ours, other = job(7, nodes=("compute-3",)), job(8, nodes=("compute-1",))
    control = FakeControl([node("compute-3", "ALLOCATED")], [ours, other])
    notices.evacuate(booted.settings, control, "compute-3", NOW + 30)
    reason = f"{REASON_PREFIX}preempted: the cloud takes this machine at 14:00:30 UTC"
    assert control.calls[0] == ("node", ("compute-3",), "DRAIN", reason)
    assert [call for call in control.calls if call[0] == "requeue"] == [("requeue", 7)]
    answer = json.loads(google.objects["boot/compute-3.json"])
    assert (answer["notice"], answer["state"]) == (NOW + 30, "ready")
    own = Path(str(booted.folders.lib)) / "boot.json"
    assert json.loads(own.read_text()) == answer
    assert read_notice(own) == NOW + 30
    kept = controller.kept()
    assert kept is not None
    assert (kept["notice"], kept["state"], kept["failure"]) == (NOW + 30, "ready", None)
    # The reconciler finds nothing left to do.
    before = len(control.calls)
    Requeue(control).evacuate(
        [Action(Verb.EVACUATE, "compute-3", None, "preempted: the cloud takes this machine")],
        control.nodes(),
    )
    assert not [call for call in control.calls[before:] if call[0] == "node"]


def test_what_fails_does_not_hold_up_the_other(
    google: FakeMetadata, booted: Context, controller: Controller, capsys: pytest.CaptureFixture[str]
) -> None:
    class Down(FakeControl):
        def update_node(self, *_a: object, **_k: object) -> None:
            raise SlurmDown(["scontrol"], 1, "Unable to contact slurm controller")

    notices.evacuate(booted.settings, Down(), "compute-3", NOW + 30)
    assert json.loads(google.objects["boot/compute-3.json"])["notice"] == NOW + 30
    assert controller.kept() is not None
    controller.close()
    google.objects.clear()
    notices.announce(booted.settings, "compute-3", NOW + 40)
    assert json.loads(google.objects["boot/compute-3.json"])["notice"] == NOW + 40, "for people"
    (Path(str(booted.folders.lib)) / "boot.json").unlink()
    control = FakeControl([node("compute-3")])
    notices.evacuate(booted.settings, control, "compute-3", NOW + 30)
    assert control.calls
    output = capsys.readouterr().err
    assert "Unable to contact" in output
    assert "the notice is not published: " in output
    assert "the notice is not in the boot report: " in output


def test_a_server_that_stumbles_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "PAUSE_SECONDS", 0.01)
    answers: list[Notice | Exception | None] = [
        None,
        UnreachableError("gone"),
        ValueError("half"),
        None,
        NOTICE,
    ]

    def wait(seconds: float) -> Notice | None:
        assert seconds == notices.WAIT_SECONDS
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def nothing(said: object) -> NoReturn:
        pytest.fail(f"there was no recommendation, and no hour's notice: {said}")

    assert notices.watch(wait, nothing, nothing) == NOW + 30
    assert answers == []


# --- an hour ahead -----------------------------------------------------------------------------------------


class Clock:
    """A fake of the module `time` for `notices`. A wait takes its whole time."""

    def __init__(self) -> None:
        self.now = NOW

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(notices, "time", made)
    return made


def test_with_an_hour_left_jobs_go_on_until_the_end_is_near(clock: Clock) -> None:
    done: list[object] = []
    waits: list[float] = []
    replies: list[bool | Exception] = [SlurmDown(["scontrol"], 1, "down"), False, True]

    def wait(seconds: float) -> Notice:
        waits.append(seconds)
        clock.now += seconds
        # As with the real metadata server, the hour begins anew with each response.
        return Notice("maintenance", clock.now + 3600)

    def spare(reason: str) -> bool:
        reply = replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        done.append(reason)
        return reply

    at = notices.watch(wait, spare, done.append)
    assert at == NOW + 60 + 3600, "the first word of it counts"
    reason = "preempted: the cloud will take this machine at 15:01:00 UTC"
    assert done == [at, reason, reason], "announced once, and asked of Slurm until it is done"
    assert clock.now == pytest.approx(at - NEAR_SECONDS, abs=2)
    assert max(waits) == notices.WAIT_SECONDS


def test_a_watch_that_is_started_again_keeps_the_hour_that_has_begun(clock: Clock, booted: Context) -> None:
    assert notices.announced(booted.settings) is None
    own = Path(str(booted.folders.lib)) / "boot.json"
    own.write_text(json.dumps({**json.loads(own.read_text()), "notice": NOW + 400}))

    def wait(seconds: float) -> Notice:
        clock.now += seconds
        return Notice("maintenance", clock.now + 3600)

    due = notices.announced(booted.settings)
    at = notices.watch(wait, lambda _reason: True, lambda _at: pytest.fail("it is announced"), due)
    assert at == NOW + 400
    assert clock.now == pytest.approx(at - NEAR_SECONDS, abs=2)


@pytest.mark.parametrize(
    ("left", "flags", "told"),
    [
        (3600, ("POWERING_DOWN",), False),
        # It is sooner than announced, and its jobs still run.
        (3600, ("DRAIN",), True),
        (30, ("POWERING_DOWN",), True),
    ],
)
def test_a_machine_that_slurm_gives_back_within_the_hour_says_nothing(
    google: FakeMetadata, booted: Context, clock: Clock, left: int, flags: tuple[str, ...], told: bool
) -> None:
    reason = f"{REASON_PREFIX}preempted: the cloud will take this machine at 15:00:00 UTC"
    control = FakeControl([node("compute-3", "IDLE", *flags, reason=reason)], [])
    notices.final_notice(booted.settings, control, "compute-3", Notice("maintenance", NOW + left))
    assert bool(control.calls) is told
    assert ("boot/compute-3.json" in google.objects) is told
    control.calls.clear()
    for nothing in (None, Notice("rebalance recommendation", None)):
        notices.final_notice(booted.settings, control, "compute-3", nothing)
    assert control.calls == []


def test_a_preemption_within_the_hour_counts_at_once(clock: Clock) -> None:
    said = [Notice("maintenance", NOW + 3600), Notice("preempted", NOW + 30)]
    assert notices.watch(lambda _seconds: said.pop(0), lambda _reason: True, lambda _at: None) == NOW + 30


@pytest.mark.parametrize(("gpus", "seconds"), [(True, 3600.0), (False, 60.0)])
def test_a_machine_with_gpus_has_an_hour(
    google: FakeMetadata, tmp_path: Path, gpus: bool, seconds: float
) -> None:
    """The times are one hour and 60 seconds (https://cloud.google.com/compute/docs/gpus/gpu-host-maintenance)."""
    v100 = dataclasses.replace(COMPUTE, instance_type="n1-standard-8", accelerator=Accelerator("v100", 1))
    partition = v100 if gpus else COMPUTE
    context, _ = make(tmp_path, host="compute-3", provider="gcp", driver=DRIVER, partitions=(partition,))
    google.change(maintenanceEvent="TERMINATE_ON_HOST_MAINTENANCE")
    before = time.time()
    said = clouds.of(context.settings).notices("compute-3").notice()
    assert said is not None
    assert said.at is not None
    assert before <= said.at - seconds <= time.time()


def test_reports_without_a_notice(tmp_path: Path) -> None:
    file = tmp_path / "boot.json"
    assert read_notice(file) is None
    for content in ("", "[]", '{"started": 5}', '{"started": 5, "notice": "soon"}', '{"notice": 6}'):
        file.write_text(content)
        assert read_notice(file) is None
    file.write_text('{"state": "ready", "steps": [], "notice": 6}')
    assert read_notice(file) == 6.0


# --- the service itself ------------------------------------------------------------------------------------


@pytest.fixture
def service(google: FakeMetadata, booted: Context) -> Iterator[subprocess.Popen[bytes]]:
    with watching(booted, environment(google)) as child:
        yield child


def waiting(google: FakeMetadata) -> bool:
    return len(google.asked) >= 2


def test_the_service_waits_and_tells_within_a_moment(
    google: FakeMetadata, service: subprocess.Popen[bytes], booted: Context, controller: Controller
) -> None:
    until(lambda: waiting(google))
    assert google.objects == {}
    start = time.time()
    google.change(preempted="TRUE")
    until(lambda: google.objects)
    answer = json.loads(google.objects["boot/compute-3.json"])
    assert start <= answer["notice"] - 30 <= time.time()
    kept = controller.kept()
    assert kept is not None
    assert kept["notice"] == answer["notice"], "the controller was told first"
    time.sleep(0.5)
    assert service.poll() is None, "started again it would tell it once more"
    status, words = ended(service, booted)
    assert status == -signal.SIGTERM
    assert words.splitlines()[1:] == ["evacuates ['compute-3']", "scontrol: no Slurm here"]


def test_a_machine_that_is_switched_off_first_is_asked_why(
    google: FakeMetadata, service: subprocess.Popen[bytes], booted: Context
) -> None:
    """The system's shutdown may come before the response, so the metadata is read once more."""
    until(lambda: waiting(google))
    google.instance["preempted"] = "TRUE"  # and no waiting request is answered
    status, words = ended(service, booted)
    assert (status, words.count("evacuates")) == (0, 1)
    assert "notice" in json.loads(google.objects["boot/compute-3.json"])


def test_a_machine_that_is_given_back_says_nothing(
    google: FakeMetadata, service: subprocess.Popen[bytes], booted: Context
) -> None:
    until(lambda: waiting(google))
    assert ended(service, booted) == (0, "")
    assert google.objects == {}


def test_its_unit_ends_before_what_it_needs(booted: Context) -> None:
    notices.start(booted)
    (made,) = booted.services.started  # type: ignore[attr-defined]
    after = [line for line in unit_text(made).splitlines() if line.startswith("After=")]
    assert after == ["After=network-online.target slurm-stacks-munged.service slurm-stacks-slurmd.service"]


def test_other_machines_have_no_watch(tmp_path: Path) -> None:
    head, _ = make(tmp_path, "controller", "controller", provider="gcp", driver=DRIVER)
    assert notices.start(head) == ""
