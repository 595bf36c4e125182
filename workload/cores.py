"""The CPU cores of a run's workers: how many, whether nodes share any, and how busy others keep them.

Standard library only. What other programs do on a worker's cores is told by two clocks of the kernel: how
long the cores were busy (/proc/stat), and how long for the workers. That holds whoever the others are:
another job, a node of another cluster on the same host, or a program that is no cluster's.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from workload.rendezvous import Rendezvous

TOPIC, AFTER = "cores", "cores-after"
"""The topics of the tasks' notes from before and after the training."""
LOCAL = "local."
"""The beginning of the local stack's instance types. All its nodes are on one host."""
STAT = Path("/proc/stat")
_IDLE = (3, 4)
"""The fields of a line of /proc/stat in which a core did nothing: it was idle, or waited for a disk."""
_FIELDS = 8
"""The fields that count. The time of guests, which follows, is in the others already."""


class Used(NamedTuple):
    """What a record tells of the cores.

    Attributes:
        cores: How many cores the workers have together.
        shared: Whether any core was more than one node's, at the beginning or at the end.
        others: The part of the cores' time that other programs took, 0 to 1. `None` means not known.
    """

    cores: int
    shared: bool
    others: float | None


def mine(node: str, machine: str | None) -> dict[str, Any]:
    """Return this task's note about its cores, for the other tasks. It is made before and after the training.

    Args:
        machine: The node's instance type.
    """
    host = LOCAL if machine is not None and machine.startswith(LOCAL) else node
    cores = sorted(os.sched_getaffinity(0))
    return {
        "host": host,
        "node": node,
        "cores": cores,
        "clock": time.monotonic(),
        "worked": time.process_time(),
        "busy": busy(cores),
    }


def busy(cores: Sequence[int]) -> list[float] | None:
    """Return for how many seconds each core was busy since its host started. `None` means not known."""
    seconds = {}
    try:
        tick = os.sysconf("SC_CLK_TCK")
        for line in STAT.read_text().splitlines():
            name, *fields = line.split()
            if name.startswith("cpu") and name != "cpu":
                ticks = [int(field) for field in fields[:_FIELDS]]
                seconds[int(name[3:])] = (sum(ticks) - sum(ticks[field] for field in _IDLE)) / tick
        return [seconds[core] for core in cores]
    except (OSError, ValueError, IndexError, KeyError):
        return None


def used(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]] = ()) -> Used:
    """Return what the tasks' notes from before and after the training tell together."""
    counts = [_counted(notes) for notes in (before, after) if notes]
    # A local node moves only from a core that it shares.
    moved = bool(after) and [note["cores"] for note in before] != [note["cores"] for note in after]
    shared = moved or any(shared for _, shared in counts)
    return Used(min(cores for cores, _ in counts), shared, None if moved else _others(before, after))


def _counted(notes: Sequence[Mapping[str, Any]]) -> tuple[int, bool]:
    """Return how many cores the tasks have together, and whether tasks of several nodes share any."""
    nodes: dict[tuple[str, int], set[str]] = {}
    for note in notes:
        for core in note["cores"]:
            nodes.setdefault((note["host"], core), set()).add(note["node"])
    return len(nodes), any(len(names) > 1 for names in nodes.values())


def _others(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the part of the cores' time, during the training, that was for none of the tasks."""
    pairs = list(zip(before, after, strict=False))
    spans = [late["clock"] - early["clock"] for early, late in pairs]
    if not pairs or min(spans) <= 0 or any(note["busy"] is None for pair in pairs for note in pair):
        return None
    most: dict[tuple[str, int], tuple[float, float]] = {}
    for (early, late), span in zip(pairs, spans, strict=True):
        for core, began, ended in zip(early["cores"], early["busy"], late["busy"], strict=True):
            place = (early["host"], core)
            most[place] = max(most.get(place, (0.0, 0.0)), (span, ended - began))
    worked: float = sum(late["worked"] - early["worked"] for early, late in pairs)
    available = sum(span for span, _ in most.values())
    busy = sum(spent for _, spent in most.values())
    return round(min(max((busy - worked) / available, 0.0), 1.0), 3)


def of_tasks(rendezvous: Rendezvous, size: int, limit: float) -> dict[str, Any]:
    """Return the record's values about cores, from the notes of all tasks.

    Args:
        size: The number of tasks.
        limit: Seconds to wait for their notes.
    """
    before = rendezvous.collect(TOPIC, range(size), limit, "number of cores")
    # There are none where an earlier start of the job has reported the last epoch.
    ended = rendezvous.any(AFTER)
    use = used(before, rendezvous.collect(AFTER, range(size), limit, "use of cores") if ended else ())
    return {"cores": use.cores, "cores_shared": use.shared, "cores_others": use.others}


def noted(folder: Path, machine: str | None) -> Used | None:
    """Return what the tasks of a program have noted before they became it. `None` if they noted nothing.

    Args:
        folder: The run's folder with the tasks' notes.
        machine: The nodes' instance type.
    """
    notes = []
    for file in sorted(folder.glob(f"*/{TOPIC}-*.json")):
        try:
            note = json.loads(file.read_text(encoding="utf-8"))
            notes.append({**note, "host": LOCAL} if (machine or "").startswith(LOCAL) else note)
        except (OSError, ValueError):
            continue
    return used(notes) if notes else None
