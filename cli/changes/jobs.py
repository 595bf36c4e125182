"""Shell lines that list, hold and cancel a cluster's jobs, and the parsing of their output. Pure.

The caller runs these lines on the cluster: over SSH on a cloud, directly for the local stack.
`ClusterControl.ask` gives all of them the environment of `node.slurm.environment`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from infra.errors import UserError
from node.logs.text import printable
from node.slurm.fields import LISTED, Kind
from node.slurm.hostlist import expand
from node.slurm.phases import Phase, holding_line, phase

MOST_LISTED = 20
MOST_NODES = 1 << 16
"""The greatest number of nodes of a job: Slurm's own for one range of a list."""
LONGEST_NAME = 200
"""The number of characters that are shown of a job's name."""
# Without --states: squeue then leaves out what has ended and nothing else, whatever flags a job has.
_SQUEUE = "squeue --noheader --all"
_MARK = "mark="


def listing(fields: Iterable[str], *options: str) -> str:
    """Return a shell line that lists jobs with these fields of `squeue --format`, for `records`."""
    wanted = "${mark}f".join(fields) + "${mark}r"
    return (
        # Users choose what is in these fields, so a mark that nobody can know separates them: it is drawn
        # here, and squeue gets it in its environment, because all users see the arguments of a command.
        "mark=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n') && [ -n \"$mark\" ] || exit; "
        f'echo {_MARK}$mark; SQUEUE_FORMAT="{wanted}" {" ".join([_SQUEUE, *options])} || exit'
    )


LISTING = listing(LISTED)
"""A shell line that lists the jobs which have not ended. It must be the last one."""
PARTITIONS_LISTING = "scontrol --all --oneliner show partition"
"""A shell line that lists all partitions, also those that people have made (`runtime.shown_partitions`)."""
KILL_WAIT_SECONDS = 30.0
"""Slurm's KillWait: how long a cancelled job has between SIGTERM and SIGKILL."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job that has not ended.

    Attributes:
        state: Slurm's word, for people. What it means is `phase`.
        partition: The partition where it runs; for a pending job all partitions in which it may start,
            separated by commas.
        nodes: The host list of its nodes; empty for a pending job.
        required: The host list of the nodes that it requires (`--nodelist`).
        again: Whether it is queued again as soon as Slurm has cleaned up its nodes.
        account: The account to which it is booked.
        qos: Its QOS.
    """

    id: str
    user: str
    partition: str
    nodes: str
    state: str
    required: str
    name: str
    again: bool = False
    account: str = ""
    qos: str = ""

    @property
    def partitions(self) -> frozenset[str]:
        return frozenset(self.partition.split(","))

    @property
    def phase(self) -> Phase:
        return phase(self.state, nodes=bool(self.nodes))

    @property
    def pending(self) -> bool:
        """Whether the job has no nodes and waits for some, or for its release."""
        return self.phase is Phase.WAITING

    @property
    def over(self) -> bool:
        """Whether the job has finished and Slurm only cleans up its nodes: nothing of it can be lost."""
        return self.phase is Phase.COMPLETING and not self.again

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
        state = f"{self.state}, then queued again," if self.again else self.state
        return f"job {self.id}{name} ({self.user}, {state} on {self.nodes or self.partition})"


_LIMIT = re.compile(r"%\d+(?=\])")
_STEPS = re.compile(r"(\d+)-(\d+):([1-9]\d*)")
_ID = re.compile(r"\d+(?:[_+][\w\[\],:%.-]+)?", re.ASCII)
_EMPTY = ("", "(null)")


def _expanded(nodes: str) -> list[str]:
    try:
        return expand(nodes, MOST_NODES)
    except ValueError:  # Slurm accepts spellings that this program does not know
        return []


def parse(text: str) -> list[Job]:
    """Return the jobs in an output of `LISTING` and other commands, in order.

    Only what comes after the mark tells which jobs there are. What comes before it belongs to other commands,
    such as those of a shell's ~/.bashrc.

    Raises:
        UnsureError: It is not sure which jobs there are: no listing is there, a record is none, or a job is
            there twice.
    """
    by_id: dict[str, Job] = {}
    for values in records(text, LISTED):
        try:
            job = _job(dict(zip(LISTED, values, strict=True)))
        except ValueError:
            raise _no_record(values) from None
        if job.id in by_id:
            raise _unsure(f"it lists job {job.id} twice")
        by_id[job.id] = job
    return sorted((job for job in by_id.values() if job.phase is not Phase.OVER), key=number)


def records(text: str, fields: Mapping[str, Kind]) -> Iterator[list[str]]:
    """Yield the values of each record in an output of `listing` and other commands.

    Raises:
        UnsureError: No listing is there, or a record is none.
    """
    _, mark, listed = _sections(text)
    if not mark:
        raise _unsure("it has not answered")
    # squeue ends every record with a line break. What comes after the last one is a shell's.
    for record in listed.split(f"{mark}r")[:-1]:
        values = record.removeprefix("\n").split(f"{mark}f")
        try:
            yield [kind.check(value) for kind, value in zip(fields.values(), values, strict=True)]
        except ValueError:
            raise _no_record(values) from None


def _no_record(values: Sequence[str]) -> UnsureError:
    return _unsure(f"this is no record of a job: {printable(' '.join(values)[:LONGEST_NAME])}")


def _is_queued_again(fields: dict[str, str]) -> bool:
    """Return whether a job that completes has been requeued: its base state is PENDING, which squeue hides.

    For such a job squeue knows no time so far (%M), and expects an end (%e) after the start (%S). A job that
    has ended at once has ended when it started.
    """
    completes = phase(fields["%T"], nodes=True) is Phase.COMPLETING
    return completes and fields["%M"] == "0:00" and fields["%S"] != fields["%e"]


class UnsureError(UserError):
    """Slurm answers, and does not say for certain which jobs there are."""


def _unsure(why: str) -> UnsureError:
    return UnsureError(
        f"squeue does not say for certain which jobs there are: {why}. No job that is not known may end, so "
        "the command stops here; run it again, and `./cluster exec -- squeue` shows what squeue says",
        code="jobs.unsure",
    )


def _job(fields: dict[str, str]) -> Job:
    """Return a record's job.

    Raises:
        ValueError: The record has no job's id.
    """
    number = fields["%i"].strip()
    if not _ID.fullmatch(number):
        raise ValueError(number)
    name = fields["%j"]
    more = f" … ({len(name) - LONGEST_NAME} more characters)" if len(name) > LONGEST_NAME else ""
    return Job(
        number,
        printable(fields["%u"]),
        printable(fields["%P"]),
        fields["%N"],
        fields["%T"],
        "" if fields["%n"] in _EMPTY else printable(fields["%n"]),
        printable(name[:LONGEST_NAME]) + more,
        _is_queued_again(fields),
        printable(fields["%a"]),
        printable(fields["%q"]),
    )


def _sections(text: str) -> tuple[str, str, str]:
    """Return what comes before the mark, the mark, and what comes after it."""
    before, _, rest = f"\n{text}".partition(f"\n{_MARK}")
    mark, _, listing = rest.partition("\n")
    return before, mark.strip("\r"), listing


def before_listing(text: str) -> str:
    """Return the part of an output that no user's text is in: what comes before the listing."""
    return _sections(text)[0]


def number(job: Job) -> int:
    """Return the number of the job, or of the job array that it belongs to."""
    digits = re.match(r"\d+", job.id)
    return int(digits[0]) if digits else 0


def listed(jobs: Sequence[Job]) -> list[str]:
    """Return a line for each job up to MOST_LISTED, and one that counts the others."""
    more = [f"  and {len(jobs) - MOST_LISTED} more"] if len(jobs) > MOST_LISTED else []
    return [*(f"  {job.line()}" for job in jobs[:MOST_LISTED]), *more]


def cancel_line(jobs: Sequence[Job], prefix: str = "") -> str:
    """Return a shell line that cancels jobs: SIGTERM at once, SIGKILL after Slurm's KillWait."""
    return f"{prefix}scancel --quiet {shlex.join(job.target for job in jobs)}"


def cancel_or_requeue_line(ended: Sequence[Job], again: Sequence[Job], prefix: str = "") -> str:
    """Return a shell line that cancels jobs and requeues others, or cancels those that may not be."""
    lines = [cancel_line(ended, prefix)] if ended else []
    # A job that is queued again already stays: requeue would refuse it, and it would be cancelled.
    for job in (job for job in again if not job.again):
        # One command per job: Slurm refuses a whole command if one of its jobs may not be requeued.
        queued = f"{prefix}scontrol requeue {shlex.quote(job.target)} 2>/dev/null"
        lines.append(f"{{ {queued} || {cancel_line([job], prefix)}; }}")
    return "; ".join(lines) or ":"


def wait_line(seconds: int, only: Sequence[Job] = ()) -> str:
    """Return a shell line that waits until no job has nodes, for at most `seconds`, and then lists the jobs.

    A controller that does not answer has said nothing about its jobs, so the line goes on waiting.

    Args:
        only: The jobs to wait for; empty means every job of the cluster.
    """
    look = f"{_SQUEUE} --format='%i|%T|%N' 2>/dev/null"
    holding = holding_line('"$jobs"')
    search = (
        shlex.join(["grep", "-qwF", *(word for job in only for word in ("-e", job.id))])
        if only
        else "grep -q ."
    )
    none = f"! printf '%s\\n' \"$holding\" | {search}"
    over = '[ "$(date +%s)" -ge "$end" ]'
    return (
        f"end=$(($(date +%s) + {seconds})); until {over}; do "
        f"jobs=$({look}) && holding=$({holding}) && {none} && break; sleep 1; done; {LISTING}"
    )
