"""The runs of jobs in the accounting: what sacct says of who had which nodes, when, and how much of them.

Names of users and accounts may be anything, so what is read is separated by marks that nobody can know. The
names of jobs are not read.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from node.billing.shares import Run
from node.slurm.answers import new_mark
from node.slurm.control import Slurm
from node.slurm.fields import MOST_DIGITS, RECORDED
from node.slurm.hostlist import Expander
from node.slurm.phases import surely_ran

SPARE_SECONDS = 86400.0
"""sacct takes times of the machine's own clock face; a day more on both sides needs no time zone."""
_UNITS = {"": 1.0, "K": 2.0**-10, "M": 1.0, "G": 2.0**10, "T": 2.0**20, "P": 2.0**30}
"""Unit of memory -> MiB. Slurm writes 0 without one."""
_AMOUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([KMGTP]?)")
MOST_NAMED = 3
"""How many records that are left out are named."""


def read(control: Slurm, since: float, until: float) -> tuple[list[Run], set[int]]:
    """Return the runs of jobs between two times, and perhaps others, and hashes of the records left out.

    Args:
        control: Slurm's commands.
        since: Seconds since the epoch; -infinity means all that the accounting has.
        until: Likewise.

    Raises:
        SlurmError: The accounting does not answer.
    """
    mark = new_mark()
    answer = control.run(
        "sacct",
        "--allusers",
        "--allocations",
        # A job that was queued again has a record of each run.
        "--duplicates",
        "--noheader",
        f"--starttime={_moment(since - SPARE_SECONDS)}",
        f"--endtime={_moment(until + SPARE_SECONDS)}",
        "--parsable",
        f"--delimiter={mark}",
        f"--format={','.join(RECORDED)}",
    )
    runs: list[Run] = []
    left_out: set[int] = set()
    expander = Expander()
    for values in _records(answer, mark):
        try:
            run = _run(dict(zip(RECORDED, values, strict=True)), expander)
        except ValueError as error:
            left_out.add(hash(tuple(values)))
            if len(left_out) <= MOST_NAMED:
                print(f"sacct: a record is left out: {error}", file=sys.stderr)
            continue
        if run is not None:
            runs.append(run)
    return list(_ended(runs)), left_out


def _ended(runs: Sequence[Run]) -> Iterator[Run]:
    """Yield the runs: one without an end was over when its job ran again.

    slurmdbd shows a run as RUNNING for ever if its database was killed as the run began.
    """
    starts: dict[str, list[float]] = {}
    for run in runs:
        starts.setdefault(run.job, []).append(run.start)
    for run in runs:
        later = [start for start in starts[run.job] if start > run.start] if run.end is None else []
        yield replace(run, end=min(later)) if later else run


def is_private(control: Slurm) -> bool:
    """Return whether Slurm hides jobs from users who have not submitted them.

    Raises:
        SlurmError: slurmctld does not answer.
    """
    found = re.search(r"^PrivateData\s*=\s*(\S+)", control.show_config(), re.MULTILINE)
    return found is not None and "jobs" in found[1].split(",")


def _moment(when: float) -> str:
    # The first day of 1970 is before it in some time zones.
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(max(2 * SPARE_SECONDS, when)))


def _records(answer: str, mark: str) -> Iterator[Sequence[str]]:
    """Yield the fields of each record: each field, also the last one, ends with the mark."""
    fields, width = answer.split(mark), len(RECORDED)
    for start in range(0, len(fields) - width, width):
        # A record ends with a line break, before the next one's first field.
        yield [fields[start].lstrip("\n"), *fields[start + 1 : start + width]]


def _run(fields: Mapping[str, str], expander: Expander) -> Run | None:
    """Return a record's run; `None` if it has had no nodes or has not begun.

    Raises:
        ValueError: A field is not of its kind.
    """
    for key, kind in RECORDED.items():
        kind.check(fields[key])
    start, end = _seconds(fields["start"]), _seconds(fields["end"])
    if start is None or fields["nodelist"] in ("", "None assigned"):
        return None
    nodes = expander(fields["nodelist"])
    tres = _tres(fields["alloctres"])
    each = 1.0 / len(nodes)
    return Run(
        job=fields["jobid"],
        user=fields["user"],
        account=fields["account"],
        nodes=nodes,
        start=start,
        end=end,
        cpus=tres.get("cpu", 0.0) * each,
        memory_mib=tres.get("mem", 0.0) * each,
        gres={
            name.removeprefix("gres/"): amount * each
            for name, amount in tres.items()
            if name.startswith("gres/")
        },
        surely_ran=surely_ran(fields["state"].partition(" ")[0]),
    )


def _seconds(text: str) -> float | None:
    return float(text) if re.fullmatch(rf"[0-9]{{1,{MOST_DIGITS}}}", text) else None


def _tres(text: str) -> dict[str, float]:
    """Return TRES -> amount, memory in MiB.

    Raises:
        ValueError: It is no list of them.
    """
    found: dict[str, float] = {}
    for entry in filter(None, text.split(",")):
        name, _, value = entry.partition("=")
        if (match := _AMOUNT.fullmatch(value)) is None:
            raise ValueError(f"{entry[:80]!r} is no amount of a resource")
        unit = _UNITS[match[2]] if name == "mem" else 1.0
        found[name] = float(match[1]) * unit
    return found
