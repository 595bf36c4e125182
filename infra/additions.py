"""What the stack file adds to machines besides Slurm (containers, hooks), as lines of a plan."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TypedDict

from node import plurals
from node.model import ClusterDesign, Containers


class Addition(TypedDict):
    """One line: plain data, in a plan's JSON.

    Attributes:
        name: The key of the stack file.
    """

    name: str
    what: str


def additions(design: ClusterDesign) -> list[Addition]:
    """Return a line for containers and one for hooks, for example: docker.sh on all."""
    found = []
    if design.containers is not None:
        found.append(Addition(name="containers", what=_containers(design.containers)))
    if design.hooks:
        hooks = [f"{PurePosixPath(hook.source).name} on {hook.role}" for hook in design.hooks]
        found.append(Addition(name="hooks", what=", ".join(hooks)))
    return found


def _containers(containers: Containers) -> str:
    """Return, for example: pyxis from 3 packages, images in /fsx/enroot."""
    if containers.runtime == "oci":
        return "oci"
    count = len(containers.packages)
    source = plurals.count(count, "package") if count else "the machines' image"
    return f"{containers.runtime} from {source}, images in {containers.images}"
