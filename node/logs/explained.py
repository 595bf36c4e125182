"""Explains lines in a job's output that say too little: what they mean, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

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


def explained(outputs: Iterable[LogFile]) -> Iterator[Note]:
    """A note on what the lines of a job's outputs mean, if any of them needs one."""
    if found := meanings([line.rstrip() for log in outputs for line in log.last(MOST_LINES)]):
        yield Note("what this means", found)


def meanings(lines: list[str]) -> list[str]:
    """An explanation for each kind of line that needs one, behind the first such line."""
    found = []
    for pattern, meaning in MEANINGS:
        said = ((line, match) for line in lines if (match := pattern.search(line)) is not None)
        found += [f"{line.strip()}: {meaning.format(*match.groups())}" for line, match in said][:1]
    return found
