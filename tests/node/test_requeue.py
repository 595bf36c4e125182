"""Requeues that Slurm acknowledges and forgets, because slurmctld was killed before it had saved them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from node.elastic import requeue_memory
from node.elastic.plan import Action
from node.elastic.requeue import Requeue
from node.elastic.requeue_memory import KEPT_SECONDS, PASS_SECONDS, SAVED_SECONDS
from node.elastic.rules import PREEMPTED, TAKEN, Verb
from node.slurm.control import SlurmDown, SlurmError
from node.slurm.states import JobState
from tests.support.doubles import FakeControl, job, node
from tests.support.simulated_world import machine, rest, run, world
from tests.support.simulation import World

__all__ = ["world"]

REASON = f"{TAKEN} at 09:40:15 UTC"
RUNS = job(7, nodes=("debug-0", "debug-1"), restarts=1)


class Counting(FakeControl):
    """Counts how often the jobs are read."""

    readings = 0

    def jobs(self) -> dict[int, JobState]:
        self.readings += 1
        return super().jobs()


@dataclass
class Daemon:
    """What the elastic daemon has of requeues, with its double of Slurm and a clock."""

    file: Path
    control: Counting = field(
        default_factory=lambda: Counting([node("debug-0", "ALLOCATED"), node("debug-1", "ALLOCATED")], [RUNS])
    )
    now: float = 0.0

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start again: only the file is left."""
        self.requeue = Requeue(self.control, self.file)

    def evacuate(self) -> None:
        actions = [Action(Verb.EVACUATE, "debug-1", None, REASON)]
        self.requeue.evacuate(actions, self.control.nodes())

    def power_down(self) -> None:
        self.requeue.explain(self.requeue.requeueable_jobs(["debug-1"]), f"{PREEMPTED}the machine is gone")

    def shows(self, state: str, **changes: object) -> None:
        """Let Slurm show the job like this from now on."""
        self.control.queue = {7: replace(RUNS, state=state, **changes)}  # type: ignore[arg-type]

    def asked(self, seconds: float = 2.0) -> list[int]:
        """Run a pass after so many seconds, and return the jobs that it requeued."""
        self.now += seconds
        self.control.calls.clear()
        self.requeue.watch([])
        return [call[1] for call in self.control.calls if call[0] == "requeue"]

    def stored(self) -> dict[str, dict[str, object]]:
        content: dict[str, dict[str, object]] = json.loads(self.file.read_text())
        return content


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    made = Daemon(tmp_path / "requeues.json")
    monkeypatch.setattr(requeue_memory, "time", SimpleNamespace(monotonic=lambda: made.now))
    made.start()
    return made


@pytest.mark.parametrize("end", ["FAILED", "COMPLETED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"])
@pytest.mark.parametrize("restart", [False, True], ids=["the daemon lives", "the daemon dies too"])
def test_a_forgotten_requeue_is_repeated_when_the_run_has_ended(
    daemon: Daemon, end: str, restart: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.evacuate()
    if restart:
        daemon.start()
    # As slurmctld shows it after its start: the job runs until its script has ended because of SIGTERM.
    for state in ("RUNNING", "COMPLETING"):
        daemon.shows(state)
        assert daemon.asked() == []
    capsys.readouterr()
    daemon.shows(end)
    assert daemon.asked() == [7]
    (comment,) = [call for call in daemon.control.calls if call[0] == "comment"]
    assert comment[2].startswith("preempted: the cloud takes this machine at 09:40:15 UTC (debug-1)")
    assert capsys.readouterr().out.endswith(
        f"job 7 is queued again once more (debug-1: {REASON}): Slurm has forgotten that it was, and shows it "
        f"as {end}\n"
    )
    daemon.shows("PENDING", restarts=2)
    assert daemon.asked() == []


@pytest.mark.parametrize(
    ("changes", "waits_for", "renewed"),
    [
        ({}, "afterok:7(failed),afterany:8(unfulfilled)", "afterok:7,afterany:8"),
        ({}, "afternotok:5(unfulfilled)?afterok:7+3(failed)", "afternotok:5?afterok:7+3"),
        ({"array_job": 4, "array_task": "3"}, "afterok:4_3(failed)", "afterok:4_3"),
        ({"array_job": 4, "array_task": "3"}, "aftercorr:4_*(failed)", "aftercorr:4_*"),
        ({"array_job": 4, "array_task": "3"}, "afterok:4_2(failed)", None),
        ({}, "afterok:77(failed),afterok:17(failed),singleton(unfulfilled)", None),
        ({}, None, None),
    ],
)
def test_jobs_that_wait_for_a_job_wait_for_its_next_run(
    daemon: Daemon, changes: dict[str, object], waits_for: str | None, renewed: str | None
) -> None:
    """Slurm has decided that they never start (DependencyNeverSatisfied), and would not look again."""
    daemon.evacuate()
    daemon.shows("FAILED", **changes)
    daemon.control.queue |= {9: job(9, "PENDING"), 10: job(10, "CANCELLED")}
    daemon.control.waits_for = {9: waits_for or "(null)", 10: waits_for or "(null)"}
    daemon.asked()
    found = [call for call in daemon.control.calls if call[0] == "dependency"]
    assert found == ([("dependency", 9, renewed)] if renewed else [])


@pytest.mark.parametrize(
    "after",
    [
        {"state": "CANCELLED"},
        {"state": "PENDING", "restarts": 2},
        {"state": "RUNNING", "restarts": 2},
        {"state": "FAILED", "restarts": 2},
        {"state": "FAILED", "submit_time": 9.0},
    ],
    ids=["cancelled", "it waits", "it runs", "its next run has failed", "another job with its id"],
)
def test_what_slurm_has_not_forgotten_is_not_repeated(daemon: Daemon, after: dict[str, object]) -> None:
    daemon.evacuate()
    daemon.shows(**after)  # type: ignore[arg-type]
    assert daemon.asked() == []


def test_a_cancelled_job_stays_cancelled_though_slurm_forgets_that_too(daemon: Daemon) -> None:
    daemon.evacuate()
    daemon.shows("CANCELLED")
    daemon.asked()
    daemon.shows("FAILED")
    assert (daemon.asked(), daemon.stored()) == ([], {})


def test_a_requeue_may_be_forgotten_after_slurm_has_shown_it(daemon: Daemon) -> None:
    """slurmctld shows it at once, and saves it some seconds later."""
    daemon.evacuate()
    daemon.shows("PENDING", restarts=2)
    assert daemon.asked(SAVED_SECONDS / 2) == []
    daemon.shows("FAILED")
    assert daemon.asked() == [7]
    daemon.shows("PENDING", restarts=2)
    for _ in range(3):
        assert daemon.asked(SAVED_SECONDS * 0.6) == []
    daemon.shows("FAILED")
    assert (daemon.asked(), daemon.stored()) == ([], {})


def test_a_job_that_runs_again_on_its_evacuated_node_is_requeued_there(daemon: Daemon) -> None:
    daemon.evacuate()
    assert daemon.asked() == []
    daemon.evacuate()
    assert ("requeue", 7) in daemon.control.calls
    # Slurm refuses a job that is in transition, and it has acknowledged the first request.
    daemon.control.refuse_job_updates = True
    daemon.evacuate()
    daemon.control.refuse_job_updates = False
    daemon.shows("COMPLETED")
    assert daemon.asked() == [7]


@pytest.mark.parametrize(
    ("began", "end", "repeated"),
    [
        ("RUNNING", "FAILED", [7]),
        ("CONFIGURING", "NODE_FAIL", [7]),
        ("RUNNING", "COMPLETED", []),
        ("RUNNING", "TIMEOUT", []),
        ("COMPLETING", "FAILED", []),
    ],
)
@pytest.mark.parametrize("restart", [False, True])
def test_of_jobs_on_a_node_that_is_powered_down_only_what_its_loss_may_have_caused_is_repeated(
    daemon: Daemon, began: str, end: str, repeated: list[int], restart: bool
) -> None:
    """Nobody has asked Slurm for the job itself, so it may have ended just before."""
    daemon.shows(began)
    daemon.power_down()
    if restart:
        daemon.start()
    daemon.shows(end)
    assert daemon.asked() == repeated


def test_a_machine_that_is_gone_after_its_evacuation_changes_nothing(daemon: Daemon) -> None:
    daemon.evacuate()
    daemon.power_down()
    daemon.shows("COMPLETED")
    assert daemon.asked() == [7]


@pytest.mark.parametrize(("end", "repeated"), [("FAILED", [7]), ("COMPLETED", [])])
def test_an_acknowledgement_that_never_arrived_counts_as_a_loss(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, end: str, repeated: list[int]
) -> None:
    def dies(job: int | str) -> None:
        raise SlurmDown(["scontrol"], 1, "Unable to contact slurm controller")

    with monkeypatch.context() as dead:
        dead.setattr(daemon.control, "requeue", dies)
        with pytest.raises(SlurmDown):
            daemon.evacuate()
    daemon.start()
    daemon.shows(end)
    assert daemon.asked() == repeated


def test_a_refusal_is_not_remembered(daemon: Daemon) -> None:
    daemon.control.refuse_job_updates = True
    daemon.evacuate()
    daemon.control.refuse_job_updates = False
    daemon.shows("FAILED")
    assert (daemon.asked(), daemon.stored()) == ([], {})


def test_a_repeat_that_slurm_refuses_is_tried_once(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.evacuate()
    daemon.shows("FAILED")

    def refuse(job: int | str) -> None:
        raise SlurmError(["scontrol", "requeue"], 1, "Requested operation is presently disabled")

    monkeypatch.setattr(daemon.control, "requeue", refuse)
    daemon.asked()
    assert "job 7 is FAILED, and Slurm has forgotten that it was queued again" in capsys.readouterr().out
    daemon.asked()
    assert (capsys.readouterr().out, daemon.stored()) == ("", {})


def test_slurm_that_dies_again_is_asked_again(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.evacuate()
    daemon.shows("FAILED")

    def dies(job: int | str) -> None:
        raise SlurmDown(["scontrol"], 1, "Unable to contact slurm controller")

    with monkeypatch.context() as dead:
        dead.setattr(daemon.control, "requeue", dies)
        with pytest.raises(SlurmDown):
            daemon.asked()
    assert daemon.asked() == [7]


def test_the_jobs_are_read_only_while_a_requeue_may_be_forgotten_and_once_in_a_pass(daemon: Daemon) -> None:
    for _ in range(3):
        daemon.asked()
    assert daemon.control.readings == 0
    daemon.evacuate()
    daemon.shows("PENDING", restarts=2)
    before = daemon.control.readings
    for number in range(3):
        daemon.asked()
        assert daemon.control.readings == before + number + 1
    daemon.asked(SAVED_SECONDS)
    daemon.asked(SAVED_SECONDS)
    before = daemon.control.readings
    daemon.asked()
    assert (daemon.control.readings, daemon.stored()) == (before, {})


def test_a_requeue_is_dropped_with_its_job_and_after_the_time_for_which_slurm_knows_it(
    daemon: Daemon,
) -> None:
    daemon.evacuate()
    # An hour without slurmctld is no time in which the job can have ended.
    assert daemon.asked(3600) == []
    assert daemon.stored()
    for _ in range(int(KEPT_SECONDS / PASS_SECONDS)):
        daemon.asked(PASS_SECONDS)
    assert daemon.stored() == {}
    daemon.shows("FAILED")
    assert daemon.asked() == []
    daemon.shows("RUNNING")
    daemon.evacuate()
    daemon.control.queue = {}
    assert (daemon.asked(), daemon.stored()) == ([], {})


def test_the_file_holds_nothing_of_a_user(daemon: Daemon) -> None:
    daemon.evacuate()
    entry = {"restarts": 1, "submitted": 1.0, "node": "debug-1", "reason": REASON, "acknowledged": True}
    assert daemon.stored() == {"7": entry}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "7",
        '{"a": {}}',
        '{"7": 3}',
        '{"7": {"restarts": 1}}',
        '{"7": {"restarts": "1", "submitted": 1}}',
    ],
)
def test_a_damaged_file_is_empty_and_the_log_says_so(
    daemon: Daemon, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.file.write_text(text)
    daemon.start()
    assert "requeues.json cannot be read" in capsys.readouterr().out
    daemon.shows("FAILED")
    assert daemon.asked() == []
    daemon.shows("RUNNING")
    daemon.evacuate()
    daemon.start()
    daemon.shows("FAILED")
    assert daemon.asked() == [7]


def test_a_full_disk_does_not_keep_jobs_from_being_requeued(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> bool:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(requeue_memory, "files", SimpleNamespace(write=full))
        daemon.evacuate()
    assert ("requeue", 7) in daemon.control.calls
    assert "requeues.json cannot be written" in capsys.readouterr().out
    daemon.shows("FAILED")
    assert daemon.asked() == [7]


# --- in the simulated world ------------------------------------------------------------------------------


def _nothing(world: World) -> None:
    pass


def _kill_daemon(world: World) -> None:
    world.kill()


def _take_machine(world: World) -> None:
    for record in world.cloud.living():
        if record.taken_at is not None:
            world.cloud.kill(record)


@pytest.mark.parametrize("notice", [3, 250], ids=["its machine is gone", "its machine stays"])
@pytest.mark.parametrize("also", [_nothing, _kill_daemon, _take_machine])
@pytest.mark.parametrize("seconds", [1, 20, 200])
def test_a_job_on_an_evacuated_node_runs_again_though_slurmctld_forgets_it(
    world: World, notice: int, also: Callable[[World], None], seconds: int
) -> None:
    job = run(world, 2, 60)
    machine(world, job, 1).taken_at = world.clock.now + notice
    assert world.until(lambda: job.state == "COMPLETING", 5), world.story()
    world.slurm.kill(requeues=True)
    also(world)
    world.step(seconds)
    world.slurm.start()
    rest(world, 900)
    assert (job.state, job.restarts) == ("COMPLETED", 1)
