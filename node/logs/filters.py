"""Filters for the lines of logs: which are on a job, which on a node."""

from __future__ import annotations

import re
from collections.abc import Iterable

from node.logs.text import Wanted


def about_jobs(jobs: Iterable[int]) -> Wanted:
    """Return a filter for lines of slurmctld's log on one of these jobs: JobId=12, JobId=12_3(15)."""
    numbers = "|".join(map(str, jobs))
    pattern = re.compile(rf"JobId=(?:\d+[_+][^ (]*\()?(?:{numbers})(?!\d)")
    return lambda line: pattern.search(line) is not None


_STAMP = r"\[[^\]]*\] "


def on_node(jobs: Iterable[int]) -> Wanted:
    """Return a filter for lines of a slurmd's log on one of these jobs.

    A line counts by how slurmd begins it, so that no path or name later in it makes it another job's.
    """
    number = f"(?:{'|'.join(map(str, jobs))})"
    pattern = re.compile(
        rf"{_STAMP}(?:\[{number}\.(?:batch|extern|interactive|TaskProlog|\d+(?:\+\d+)?)\] |(?:error: )?(?:"
        rf"Launching batch job {number} for UID |launch task (?:StepId={number}\.|{number}\+)"
        rf"|\[job {number}\] "
        rf"|Could not launch job {number} |Job {number} already killed|[Jj]ob {number}: "
        # From 25.11 on: JobId=8 SLUID=s0MNM8GB930T00.
        rf"|(?:Launching batch |Could not launch )?JobId={number}(?: SLUID=\S+)?"
        r"(?:: | for UID | (?:prolog|epilog) failed | already killed| and not able to requeue)))"
    )
    return lambda line: pattern.match(line) is not None


def of_others(owner: int) -> Wanted:
    """Return a filter for lines of a slurmd's log by which another user's job began.

    slurmd logs paths and names as users wrote them, line breaks too, after which anything may follow that
    looks like a line of slurmd's. But first it logs whose job it is. So where no other user's job ran, nobody
    else has written into the log.

    Args:
        owner: The number of the user whose jobs may be there.
    """
    pattern = re.compile(
        rf"{_STAMP}(?:Launching batch (?:job \d+|JobId=\d+(?: SLUID=\S+)?) for UID (\d+)"
        r"|launch task .*?request from UID:(\d+) )"
    )

    def wanted(line: str) -> bool:
        match = pattern.match(line)
        return match is not None and int(match[1] or match[2]) != owner

    return wanted


def about_node(node: str) -> Wanted:
    """Return a filter for lines that name a node, alone or in a host list: debug-3, debug-[0-4,7]."""
    prefix, _, index = node.rpartition("-")
    pattern = re.compile(rf"(?<![\w-]){re.escape(prefix)}-(?:\[([\d,-]+)\]|(\d+))")
    number = int(index) if index.isdigit() else -1

    def within(ranges: str) -> bool:
        for part in ranges.split(","):
            first, _, last = part.partition("-")
            if first.isdigit() and int(first) <= number <= int(last if last.isdigit() else first):
                return True
        return False

    return lambda line: any(within(match[1] or match[2]) for match in pattern.finditer(line))
