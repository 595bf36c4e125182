"""Explains lines in a job's output that say too little: what they mean, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from node.logs.sources import LogFile, Note

MOST_LINES = 400
"""The last lines of an output that are looked through."""
PAGE = 'docs/own_training.md, "Scripts from elsewhere"'
MEANINGS = (
    (
        re.compile(r": (source|\[\[|declare|shopt|pushd|popd): not found$"),
        "dash, which is /bin/sh on Debian and Ubuntu, has no {0}, and the script went on without what it "
        f"should have done: let it begin with #!/bin/bash ({PAGE})",
    ),
    (
        re.compile(r"conda: (?:command )?not found$|CondaError: Run 'conda init'"),
        "a job's shell does not know conda, because ~/.bashrc ends early where nobody types: write "
        f". ~/miniforge3/etc/profile.d/conda.sh before conda activate ({PAGE})",
    ),
)
"""A line -> what it means; {0} is its first group."""
OF_SLURMD = (
    (
        re.compile(r"Could not open (stdout|stderr|stdin) file "),
        "the folder of --output, --error or --input is not on the node, or its user may not write there: "
        "Slurm makes no folders, so make it before the job starts, on the shared disk",
    ),
    (
        re.compile(r"couldn't chdir to "),
        "the folder that the job was submitted from, or --chdir, is not on the node, so the job ran in /tmp: "
        "submit from the shared folder, or name a folder there",
    ),
    (
        re.compile(r"execve\(\): bad interpreter\("),
        "the first line of the job's script names a program that is not on the node",
    ),
    (
        re.compile(r"execve\(\): (?!bad interpreter)"),
        "the program is not on the node, or may not be executed",
    ),
    (
        re.compile(r"\] prolog failed status="),
        "the prolog of jobs failed on the node, which is then replaced: `logs NODE` has what it printed",
    ),
    (
        re.compile(r"(uid|user) \S+ not found|[Uu]nable to (find|look up) (user|uid)|Invalid user id"),
        "the job's user is not known on the node",
    ),
)
"""A line of slurmd's on a job -> what it means."""


def explained(outputs: Iterable[LogFile]) -> Iterator[Note]:
    """A note on what the lines of a job's outputs mean, if any of them needs one."""
    if found := meanings([line.rstrip() for log in outputs for line in log.last(MOST_LINES)]):
        yield Note("what this means", found)


def started_wrongly(log: LogFile) -> Iterator[Note]:
    """A note on what a slurmd's lines on a job mean, if any of them needs one."""
    if found := meanings(log.last(MOST_LINES), OF_SLURMD):
        yield Note("what this means", found)


def meanings(lines: list[str], known: Sequence[tuple[re.Pattern[str], str]] = MEANINGS) -> list[str]:
    """An explanation for each kind of line that needs one, behind the first such line."""
    found: list[str] = []
    for pattern, meaning in known:
        said = ((line, match) for line in lines if (match := pattern.search(line)) is not None)
        found += [f"{line.strip()}: {meaning.format(*match.groups())}" for line, match in said][:1]
    return found
