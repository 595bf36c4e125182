"""What the last lines of a user's jobs mean, for `./cluster status`: most people look into no log before it.

A job may end with exit code 0 although its script went on without what it needs, and one whose worker has
failed may run on while the others wait.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from node.logs.explanations import MOST_LINES, meanings
from node.logs.find import Cluster
from node.logs.job_output import output_files
from node.logs.sources import CLOCK_SECONDS, LogFile
from node.slurm.control import SlurmError

SECONDS = 3.0
"""How long the files may take, because the folder of a job may be on a server that is silent."""
MOST_JOBS = 20
"""The greatest number of jobs whose outputs are read, the latest."""


def remarks(cluster: Cluster) -> list[dict[str, Any]]:
    """Return what the outputs of this user's jobs mean that run, or that Slurm still knows.

    Returns:
        For each such job its `job` (the id as squeue writes it), `name`, `state` and the `text`.
    """
    entries: list[dict[str, Any]] = []
    # A thread, because nothing else ends a read that hangs. It ends with the process.
    reading = threading.Thread(target=_read, args=(cluster, entries), daemon=True)
    reading.start()
    reading.join(SECONDS)
    return list(entries)


def _read(cluster: Cluster, found: list[dict[str, Any]]) -> None:
    try:
        jobs = cluster.control.outputs_of(os.getuid())
    except (SlurmError, ValueError):
        return
    begun = {number: fields for number, fields in jobs.items() if _start(fields) is not None}
    for number, fields in sorted(begun.items())[-MOST_JOBS:]:
        for text in meanings(_lines(cluster, number, fields))[:1]:
            found.append(
                {
                    "job": _spelling(number, fields),
                    "name": fields["name"],
                    "state": fields["state"],
                    "text": text,
                }
            )


def _start(fields: Mapping[str, str]) -> float | None:
    """Return when a job began, in seconds since the epoch; `None` if it has not."""
    text = fields["starttime"]
    start = float(text) if text.isascii() and text.isdigit() else 0.0
    # squeue gives a job that waits the time at which it may start.
    return start if 0 < start <= time.time() + CLOCK_SECONDS else None


def _lines(cluster: Cluster, number: int, fields: Mapping[str, str]) -> list[str]:
    """Return the last lines that a job has written."""
    lines: list[str] = []
    for file in output_files(number, fields, last_digit=cluster.knows_last_digit(fields)):
        path, _ = cluster.place(file.path, fields["batchhost"])
        log = LogFile(file.kind, path, None, since=_start(fields), owner=file.owner)
        lines += [line.rstrip() for line in log.last(MOST_LINES)]
    return lines


def _spelling(number: int, fields: Mapping[str, str]) -> str:
    task = fields["arraytaskid"]
    return f"{fields['arrayjobid']}_{task}" if task.isdigit() else str(number)
