"""The CPU cores that a run's workers may use: how many there are, and whether workers share them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

LOCAL = "local."
"""The machine types of the local stack, whose nodes are all on one host."""


def mine(node: str, machine: str | None) -> dict[str, Any]:
    """This task's note for the others.

    Args:
        machine: the node's type.
    """
    host = LOCAL if machine is not None and machine.startswith(LOCAL) else node
    return {"host": host, "cores": sorted(os.sched_getaffinity(0))}


def counted(notes: Sequence[Mapping[str, Any]]) -> tuple[int, bool]:
    """How many cores the tasks have together, and whether any core is more than one task's."""
    given = [(note["host"], core) for note in notes for core in note["cores"]]
    return len(set(given)), len(set(given)) < len(given)
