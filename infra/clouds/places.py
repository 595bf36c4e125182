"""Which clusters a stack of this checkout has made and not yet seen the end of.

The engine's outputs go with the stack, come only from an `up` that ended well, and name one cluster; the
stack file may name another by now. What is left of a cluster must still be found by the next `down`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path

from infra.clouds.cloud import Place
from infra.runner import folders, locations

NAME = "clusters.json"


def read(project: Path, stack: str) -> list[Place]:
    """In the order in which they were noted; what cannot be read is none."""
    try:
        found = json.loads((locations.state_dir(project, stack) / NAME).read_text(encoding="utf-8"))
        return [Place(**fields) for fields in found]
    except (OSError, ValueError, TypeError):
        return []


def note(project: Path, stack: str, place: Place) -> None:
    """Before anything is made of it, or asked."""
    there = read(project, stack)
    if place in there:
        return
    file = folders.make_state_dir(project, stack) / NAME
    draft = file.with_name(f".{NAME}.new")
    draft.write_text(json.dumps([dataclasses.asdict(one) for one in (*there, place)]), encoding="utf-8")
    draft.replace(file)


def forget(project: Path, stack: str) -> None:
    """Nothing is left of any."""
    with contextlib.suppress(FileNotFoundError):
        (locations.state_dir(project, stack) / NAME).unlink()
