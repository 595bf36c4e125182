"""Finds the files that a batch job writes, from what Slurm knows of it.

A user chooses the path, so it may lead to any file, and whoever reads it may be root. So a path comes with
the job's user: only a file that belongs to this user is the job's output.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

MOST_DIGITS = 10
"""The greatest width to which Slurm pads a number."""
NO_TASK = 0xFFFFFFFE
"""What slurmd writes as the index of a task where there is none (NO_VAL)."""
_SYMBOL = re.compile(r"%(%|(\d*)([A-Za-z]))")


@dataclass(frozen=True, slots=True)
class Output:
    """One file of a job.

    Attributes:
        kind: "output" or "errors".
        path: the absolute path on the machines of the cluster.
        owner: the number of the job's user.
    """

    kind: str
    path: str
    owner: int


def is_batch(fields: Mapping[str, str]) -> bool:
    """Whether a job has a script, and so files for what it prints.

    Args:
        fields: as `node.slurm.control.Control.outputs` returns them for a job.
    """
    return fields["batchflag"] not in ("0", "no", "NO")


def files(job: int, fields: Mapping[str, str]) -> list[Output]:
    """Returns a job's files, the output first.

    Args:
        fields: as for `is_batch`.
    """
    user = fields["userid"]
    if not is_batch(fields) or not (user.isascii() and user.isdigit()):
        return []
    paths = (
        (kind, path(fields[name], job, fields)) for kind, name in (("output", "stdout"), ("errors", "stderr"))
    )
    # Relative to a folder that is not known here, or nothing at all.
    return [Output(kind, found, int(user)) for kind, found in paths if found.startswith("/")]


def path(pattern: str, job: int, fields: Mapping[str, str]) -> str:
    """Returns the path for a pattern of `sbatch --output`, as slurmd's fname.c makes it.

    22.05 tells the pattern of a job that has one, without the job's own values.
    """
    if "\\" in pattern:
        return pattern.replace("\\", "")
    array, task = fields["arrayjobid"], fields["arraytaskid"]
    in_array = array.isdigit() and task.isdigit()
    node = fields["batchhost"]
    index = int(task) if in_array else NO_TASK
    numbers = {"j": job, "J": job, "A": int(array) if in_array else job, "a": index, "n": 0, "t": 0}
    if in_array:
        numbers["b"] = index % 10  # newer releases only
    words = {"u": fields["username"], "x": fields["name"], "s": "batch"}
    if node not in ("", "n/a", "(null)"):
        words["N"] = node.partition(".")[0]

    def value(match: re.Match[str]) -> str:
        width, symbol = match[2], match[3]
        if match[1] == "%":
            return "%"
        if symbol in numbers:
            return f"{numbers[symbol]:0{min(int(width or 0), MOST_DIGITS)}d}"
        return words.get(symbol, match[0])

    return _SYMBOL.sub(value, pattern)
