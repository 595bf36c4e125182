"""The checks after a soak, of every job, run, machine and node."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from node.elastic.failures import ErrorClass
from node.elastic.view import REASON_PREFIX
from node.slurm.hostlist import fold
from node.slurm.states import NodeState
from tests.support.soak.commands import UP_KILLED
from tests.support.soak.journal import HEAD, Fault, Journal, Run, Span, Task

BEFORE_SECONDS = 2.0
"""A fault is recorded just before it happens, and a job's start a moment after the job has its nodes."""
SAVING_SECONDS = 7.0
"""slurmctld saves every five seconds, so a kill may make it forget what happened this shortly before."""
STARTING_SECONDS = 3.0
"""A slurmd killed this soon after a job's start has not answered slurmctld, which requeues the job."""
FATAL = ("kill", "freeze", "cut", "preempt")
SLURMCTLD = ("slurmctld", HEAD)
"""With the controller, slurmctld ends too."""
DATABASE = ("slurmdbd", "mariadbd")
MADE_WAY = "made way for another job"
AWAY = (*SLURMCTLD, UP_KILLED)
"""The faults in whose time there may be no slurmctld. `up` stops it in order: it forgets nothing."""
NEAR_SECONDS = 30.0
RETRY_SECONDS = 30.0
"""A node tells slurmctld of a job's end again every 15 seconds (RETRY_DELAY in Slurm's slurmstepd)."""
UNAWARE_SECONDS = 15.0
"""For this long Slurm may start jobs on a machine that has died, or that it does not know to be off."""
CLOSED = f"{REASON_PREFIX}{ErrorClass.INTERRUPTED}: "
"""How the reason of a spot pool begins whose machines were taken back twice soon."""


def outcomes(journal: Journal) -> Counter[str]:
    """Count the outcomes of all tasks. An outcome that is not allowed becomes a finding."""
    counted: Counter[str] = Counter()
    for task in journal.tasks.values():
        if not task.accepted and not task.states:
            counted["refused: the controller was down"] += 1
            continue
        outcome = _outcome(journal, task)
        counted[outcome or "lost"] += 1
        if outcome is None:
            journal.finding(f"job lost: {describe(task, journal.runs(task))}")
    return counted


def _outcome(journal: Journal, task: Task) -> str | None:
    """Return how a task ended, or `None` if it must not have ended like that."""
    runs = journal.runs(task)
    finished = any(run.end is not None for run in runs)
    forgotten = finished and _forgotten(journal, runs)
    if task.state == "COMPLETED" and finished:
        return "completed"
    if forgotten and (task.ghost or not task.requeue):
        return "completed, and forgotten by Slurm when it was killed"
    if task.state == "CANCELLED" and task.cancelled:
        return "cancelled"
    if task.state == "PENDING" and task.reason == "BadConstraints" and _began_on_a_dead_node(journal, task):
        return "kept by Slurm as BadConstraints, as reliability.md says"
    if task.state == "FAILED" and _requeue_forgotten(journal, task.requeued):
        return "queued again by its user, and forgotten by Slurm, as reliability.md says"
    if task.state == "FAILED" and _requeue_forgotten(journal, task.made_way):
        return f"{MADE_WAY}, and forgotten by Slurm, as failures.md says"
    if not task.over or task.requeue:
        return None
    if not runs:
        return "--no-requeue, and its nodes never came"
    if task.state == "PREEMPTED" and any(_during(span, runs[-1]) for span in task.made_way):
        return f"--no-requeue, and {MADE_WAY}"
    died = _unheard(journal, runs[-1]) if finished else why_ended(journal, task, runs[-1])
    return "--no-requeue, and its machine died" if died else None


def _requeue_forgotten(journal: Journal, requeues: list[Span]) -> bool:
    """Return whether slurmctld may not have saved a requeue of which nobody else knows."""
    kills = [fault.at for fault in journal.faults if fault.kind in SLURMCTLD]
    return any(began <= at <= ended + SAVING_SECONDS for at in kills for began, ended in requeues)


def _began_on_a_dead_node(journal: Journal, task: Task) -> bool:
    """Return whether Slurm may have started a task on a machine whose end it did not know yet."""
    began = [at for at, state in task.states if state in ("CONFIGURING", "RUNNING")]
    ends = [fault.at for fault in journal.faults if fault.kind in (*FATAL, *SLURMCTLD)]
    return any(0 <= at - end <= UNAWARE_SECONDS for at in began for end in ends)


def is_ghost(journal: Journal, task: Task) -> bool:
    """Return whether a task's script ended just before slurmctld was killed, so that Slurm thinks it runs."""
    runs = journal.runs(task)
    return bool(runs) and runs[-1].end is not None and _forgotten(journal, runs[-1:])


def _forgotten(journal: Journal, runs: list[Run]) -> bool:
    ends = [run.end for run in runs if run.end is not None]
    kills = [fault.at for fault in journal.faults if fault.kind in SLURMCTLD]
    return any(0 <= at - end <= SAVING_SECONDS for at in kills for end in ends)


def broken_runs(journal: Journal) -> Counter[str]:
    """Count the runs that did not reach their end, by cause. One without a cause of ours is a finding."""
    counted: Counter[str] = Counter()
    for task in journal.tasks.values():
        for run in journal.runs(task):
            if run.end is not None:
                continue
            cause = why_ended(journal, task, run)
            counted[cause or "no cause"] += 1
            if cause is None:
                journal.finding(
                    f"a running job was ended and nobody asked for it: {task.key} (job {task.job}) on "
                    f"{fold(run.nodes)}, from {run.start:.1f} to at most {run.until:.1f}; "
                    f"{describe(task, journal.runs(task))}; faults near it: {_near(journal, run)}"
                )
    return counted


def why_ended(journal: Journal, task: Task, run: Run) -> str | None:
    """Return which of our actions ended a run, or `None`."""
    if any(_during(span, run) for span in task.cancelled):
        return "cancelled"
    if any(_during(span, run) for span in task.requeued):
        return "requeued"
    if any(_during(span, run) for span in task.made_way):
        return MADE_WAY
    for fault in journal.faults:
        if fault.kind in FATAL and _hits(fault, run):
            return fault.kind
    for fault in journal.faults:
        after = fault.at - run.start
        # slurmctld forgot this start, or that it was powering down one of these nodes.
        if fault.kind in SLURMCTLD and abs(after) <= SAVING_SECONDS:
            return f"{fault.kind}, and forgotten"
        if fault.kind == "slurmd" and -BEFORE_SECONDS <= after <= STARTING_SECONDS:
            return "slurmd, at its start"
    return None


def repeated_runs(journal: Journal) -> Counter[str]:
    """Count the runs of tasks that had run to their end before, by the cause.

    What a slurmctld that was killed had not saved, it begins again. Everything else must be a requeue with a
    cause of ours; another run is a finding.
    """
    counted: Counter[str] = Counter()
    for task in journal.tasks.values():
        for run, following in pairwise(journal.runs(task)):
            if run.end is None:
                continue
            cause = _why_repeated(journal, task, run, following)
            counted[cause or "no cause"] += 1
            if cause is None:
                journal.finding(
                    f"a job ran twice, and Slurm had no reason: {describe(task, journal.runs(task))}; "
                    f"faults near it: {_near(journal, run)}"
                )
    return counted


def _why_repeated(journal: Journal, task: Task, run: Run, following: Run) -> str | None:
    if _forgotten(journal, [run]):
        return "its end was forgotten"
    # A script begins a moment after slurmctld has sent it to its node.
    since = [f.at - run.start for f in journal.faults if f.kind in SLURMCTLD]
    if any(-BEFORE_SECONDS <= after <= SAVING_SECONDS for after in since):
        return "its start was forgotten"
    if following.count <= run.count:
        return None
    # The program that asks may see only later that a job has ended.
    for cause, spans in (("requeued", task.requeued), (MADE_WAY, task.made_way)):
        if any(run.start - BEFORE_SECONDS <= began <= following.start for began, _ended in spans):
            return cause
    return _unheard(journal, run)


def _unheard(journal: Journal, run: Run) -> str | None:
    """Return what befell a run's node before it could tell slurmctld of the run's end; `None` if nothing."""
    heard = _heard(journal, run)
    for fault in journal.faults:
        if fault.kind in FATAL and fault.node in run.nodes and run.start <= fault.until and fault.at <= heard:
            return fault.kind
    return None


def _heard(journal: Journal, run: Run) -> float:
    """Return when slurmctld had heard of a run's end at the latest."""
    away = [f.until for f in journal.faults if f.kind in AWAY and f.at <= run.until <= f.until]
    return max((until + RETRY_SECONDS for until in away), default=run.until + BEFORE_SECONDS)


def unrecorded(journal: Journal, records: dict[str, list[str]]) -> list[str]:
    """Return the tasks whose end the accounting does not have, one line each.

    Args:
        records: Task -> the states of its records.
    """
    found = []
    for key, task in journal.tasks.items():
        states = records.get(key, [])
        if task.state == "COMPLETED" and "COMPLETED" not in states:
            found.append(f"{key} (job {task.job}) is completed, and sacct has: {', '.join(states) or 'none'}")
        elif task.over and journal.runs(task) and (left := _unended(journal, task) & set(states)):
            found.append(f"{key} (job {task.job}) is over, and sacct has it as {', '.join(sorted(left))}")
    return found


def _unended(journal: Journal, task: Task) -> set[str]:
    """Return the states of which no record of a task that is over may be left.

    A slurmctld that has forgotten a requeue queues the job again, and accounting has a record more, which
    stays PENDING (docs/internals/reliability.md). One of an earlier run stays RUNNING if the database was
    killed as that run began (docs/failures.md).
    """
    queued = [at for at, state in task.states[1:] if state == "PENDING"]
    kills = [fault.at for fault in journal.faults if fault.kind in SLURMCTLD]
    forgotten = any(0 <= at - began <= SAVING_SECONDS for at in kills for began in queued)
    killed = [fault.at for fault in journal.faults if fault.kind in DATABASE]
    runs = journal.runs(task)[:-1]
    kept = any(abs(at - run.start) <= SAVING_SECONDS for at in killed for run in runs)
    return {"RUNNING", "PENDING"} - ({"PENDING"} if forgotten else set()) - ({"RUNNING"} if kept else set())


def recoveries(journal: Journal) -> list[float]:
    """Return the seconds from a machine's death until its job ran again, for jobs that were not stopped."""
    found = []
    for task in journal.tasks.values():
        runs = journal.runs(task)
        for run, following in pairwise(runs):
            faults = [f for f in journal.faults if f.kind == "kill" and _hits(f, run)]
            if run.end is None and faults and why_ended(journal, task, run) == "kill":
                found.append(following.start - faults[0].at)
    return found


def _hits(fault: Fault, run: Run) -> bool:
    return fault.node in run.nodes and _during((fault.at, fault.until), run)


def _during(span: Span, run: Run) -> bool:
    began, ended = span
    return ended >= run.start - BEFORE_SECONDS and began <= run.until + BEFORE_SECONDS


def _near(journal: Journal, run: Run) -> str:
    near = [f for f in journal.faults if _during((f.at - NEAR_SECONDS, f.until + NEAR_SECONDS), run)]
    return ", ".join(f"{f.at:.1f} {f.kind} {f.node or ''} {f.detail}".strip() for f in near) or "none"


def flaps(journal: Journal) -> tuple[int, str]:
    """Return how often a job went from CONFIGURING back to PENDING at most, and which job."""
    most = (0, "none")
    for task in journal.tasks.values():
        words = [state for _at, state in task.states]
        number = sum(a in ("CONFIGURING", "COMPLETING") and b == "PENDING" for a, b in pairwise(words))
        most = max(most, (number, task.key))
    return most


def machines_now(journal: Journal, machines: list[dict[str, Any]], most: int) -> None:
    """Check the machines at one moment: never too many, and never two of one node.

    A fault of a machine lasts until its node has another machine: before that each job on the node meets it.
    """
    journal.peak = max(journal.peak, len(machines))
    now = time.time()
    for fault in journal.faults:
        if fault.machine is None:
            continue
        if any(m["node"] == fault.node and m["id"] != fault.machine for m in machines):
            fault.machine = None
        else:
            fault.until = max(fault.until, now)
    if len(machines) > most:
        journal.finding(f"{len(machines)} machines at once, more than {most}")
    for node, count in Counter(m["node"] for m in machines).items():
        if count > 1:
            journal.finding(f"{count} machines of {node} at once")


def stuck(nodes: Mapping[str, NodeState]) -> list[str]:
    """Return the nodes that are not idle and powered down, in Slurm's notation.

    This includes nodes that are NOT_RESPONDING: slurmctld would not use them after its next start. A spot
    pool that is closed for a while stays so.
    """
    wrong = {"DRAIN", "NOT_RESPONDING"}
    bad = [
        n
        for n in nodes.values()
        if n.base != "IDLE"
        or not n.is_powered_down
        or (n.flags & wrong and not (n.reason or "").startswith(CLOSED))
    ]
    return [f"{n.name} {'+'.join([n.base, *sorted(n.flags)])} reason={n.reason!r}" for n in bad]


def leaked(nodes: Mapping[str, NodeState]) -> list[str]:
    """Return idle nodes whose GPUs Slurm counts as used. Jobs for whole nodes would wait for them forever.

    Args:
        nodes: The answer of `Slurm.detailed_nodes`.
    """
    return [f"{n.name} uses {n.gres_used}" for n in nodes.values() if n.gres_used and not n.cpus_alloc]


def describe(task: Task, runs: list[Run]) -> str:
    """Return one line for people."""
    states = " > ".join(state for _at, state in task.states)
    said = [f"{r.start:.1f}-{'' if r.end is None else f'{r.end:.1f}'} on {fold(r.nodes)}" for r in runs]
    kind = "" if task.requeue else " --no-requeue"
    return (
        f"{task.key} (job {task.job}{kind}, {task.nodes} of {task.partition}, {task.seconds} s): "
        f"{states or 'never seen'}; runs: {', '.join(said) or 'none'}; "
        f"reason: {task.reason}; cause: {task.cause}"
    )
