"""Nodes that are off get their new lines in slurm.conf, and nodes that are up retire."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from node.design.model import Partition
from node.elastic.renewal import PAUSE_SECONDS, REASON, Renewal
from node.slurm import hardware
from node.slurm.hardware import Hardware, Line, Record
from node.slurm.resume_request import ResumeJob, ResumeRequest
from tests.support.doubles import FakeControl, design, job, node

SMALL = Partition("debug", "local.small", 2, 1000, 0, 4, default=True)
OTHER = Partition("other", "local.small", 2, 1000, 0, 1)
LARGE = dataclasses.replace(SMALL, instance_type="local.large", cpus=8)


class Control(FakeControl):
    """A Slurm whose slurmctld ends, and reads the request when it starts again."""

    lib: Path
    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def close_partition(self, name: str) -> None:
        self.calls.append(("close", name))
        self.meanwhile()

    def shutdown(self) -> None:
        answer = json.loads((self.lib / hardware.RENEWAL).read_text())
        self.calls.append(("start", tuple(answer["free"]), tuple(answer["seen"])))
        hardware.done(self.lib)


@pytest.fixture
def control(tmp_path: Path) -> Control:
    """debug-0 is busy, debug-1 idle, debug-2 off, and debug-3 is about to boot for a job."""
    made = Control(
        [
            node("debug-0", "ALLOCATED", "CLOUD"),
            node("debug-1", "IDLE", "CLOUD"),
            node("debug-2", "IDLE", "CLOUD", "POWERED_DOWN"),
            node("debug-3", "ALLOCATED", "CLOUD", "POWERED_DOWN"),
            node("other-0", "IDLE", "CLOUD"),
        ],
        [job(7, nodes=("debug-0",)), job(8, "CONFIGURING", nodes=("debug-3",))],
    )
    made.lib = tmp_path
    remember(tmp_path)
    return made


def remember(lib: Path, seen: tuple[str, ...] = ()) -> None:
    lines = (Line("debug-[0-3]", Hardware.of(SMALL)), Line("other-0", Hardware.of(OTHER)))
    (lib / hardware.RECORD).write_text(hardware.text(Record("22.05", lines, seen)))


def renewal(
    control: Control, partition: Partition = LARGE, clock: Callable[[], float] = lambda: 0.0
) -> Renewal:
    def never(_seconds: float) -> None:
        raise AssertionError("slurmctld answers at once")

    return Renewal(design(partition, OTHER), control, control.lib, clock, never)


def test_what_is_off_is_renewed_and_what_is_up_retires(control: Control) -> None:
    assert renewal(control).once()
    assert control.calls == [
        ("close", "debug"),
        ("node", ("debug-0", "debug-1"), "POWER_DOWN_ASAP", REASON),
        ("start", ("debug-2",), ("debug-0", "debug-1", "debug-3")),
    ]


def test_nothing_is_done_where_nothing_has_changed(control: Control) -> None:
    assert not renewal(control, SMALL).once()
    (control.lib / hardware.RECORD).unlink()
    assert not renewal(control).once()
    assert control.calls == []


def test_a_node_that_gets_a_job_meanwhile_is_not_renewed(control: Control) -> None:
    """The job comes between the first reading and the moment from which no job starts."""

    def placed() -> None:
        control.state["debug-2"] = node("debug-2", "ALLOCATED", "CLOUD", "POWERED_DOWN")

    control.meanwhile = placed
    renewal(control).once()
    assert control.calls[-1] == ("start", (), ("debug-0", "debug-1", "debug-2", "debug-3"))


def test_the_rest_follows_when_it_is_off_but_not_one_by_one(control: Control) -> None:
    remember(control.lib, seen=("debug-0", "debug-1", "debug-2", "debug-3"))
    now = 0.0
    made = renewal(control, clock=lambda: now)
    assert made.once()
    assert not made.once(), "a moment later"
    now = PAUSE_SECONDS - 0.1
    assert not made.once()
    now = PAUSE_SECONDS
    assert made.once()
    control.state = {"debug-0": control.state["debug-0"]}
    now = 2 * PAUSE_SECONDS
    assert not made.once(), "it is busy"


def test_a_node_that_a_person_holds_stays_as_it_is(control: Control) -> None:
    control.state["debug-1"] = node("debug-1", "IDLE", "CLOUD", "DRAIN", reason="bad fan")
    renewal(control).once()
    assert control.calls[1] == ("node", ("debug-0",), "POWER_DOWN_ASAP", REASON)


def test_no_machine_is_launched_for_a_line_of_before(control: Control) -> None:
    """The machine would have the new hardware, but Slurm would still count with the old one."""
    wish = ResumeRequest(
        ("debug-2", "other-0", "other-1"),
        (ResumeJob(9, ("debug-2", "other-1")), ResumeJob(10, ("other-0",))),
    )
    left = renewal(control).without_outdated_nodes(wish)
    assert left == ResumeRequest(("other-0",), (ResumeJob(10, ("other-0",)),))
    assert control.calls == [("down", ("debug-2", "other-1"), REASON)], "with the rest of the job's nodes"
    assert renewal(control, SMALL).without_outdated_nodes(wish) is wish


def test_what_is_outdated_follows_the_record_though_each_pass_asks(control: Control) -> None:
    """The answer for one record and design is kept. Nobody who changes his copy changes that of others."""
    record = hardware.read(control.lib)
    assert record is not None
    record.kept(design(LARGE, OTHER)).clear()
    assert sorted(renewal(control).outdated_nodes()) == [f"debug-{i}" for i in range(4)]
    new = (Line("debug-[0-1]", Hardware.of(SMALL)), Line("debug-[2-3]", Hardware.of(LARGE)))
    (control.lib / hardware.RECORD).write_text(hardware.text(Record("22.05", new)))
    assert sorted(renewal(control).outdated_nodes()) == ["debug-0", "debug-1"]
    assert renewal(control, SMALL).outdated_nodes() == {"debug-2", "debug-3"}
