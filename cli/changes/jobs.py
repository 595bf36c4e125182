"""Shell lines that list, hold and cancel a cluster's jobs, and the parsing of their output. Pure.

The caller runs these lines on the cluster: over SSH on a cloud, directly for the local stack.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from node.slurm.hostlist import expand

MOST_LISTED = 20
HOLDING = ("RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "COMPLETING")
"""The states of jobs that have nodes."""
SQUEUE = f"squeue --noheader --all --states=PENDING,{','.join(HOLDING)} --format='%i|%u|%P|%N|%T|%n|%j'"
SEPARATORS = SQUEUE.count("|")
KILL_WAIT_SECONDS = 30.0
"""Slurm's KillWait: how long a cancelled job has between SIGTERM and SIGKILL."""
_HELD = "held="


@dataclass(frozen=True, slots=True)
class Job:
    """A job that has not ended.

    Attributes:
        partition: The partition where it runs; for a pending job all partitions in which it may start,
            separated by commas.
        nodes: The host list of its nodes; empty for a pending job.
        required: The host list of the nodes that it requires (`--nodelist`).
    """

    id: str
    user: str
    partition: str
    nodes: str
    state: str
    required: str
    name: str

    @property
    def partitions(self) -> frozenset[str]:
        return frozenset(self.partition.split(","))

    @property
    def pending(self) -> bool:
        return self.state == "PENDING"

    @property
    def over(self) -> bool:
        """Whether the job has finished and Slurm only cleans up its nodes: nothing of it can be lost."""
        return self.state == "COMPLETING"

    def touches(self, nodes: frozenset[str]) -> bool:
        """Whether the job uses or requires one of these nodes."""
        mine = [name for text in (self.nodes, self.required) if text for name in expand(text)]
        return not nodes.isdisjoint(mine)

    def requires(self, nodes: frozenset[str]) -> bool:
        """Whether the job, running or not, was submitted for one of these nodes (`--nodelist`)."""
        return bool(self.required) and not nodes.isdisjoint(expand(self.required))

    def line(self) -> str:
        return f"job {self.id} {self.name} ({self.user}, {self.state} on {self.nodes or self.partition})"


def parse(text: str) -> list[Job]:
    """The jobs in an output of `SQUEUE` and other commands, in order. A name may contain the separator."""
    found = [line.strip().split("|", SEPARATORS) for line in text.splitlines()]
    jobs = [
        Job(number, user, partition, nodes, state, "" if required == "(null)" else required, name)
        for number, user, partition, nodes, state, required, name in (
            fields for fields in found if len(fields) > SEPARATORS
        )
    ]
    return sorted(jobs, key=_number)


def _number(job: Job) -> int:
    """The number of the job, or of the job array that it belongs to."""
    digits = re.match(r"\d+", job.id)
    return int(digits[0]) if digits else 0


def listed(jobs: Sequence[Job]) -> list[str]:
    """A line for each job up to MOST_LISTED, and one that counts the others."""
    more = [f"  and {len(jobs) - MOST_LISTED} more"] if len(jobs) > MOST_LISTED else []
    return [*(f"  {job.line()}" for job in jobs[:MOST_LISTED]), *more]


_ANSWERS = "scontrol ping | grep -q ' UP' || { echo 'slurmctld does not answer' >&2; exit 1; }"


def hold_line(partitions: Iterable[str], state: str, prefix: str = "") -> str:
    """A shell line that takes those partitions that are up out of service, and then lists the jobs.

    Args:
        state: DOWN (no job starts) or INACTIVE (nor is one accepted).
        prefix: The command prefix that gives the rights of Slurm's administrator, with a trailing space.
    """
    names = shlex.join(sorted(partitions))
    update = f"{prefix}scontrol update PartitionName=$name State={state}"
    # All or none, because the output of a line that fails is not read.
    undo = f"for name in $taken; do {prefix}scontrol update PartitionName=$name State=UP; done; exit 1"
    return (
        f"{_ANSWERS}; taken=; "
        f"for name in {names}; do scontrol -o show partition $name | grep -q ' State=UP' || continue; "
        f'{update} || {{ {undo}; }}; taken="$taken $name"; echo {_HELD}$name; done; {SQUEUE}'
    )


def held(text: str) -> list[str]:
    """The partitions that `hold_line` has taken out of service, not those that were so before."""
    return [line.removeprefix(_HELD) for line in text.splitlines() if line.startswith(_HELD)]


def release_line(partitions: Iterable[str], prefix: str = "") -> str:
    """A shell line that puts those partitions that still exist into service again.

    The line fails if Slurm does not answer.
    """
    names = shlex.join(partitions)
    return (
        f"{_ANSWERS}; for name in {names}; do scontrol -o show partition $name >/dev/null 2>&1 || continue; "
        f"{prefix}scontrol update PartitionName=$name State=UP || exit 1; done"
    )


def cancel_line(jobs: Sequence[Job], prefix: str = "") -> str:
    """A shell line that cancels jobs: SIGTERM at once, SIGKILL after Slurm's KillWait."""
    return f"{prefix}scancel --quiet {shlex.join(job.id for job in jobs)}"


def cancel_or_requeue_line(ended: Sequence[Job], again: Sequence[Job], prefix: str = "") -> str:
    """A shell line that cancels jobs and requeues others; those that may not be requeued are cancelled."""
    lines = [cancel_line(ended, prefix)] if ended else []
    for job in again:
        # One command per job: Slurm refuses a whole command if one of its jobs may not be requeued.
        queued = f"{prefix}scontrol requeue {shlex.quote(job.id)} 2>/dev/null"
        lines.append(f"{{ {queued} || {cancel_line([job], prefix)}; }}")
    return "; ".join(lines)


def wait_line(seconds: int, only: Sequence[Job] = ()) -> str:
    """A shell line that waits until no job has nodes, for at most `seconds`, and then lists the jobs.

    A controller that does not answer has said nothing about its jobs, so the line goes on waiting.

    Args:
        only: The jobs to wait for; empty means every job of the cluster.
    """
    look = f"squeue --noheader --all --states={','.join(HOLDING)} --format=%i 2>/dev/null"
    some = (
        shlex.join(["grep", "-qwF", *(word for job in only for word in ("-e", job.id))])
        if only
        else "grep -q ."
    )
    none = f"! printf '%s\\n' \"$holding\" | {some}"
    over = '[ "$(date +%s)" -ge "$end" ]'
    return (
        f"end=$(($(date +%s) + {seconds})); until {over}; do holding=$({look}) && {none} && break; sleep 1; "
        f"done; {SQUEUE}"
    )
