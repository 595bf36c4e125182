"""One shared reader of Slurm's nodes: hundreds of waiting prologs cost one reading, not hundreds.

Slurm's traps (docs/internals/slurm_traps.md): start-tick.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
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
READING_SHARE = 4
"""The pause is this many times as long as a reading, which takes long on a busy machine."""
JOBS_SECONDS = 1.0
"""The least pause between two readings of the jobs."""
UNCHANGED_JOBS_SECONDS = 10.0
"""The same while no node changes, as those of a job do that ends."""
STALE_POWERED_DOWN_SECONDS = 8.0


@dataclass(frozen=True, slots=True)
class Reading:
    """All nodes at one time.

    Attributes:
        begun: When the reading began, on `time.monotonic`. The content may be older than the end of the
            reading.
        nodes: Node -> its state.
    """

    begun: float
    nodes: Mapping[str, NodeState]


class Observer:
    """An observer that reads Slurm's nodes while at least one caller waits.

    It reads them ten times a second at first, and every two seconds when nobody has begun to wait for a
    while and no node tells of its boot.

    Args:
        read_nodes: Returns all of Slurm's nodes; the same object as before if none has changed.
        read_jobs: Returns the ids of the jobs that hold nodes and do not end. A job that was cancelled or
            requeued while its nodes boot completes only after its prolog has ended.
        boots: Returns another value than before if a node has reported of its boot since.
    """

    def __init__(
        self,
        read_nodes: Callable[[], Mapping[str, NodeState]],
        read_jobs: Callable[[], set[int]],
        boots: Callable[[], object] = lambda: None,
    ) -> None:
        self._read_nodes = read_nodes
        self._read_jobs = read_jobs
        self._boots = boots
        self._boots_seen = boots()
        self._news = -math.inf
        self._condition = threading.Condition()
        self._waiting: list[float] = []
        self._reading = Reading(-math.inf, {})
        self._jobs: tuple[float, set[int]] = (-math.inf, set())
        self._jobs_with: Mapping[str, NodeState] = {}
        self._took = 0.0
        self._ended = -math.inf
        threading.Thread(target=self._run, daemon=True, name="observer").start()

    def wait(self, job: int, nodes: list[str], asked_at: float, seconds: float) -> bool:
        """Wait until the job's nodes are up, the job ends or is requeued, or one of its nodes is lost.

        Args:
            job: The job's id.
            nodes: The job's nodes.
            asked_at: When the prolog asked, on `time.monotonic`, which all processes of a machine share and
                which never jumps. Slurm starts a prolog up to half a second before it powers the nodes up, so
                only readings that began later count.
            seconds: The longest duration of this call.

        Returns:
            True if there is nothing more to wait for, False if the time is up.
        """
        deadline = time.monotonic() + seconds
        with self._condition:
            self._waiting.append(asked_at)
            self._condition.notify_all()
            try:
                while True:
                    if self._over(job, nodes, asked_at):
                        return True
                    left = deadline - time.monotonic()
                    if left <= 0:
                        return False
                    self._condition.wait(left)
            finally:
                self._waiting.remove(asked_at)

    def _over(self, job: int, nodes: list[str], asked_at: float) -> bool:
        reading = self._reading
        if reading.begun <= asked_at:
            return False
        states = [reading.nodes.get(node) for node in nodes]
        if all(state is not None and state.is_up for state in states):
            return True
        jobs_begun, jobs = self._jobs
        if job and jobs_begun > asked_at + 1 and job not in jobs:
            return True
        for state in states:
            if state is None or state.is_down or state.is_powering_down:
                return True
            # The node is not powered up yet, or it was powered down again. Only time tells the two apart.
            if state.is_powered_down and reading.begun > asked_at + STALE_POWERED_DOWN_SECONDS:
                return True
        return False

    def _run(self) -> None:
        while True:
            with self._condition:
                # A new caller may bring the next reading forward.
                if (left := self._left()) > 0:
                    self._condition.wait(min(left, LOOK_SECONDS) if self._waiting else left)
                    continue
            try:
                begun = time.monotonic()
                reading = Reading(begun, self._read_nodes())
                with self._condition:
                    self._reading = reading
                    self._condition.notify_all()
                self._ended = time.monotonic()
                self._took = self._ended - begun
                same = reading.nodes is self._jobs_with
                if begun - self._jobs[0] > (UNCHANGED_JOBS_SECONDS if same else JOBS_SECONDS):
                    self._jobs_with = reading.nodes
                    jobs = (begun, self._read_jobs())
                    with self._condition:
                        self._jobs = jobs
                        self._condition.notify_all()
            except Exception as error:  # if this thread ended, every prolog would wait forever
                print(f"observer: {error!r}", flush=True)
                time.sleep(1.0)

    def _left(self) -> float:
        """Return the seconds until the next reading is due."""
        if not self._waiting:
            return threading.TIMEOUT_MAX
        now = time.monotonic()
        if (boots := self._boots()) != self._boots_seen:
            self._boots_seen, self._news = boots, now
        return self._ended + pause(self._took, now - max(self._waiting), now - self._news) - now


def pause(reading: float, waited: float, news: float) -> float:
    """Return the seconds from one reading to the next one.

    Args:
        reading: How long the last reading took.
        waited: How long the latest caller has waited.
        news: How long ago a node has last reported of its boot.
    """
    if waited > PROMPT_SECONDS and news > NEWS_SECONDS:
        return QUIET_POLL_SECONDS
    return min(LONGEST_POLL_SECONDS, max(POLL_SECONDS, READING_SHARE * reading, WAITED_PART * waited))
