"""One scenario of suspended and held jobs and an array, for a real slurmctld and for the simulated one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from node.slurm.control import Slurm
from node.slurm.states import JobState, NodeState
from tests.support.simulated_jobs import OVER

NODES = ("debug-0", "debug-1", "debug-2")
FLAGS = frozenset({"COMPLETING", "DRAIN", "POWERED_DOWN", "POWERING_UP", "POWERING_DOWN", "POWER_DOWN"})
REASONS = ("JobHeldUser", "JobHeldAdmin", "BeginTime", "JobArrayTaskLimit")
"""Reasons of pending jobs that do not depend on when the scheduler last ran."""

Snapshot = tuple[str, dict[str, str], dict[str, int]]
"""What was done, job id -> state, and state -> number of nodes."""


class Bench(Protocol):
    """A Slurm with three powered-down nodes of partition `debug`, which boot when they are asked for.

    Attributes:
        slurm: its commands. Jobs take whole nodes, and last longer than the scenario.
    """

    @property
    def slurm(self) -> Slurm: ...

    def submit(self, *, held: bool = False, array: str | None = None) -> int:
        """Submit a job of one node, and return its id.

        Args:
            array: a range with a limit, like `0-3%2`.
        """
        ...

    def suspend(self, job: int) -> None: ...

    def resume(self, job: int) -> None: ...

    def wait(self, what: str, condition: Callable[[], object]) -> None:
        """Wait until the condition holds.

        Raises:
            AssertionError: It did not hold in time.
        """
        ...


class Scenario:
    """The scenario on one bench.

    Args:
        bench: a new bench.
        wanted: the expected snapshots. Each is waited for, because a real slurmctld passes through states
            that look stable, such as a node that is idle just before it is off.
    """

    def __init__(self, bench: Bench, wanted: Sequence[Snapshot] = ()) -> None:
        self._bench, self._slurm = bench, bench.slurm
        self._wanted = list(wanted)
        self.seen: list[Snapshot] = []

    def play(self) -> list[Snapshot]:
        """Run the whole scenario, and return the snapshot after each step."""
        self._suspended()
        self._held()
        self._array()
        return self.seen

    def _suspended(self) -> None:
        job = self._running()
        self._bench.suspend(job)
        self._see("suspended", lambda: self._is(job, "SUSPENDED"))
        self._bench.resume(job)
        self._see("resumed", lambda: self._is(job, "RUNNING"))
        self._bench.suspend(job)
        self._slurm.requeue(job)
        self._see("requeued while suspended", lambda: self._is(job, "PENDING"))
        self._slurm.release(job)
        self._see("released", lambda: self._job(job).reason == "BeginTime")
        self._slurm.update_job(job, start_now=True)
        self._see("told to start", lambda: self._is(job, "RUNNING"))
        (node,) = self._job(job).nodes
        self._bench.suspend(job)
        self._slurm.update_node([node], state="POWER_DOWN_ASAP", reason="later")
        self._see("its node to be powered down when it is over", lambda: self._has(node, "POWER_DOWN"))
        self._slurm.cancel([job])
        self._see("cancelled while suspended", lambda: self._has(node, "POWERED_DOWN"))
        job = self._running()
        (node,) = self._job(job).nodes
        self._bench.suspend(job)
        self._slurm.power_down_force([node], "now")
        self._see(
            "its node powered down at once",
            lambda: self._is(job, "PENDING") and self._has(node, "POWERED_DOWN"),
        )
        self._slurm.cancel([job])

    def _held(self) -> None:
        job = self._bench.submit(held=True)
        self._see("submitted held", lambda: self._is(job, "PENDING"))
        self._slurm.release(job)
        self._see("released for the first time", lambda: self._is(job, "RUNNING"))
        self._slurm.update_job(job, hold=True)
        self._see("held while it runs", lambda: self._is(job, "RUNNING"))
        self._slurm.requeue(job)
        self._see("requeued while held", lambda: self._is(job, "PENDING"))
        self._slurm.cancel([job])

    def _array(self) -> None:
        # Two nodes for two tasks. With a third one it would depend on the machine's speed where the next task
        # starts: while a task's node is not free yet, the scheduler takes another one.
        third = max(node for node in NODES if self._has(node, "POWERED_DOWN"))
        self._slurm.update_node([third], state="DRAIN", reason="two are enough")
        array = self._bench.submit(array="0-4%2")
        self._see("an array", lambda: self._count("RUNNING") == 2)
        self._slurm.cancel([f"{array}_0"])
        self._see("its first task cancelled", lambda: self._count("RUNNING") == 2)
        self._slurm.update_job(f"{array}_[3-4]", hold=True)
        self._see("what has not begun held", lambda: self._count("RUNNING") == 2)
        self._slurm.requeue(f"{array}_1")
        self._see("a task requeued", lambda: self._count("PENDING") == 2 and self._count("RUNNING") == 1)
        self._slurm.release(f"{array}_3")
        self._see("one of two released", lambda: self._count("RUNNING") == 2)
        self._slurm.cancel([f"{array}_2"])
        # The scheduler may start the next task on another node until this task's node is free.
        self._bench.wait("a task ended", lambda: self._count("RUNNING") == 1 and self._is_quiet())
        self._slurm.release(f"{array}_4")
        self._see("the last task begins", lambda: self._count("RUNNING") == 2 and self._count("PENDING") == 1)
        self._slurm.cancel([array])
        self._see("all cancelled", lambda: not self._jobs())

    def _running(self) -> int:
        job = self._bench.submit()
        self._see("submitted", lambda: self._is(job, "RUNNING"))
        return job

    def _jobs(self) -> list[JobState]:
        return [job for job in self._slurm.jobs().values() if job.state not in OVER]

    def _job(self, number: int) -> JobState:
        return self._slurm.jobs()[number]

    def _is(self, number: int, state: str) -> bool:
        return self._job(number).state == state

    def _count(self, state: str) -> int:
        return sum(1 for job in self._jobs() if job.state == state)

    def _has(self, node: str, flag: str) -> bool:
        return flag in self._slurm.nodes()[node].flags

    def _see(self, what: str, there: Callable[[], object]) -> None:
        """Take a snapshot once nothing is between two states any more."""
        self._bench.wait(what, lambda: there() and self._is_quiet())
        if self._wanted:
            wanted = self._wanted.pop(0)
            try:
                self._bench.wait(f"{what}: {wanted}", lambda: self._look(what) == wanted)
            except AssertionError:
                # The caller compares what there is instead. The next ones would be waited for in vain.
                self._wanted.clear()
        self.seen.append(self._look(what))

    def _look(self, what: str) -> Snapshot:
        first = min((job.array_job or job.id for job in self._jobs()), default=0)
        jobs = {str(job.spelling).replace(str(first), "N", 1): _told(job) for job in self._jobs()}
        counts: dict[str, int] = {}
        for node in self._slurm.nodes().values():
            counts[_state(node)] = counts.get(_state(node), 0) + 1
        return what, jobs, counts

    def _is_quiet(self) -> bool:
        nodes = self._slurm.nodes().values()
        passing = {"COMPLETING", "POWERING_UP", "POWERING_DOWN"}
        return not self._count("COMPLETING") and not any(node.flags & passing for node in nodes)


def _told(job: JobState) -> str:
    # A requeued task has one of two reasons, depending on when the scheduler last ran.
    says = job.reason in REASONS and not (job.array_job and job.restarts)
    parts: list[Any] = [job.state, job.reason if says else "-", f"restarts={job.restarts}"]
    parts += ["held" if job.priority == 0 else "free", f"nodes={len(job.nodes)}"]
    return " ".join([*parts, "array's id"] if job.array_job == job.id else parts)


def _state(node: NodeState) -> str:
    used = "used" if node.cpus_alloc else "unused"
    return "+".join([node.base, *sorted(node.flags & FLAGS), used])
