"""Finds the files that a batch job writes, from what Slurm knows of it.

A user chooses the path, so it may lead to any file, and whoever reads it may be root. So a path comes with
the job's user: only a file that belongs to this user is the job's output.

Slurm's traps (docs/internals/slurm_traps.md): output-paths.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

MOST_DIGITS = 10
"""The greatest width to which Slurm pads a number."""
NO_TASK = 0xFFFFFFFE
"""What slurmd writes as the index of a task where there is none (NO_VAL)."""
NO_PATH = ("", "(null)", "N/A")
"""What squeue tells where a job has no file of its own for errors: 24.11 writes (null)."""
SYMBOL = re.compile(r"%(%|(\d*)([A-Za-z]))")


@dataclass(frozen=True, slots=True)
class Output:
    """One file of a job.

    Attributes:
        kind: "output" or "errors".
        path: The absolute path on the machines of the cluster.
        owner: The number of the job's user.
    """

    kind: str
    path: str
    owner: int


def is_batch(fields: Mapping[str, str]) -> bool:
    """Return whether a job has a script, and so files for what it prints.

    Args:
        fields: As `node.slurm.control.Control.outputs` returns them for a job.
    """
    return fields["batchflag"] not in ("0", "no", "NO")


def output_files(job: int, fields: Mapping[str, str], *, last_digit: bool = True) -> list[Output]:
    """Return a job's files, the output first.

    Args:
        fields: As for `is_batch`.
        last_digit: As for `output_path`.
    """
    user = fields["userid"]
    if not is_batch(fields) or not (user.isascii() and user.isdigit()):
        return []
    paths = (
        (kind, output_path(fields[name], job, fields, last_digit=last_digit))
        for kind, name in (("output", "stdout"), ("errors", "stderr"))
        if fields[name] not in NO_PATH
    )
    # Relative to a folder that is not known, or nothing at all.
    return [Output(kind, path, int(user)) for kind, path in paths if path.startswith("/")]


def output_path(pattern: str, job: int, fields: Mapping[str, str], *, last_digit: bool = True) -> str:
    """Return the path for a pattern of `sbatch --output`, as slurmd's fname.c makes it.

    squeue tells the pattern of a job that has one, without the job's own values. Up to 24.11 it adds the
    folder that the pattern is below.

    Args:
        pattern: The pattern, which may be relative to the job's folder.
        job: The job's number.
        fields: As for `is_batch`.
        last_digit: Whether this release fills in %b (`node.slurm.version.knows_last_digit`).

    Returns:
        The path, which is relative, or empty, only where Slurm tells neither a path nor a folder.
    """
    if fields["arraytaskid"].isdigit() and pattern == f"{fields['workdir']}/slurm-{job}.out":
        # Up to 24.05 squeue tells the default of a job that is in no array.
        return f"{fields['workdir']}/slurm-{fields['arrayjobid']}_{fields['arraytaskid']}.out"
    if not pattern or pattern.startswith("/"):
        return _filled_in(pattern, job, fields, last_digit=last_digit)
    folder = fields["workdir"]
    # A name in the pattern may begin with a slash, which makes no other folder of it.
    place = folder if folder.startswith("/") else "."
    return f"{place.rstrip('/')}/{_filled_in(pattern, job, fields, last_digit=last_digit)}"


def _filled_in(pattern: str, job: int, fields: Mapping[str, str], *, last_digit: bool) -> str:
    if "\\" in pattern:
        return pattern.replace("\\", "")
    array, task = fields["arrayjobid"], fields["arraytaskid"]
    in_array = array.isdigit() and task.isdigit()
    node = fields["batchhost"]
    index = int(task) if in_array else NO_TASK
    numbers = {"j": job, "J": job, "A": int(array) if in_array else job, "a": index, "n": 0, "t": 0}
    if in_array and last_digit:
        numbers["b"] = index % 10
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

    return SYMBOL.sub(value, pattern)


TMP = Path("/tmp")


def in_own_tmp(path: str, shared: Iterable[str]) -> Path | None:
    """Return where a file is in the /tmp of a process machine; `None` if all machines see it.

    Args:
        path: The file's absolute path on the machine.
        shared: The paths below /tmp that all machines see.
    """
    place = Path(os.path.normpath(path))
    if not place.is_relative_to(TMP) or any(place.is_relative_to(folder) for folder in shared):
        return None
    return place.relative_to(TMP)
