"""Slurm reads its configuration again only when slurmctld survives it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from node.elastic import reconfiguration
from node.elastic.reconfiguration import Reconfiguration
from node.slurm import closing, hardware, version
from node.slurm.control import SlurmDown, SlurmError
from node.slurm.hardware import Record
from tests.support.doubles import FakeControl, job, node

CRASHES, SURVIVES = "slurm-wlm 24.11.5", "slurm-wlm 26.05.5"


class Control(FakeControl):
    """A Slurm with two partitions, one of which an administrator has closed.

    Attributes:
        meanwhile: Is called when the first partition has been closed.
        answers: Whether slurmctld answers.
    """

    def __init__(self) -> None:
        super().__init__([node("debug-0", "IDLE", "CLOUD")])
        self.states = {"debug": "UP", "gpu": "UP", "old": "DOWN"}
        self.meanwhile: Callable[[], object] = lambda: None
        self.answers = True

    def open_partitions(self) -> list[str]:
        return [name for name, state in self.states.items() if state == "UP"]

    def close_partition(self, name: str) -> None:
        self.states[name] = "DOWN"
        self.meanwhile()

    def open_partition(self, name: str) -> None:
        if not self.answers:
            raise SlurmDown(["scontrol"], 1, "Unable to contact slurm controller")
        self.states[name] = "UP"

    def ping(self) -> bool:
        return self.answers

    def reconfigure(self) -> None:
        assert not any(one.state in ("CONFIGURING", "COMPLETING") for one in self.queue.values())
        super().reconfigure()

    def begin(self, state: str) -> None:
        self.queue[7] = job(7, state)


@pytest.fixture
def control() -> Control:
    return Control()


@pytest.fixture
def wanted(control: Control, tmp_path: Path) -> Reconfiguration:
    of(tmp_path, CRASHES)
    return Reconfiguration(control, tmp_path)


def of(lib: Path, release: str) -> None:
    (lib / hardware.RECORD).write_text(hardware.text(Record(release)))


@pytest.mark.parametrize("state", ["CONFIGURING", "COMPLETING"])
def test_it_waits_for_the_end_of_a_prolog_and_of_an_epilog(
    wanted: Reconfiguration, control: Control, state: str
) -> None:
    control.begin(state)
    assert not wanted.possible()
    waits = wanted.request()
    assert "as soon as no job starts or ends" in waits
    assert "slurmctld 24.11.5 may crash" in waits
    assert not wanted.once()
    assert control.calls == []
    control.queue.clear()
    assert wanted.once()
    assert not wanted.once(), "once for each request"
    assert control.calls == [("reconfigure",)]
    assert control.states == {"debug": "UP", "gpu": "UP", "old": "DOWN"}


def test_a_job_that_starts_after_the_look_is_waited_for(wanted: Reconfiguration, control: Control) -> None:
    control.meanwhile = lambda: control.begin("CONFIGURING")
    assert wanted.request()
    assert control.calls == []
    assert control.states == {"debug": "UP", "gpu": "UP", "old": "DOWN"}, "as they were before"


def test_no_job_may_start_while_slurmctld_reads(
    wanted: Reconfiguration, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(control, "reconfigure", lambda: seen.append(control.open_partitions()))
    assert wanted.request() == ""
    assert seen == [[]]


def test_partitions_are_opened_after_a_failure_and_after_a_restart_of_the_daemon(
    wanted: Reconfiguration, control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash() -> None:
        control.answers = False
        raise SlurmDown(["scontrol"], 1, "Unable to contact slurm controller")

    with monkeypatch.context() as broken:
        broken.setattr(control, "reconfigure", crash)
        with pytest.raises(SlurmError):
            wanted.request()
    assert control.open_partitions() == []
    control.answers = True
    control.begin("CONFIGURING")
    assert not Reconfiguration(control, tmp_path).once(), "the request is still there, and waits"
    assert control.states == {"debug": "UP", "gpu": "UP", "old": "DOWN"}
    assert not (tmp_path / reconfiguration.CLOSED).exists()
    control.queue.clear()
    assert Reconfiguration(control, tmp_path).once()


@pytest.mark.parametrize("content", ["", "{", "7", json.dumps([7, None])])
def test_a_broken_record_of_closed_partitions_stops_nothing(
    wanted: Reconfiguration, tmp_path: Path, content: str
) -> None:
    (tmp_path / reconfiguration.CLOSED).write_text(content)
    assert not wanted.once()
    assert not (tmp_path / reconfiguration.CLOSED).exists()


def test_a_release_that_survives_it_waits_for_nothing(
    wanted: Reconfiguration, control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of(tmp_path, SURVIVES)
    control.begin("CONFIGURING")
    monkeypatch.setattr(control, "reconfigure", lambda: control.calls.append(("reconfigure",)))
    assert wanted.possible()
    assert wanted.request() == ""
    assert control.calls == [("reconfigure",)]
    assert control.states["debug"] == "UP"


def test_nothing_is_read_again_while_every_node_is_off(wanted: Reconfiguration, control: Control) -> None:
    control.state["debug-0"] = node("debug-0", "IDLE", "CLOUD", "POWERED_DOWN")
    assert wanted.request() == ""
    assert not wanted.once()
    assert control.calls == []
    control.state["debug-0"] = node("debug-0", "ALLOCATED", "CLOUD", "POWERED_DOWN", "POWER_UP")
    assert wanted.request() == "", "it may have read the former files as it starts"
    assert control.calls == [("reconfigure",)]


@pytest.mark.parametrize(
    ("release", "survives"),
    [
        ("slurm-wlm 22.05.8", True),
        ("slurm 23.02.7", True),
        ("slurm-wlm 23.11.0", False),
        ("slurm-wlm 23.11.4", False),
        ("23.11.11", False),
        ("slurm-wlm 24.11.5", False),
        ("slurm 25.05.6", False),
        ("slurm 25.05.7", True),
        ("slurm 25.11.3", False),
        ("slurm 25.11.4", True),
        ("slurm 26.05.0-0rc1", True),
        ("slurm 27.05", True),
        ("slurm 23.11", False),
        ("", False),
    ],
)
def test_which_releases_survive_it(release: str, survives: bool) -> None:
    """By the tags with 34776eeb61. Before 23.11 a reconfigure kills no script (controller.c)."""
    assert version.reconfigure_survives_scripts(release) is survives


def test_what_a_command_has_closed_meanwhile_is_that_commands_to_open(
    wanted: Reconfiguration, control: Control, tmp_path: Path
) -> None:
    """`up` or `down` closes a partition in the moment in which it is closed here: jobs would start again."""
    mark = "command=down\nwho=a\nprocess=p\ncheckout=c\ntoken=t\nat=1\npartitions=gpu:DOWN:UP\n"
    control.meanwhile = lambda: (tmp_path / closing.MARK).write_text(mark)
    assert wanted.now()
    assert control.states == {"debug": "UP", "gpu": "DOWN", "old": "DOWN"}
    assert not (tmp_path / reconfiguration.CLOSED).exists()
