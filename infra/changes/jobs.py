"""The jobs of a cluster that is up: which there are, that no further one starts, and their end. Pure texts.

Whoever reaches the cluster (a cloud over SSH, the local stack here) runs these shell lines there.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from infra.node.slurm.hostlist import expand

MOST_LISTED = 20
HOLDING = ("RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "COMPLETING")
"""States of jobs that have nodes."""
SQUEUE = f"squeue --noheader --all --states=PENDING,{','.join(HOLDING)} --format='%i|%u|%P|%N|%T|%n|%j'"
SEPARATORS = SQUEUE.count("|")
KILL_WAIT_SECONDS = 30.0
"""Slurm's KillWait: how long after SIGTERM a job that is cancelled has until SIGKILL."""
_HELD = "held="


@dataclass(frozen=True, slots=True)
class Job:
    """A job that has not ended.

    Attributes:
        partition: where it runs; of a pending job all that it may start in, separated by commas.
        nodes: a host list; empty for a pending job.
        required: a host list: the nodes that the job insists on (`--nodelist`).
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
        """Whether nothing of it can be lost any more: only its nodes are still being tidied up."""
        return self.state == "COMPLETING"

    def touches(self, nodes: frozenset[str]) -> bool:
        """Whether it holds one of these nodes, or insists on one."""
        mine = [name for text in (self.nodes, self.required) if text for name in expand(text)]
        return not nodes.isdisjoint(mine)

    def insists(self, nodes: frozenset[str]) -> bool:
        """Whether it was submitted for one of these nodes (`--nodelist`), running or not."""
        return bool(self.required) and not nodes.isdisjoint(expand(self.required))

    def line(self) -> str:
        return f"job {self.id} {self.name} ({self.user}, {self.state} on {self.nodes or self.partition})"


def parse(text: str) -> list[Job]:
    """The lines of `SQUEUE`, among others, in the order of the jobs; a name may contain the separator."""
    found = [line.strip().split("|", SEPARATORS) for line in text.splitlines()]
    jobs = [
        Job(number, user, partition, nodes, state, "" if required == "(null)" else required, name)
        for number, user, partition, nodes, state, required, name in (
            fields for fields in found if len(fields) > SEPARATORS
        )
    ]
    return sorted(jobs, key=_number)


def _number(job: Job) -> int:
    """Of the job, or of the array that it is a task of."""
    digits = re.match(r"\d+", job.id)
    return int(digits[0]) if digits else 0


def listed(jobs: Sequence[Job]) -> list[str]:
    """A line for each job, and one for those that are too many."""
    more = [f"  and {len(jobs) - MOST_LISTED} more"] if len(jobs) > MOST_LISTED else []
    return [*(f"  {job.line()}" for job in jobs[:MOST_LISTED]), *more]


_ANSWERS = "scontrol ping | grep -q ' UP' || { echo 'slurmctld does not answer' >&2; exit 1; }"


def hold_line(partitions: Iterable[str], state: str, prefix: str = "") -> str:
    """A shell line that takes partitions out of service, as far as they are in it, and then lists the jobs.

    Args:
        state: DOWN (no job starts) or INACTIVE (nor is one taken).
        prefix: what gives a command the rights of Slurm's administrator, with a space behind it.
    """
    names = shlex.join(sorted(partitions))
    update = f"{prefix}scontrol update PartitionName=$name State={state}"
    # All or none: of a line that fails nobody reads which partitions it has taken.
    undo = f"for name in $taken; do {prefix}scontrol update PartitionName=$name State=UP; done; exit 1"
    return (
        f"{_ANSWERS}; taken=; "
        f"for name in {names}; do scontrol -o show partition $name | grep -q ' State=UP' || continue; "
        f'{update} || {{ {undo}; }}; taken="$taken $name"; echo {_HELD}$name; done; {SQUEUE}'
    )


def held(text: str) -> list[str]:
    """The partitions that `hold_line` has taken out of service: those that an administrator had are not."""
    return [line.removeprefix(_HELD) for line in text.splitlines() if line.startswith(_HELD)]


def release_line(partitions: Iterable[str], prefix: str = "") -> str:
    """A shell line that puts partitions into service again, those of them that there still are.

    It fails where Slurm does not answer.
    """
    names = shlex.join(partitions)
    return (
        f"{_ANSWERS}; for name in {names}; do scontrol -o show partition $name >/dev/null 2>&1 || continue; "
        f"{prefix}scontrol update PartitionName=$name State=UP || exit 1; done"
    )


def cancel_line(jobs: Sequence[Job], prefix: str = "") -> str:
    """A shell line that cancels jobs: SIGTERM at once, SIGKILL after Slurm's KillWait."""
    return f"{prefix}scancel --quiet {shlex.join(job.id for job in jobs)}"


def make_way_line(ended: Sequence[Job], again: Sequence[Job], prefix: str = "") -> str:
    """A shell line that cancels jobs, and queues others again (cancels those that may not be)."""
    lines = [cancel_line(ended, prefix)] if ended else []
    for job in again:
        # A whole command is refused where one of its jobs may not be queued again.
        queued = f"{prefix}scontrol requeue {shlex.quote(job.id)} 2>/dev/null"
        lines.append(f"{{ {queued} || {cancel_line([job], prefix)}; }}")
    return "; ".join(lines)


def wait_line(seconds: int, only: Sequence[Job] = ()) -> str:
    """A shell line that waits until no job has nodes, `seconds` at most, and then lists the jobs.

    Args:
        only: wait for these alone; none: for every job of the cluster.
    """
    look = f"squeue --noheader --all --states={','.join(HOLDING)} --format=%i"
    if only:
        # Of a job that it has forgotten Slurm says an error.
        look += f" --jobs={shlex.quote(','.join(job.id for job in only))} 2>/dev/null"
    return f'n=0; while [ $n -lt {seconds} ] && [ -n "$({look})" ]; do sleep 1; n=$((n + 1)); done; {SQUEUE}'
