"""Pending jobs: who is told why, and who may start at once. Pure functions.

A requeued job may not start for half a minute, so that no machine still honours its old credential. Once
all its old machines are gone it need not wait that long, unless slurmctld may still be trying to start its
last run.

Slurm's traps (docs/internals/slurm_traps.md): requeue-pause, held-after-a-kill, bound-to-drained-nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from node.elastic.capacity_drains import kind_of
from node.elastic.failures import COUNTED, ErrorClass, Failure
from node.elastic.pools import joint_cause
from node.elastic.rules import TAKEN
from node.slurm.states import JobState

LONGEST_PAUSE = 40.0
"""Seconds from a requeue to Slurm's own next try (`cred_expire`), with a margin.

A later begin time was set by a person.
"""
LAUNCH_SECONDS = 30.0
"""How long slurmctld tries to deliver a batch script to a machine that does not take it.

It is the sum of 12 s to connect, MessageTimeout for the answer, and a margin. When slurmctld gives up it
requeues the job, even if the job has another run by then (`job_complete` in its agent): that run would end,
and if it waits for its nodes its GPUs would count as used forever.
"""
NOT_AVAILABLE = ("ReqNodeNotAvail", "NodeDown", "Nodes required for job are DOWN")
"""Slurm's reasons for jobs whose every possible node is out of service.

They may be the nodes of one pool, to which a job is bound by `--constraint`, its GPUs or its memory.
"""
FOR_NODES = ("Resources", "Priority", *NOT_AVAILABLE)
"""Slurm's reasons for jobs that would start if there were more nodes."""
PAUSED = "BeginTime"
"""Slurm's reason for a job that has a begin time, such as a requeued one."""
UNSTARTED = "launch failed requeued held"
"""A node refused to start the job, and Slurm holds it until a person releases it.

Usually nothing is wrong with the job: slurmctld was killed just after it had started the job, started it once
more, and the node runs it already.
"""
MOST_RELEASES = 3
"""How often one job is released automatically; after that a person must look."""
STOPPED = "AssocGrpJobsLimit"
"""Slurm's reason for a job whose account has used its budget (`node.accounting.stops`), or runs many jobs."""
NOBODY: Mapping[int, Failure] = MappingProxyType({})
UNKNOWN = ("None", "Cleaning", PAUSED)
"""The scheduler has not looked at the job since it was submitted, changed or requeued."""


@dataclass(frozen=True, slots=True)
class PartitionCapacity:
    """What a partition has for jobs now, or one of its pools, from which a job gets all of its nodes.

    Attributes:
        free: Nodes that a job may have at once: idle ones, and those that are off without a capacity drain.
        failure: Why there are no more; `None` means that nothing limits them.
        settled: Whether no machine is left of nodes that were powered down, in the whole partition.
        pool: The pool's name; `None` means that the nodes are of none, or of several.
        most: How many nodes of the pool there are; `None` if it is no pool.
        groups: The design's names of the nodes' partitions and pools.
    """

    free: int
    failure: Failure | None = None
    settled: bool = True
    pool: str | None = None
    most: int | None = None
    groups: frozenset[str] = frozenset()


Capacities = Mapping[str, Sequence[PartitionCapacity]]
"""Partition -> what each of its pools has; a partition without pools has one entry."""


@dataclass(frozen=True, slots=True)
class Run:
    """The last run of a job that was seen.

    Attributes:
        number: How often the job had been requeued before this run.
        began: Seconds since the epoch.
        launched: Whether its batch script was sent to its node.
    """

    number: int
    began: float
    launched: bool


@dataclass(frozen=True, slots=True)
class JobChange:
    """A change of a pending job in Slurm.

    Attributes:
        job: The job's `spelling`.
        comment: The new comment; "" removes it, `None` leaves it.
        start_now: Whether the job's begin time is removed.
        news: Whether the job has a comment of the same cause, in which only numbers have changed.
    """

    job: int | str
    comment: str | None = None
    start_now: bool = False
    news: bool = False


def runs(jobs: Iterable[JobState], before: Mapping[int, Run]) -> dict[int, Run]:
    """Return what is known of the last runs of jobs, by job id.

    Args:
        jobs: All jobs.
        before: The last answer.
    """
    last = {}
    for job in jobs:
        if job.has_work and job.start_time is not None:
            last[job.id] = Run(job.restarts, job.start_time, job.is_running)
        elif job.id in before:
            last[job.id] = before[job.id]
    return last


def job_changes(
    jobs: Iterable[JobState],
    capacities: Capacities,
    seen: Mapping[int, Run],
    now: float,
    stopped: Mapping[int, Failure] | None = NOBODY,
) -> list[JobChange]:
    """Return what to change about jobs in Slurm; nothing that has been changed already.

    Args:
        jobs: All jobs.
        capacities: Partition -> what each of its pools has for jobs.
        seen: The answer of `runs`.
        now: Seconds since the epoch.
        stopped: Job id -> how its account has used its budget; `None`: that is not known yet.
    """
    result = []
    for job in jobs:
        if job.is_pending:
            comment = _comment(job, capacities, stopped)
            start = _may_start(job, capacities, seen.get(job.id), now)
        else:
            over = job.is_running and kind_of(job.admin_comment) is not None
            comment, start = ("" if over else None), False
        if comment is not None or start:
            news = bool(comment) and not start and kind_of(job.admin_comment) is kind_of(comment)
            result.append(JobChange(job.spelling, comment, start, news))
    return result


def unstarted(jobs: Iterable[JobState], released: Mapping[int, int]) -> list[JobState]:
    """Return the jobs that Slurm holds because a node refused to start them, and that may be tried again.

    Args:
        jobs: All jobs.
        released: Job id -> how often it was released automatically.
    """
    return [
        job
        for job in jobs
        if job.is_pending and job.reason == UNSTARTED and released.get(job.id, 0) < MOST_RELEASES
    ]


def fitting(job: JobState, capacities: Capacities, now: float) -> list[PartitionCapacity]:
    """Return what has nodes enough for a pending job that would start now."""
    if not job.is_pending or not (job.reason in ("None", *FOR_NODES) or _is_paused(job, now)):
        return []
    return [capacity for capacity in _capacities(job, capacities) if capacity.free >= job.wanted_nodes]


def _comment(job: JobState, capacities: Capacities, stopped: Mapping[int, Failure] | None) -> str | None:
    comment_kind = kind_of(job.admin_comment)
    partitions = _capacities(job, capacities)
    if not partitions or job.reason in UNKNOWN:
        return None
    if stopped is None and job.reason == STOPPED and comment_kind is ErrorClass.BUDGET:
        return None
    if stopped is not None and (why := stopped.get(job.id)) is not None:
        return _with_cause(job, why)
    if job.reason in FOR_NODES:
        # A pool that is too small for the job says nothing of why it waits.
        partitions = [one for one in partitions if one.most is None or one.most >= job.wanted_nodes]
        limited = [
            (partition.pool, partition.failure)
            for partition in partitions
            if partition.failure is not None and partition.free < job.wanted_nodes
        ]
        if limited and (len(limited) == len(partitions) or job.reason in NOT_AVAILABLE):
            return _with_cause(job, joint_cause(limited))
        if any(partition.failure is not None for partition in partitions):
            return None
    # The job waits for something else now.
    return "" if comment_kind not in (None, ErrorClass.PREEMPTED) else None


def _with_cause(job: JobState, failure: Failure) -> str | None:
    """Return the comment that tells the failure; `None` if the job has it."""
    sentence = " ".join(failure.sentence().split())
    kind = kind_of(job.admin_comment)
    is_told = kind is failure.kind and (kind not in COUNTED or job.admin_comment == sentence)
    return None if is_told else sentence


def _may_start(job: JobState, capacities: Capacities, run: Run | None, now: float) -> bool:
    if kind_of(job.admin_comment) is None or not job.restarts or not _is_paused(job, now):
        return False
    if _is_being_launched(job, run, now):
        return False
    return any(
        capacity.settled and capacity.free >= job.wanted_nodes for capacity in _capacities(job, capacities)
    )


def _is_being_launched(job: JobState, run: Run | None, now: float) -> bool:
    """Return whether slurmctld may still be trying to start the run that this job has lost."""
    comment = job.admin_comment or ""
    if comment.startswith(TAKEN):  # the machine was alive, so it took or refused the script
        return False
    lost = kind_of(comment) is ErrorClass.PREEMPTED
    if run is None or run.number + 1 != job.restarts or not run.launched:
        return lost
    return now - run.began < LAUNCH_SECONDS


def _is_paused(job: JobState, now: float) -> bool:
    return job.reason in (PAUSED, "None") and 0 < (job.eligible_time or 0.0) - now <= LONGEST_PAUSE


def _capacities(job: JobState, capacities: Capacities) -> list[PartitionCapacity]:
    # A job may name several partitions.
    return [one for name in job.partition.split(",") for one in capacities.get(name, ())]
