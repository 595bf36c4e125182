"""SIGTERM in one task: which tasks are told, when each leaves, and with which status."""

import contextlib
import io
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from workload import preemption, train
from workload.errors import PeerLostError, StoppedError, WorkloadError
from workload.preemption import STATUS, Preemption
from workload.rendezvous import Rendezvous
from workload.slurm import Step

NODES = ("n0", "n1", "n2")


def until(true: Callable[[], Any], limit: float = 60) -> None:
    end = time.monotonic() + limit
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


class Tasks:
    """The watchers of a step's tasks in one process. A task that would have ended is a status."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.ended = folder, dict[int, int]()
        self.open: list[Preemption] = []
        self._ranks: dict[int, int] = {}
        monkeypatch.setattr(preemption, "POLL_SECONDS", 0.02)
        # This must hold however late the other threads run.
        monkeypatch.setattr(preemption, "LEAVE_SECONDS", 60.0)
        monkeypatch.setattr(preemption, "end_at_once", self._end)

    def _end(self, status: int) -> None:
        self.ended[self._ranks[threading.get_ident()]] = status

    def start(self, rank: int, nodes: tuple[str, ...] = NODES, restarts: int = 0) -> Preemption:
        rendezvous = Rendezvous(self.folder, Step(rank, nodes, nodes[rank], "7.0.0"))
        task = Preemption(rendezvous, restarts).__enter__()
        self.open.append(task)
        assert task.thread.ident is not None
        self._ranks[task.thread.ident] = rank
        return task

    def terminate(self, *tasks: Preemption) -> None:
        for task in tasks:
            # Sent to the thread: in a process any thread that does not block the signal may get it.
            signal.pthread_kill(task.thread.ident, signal.SIGTERM)  # type: ignore[arg-type]


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tasks]:
    tasks = Tasks(tmp_path, monkeypatch)
    yield tasks
    for task in reversed(tasks.open):
        task.__exit__(None, None, None)
        task.thread.join(60)


def test_one_is_told_and_all_leave_the_chief_last(tasks: Tasks, capsys: pytest.CaptureFixture[str]) -> None:
    chief, second, third = (tasks.start(rank) for rank in range(3))
    for task in (chief, second, third):
        task.training()
    tasks.terminate(third)
    until(chief.asked)
    time.sleep(0.2)
    assert tasks.ended == {}  # the chief's step needs them all
    chief.saved = True
    assert chief.leave() == STATUS
    # They leave before it, except for their last step: srun ends the remaining tasks when one fails.
    until(lambda: tasks.ended == {1: 0, 2: 0})
    assert list(tasks.folder.iterdir()) == []
    assert capsys.readouterr().out == "n2: SIGTERM received while training: stopping\n"


def test_all_are_told_at_once(tasks: Tasks) -> None:
    chief, second = tasks.start(0, NODES[:2]), tasks.start(1, NODES[:2])
    chief.training()
    second.training()
    tasks.terminate(second, chief, second)
    until(chief.asked)
    assert chief.leave() == STATUS
    until(lambda: tasks.ended == {1: 0})


@pytest.mark.parametrize("told", [0, 1])
def test_before_the_training_nothing_is_waited_for(tasks: Tasks, told: int) -> None:
    chief, second = tasks.start(0, NODES[:2]), tasks.start(1, NODES[:2])
    tasks.terminate((chief, second)[told])
    until(lambda: tasks.ended == {0: STATUS, 1: 0})


def test_after_the_last_step_it_finishes(tasks: Tasks) -> None:
    chief, second = tasks.start(0, NODES[:2]), tasks.start(1, NODES[:2])
    chief.finishing()
    second.finishing()
    # pytest's capture may lose a thread's output while it is read.
    with contextlib.redirect_stdout(io.StringIO()) as said:
        tasks.terminate(chief, second)
        until(lambda: said.getvalue().count("SIGTERM received while finishing: finishing\n") == 2)
    time.sleep(0.1)
    assert not chief.asked()
    assert tasks.ended == {}


def test_a_training_that_does_not_give_way_ends_all_the_same(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preemption, "GRACE_SECONDS", 0.3)
    chief, second = tasks.start(0, NODES[:2]), tasks.start(1, NODES[:2])
    chief.training()
    second.training()
    tasks.terminate(second)
    until(lambda: tasks.ended == {0: STATUS, 1: 0})


def test_a_task_whose_chief_is_gone_does_not_wait_for_ever(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preemption, "GRACE_SECONDS", 0.3)
    tasks.terminate(tasks.start(1, NODES[:2]))
    until(lambda: tasks.ended == {1: 0})


def test_a_dead_task_delays_the_chief_only(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "LEAVE_SECONDS", 0.2)
    assert tasks.start(0).leave() == STATUS


@pytest.mark.parametrize(
    ("restarts", "saved", "status"),
    [(0, False, STATUS), (2, False, STATUS), (3, False, 1), (9, True, STATUS)],
)
def test_a_job_that_gets_nowhere_is_not_repeated_for_ever(
    tasks: Tasks, restarts: int, saved: bool, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    chief = tasks.start(0, NODES[:1], restarts)
    chief.saved = saved
    assert chief.leave() == status
    output = capsys.readouterr().err
    assert ("queued again 3 times, and this time nothing could be saved: it ends here" in output) == (
        status == 1
    )


def attempt(
    tasks: Tasks,
    monkeypatch: pytest.MonkeyPatch,
    rank: int,
    error: Exception,
    *failed: int,
    lost: float = 0.5,
) -> tuple[int, Rendezvous]:
    """Return how a task ends if its run ends with this error after these tasks have reported a failure.

    Args:
        lost: Seconds that the task waits for the chief's note.
    """
    task = tasks.start(rank, NODES[:2])
    rendezvous = task._rendezvous
    for other in failed:
        (rendezvous.folder / f"failed-{other}.json").write_text('{"message": "no GPU"}')

    def run(*_: Any) -> None:
        raise error

    monkeypatch.setattr(train, "_run", run)
    monkeypatch.setattr(preemption, "LEAVE_SECONDS", 0.2)
    monkeypatch.setattr(preemption, "LOST_SECONDS", lost)
    progress: Any = type("Progress", (), {"state": lambda *_: None})()
    whole = train.Task(None, rendezvous.step, None, rendezvous, progress, None, task)  # type: ignore[arg-type]
    return train._attempt(whole), rendezvous


def test_a_machine_that_dies_is_no_failure(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    status, _ = attempt(tasks, monkeypatch, 0, PeerLostError("socket closed"))
    assert status == STATUS


def test_a_task_that_fails_is_one(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PeerLostError):
        attempt(tasks, monkeypatch, 0, PeerLostError("socket closed"), 1)


def test_an_error_after_the_signal_is_no_failure(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines that the cloud takes back do not wait for each other."""
    rendezvous = Rendezvous(tasks.folder, Step(1, NODES[:2], "n1", "7.0.0"))
    rendezvous.publish("stop", {})
    status, _ = attempt(tasks, monkeypatch, 0, WorkloadError("anything"))
    assert status == STATUS


def test_whoever_loses_its_peer_leaves_the_word_to_the_chief(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    chief = Rendezvous(tasks.folder, Step(0, NODES[:2], "n0", "7.0.0"))
    timer = threading.Timer(0.2, lambda: chief.publish("over", {}))
    timer.start()
    status, rendezvous = attempt(tasks, monkeypatch, 1, PeerLostError("socket closed"), lost=60.0)
    timer.join()
    assert status == 0
    assert rendezvous.any("left")


def test_whoever_has_lost_the_chief_ends_the_step(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    status, _ = attempt(tasks, monkeypatch, 1, PeerLostError("heartbeats"))
    assert status == STATUS


def test_a_stop_is_said(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _ = attempt(tasks, monkeypatch, 0, StoppedError("stopped after step 40 of 60, saved in 0.1 s"))
    assert status == STATUS
    assert capsys.readouterr().out == "n0: stopped after step 40 of 60, saved in 0.1 s\n"


def test_what_killed_starts_left_is_removed(tmp_path: Path) -> None:
    kept = ["7.2.1700000009.5.0", "7.3.1700000012.5.0", "71.0.1.0", "8.0.1.0"]
    for key in ("7.0.1700000000.5.0", "7.1.1700000005.5.0", *kept):
        Rendezvous(tmp_path, Step(0, ("n0",), "n0", key)).publish("address", {})
    Rendezvous(tmp_path, Step(0, ("n0",), "n0", kept[0])).forget_earlier_starts(2)
    assert sorted(path.name for path in (tmp_path / ".rendezvous").iterdir()) == kept
