"""Slurm's facts on a job, in words."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable

from node.model import ClusterDesign
from node.slurm import reservations
from node.slurm.control import Slurm, SlurmError
from node.slurm.hostlist import fold
from node.slurm.reasons import in_words
from node.slurm.states import JobState

LAUNCH_FAILURE = "JobLaunchFailure"
"""Slurm's reason for a job that its node could not start."""


def advice(control: Slurm, design: ClusterDesign, jobs: Iterable[JobState]) -> dict[int, str]:
    """What reservations mean for those of the jobs that wait, by id."""
    waiting = [job for job in jobs if job.is_pending]
    if not waiting:
        return {}
    try:
        known, reserved = control.detailed_jobs(), control.reservations()
    except (SlurmError, ValueError):
        return {}
    now = time.time()
    told = {
        job.id: reservations.advice(known.get(job.id, job), reserved, design.nodes_of(job.partition), now)
        for job in waiting
    }
    return {number: text for number, text in told.items() if text is not None}


def facts(job: JobState, advice: str | None) -> list[str]:
    """Slurm's facts on a job, in a few lines.

    Args:
        advice: what is known of the reservations that it waits for.
    """
    nodes = f" on {fold(job.nodes)}" if job.nodes else ""
    index = (job.array_task or "").partition("%")[0]
    tasks = f"task {index}" if index.isdigit() else f"tasks {index}"
    task = f" ({tasks} of array {job.array_job})" if job.array_job is not None else ""
    lines = [f"{job.name}{task}: {job.state.lower()}{nodes}, partition {job.partition}, user {job.user}"]
    if job.is_pending:
        lines.append(f"waits: {in_words(job.cause, advice)}")
    if job.restarts:
        lines.append(f"was queued again {'once' if job.restarts == 1 else f'{job.restarts} times'}")
    if job.is_over and _never_ran(job):
        lines.append("it did not run again" if job.restarts else "it never ran")
    elif job.is_over:
        if job.reason == LAUNCH_FAILURE:
            # Slurm encodes its own error as a signal's number, which is no signal.
            return [*lines, f"its node could not start it ({job.reason}): slurmd of the node says why"]
        why = f" ({job.explanation or job.reason})" if job.reason != "None" else ""
        lines.append(f"{_ending(job)}{why}")
    return lines


def _never_ran(job: JobState) -> bool:
    """Whether an ended job was cancelled while it waited. Its reason is then the one that it waited for."""
    return job.state in ("CANCELLED", "DEADLINE") and not (job.nodes or job.exit_code or job.signal)


def _ending(job: JobState) -> str:
    if not job.signal:
        return f"exit code {job.exit_code}"
    try:
        return f"ended by signal {job.signal} ({signal.Signals(job.signal).name})"
    except ValueError:
        return f"ended by signal {job.signal}"
