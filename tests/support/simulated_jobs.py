"""The jobs of the simulated slurmctld: their names, how arrays are split, what holds them.

They behave as in Slurm 22.05: tests/node/test_simulated_slurm.py runs the same scenario with a real slurmctld
and with this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from node.slurm.control import SlurmError
from node.slurm.hostlist import expand, fold

HOLDING = ("CONFIGURING", "RUNNING", "COMPLETING")
"""States of jobs that use their nodes. A suspended job keeps its nodes too, and Slurm calls them idle."""
OVER = ("COMPLETED", "CANCELLED", "NODE_FAIL", "FAILED")
HELD_BY_USER, HELD_BY_ADMIN = "JobHeldUser", "JobHeldAdmin"
UNSTARTED = "launch failed requeued held"


@dataclass
class Job:
    """A job, a task of an array, or the tasks of an array that have not begun.

    Attributes:
        work: Seconds that its script takes.
        machines: Node -> the machine on which its processes run.
        left: Seconds of its work that were left when it was suspended.
        dies_at: When its script ends because of SIGTERM, although slurmctld does not know of the signal.
        held: Why it may not start, whatever is free. A suspended job is held as well.
        array: The array's id.
        tasks: Indices; only tasks that have not begun have several.
        limit: Tasks of the array that may run at once.
        reboot: Whether it asks for nodes that boot for it (`--reboot`).
    """

    id: int
    count: int
    work: float
    requeue: bool
    partition: str
    state: str = "PENDING"
    nodes: tuple[str, ...] = ()
    machines: dict[str, str] = field(default_factory=dict)
    left: float = 0.0
    began: float | None = None
    ends_at: float = 0.0
    dies_at: float | None = None
    eligible_at: float = 0.0
    restarts: int = 0
    comment: str | None = None
    held: str | None = None
    array: int | None = None
    tasks: tuple[int, ...] = ()
    limit: int | None = None
    reboot: bool = False

    @property
    def indices(self) -> str | None:
        """Return the indices as `JobState` has them: `3`, `0,4-7`; `None` outside of an array."""
        if self.array is None:
            return None
        if len(self.tasks) == 1:
            return str(self.tasks[0])
        return fold(f"t{task}" for task in self.tasks)[2:-1]


class Jobs:
    """slurmctld's list of jobs, by id."""

    def __init__(self) -> None:
        self.all: dict[int, Job] = {}
        self._count = 0

    def add(self, job: Job) -> Job:
        """Add a new job, with the next id."""
        self._count += 1
        job.id = self._count
        self.all[job.id] = job
        return job

    def task(self, of: Job, index: int) -> Job:
        """Split off one task that has not begun. It gets its own id; the last one has the array's."""
        if of.array is None or len(of.tasks) == 1:
            return of
        of.tasks = tuple(task for task in of.tasks if task != index)
        return self.add(replace(of, tasks=(index,), machines={}))

    def named(self, spelling: int | str, *, ended: bool = False) -> list[Job]:
        """Return what a command means by `12`, `12_3` or `12_[3-9]`. An array's id means all of its tasks.

        Args:
            spelling: The job's name.
            ended: Whether the command is for jobs that have ended, too.

        Raises:
            SlurmError: There is no such job, or it has ended.
        """
        found = [job for job in self._named(str(spelling)) if ended or job.state not in OVER]
        if not found:
            raise SlurmError(["scontrol"], 1, "Job/step already completing or completed")
        return found

    def is_full(self, job: Job) -> bool:
        """Return whether as many of the array's tasks run as may run at once."""
        if job.limit is None:
            return False
        running = [one for one in self.all.values() if one.array == job.array and one.state in HOLDING]
        return len(running) >= job.limit

    def _named(self, spelling: str) -> Iterator[Job]:
        number, _, tasks = spelling.partition("_")
        mine = [job for job in self.all.values() if job.array == int(number)]
        if not tasks:
            yield from mine or [job for job in self.all.values() if job.id == int(number)]
            return
        wanted = set(_indices(tasks))
        for job in mine:
            meant = wanted & set(job.tasks)
            if meant == set(job.tasks):
                yield job
            else:
                yield from [self.task(job, index) for index in sorted(meant)]


def suspend(job: Job, now: float) -> None:
    """Do what `scontrol suspend` does: the job's nodes count as idle, and it is held.

    Raises:
        SlurmError: The job does not run.
    """
    if job.state != "RUNNING":
        raise SlurmError(["scontrol", "suspend"], 1, "Job is not running")
    job.state, job.left, job.held = "SUSPENDED", max(0.0, job.ends_at - now), HELD_BY_ADMIN


def resume(job: Job, now: float) -> None:
    """Do what `scontrol resume` does, even if another job has taken the nodes in the meantime.

    Raises:
        SlurmError: The job is not suspended.
    """
    if job.state != "SUSPENDED":
        raise SlurmError(["scontrol", "resume"], 1, "Job is not suspended")
    job.state, job.ends_at, job.held = "RUNNING", now + job.left, None


def _indices(text: str) -> Sequence[int]:
    return [int(name.removeprefix("t")) for name in expand(f"t{text}")]
