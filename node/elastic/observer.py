"""One shared reader of Slurm's nodes: hundreds of waiting prologs cost one reading and no thread.

Slurm's traps (docs/internals/slurm_traps.md): start-tick, requeued-gpus.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from node.slurm.states import NodeState

POLL_SECONDS = 0.1
"""The shortest pause between two readings."""
QUIET_POLL_SECONDS = 1.8
"""The pause while no node tells of its boot: with a reading, an answer takes two seconds."""
PROMPT_SECONDS = 1.0
"""How long the pause is shorter after somebody has begun to wait: the nodes may be up already."""
NEWS_SECONDS = 5.0
"""How long the pause is shorter after a node has told of its boot: it may register."""
LOOK_SECONDS = 0.1
"""The pause between two looks at whether one has."""
LONGEST_POLL_SECONDS = 0.5
WAITED_PART = 0.05
"""The pause as a part of how long everybody has waited: it delays a job's start by less than its half."""
VAIN_READINGS = 2
"""After so many readings in a row that nobody's wait ends with, the pause is twice the shortest one."""
READING_SHARE = 9
"""The pause is this many times as long as a reading, which takes long on a busy machine."""
WATCHED_PART = 0.5
"""While at most this part of the nodes tells that nobody's wait is over, only that part is read."""
ALL_SECONDS = 10.0
"""How long. A node that is lost meanwhile ends its job's wait that much later, if Slurm calls no program."""
JOBS_SECONDS = 1.0
"""The least pause between two readings of the jobs."""
UNCHANGED_JOBS_SECONDS = 10.0
"""The same while no node changes, as those of a job do that ends."""
STALE_POWERED_DOWN_SECONDS = 8.0


@dataclass(frozen=True, slots=True)
class Reading:
    """The nodes that are waited for at one time.

    Attributes:
        begun: When the reading began, on `time.monotonic`. The content may be older than the end of the
            reading.
        nodes: Node -> its state, of all that Slurm knows of these waits' nodes.
        waits: Who waited when it began.
    """

    begun: float
    nodes: Mapping[str, NodeState]
    waits: frozenset[Wait] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """A prolog that waits until its job's nodes are up, or an epilog that waits until they have let go of it.

    Attributes:
        job: The job's id.
        nodes: The job's nodes.
        asked_at: When the program asked, on `time.monotonic`, which never jumps. Slurm starts a prolog up to
            half a second before it powers the nodes up, so only readings that began later count.
        seconds: After how long the program gets an answer in any case.
        answer: Called once, with whether there is nothing more to wait for.
        is_gone: Returns whether the program has ended, as Slurm ends those of a cancelled job.
        is_epilog: Whether it is an epilog.
    """

    job: int
    nodes: Sequence[str]
    asked_at: float
    seconds: float
    answer: Callable[[bool], object]
    is_gone: Callable[[], bool]
    is_epilog: bool = False


class Observer:
    """An observer that reads the nodes that programs wait for, while at least one waits.

    It reads them ten times a second at first, and every two seconds when nobody has begun to wait for a
    while and no node tells of its boot.

    Args:
        read_nodes: Returns at least those of some nodes that Slurm knows. The states of nodes that have not
            changed are the same objects as before.
        read_jobs: Returns the ids of the jobs that hold nodes and do not end. A job that was cancelled or
            requeued while its nodes boot completes only after its prolog has ended.
        boots: Returns another value than before if a node has reported of its boot since.
    """

    def __init__(
        self,
        read_nodes: Callable[[Collection[str]], Mapping[str, NodeState]],
        read_jobs: Callable[[], set[int]],
        boots: Callable[[], object] = lambda: None,
    ) -> None:
        self._read_nodes = read_nodes
        self._read_jobs = read_jobs
        self._boots = boots
        self._boots_seen = boots()
        self._news = -math.inf
        self._condition = threading.Condition()
        self._waits: tuple[Wait, ...] = ()
        self._asked: tuple[Wait, ...] = ()
        self._names: frozenset[str] = frozenset()
        self._watched: frozenset[str] = frozenset()
        self._all = False
        self._reading = Reading(-math.inf, {})
        self._jobs: tuple[float, set[int]] = (-math.inf, set())
        self._jobs_with: dict[str, NodeState] = {}
        self._latest = -math.inf
        self._vain = 0
        self._took = 0.0
        self._ended = -math.inf
        threading.Thread(target=self._run, daemon=True, name="observer").start()

    def wait(self, wait: Wait) -> None:
        """Have a program wait. It is answered when its nodes are as it needs them, or its job is lost."""
        with self._condition:
            self._waits = (*self._waits, wait)
            if wait.asked_at > self._latest + PROMPT_SECONDS:
                self._vain = 0
            self._latest = max(self._latest, wait.asked_at)
            self._condition.notify_all()

    def _answer(self) -> None:
        """Answer whoever has nothing more to wait for, and forget whoever has ended."""
        now = time.monotonic()
        waits = self._waits
        over = {wait for wait in waits if self._over(wait)}
        late = {wait for wait in waits if now > wait.asked_at + wait.seconds} - over
        gone = {wait for wait in waits if wait.is_gone()} | over | late
        if gone:
            with self._condition:
                self._waits = tuple(wait for wait in self._waits if wait not in gone)
        self._vain = 0 if over else self._vain + 1
        for wait in gone:
            wait.answer(wait not in late or wait.is_epilog)

    def _over(self, wait: Wait) -> bool:
        reading = self._reading
        if reading.begun <= wait.asked_at or wait not in reading.waits:
            return False
        states = [reading.nodes.get(node) for node in wait.nodes]
        if wait.is_epilog:
            return not any(state is not None and state.ends_job for state in states)
        if all(state is not None and state.is_up for state in states):
            return True
        jobs_begun, jobs = self._jobs
        if wait.job and jobs_begun > wait.asked_at + 1 and wait.job not in jobs:
            return True
        for state in states:
            if state is None or state.is_down or state.is_powering_down:
                return True
            # The node is not powered up yet, or it was powered down again. Only time tells the two apart.
            if state.is_powered_down and reading.begun > wait.asked_at + STALE_POWERED_DOWN_SECONDS:
                return True
        return False

    def _run(self) -> None:
        while True:
            with self._condition:
                # A new caller may bring the next reading forward.
                if (left := self._left()) > 0:
                    self._condition.wait(min(left, LOOK_SECONDS) if self._waits else left)
                    continue
            try:
                self._read()
            except Exception as error:  # if this thread ended, every prolog would wait forever
                print(f"observer: {error!r}", flush=True)
                time.sleep(1.0)
                self._answer()

    def look_at_all(self) -> None:
        """Have the next reading show all nodes: one that is not watched may be lost."""
        self._all = True

    def _read(self) -> None:
        begun = time.monotonic()
        if not self._nobody_is_done(begun):
            self._read_all()
        self._ended = time.monotonic()
        self._took = self._ended - begun
        self._answer()
        if all(wait.is_epilog for wait in self._waits):
            return
        if begun - self._jobs[0] > (JOBS_SECONDS if self._has_changed() else UNCHANGED_JOBS_SECONDS):
            self._jobs_with = dict(self._reading.nodes)
            self._jobs = (begun, self._read_jobs())
            self._answer()

    def _nobody_is_done(self, now: float) -> bool:
        """Return whether the nodes that are watched still come up, so that all who wait wait on."""
        is_new = self._waits is not self._asked or now > self._reading.begun + ALL_SECONDS
        if is_new or self._all or not self._watched:
            return False
        nodes = self._read_nodes(self._watched)
        return all(name in nodes and _comes_up(nodes[name]) for name in self._watched)

    def _read_all(self) -> None:
        waits = self._waits
        if waits is not self._asked:
            self._asked, self._names = waits, frozenset(node for wait in waits for node in wait.nodes)
        self._watched, self._all = frozenset(), False
        begun = time.monotonic()
        nodes = self._read_nodes(self._names)
        self._reading = Reading(begun, nodes, frozenset(waits))
        watched = {watched_node(wait, nodes) for wait in waits}
        if None not in watched and len(watched) <= WATCHED_PART * len(self._names):
            self._watched = frozenset(filter(None, watched))

    def _has_changed(self) -> bool:
        """Return whether a node has changed since jobs were read or somebody has begun to wait for it."""
        known = self._jobs_with
        return any(known.setdefault(name, state) is not state for name, state in self._reading.nodes.items())

    def _left(self) -> float:
        """Return the seconds until the next reading is due."""
        if not self._waits:
            return threading.TIMEOUT_MAX
        now = time.monotonic()
        if (boots := self._boots()) != self._boots_seen:
            self._boots_seen, self._news, self._vain = boots, now, 0
        waited = now - max(wait.asked_at for wait in self._waits)
        return self._ended + pause(self._took, waited, now - self._news, self._vain) - now


def watched_node(wait: Wait, nodes: Mapping[str, NodeState]) -> str | None:
    """Return a node of a job that tells by itself that the job's prolog is to wait.

    That is one that comes up, if all others are up or come up too; `None` if there is none.
    """
    coming = None
    for name in wait.nodes:
        state = nodes.get(name)
        if wait.is_epilog or state is None or not (state.is_up or _comes_up(state)):
            return None
        if coming is None and not state.is_up:
            coming = name
    return coming


def _comes_up(state: NodeState) -> bool:
    return state.is_powering_up and not (state.is_down or state.is_powering_down or state.is_powered_down)


def pause(reading: float, waited: float, news: float, vain: int = 0) -> float:
    """Return the seconds from one reading to the next one.

    Args:
        reading: How long the last reading took.
        waited: How long the latest caller has waited.
        news: How long ago a node has last reported of its boot.
        vain: How many readings in a row no wait has ended with.
    """
    if waited > PROMPT_SECONDS and news > NEWS_SECONDS:
        return QUIET_POLL_SECONDS
    shortest = POLL_SECONDS * (1 + vain / VAIN_READINGS)
    return min(LONGEST_POLL_SECONDS, max(shortest, READING_SHARE * reading, WAITED_PART * waited))
