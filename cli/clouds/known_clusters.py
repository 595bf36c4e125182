"""The clusters that a stack of this checkout has made and that may still exist.

The next `down` must find what is left of each of them. The engine's outputs are not enough: they are deleted
with the stack, exist only after an `up` that succeeded, and name one cluster. The stack file may name another
one by now.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json

from infra.clouds.commands import ClusterRef
from infra.program import folders, locations
from infra.program.files import write_atomically
from infra.program.stack import Stack

NAME = "clusters.json"


def read(stack: Stack) -> list[ClusterRef]:
    """The clusters in the order in which they were noted; empty if the file cannot be read."""
    try:
        found = json.loads((locations.state_dir(stack) / NAME).read_text(encoding="utf-8"))
        return [ClusterRef(**fields) for fields in found]
    except (OSError, ValueError, TypeError, RecursionError):
        return []


def note(stack: Stack, place: ClusterRef) -> None:
    """Note a cluster, before anything of it is made or asked for."""
    there = read(stack)
    if place in there:
        return
    file = folders.make_state_dir(stack) / NAME
    write_atomically(file, json.dumps([dataclasses.asdict(one) for one in (*there, place)]))


def forget(stack: Stack) -> None:
    """Forget all clusters, once nothing of them is left."""
    with contextlib.suppress(FileNotFoundError):
        (locations.state_dir(stack) / NAME).unlink()
