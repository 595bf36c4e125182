"""When a waiting prolog may end: only because of what was read after it asked."""

from __future__ import annotations

import dataclasses
import math
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest

from node.elastic import observer
from node.elastic.observer import Observer, Wait, pause
from node.slurm.control import SlurmDown, SlurmError
from node.slurm.states import NodeState
from tests.support.checkout import until
from tests.support.doubles import FakeControl, job, node

UP = node("debug-0", "ALLOCATED", "CLOUD")
STARTING = node("debug-0", "ALLOCATED", "POWERING_UP")
OFF = node("debug-0", "IDLE", "POWERED_DOWN")


class Slurm:
    """Nodes and jobs that a test changes. It counts its readings."""

    def __init__(self, *nodes: NodeState, jobs: tuple[int, ...] = (1,)) -> None:
        self.now = {n.name: n for n in nodes}
        self.jobs = set(jobs)
        self.readings = 0
        self.read_nodes: list[frozenset[str]] = []
        self.while_read: Callable[[], object] = lambda: None
        self.job_readings = 0
        self.error: Exception | None = None
        self.job_trouble: Exception | None = None

    def read(self, names: Collection[str]) -> Mapping[str, NodeState]:
        self.readings += 1
        self.read_nodes.append(frozenset(names))
        self.while_read()
        if self.error is not None:
            raise self.error
        return {name: self.now[name] for name in names if name in self.now}

    def read_jobs(self) -> set[int]:
        self.job_readings += 1
        if self.job_trouble is not None:
            raise self.job_trouble
        return set(self.jobs)

    def observer(self) -> Observer:
        return Observer(self.read, self.read_jobs)


class Caller:
    """A program that asks, and may end before it is answered."""

    def __init__(self, observer: Observer, job: int, nodes: list[str], asked_at: float, **more: Any) -> None:
        self.answers: queue.Queue[bool] = queue.Queue()
        self.gone = False
        seconds = more.pop("seconds", math.inf)
        observer.wait(Wait(job, nodes, asked_at, seconds, self.answers.put, lambda: self.gone, **more))

    def answered(self, seconds: float) -> bool:
        try:
            return self.answers.get(timeout=seconds)
        except queue.Empty:
            self.gone = True
            return False


def wait(observer: Observer, job: int, nodes: list[str], asked_at: float, seconds: float) -> bool:
    """Return whether a prolog is told within these seconds that there is nothing to wait for."""
    return Caller(observer, job, nodes, asked_at).answered(seconds)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "POLL_SECONDS", 0.005)


def test_a_job_goes_when_all_of_its_nodes_are_up() -> None:
    slurm = Slurm(UP, node("debug-1", "ALLOCATED", "POWERING_UP"))
    seen = slurm.observer()
    assert wait(seen, 1, ["debug-0", "debug-1"], time.monotonic(), 0.1) is False
    answers: list[bool] = []
    thread = threading.Thread(
        target=lambda: answers.append(wait(seen, 1, ["debug-0", "debug-1"], time.monotonic(), 60))
    )
    thread.start()
    time.sleep(0.05)
    assert answers == []
    slurm.now["debug-1"] = node("debug-1", "ALLOCATED")
    thread.join(60)
    assert answers == [True]


def test_a_reading_older_than_the_question_does_not_count() -> None:
    """Slurm may start the prolog before it powers the nodes up. They still look up, or off."""
    slurm = Slurm(UP)
    seen = slurm.observer()
    assert wait(seen, 1, ["debug-0"], time.monotonic() - 1, 60) is True
    assert wait(seen, 1, ["debug-0"], time.monotonic() + 60, 0.1) is False


def test_a_node_that_is_off_is_waited_for_until_it_should_have_been_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(observer, "STALE_POWERED_DOWN_SECONDS", 600.0)
    slurm = Slurm(OFF)
    seen = slurm.observer()
    assert wait(seen, 1, ["debug-0"], time.monotonic() - 540, 0.1) is False
    assert wait(seen, 1, ["debug-0"], time.monotonic() - 601, 60) is True


@pytest.mark.parametrize(
    "lost",
    [
        node("debug-1", "DOWN"),
        node("debug-1", "IDLE", "POWERING_DOWN"),
        node("debug-1", "ALLOCATED", "POWERING_DOWN", "POWERED_DOWN"),
        node("other-7", "IDLE"),
    ],
    ids=["down", "powering down", "given back", "unknown"],
)
def test_a_lost_node_ends_the_wait(lost: NodeState) -> None:
    assert wait(Slurm(STARTING, lost).observer(), 1, ["debug-0", "debug-1"], time.monotonic(), 60) is True


def test_a_job_that_is_gone_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "JOBS_SECONDS", 0.01)
    slurm = Slurm(STARTING, jobs=(2,))
    seen = slurm.observer()
    # A queue that was read within a second of the question may not contain the job yet.
    asked = time.monotonic()
    over = wait(seen, 1, ["debug-0"], asked, 0.1)
    assert not over or time.monotonic() - asked > 1, "this machine stood still for so long"
    assert wait(seen, 2, ["debug-0"], time.monotonic() - 2, 0.1) is False
    assert wait(seen, 1, ["debug-0"], time.monotonic() - 2, 60) is True


def test_a_job_that_completes_or_waits_again_ends_the_wait() -> None:
    """Slurm cleans up a cancelled job only after its prolog, so the prolog must not wait for the nodes."""
    words = ("COMPLETING", "CANCELLED", "PENDING", "CONFIGURING")
    control = FakeControl(
        [STARTING],
        [job(n, word, nodes=() if word == "PENDING" else ("debug-0",)) for n, word in enumerate(words, 1)],
    )
    seen = Observer(control.named_nodes, control.working_jobs)
    for ended in (1, 2, 3):
        assert wait(seen, ended, ["debug-0"], time.monotonic() - 2, 60) is True, words[ended - 1]
    assert wait(seen, 4, ["debug-0"], time.monotonic() - 2, 0.1) is False


def test_hundreds_of_waits_cost_one_reading_and_none_when_nobody_waits() -> None:
    slurm = Slurm(STARTING)
    seen = slurm.observer()
    time.sleep(0.05)
    assert slurm.readings == 0
    began = time.monotonic()
    answers: list[bool] = []
    threads = [
        threading.Thread(target=lambda: answers.append(wait(seen, 1, ["debug-0"], time.monotonic(), 60)))
        for _ in range(200)
    ]
    for thread in threads:
        thread.start()
    until(lambda: slurm.readings > 3, 60, "readings")
    slurm.now["debug-0"] = UP
    for thread in threads:
        thread.join(60)
    assert answers == [True] * 200
    took = time.monotonic() - began
    assert slurm.readings <= took / observer.POLL_SECONDS + 2
    assert slurm.job_readings <= took / observer.JOBS_SECONDS + 2
    rest = slurm.readings
    time.sleep(0.05)
    assert slurm.readings <= rest + 1, "the one that was under way"


def test_a_long_wait_costs_few_readings_and_a_new_one_is_served_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(observer, "QUIET_POLL_SECONDS", 600.0)
    slurm = Slurm(STARTING)
    seen = slurm.observer()
    began = time.monotonic()
    # This caller has waited for hours, so the next reading would be due in minutes.
    thread = threading.Thread(target=lambda: wait(seen, 1, ["debug-0"], began - 10_000, 60))
    thread.start()
    until(lambda: slurm.readings == 1, 60, "a reading")
    time.sleep(0.1)
    assert slurm.readings == 1
    slurm.now["debug-0"] = UP
    assert wait(seen, 2, ["debug-0"], time.monotonic(), 60) is True
    thread.join(60)
    assert time.monotonic() - began < 60


MANY = [f"debug-{number}" for number in range(5)]
OTHERS = [node(name, "ALLOCATED", "POWERING_UP") for name in MANY[1:]]


def test_of_a_job_of_many_nodes_one_is_read_until_it_is_up() -> None:
    """No prolog can go before. Reading all of a thousand nodes takes five times as long."""
    slurm = Slurm(STARTING, *OTHERS)
    caller = Caller(slurm.observer(), 1, MANY, time.monotonic())
    until(lambda: slurm.readings > 3, 60, "readings")
    assert slurm.read_nodes[0] == set(MANY)
    assert set(slurm.read_nodes[1:]) == {frozenset({"debug-0"})}
    for name in MANY:
        assert caller.answers.empty()
        slurm.now[name] = node(name, "ALLOCATED", "CLOUD")
        before = slurm.readings
        until(lambda: slurm.readings > before + 2 or name == MANY[-1], 60, "readings")  # noqa: B023
    assert caller.answers.get(timeout=60) is True
    assert slurm.read_nodes[-1] == set(MANY), "the answer is of all nodes"


def test_a_node_that_is_lost_ends_the_wait_though_another_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(STARTING, *OTHERS)
    seen = slurm.observer()
    for call in (seen.look_at_all, lambda: monkeypatch.setattr(observer, "ALL_SECONDS", 0.0)):
        slurm.now["debug-3"] = OTHERS[2]
        caller = Caller(seen, 1, MANY, time.monotonic())
        before = slurm.readings
        until(lambda: slurm.readings > before + 3, 60, "readings")  # noqa: B023
        slurm.now["debug-3"] = node("debug-3", "DOWN", "POWERING_UP")
        time.sleep(0.05)
        assert caller.answers.empty()
        call()
        assert caller.answers.get(timeout=60) is True


def test_a_node_that_is_watched_and_lost_ends_the_wait() -> None:
    for lost in (node("debug-0", "DOWN", "POWERING_UP"), node("debug-0", "IDLE", "POWERING_DOWN")):
        slurm = Slurm(STARTING, *OTHERS)
        caller = Caller(slurm.observer(), 1, MANY, time.monotonic())
        until(lambda: slurm.readings > 3, 60, "readings")  # noqa: B023
        slurm.now["debug-0"] = lost
        assert caller.answers.get(timeout=60) is True


@pytest.mark.parametrize(
    ("shown", "watched"),
    [
        ({"debug-0": STARTING, "debug-1": OTHERS[0]}, "debug-0"),
        ({"debug-0": UP, "debug-1": OTHERS[0]}, "debug-1"),
        (
            {"debug-0": STARTING, "debug-1": node("debug-1", "ALLOCATED", "POWERED_DOWN", "POWER_UP")},
            "debug-0",
        ),
        ({"debug-0": STARTING, "debug-1": node("debug-1", "IDLE", "POWERED_DOWN")}, None),
        ({"debug-0": STARTING, "debug-1": node("debug-1", "DOWN")}, None),
        (
            {"debug-0": STARTING, "debug-1": node("debug-1", "ALLOCATED", "POWERING_UP", "POWERING_DOWN")},
            None,
        ),
        ({"debug-0": STARTING}, None),
        ({"debug-0": UP, "debug-1": node("debug-1", "IDLE")}, None),
    ],
)
def test_one_node_tells_for_a_job_while_nothing_else_can_end_the_wait(
    shown: dict[str, NodeState], watched: str | None
) -> None:
    def waiting(*, is_epilog: bool) -> Wait:
        return Wait(1, MANY[:2], 0.0, math.inf, bool, lambda: False, is_epilog)

    assert observer.watched_node(waiting(is_epilog=False), shown) == watched
    assert observer.watched_node(waiting(is_epilog=True), shown) is None


def test_many_jobs_of_one_node_are_read_together() -> None:
    slurm = Slurm(STARTING, *OTHERS)
    seen = slurm.observer()
    callers = [Caller(seen, 1, [name], time.monotonic()) for name in MANY]
    until(lambda: slurm.read_nodes[-2:] == [frozenset(MANY)] * 2, 60, "readings of all")
    slurm.now["debug-2"] = node("debug-2", "ALLOCATED")
    assert callers[2].answers.get(timeout=60) is True
    until(lambda: "debug-2" not in slurm.read_nodes[-1], 60, "a reading without it")
    assert all(caller.answers.empty() for caller in callers)


def test_who_begins_to_wait_while_nodes_are_read_waits_for_the_next_reading() -> None:
    """Their nodes are not in it, which does not mean that they are lost."""
    slurm = Slurm(STARTING, *OTHERS)
    seen = slurm.observer()
    callers: list[Caller] = []

    def another() -> None:
        slurm.while_read = lambda: None
        # The program had asked before the reading began, and nobody knew of it yet.
        callers.append(Caller(seen, 1, ["debug-1"], time.monotonic() - 1))

    slurm.while_read = another
    first = Caller(seen, 1, ["debug-0"], time.monotonic())
    until(lambda: slurm.readings > 3, 60, "readings")
    assert first.answers.empty()
    assert callers[0].answers.empty()
    slurm.now["debug-1"] = node("debug-1", "ALLOCATED")
    assert callers[0].answers.get(timeout=60) is True


def test_a_boot_report_is_followed_by_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "QUIET_POLL_SECONDS", 600.0)
    slurm, reports = Slurm(STARTING), ["one"]
    seen = Observer(slurm.read, slurm.read_jobs, lambda: len(reports))
    began = time.monotonic()
    thread = threading.Thread(target=lambda: wait(seen, 1, ["debug-0"], began - 10_000, 60))
    thread.start()
    until(lambda: slurm.readings == 1, 60, "a reading")
    slurm.now["debug-0"] = UP
    reports.append("two")
    thread.join(60)
    assert not thread.is_alive()


def test_jobs_are_read_again_if_a_node_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that ends changes its nodes' lines, so between two equal readings of the nodes none has ended."""
    monkeypatch.setattr(observer, "JOBS_SECONDS", 0.0)
    monkeypatch.setattr(observer, "PROMPT_SECONDS", 600.0)
    slurm = Slurm()
    slurm.now = {"debug-0": STARTING}
    seen = slurm.observer()
    asked = time.monotonic() - 2
    thread = threading.Thread(target=lambda: wait(seen, 1, ["debug-0"], asked, 60))
    thread.start()
    until(lambda: slurm.readings > 9, 60, "readings")
    assert slurm.job_readings == 1
    slurm.jobs.clear()
    slurm.now["debug-0"] = dataclasses.replace(STARTING)
    thread.join(60)
    assert not thread.is_alive()
    monkeypatch.setattr(observer, "UNCHANGED_JOBS_SECONDS", 0.0)
    assert wait(seen, 1, ["debug-0"], asked, 60) is True, "and now and then in any case"


def test_jobs_are_read_again_if_a_node_changes_that_was_not_there_when_they_were_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(observer, "JOBS_SECONDS", 0.0)
    slurm = Slurm(STARTING, OTHERS[0], jobs=(1, 2))
    seen = slurm.observer()
    Caller(seen, 1, ["debug-0"], time.monotonic() - 2)
    until(lambda: slurm.job_readings == 1, 60, "jobs")
    second = Caller(seen, 2, ["debug-1"], time.monotonic() - 2)
    before = slurm.readings
    until(lambda: slurm.readings > before + 3, 60, "readings")
    assert slurm.job_readings == 1
    slurm.jobs.discard(2)
    slurm.now["debug-1"] = node("debug-1", "IDLE", "POWERING_UP")
    assert second.answers.get(timeout=60) is True


def test_the_pause_grows_with_the_wait_and_with_the_cost_of_a_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(observer, "POLL_SECONDS", 0.1)
    assert pause(0.008, 1.0, 900.0) == 0.1, "a job may be gone at once"
    assert pause(0.008, 1.0, 0.1) == pause(0.008, 2.0, 0.1) == 0.1, "a boot of the local stack"
    assert pause(0.008, 6.0, 1.0) == pytest.approx(0.3)
    assert pause(0.02, 1.0, 900.0) == pytest.approx(0.18)
    assert pause(0.008, 1.0, 900.0, vain=4) == pytest.approx(0.3)
    assert pause(0.008, 1.0, 900.0, vain=400) == 0.5
    assert pause(0.008, 90.0, 1.0) == pause(3.0, 1.0, 900.0) == 0.5
    assert pause(0.008, -60.0, 900.0) == 0.1, "the prolog's question lies ahead"
    assert pause(0.008, 90.0, 900.0) < 2 > pause(3.0, 1.1, 5.1), "an answer takes two seconds"


@pytest.mark.parametrize(
    "error",
    [
        SlurmDown(["scontrol"], 1, "Unable to contact slurm controller"),
        SlurmError(["scontrol"], 1, "?"),
        ValueError("no node's line from scontrol: '…'"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_trouble_with_slurm_is_outlived(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    nap = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: (naps.append(seconds), nap(0.005)))  # type: ignore[func-returns-value]
    slurm = Slurm(UP)
    slurm.error = error
    seen = slurm.observer()

    def rests() -> bool:
        assert wait(seen, 1, ["debug-0"], time.monotonic(), 0.1) is False
        return 1.0 in naps

    until(rests, 60, "a Slurm in trouble to be asked once a second")
    slurm.error = None
    assert wait(seen, 1, ["debug-0"], time.monotonic(), 60) is True


def test_jobs_that_cannot_be_read_keep_nobody_from_nodes_that_are_up() -> None:
    """Otherwise a single job that cannot be parsed would stop every job's start."""
    slurm = Slurm(UP)
    slurm.job_trouble = ValueError("no job's line from scontrol: '…'")
    assert wait(slurm.observer(), 1, ["debug-0"], time.monotonic(), 60) is True


RELEASED = node("debug-0", "IDLE", "CLOUD")
ENDING = node("debug-0", "IDLE", "CLOUD", "COMPLETING")


def test_an_epilog_waits_until_all_nodes_have_let_go_of_the_job() -> None:
    """Also of one that is lost: slurmctld cleans a requeued job up only while its epilog runs."""
    slurm = Slurm(ENDING, node("debug-1", "ALLOCATED", "CLOUD"), jobs=())
    epilog = Caller(slurm.observer(), 1, ["debug-0", "debug-1"], time.monotonic() - 2, is_epilog=True)
    until(lambda: slurm.readings > 3, 60, "readings")
    for held in (("DOWN", "COMPLETING"), ("IDLE", "COMPLETING", "NOT_RESPONDING", "POWERING_DOWN")):
        slurm.now["debug-0"] = node("debug-0", *held)
        before = slurm.readings
        until(lambda: slurm.readings > before + 1, 60, "readings")  # noqa: B023  # it ends in this round
        assert epilog.answers.empty(), held
    assert slurm.job_readings == 0, "no epilog asks for jobs"
    slurm.now["debug-0"] = node("debug-0", "DOWN", "NOT_RESPONDING")
    assert epilog.answers.get(timeout=60) is True


@pytest.mark.parametrize("is_epilog", [False, True])
def test_nobody_waits_longer_than_agreed(is_epilog: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prolog is to ask again, so that it knows a daemon that hangs. An epilog gives up."""
    slurm = Slurm(node("debug-0", "ALLOCATED", "POWERING_UP", "COMPLETING"))
    seen = slurm.observer()
    for trouble in (None, SlurmError(["scontrol"], 1, "?")):
        slurm.error = trouble
        caller = Caller(seen, 1, ["debug-0"], time.monotonic(), seconds=0.05, is_epilog=is_epilog)
        assert caller.answers.get(timeout=60) is is_epilog


def test_nothing_is_read_for_programs_that_have_ended() -> None:
    """Slurm kills the prologs of a cancelled array."""
    slurm = Slurm(STARTING)
    seen = slurm.observer()
    callers = [Caller(seen, 1, ["debug-0"], time.monotonic()) for _ in range(100)]
    until(lambda: slurm.readings > 1, 60, "a reading")
    for caller in callers:
        caller.gone = True
    until(lambda: not seen._waits, 60, "an empty table")
    rest = slurm.readings
    time.sleep(0.05)
    assert slurm.readings <= rest + 1, "the one that was under way"


def test_waits_have_no_thread() -> None:
    slurm = Slurm(STARTING)
    seen = slurm.observer()
    before = threading.active_count()
    callers = [Caller(seen, 1, ["debug-0"], time.monotonic()) for _ in range(500)]
    until(lambda: slurm.readings > 1, 60, "a reading")
    assert threading.active_count() <= before
    slurm.now["debug-0"] = UP
    assert all(caller.answers.get(timeout=60) for caller in callers)
    assert all(caller.answers.empty() for caller in callers), "one answer each"
