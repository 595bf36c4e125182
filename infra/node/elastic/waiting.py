"""Jobs that wait for nodes: who is told why, and who may start at once. Pure.

A job that was queued again may not start for half a minute, so that no machine still honours its old
credential. When all its old machines are gone it need not wait for that, unless slurmctld may still be trying
to start its last run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from infra.node.elastic.errors import ErrorClass, Failure
from infra.node.elastic.fences import kind_of
from infra.node.elastic.rules import TAKEN
from infra.node.slurm.states import JobState

LONGEST_PAUSE = 40.0
"""Seconds from a requeue to Slurm's own next try (`cred_expire`), and some more. What begins later was put
off by a person."""
LAUNCH_SECONDS = 30.0
"""How long slurmctld tries at most to deliver a batch script to a machine that does not take it: 12 s to
connect, MessageTimeout for the answer, and some more. When it gives up it queues the job again, even where
that has another run by then (`job_complete` in its agent): that run would end, and if it waits for its nodes
its GPUs would count as used for ever."""
FOR_NODES = ("Resources", "Priority", "ReqNodeNotAvail", "NodeDown", "Nodes required for job are DOWN")
"""Slurm's words for a job that would start if there were more nodes."""
PAUSED = "BeginTime"
STARTED = ("CONFIGURING", "RUNNING", "SUSPENDED")
UNSTARTED = "launch failed requeued held"
"""A node refused to start it, and Slurm holds it until a person releases it. As a rule nothing is wrong with
it: slurmctld was killed just after it had started it, started it once more, and the node has it already."""
MOST_RELEASES = 3
"""Of one job: what no node can start is a person's."""
UNKNOWN = ("None", "Cleaning", PAUSED)
"""The scheduler has not looked at it since it was submitted, changed or queued again."""


@dataclass(frozen=True, slots=True)
class Stock:
    """What a partition has for jobs now.

    Attributes:
        free: nodes that a job may have at once: idle ones, and those that are off and not fenced.
        failure: why there are no more; None: nothing limits them.
        settled: no machine is left of nodes that were given back.
    """

    free: int
    failure: Failure | None = None
    settled: bool = True


@dataclass(frozen=True, slots=True)
class Run:
    """The last run of a job that was seen.

    Attributes:
        number: how often the job had been queued again before it.
        began: seconds since the epoch.
        launched: its batch script was sent to its node.
    """

    number: int
    began: float
    launched: bool


@dataclass(frozen=True, slots=True)
class JobChange:
    """Attributes:
    job: its `spelling`.
    comment: the new comment, "" for none, None to leave it.
    """

    job: int | str
    comment: str | None = None
    start_now: bool = False


def runs(jobs: Iterable[JobState], before: Mapping[int, Run]) -> dict[int, Run]:
    """What is known of jobs' last runs, by job id.

    Args:
        before: the last answer.
    """
    found = {}
    for job in jobs:
        if job.state in STARTED and job.start_time is not None:
            found[job.id] = Run(job.restarts, job.start_time, job.state != "CONFIGURING")
        elif job.id in before:
            found[job.id] = before[job.id]
    return found


def changes(
    jobs: Iterable[JobState], stocks: Mapping[str, Stock], seen: Mapping[int, Run], now: float
) -> list[JobChange]:
    """What to tell Slurm of the jobs; nothing that it has been told already.

    Args:
        seen: of `runs`.
        now: seconds since the epoch.
    """
    result = []
    for job in jobs:
        if job.is_pending:
            comment, start = _comment(job, stocks), _may_start(job, stocks, seen.get(job.id), now)
        else:
            over = job.state == "RUNNING" and kind_of(job.admin_comment) is not None
            comment, start = ("" if over else None), False
        if comment is not None or start:
            result.append(JobChange(job.spelling, comment, start))
    return result


def unstarted(jobs: Iterable[JobState], released: Mapping[int, int]) -> list[JobState]:
    """Jobs that Slurm holds because a node refused to start them, and that may be tried again.

    Args:
        released: job id -> how often it was.
    """
    return [
        job
        for job in jobs
        if job.is_pending and job.reason == UNSTARTED and released.get(job.id, 0) < MOST_RELEASES
    ]


def fits(job: JobState, stocks: Mapping[str, Stock], now: float) -> bool:
    """Whether a pending job will have nodes of what there is."""
    if not job.is_pending or not (job.reason in ("None", *FOR_NODES) or _is_paused(job, now)):
        return False
    return any(stock.free >= job.wanted_nodes for stock in _stocks(job, stocks))


def _comment(job: JobState, stocks: Mapping[str, Stock]) -> str | None:
    said = kind_of(job.admin_comment)
    mine = _stocks(job, stocks)
    if not mine or job.reason in UNKNOWN:
        return None
    if job.reason in FOR_NODES:
        limited = [one.failure for one in mine if one.failure is not None and one.free < job.wanted_nodes]
        if len(limited) == len(mine):
            return None if said is limited[0].kind else limited[0].sentence()
        if any(one.failure is not None for one in mine):
            return None
    # It waits for something else now.
    return "" if said not in (None, ErrorClass.PREEMPTED) else None


def _may_start(job: JobState, stocks: Mapping[str, Stock], run: Run | None, now: float) -> bool:
    if kind_of(job.admin_comment) is None or not job.restarts or not _is_paused(job, now):
        return False
    if _is_being_launched(job, run, now):
        return False
    return any(stock.settled and stock.free >= job.wanted_nodes for stock in _stocks(job, stocks))


def _is_being_launched(job: JobState, run: Run | None, now: float) -> bool:
    """Whether slurmctld may still be trying to start the run that this job has lost."""
    said = job.admin_comment or ""
    if said.startswith(TAKEN):  # its machine lived, and has taken the script or refused it
        return False
    lost = kind_of(said) is ErrorClass.PREEMPTED
    if run is None or run.number + 1 != job.restarts or not run.launched:
        return lost
    return now - run.began < LAUNCH_SECONDS


def _is_paused(job: JobState, now: float) -> bool:
    return job.reason == PAUSED and 0 < (job.eligible_time or 0.0) - now <= LONGEST_PAUSE


def _stocks(job: JobState, stocks: Mapping[str, Stock]) -> list[Stock]:
    # A job may name several partitions.
    return [stocks[name] for name in job.partition.split(",") if name in stocks]
