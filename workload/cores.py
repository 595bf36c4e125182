"""The CPU cores that a run's workers may use: how many there are, and whether workers share any."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

LOCAL = "local."
"""The beginning of the local stack's instance types. All its nodes are on one host."""


def mine(node: str, machine: str | None) -> dict[str, Any]:
    """Return this task's note about its cores for the other tasks.

    Args:
        machine: the node's instance type.
    """
    host = LOCAL if machine is not None and machine.startswith(LOCAL) else node
    return {"host": host, "cores": sorted(os.sched_getaffinity(0))}


def counted(notes: Sequence[Mapping[str, Any]]) -> tuple[int, bool]:
    """Return how many cores the tasks have together, and whether tasks share any core."""
    given = [(note["host"], core) for note in notes for core in note["cores"]]
    return len(set(given)), len(set(given)) < len(given)
