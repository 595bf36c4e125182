"""What a soak with accounts, QOS and preemption adds: its stack, its jobs' options, and what must hold."""

from __future__ import annotations

import os
import pwd
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tests.support.soak.journal import Journal, Task

ACCOUNTING = "accounting: true"
SLURM = f', {ACCOUNTING}, priority: {{decay_half_life: "00:10:00", calc_period: "00:01:00"}}'
"""What the section `slurm` has more."""
URGENT, LOW = "urgent", "low"
SECTIONS = """
        accounts:
          - {{name: research, shares: 50, qos: [normal, low]}}
          - {{name: interactive, shares: 25, qos: [urgent], default_qos: urgent, limits: {{max_jobs: 6}}}}
          - {{name: rest, shares: 25, qos: [low], default_qos: low, limits: {{grp_jobs: 8}}}}
        users: [{{name: {owner}, account: research, accounts: [interactive, rest]}}]
        qos:
          - {{name: urgent, priority: 100, preempts: [low], limits: {{max_jobs_per_user: 5}}}}
          - {{name: low, usage_factor: 0.5}}"""
JOBS = ((), ("--qos=low",), ("--account=interactive",), ("--account=rest",))
"""The options of jobs: research's normal and low ones, urgent ones, and the rest's, which are low."""
WEIGHTS = (2, 2, 3, 3)
CHANGE = ("shares: 50,", "shares: 60,")
"""Texts of the stack file, before and after, of a change that `up` makes in the database alone."""
DAEMONS = ("slurmdbd", "mariadbd")
"""The daemons that are there because of the accounting."""

_MADE_WAY = re.compile(
    r"^\[(?P<when>[^]]+)\] (?:\w+: )?preempted JobId=(?P<job>\d+(?:_\d+)?)\S* "
    r"(?:had to be killed|has been \w+ to reclaim resources for JobId=(?P<other>\d+(?:_\d+)?))",
    re.MULTILINE,
)
_NAME = re.compile(r"^ *(ClusterName=\S+ Account=\S+|QOS=\S+)", re.MULTILINE)
_USED = re.compile(r"\b(GrpJobs|GrpSubmitJobs)=[^( ]*\((\d+)\)")
_TRES = re.compile(r"^ *GrpTRES=(\S+)")
_COUNT = re.compile(r"([^,=]+)=[^,(]*\((\d+)\)")


def sections() -> str:
    """Return the sections of the stack file; the owner of process machines is in all accounts."""
    return SECTIONS.format(owner=pwd.getpwuid(os.getuid()).pw_name)


def options(chance: random.Random) -> tuple[str, ...]:
    """Return a random job's account and QOS as options of sbatch."""
    return chance.choices(JOBS, WEIGHTS)[0]


def is_low(task: Task) -> bool:
    return bool({"--qos=low", "--account=rest"} & set(task.options))


def is_urgent(task: Task) -> bool:
    return "--account=interactive" in task.options


@dataclass(frozen=True)
class MadeWay:
    """A line of slurmctld's log, with jobs as ids or `ID_INDEX`.

    Attributes:
        job: The job that made way.
        other: For whom; Slurm does not say it of a job that may not be queued again.
    """

    at: float
    job: str
    other: str | None


def read(log: Path) -> list[MadeWay]:
    """Return who made way, in order."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return [
        MadeWay(datetime.fromisoformat(line["when"]).timestamp(), line["job"], line["other"])
        for line in _MADE_WAY.finditer(text)
    ]


def take_in(journal: Journal, made: Sequence[MadeWay]) -> None:
    """Note on each task when it made way; one that must not have, or for whom nobody had to, is a finding.

    A task is known by its last name in Slurm, so an array's task by the array's id and its index.
    """
    known = {name: task for task in journal.tasks.values() for name in _names(task)}
    for event in made:
        task = known.get(event.job)
        if task is None:
            journal.finding(f"a job made way that is not ours: {event}")
            continue
        task.made_way.append((event.at, event.at))
        other = known.get(event.other) if event.other else None
        if not is_low(task) or (event.other and (other is None or not is_urgent(other))):
            whom = f"{other.key} {other.options}" if other else event.other
            journal.finding(f"a job made way against its QOS: {task.key} {task.options}, for {whom}")


def _names(task: Task) -> Iterator[str]:
    if task.job is not None:
        yield str(task.job)
    if task.index is not None:
        yield f"{task.array}_{task.index}"


def used(text: str) -> list[str]:
    """Return what Slurm counts against limits, from `scontrol show assoc_mgr`; nothing without a job.

    What stays counted would keep jobs waiting for ever.
    """
    found, name = [], ""
    for line in text.splitlines():
        if named := _NAME.match(line):
            name = named[1]
        counts = _USED.findall(line)
        if tres := _TRES.match(line):
            counts += _COUNT.findall(tres[1])
        found += [f"{name}: {key}={number}" for key, number in counts if number != "0"]
    return found
