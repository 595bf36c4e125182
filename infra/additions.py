"""What the stack file adds to machines (another Slurm, containers, hooks), as lines of a plan."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TypedDict

from node import plurals
from node.model import ClusterDesign, Containers, SlurmSettings

BUILD_MINUTES = "about 10 minutes more"
"""How long a build of Slurm takes on two cores that have nothing else to do."""


class Addition(TypedDict):
    """One line: plain data, in a plan's JSON.

    Attributes:
        name: The key of the stack file.
    """

    name: str
    what: str


def additions(design: ClusterDesign) -> list[Addition]:
    """Return a line for Slurm's origin, for containers and for hooks, for example: docker.sh on all."""
    found = []
    if (origin := _slurm(design.slurm)) is not None:
        found.append(Addition(name="slurm", what=origin))
    if design.containers is not None:
        found.append(Addition(name="containers", what=_containers(design.containers)))
    if design.hooks:
        hooks = [f"{PurePosixPath(hook.source).name} on {hook.role}" for hook in design.hooks]
        found.append(Addition(name="hooks", what=", ".join(hooks)))
    return found


def _slurm(settings: SlurmSettings) -> str | None:
    """Return, for example: from 4 packages. `None` for the distribution's own Slurm."""
    if settings.source is not None:
        return f"built from {settings.source}'s source package, which takes the first up {BUILD_MINUTES}"
    if settings.repository is not None:
        return f"from {settings.repository.url} {settings.repository.suite}"
    return f"from {plurals.count(len(settings.packages), 'package')}" if settings.packages else None


def _containers(containers: Containers) -> str:
    """Return, for example: pyxis from 3 packages, images in /fsx/enroot."""
    if containers.runtime == "oci":
        return "oci"
    count = len(containers.packages)
    source = plurals.count(count, "package") if count else "the machines' image"
    return f"{containers.runtime} from {source}, images in {containers.images}"
