"""Slurm's facts on a job, in words."""

from __future__ import annotations

import signal

from node.slurm.hostlist import fold
from node.slurm.phases import (
    BOOT_FAIL,
    CANCELLED,
    DEADLINE,
    FAILED,
    NODE_FAIL,
    OUT_OF_MEMORY,
    PREEMPTED,
    TIMEOUT,
)
from node.slurm.reasons import cure, in_words
from node.slurm.states import JobState

LAUNCH_ERRORS = tuple(number & 0x7F for number in (4014, 4021, 4022))
"""The numbers of signals that stand for slurmd's errors of a job that could not start.

slurmd reports the error's number (slurm_errno.h: the environment, the files, the prolog) where a process's
wait status belongs, and Slurm takes its last seven bits for a signal. The reason does not tell: it is
JobLaunchFailure of all signals up to 22.05, and RaisedSignal of all from 23.02 on.
"""
REASONS_OF_SIGNALS = ("JobLaunchFailure", "RaisedSignal")


def could_not_start(job: JobState) -> bool:
    """Return whether a job ended because a node of its own could not start it."""
    return job.is_over and job.signal in LAUNCH_ERRORS and bool(job.nodes)


def facts(job: JobState) -> list[str]:
    """Return Slurm's facts on a job, in a few lines."""
    nodes = f" on {fold(job.nodes)}" if job.nodes else ""
    index = (job.array_task or "").partition("%")[0]
    tasks = f"task {index}" if index.isdigit() else f"tasks {index}"
    task = f" ({tasks} of array {job.array_job})" if job.array_job is not None else ""
    lines = [f"{job.name}{task}: {job.state.lower()}{nodes}, partition {job.partition}, user {job.user}"]
    if job.is_pending:
        lines.append(f"waits: {in_words(job.cause, cure(job))}")
    if job.restarts:
        lines.append(f"was queued again {'once' if job.restarts == 1 else f'{job.restarts} times'}")
    if job.is_over and _never_ran(job):
        # The reason of a job that was cancelled is the one that it waited for.
        ended = job.state != CANCELLED and job.reason not in ("None", *REASONS_OF_SIGNALS)
        lines.append(
            ("it did not run again" if job.restarts else "it never ran")
            + (f" ({in_words(job.reason)})" if ended else "")
        )
    elif could_not_start(job):
        lines.append("its node could not start it: slurmd of the node says why")
    elif job.is_over:
        # The reason of a signal says no more than the signal.
        told = job.explanation or job.reason
        says_more = told.partition(":")[0] not in ("None", *REASONS_OF_SIGNALS)
        lines.append(f"{_ending(job)}{f' ({told})' if says_more else ''}")
    return lines


def _never_ran(job: JobState) -> bool:
    """Return whether a job ended while it waited. Slurm gives some of these signal 1, which nobody sent."""
    return job.state in NEVER_RAN and not job.nodes and not job.exit_code and job.signal in (0, 1)


NEVER_RAN = (CANCELLED, DEADLINE, FAILED)
"""The states of jobs that may have ended before they began."""
OF_SLURMS = {
    NODE_FAIL: "its node was lost",
    BOOT_FAIL: "its nodes did not start",
    TIMEOUT: "it was ended at its time limit",
    DEADLINE: "it was ended at its deadline",
    PREEMPTED: "it had to make room for another job",
    OUT_OF_MEMORY: "it used more memory than it had asked for",
}
"""The states of jobs that Slurm ended, whose exit code and signal it makes up -> what happened."""


def _ending(job: JobState) -> str:
    if job.state in OF_SLURMS:
        return OF_SLURMS[job.state]
    if not job.signal and not job.exit_code and job.state == CANCELLED:
        return "cancelled while its nodes started, or it ended with exit code 0 when told to"
    if not job.signal:
        return f"exit code {job.exit_code}"
    try:
        return f"ended by signal {job.signal} ({signal.Signals(job.signal).name})"
    except ValueError:
        return f"ended by signal {job.signal}"
