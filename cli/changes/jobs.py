"""Shell lines that list, hold and cancel a cluster's jobs, and the parsing of their output. Pure.

The caller runs these lines on the cluster: over SSH on a cloud, directly for the local stack.
`ClusterControl.ask` gives all of them the environment of `node.slurm.environment`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from node.logs.text import printable
from node.slurm.hostlist import expand

MOST_LISTED = 20
LONGEST_NAME = 200
"""The number of characters that are shown of a job's name."""
HOLDING = ("RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "COMPLETING")
"""The states of jobs that have nodes."""
_SQUEUE = f"squeue --noheader --all --states=PENDING,{','.join(HOLDING)}"
_NAMES = "names="
LISTING = (
    # What decides: no field that holds a text of a user's.
    f"{_SQUEUE} --format='%i|%u|%P|%N|%T|%n' || exit; "
    # The names, for people. A name may hold anything, so a mark that nobody can know separates them: it is
    # drawn here, and squeue gets it in its environment, because all users see the arguments of a command.
    f"mark=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n'); echo {_NAMES}$mark; "
    f'[ -z "$mark" ] || SQUEUE_FORMAT="$mark%i|%j" {_SQUEUE} || :'
)
"""A shell line that lists the jobs which have not ended, with their names. It must be the last one."""
PARTITIONS_LISTING = "scontrol --all --oneliner show partition"
"""A shell line that lists all partitions, also those that people have made (`runtime.shown_partitions`)."""
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

    @property
    def target(self) -> str:
        """The id in commands. They refuse an array's limit and its steps: `12_[3-9:3%2]` is `12_[3,6,9]`."""
        tasks = _LIMIT.sub("", self.id)
        return _STEPS.sub(lambda m: ",".join(map(str, range(int(m[1]), int(m[2]) + 1, int(m[3])))), tasks)

    def touches(self, nodes: frozenset[str]) -> bool:
        """Return whether the job uses or requires one of these nodes."""
        names = [name for text in (self.nodes, self.required) for name in _expanded(text)]
        return not nodes.isdisjoint(names)

    def requires(self, nodes: frozenset[str]) -> bool:
        """Return whether the job, running or not, was submitted for one of these nodes (`--nodelist`)."""
        return not nodes.isdisjoint(_expanded(self.required))

    def line(self) -> str:
        name = f" {self.name}" if self.name else ""
        return f"job {self.id}{name} ({self.user}, {self.state} on {self.nodes or self.partition})"


_LIMIT = re.compile(r"%\d+(?=\])")
_STEPS = re.compile(r"(\d+)-(\d+):([1-9]\d*)")
# A user's name is what a name service gives: it may hold the separator, and no line break.
_RECORD = re.compile(r"(\d+(?:[_+][\w\[\],:%.-]+)?)\|(.+)\|([^|]*)\|([^|]*)\|([A-Z_]+)\|([^|]*)", re.ASCII)


def _expanded(nodes: str) -> list[str]:
    try:
        return expand(nodes)
    except ValueError:  # Slurm accepts spellings that this program does not know
        return []


def parse(text: str) -> list[Job]:
    """Return the jobs in an output of `LISTING` and other commands, in order.

    Only the lines before the names tell which jobs there are. What is no job's line belongs to other
    commands, such as those of a shell's ~/.bashrc.
    """
    listing, names = _sections(text)
    found = [match for line in listing.split("\n") if (match := _RECORD.fullmatch(line.strip(" \r")))]
    jobs = [
        Job(number, printable(user), partition, nodes, state, "" if required == "(null)" else required, name)
        for number, user, partition, nodes, state, required in (match.groups() for match in found)
        for name in [names.get(number, "")]
    ]
    return sorted(jobs, key=_number)


def _sections(text: str) -> tuple[str, dict[str, str]]:
    """Return what comes before the names, and the names by id, without what could control a terminal."""
    listing, _, rest = f"\n{text}".partition(f"\n{_NAMES}")
    mark, _, listed = rest.partition("\n")
    names: dict[str, str] = {}
    for record in listed.split(mark)[1:] if mark else ():
        number, _, name = record.removesuffix("\n").partition("|")
        more = f" … ({len(name) - LONGEST_NAME} more characters)" if len(name) > LONGEST_NAME else ""
        names.setdefault(number.strip(), printable(name[:LONGEST_NAME]) + more)
    return listing, names


def _number(job: Job) -> int:
    """Return the number of the job, or of the job array that it belongs to."""
    digits = re.match(r"\d+", job.id)
    return int(digits[0]) if digits else 0


def listed(jobs: Sequence[Job]) -> list[str]:
    """Return a line for each job up to MOST_LISTED, and one that counts the others."""
    more = [f"  and {len(jobs) - MOST_LISTED} more"] if len(jobs) > MOST_LISTED else []
    return [*(f"  {job.line()}" for job in jobs[:MOST_LISTED]), *more]


_ANSWERS = "scontrol ping | grep -q ' UP' || { echo 'slurmctld does not answer' >&2; exit 1; }"


def hold_line(state: str, prefix: str = "", spared: Iterable[str] = ()) -> str:
    """Return a shell line that takes all partitions that are up out of service, and then lists the jobs.

    The cluster says which partitions it has, because people make more of them with scontrol.

    Args:
        spared: The partitions that stay in service.
        state: DOWN (no job starts) or INACTIVE (nor is one accepted).
        prefix: The command prefix that gives the rights of Slurm's administrator, with a trailing space.
    """
    every = "s/^PartitionName=\\([^ ]*\\) .*/\\1/p"
    spare = shlex.quote(f" {' '.join(sorted(spared))} ")
    update = f"{prefix}scontrol update PartitionName=$name State={state}"
    # All or none, because the output of a line that fails is not read.
    undo = f"for name in $taken; do {prefix}scontrol update PartitionName=$name State=UP; done; exit 1"
    return (
        f"{_ANSWERS}; {PARTITIONS_LISTING} >/dev/null || exit 1; set -f; taken=; "
        f"for name in $({PARTITIONS_LISTING} | sed -n '{every}'); do "
        f'case {spare} in *" $name "*) continue;; esac; '
        "scontrol -o show partition $name | grep -q ' State=UP' || continue; "
        f'{update} || {{ {undo}; }}; taken="$taken $name"; echo {_HELD}$name; done; {LISTING}'
    )


def held(text: str) -> list[str]:
    """Return the partitions that `hold_line` has taken out of service, not those that were so before."""
    listing, _ = _sections(text)
    return [line.removeprefix(_HELD) for line in listing.split("\n") if line.startswith(_HELD)]


def release_line(partitions: Iterable[str], prefix: str = "") -> str:
    """Return a shell line that puts those partitions that still exist into service again.

    The line fails if Slurm does not answer.
    """
    names = shlex.join(partitions)
    return (
        f"{_ANSWERS}; for name in {names}; do scontrol -o show partition $name >/dev/null 2>&1 || continue; "
        f"{prefix}scontrol update PartitionName=$name State=UP || exit 1; done"
    )


def cancel_line(jobs: Sequence[Job], prefix: str = "") -> str:
    """Return a shell line that cancels jobs: SIGTERM at once, SIGKILL after Slurm's KillWait."""
    return f"{prefix}scancel --quiet {shlex.join(job.target for job in jobs)}"


def cancel_or_requeue_line(ended: Sequence[Job], again: Sequence[Job], prefix: str = "") -> str:
    """Return a shell line that cancels jobs and requeues others, or cancels those that may not be."""
    lines = [cancel_line(ended, prefix)] if ended else []
    for job in again:
        # One command per job: Slurm refuses a whole command if one of its jobs may not be requeued.
        queued = f"{prefix}scontrol requeue {shlex.quote(job.target)} 2>/dev/null"
        lines.append(f"{{ {queued} || {cancel_line([job], prefix)}; }}")
    return "; ".join(lines)


def wait_line(seconds: int, only: Sequence[Job] = ()) -> str:
    """Return a shell line that waits until no job has nodes, for at most `seconds`, and then lists the jobs.

    A controller that does not answer has said nothing about its jobs, so the line goes on waiting.

    Args:
        only: The jobs to wait for; empty means every job of the cluster.
    """
    look = f"squeue --noheader --all --states={','.join(HOLDING)} --format=%i 2>/dev/null"
    search = (
        shlex.join(["grep", "-qwF", *(word for job in only for word in ("-e", job.id))])
        if only
        else "grep -q ."
    )
    none = f"! printf '%s\\n' \"$holding\" | {search}"
    over = '[ "$(date +%s)" -ge "$end" ]'
    return (
        f"end=$(($(date +%s) + {seconds})); until {over}; do holding=$({look}) && {none} && break; sleep 1; "
        f"done; {LISTING}"
    )
