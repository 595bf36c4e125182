"""What the stack file adds to machines (images, another Slurm, containers, hooks), as lines of a plan."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TypedDict

from node.design.containers import Containers
from node.design.model import ClusterDesign
from node.system import plurals

BAKE_TIME = "a quarter to half an hour"
BUILD_TIME = "about 10 minutes"
"""How long a build of Slurm takes on two cores that have nothing else to do."""


class Addition(TypedDict):
    """One line: plain data, in a plan's JSON.

    Attributes:
        name: The key of the stack file.
    """

    name: str
    what: str


def additions(design: ClusterDesign) -> list[Addition]:
    """Return a line for images, Slurm's origin, containers and hooks, for example: docker.sh on all."""
    lines = []
    if (time := bake_time(design)) is not None:
        lines.append(Addition(name="image", what=f"baked by the first up, which takes {time}"))
    if (origin := _slurm(design)) is not None:
        lines.append(Addition(name="slurm", what=origin))
    if design.containers is not None:
        lines.append(Addition(name="containers", what=_containers(design.containers)))
    if design.hooks:
        hooks = [f"{PurePosixPath(hook.source).name} on {hook.role}" for hook in design.hooks]
        lines.append(Addition(name="hooks", what=", ".join(hooks)))
    return lines


def bake_time(design: ClusterDesign) -> str | None:
    """Return how long it takes until a stack's images are made; `None` if none are."""
    if not design.image.bake:
        return None
    return f"{BAKE_TIME}, and {BUILD_TIME} more for Slurm" if design.slurm.source is not None else BAKE_TIME


def _slurm(design: ClusterDesign) -> str | None:
    """Return, for example: from 4 packages. `None` for the distribution's own Slurm."""
    settings = design.slurm
    if settings.source is not None:
        text = f"built from {settings.source}'s source package"
        return text if design.image.bake else f"{text}, which takes the first up {BUILD_TIME} more"
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
