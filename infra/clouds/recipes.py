"""What a baked image is made from, by its content: equal recipes are one image, on every cloud."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pulumi

from infra import bundle
from infra.node.bootstrap.vm import images
from infra.node.bootstrap.vm.images import ImageKind
from infra.node.model import ClusterDesign, Site
from infra.runner.mode import UNKNOWN

STEPS = ("apt", "baking", "drivers", "images", "lustre", "neuron", "nvidia", "packages", "repositories")
"""The modules below `infra/node/bootstrap/vm` that decide what an image holds.

No others: a machine from an image that older code has made goes through the same steps as any machine, and
installs what is missing. So whatever else changes costs no new image.
"""
DIGITS = 8


@dataclass(frozen=True, slots=True)
class Recipe:
    """An image that a design needs.

    Attributes:
        digest: of all that it holds, but for the image that it begins with.
    """

    kind: ImageKind
    digest: str

    def name(self, cluster: str, parent: str) -> str:
        """The image's name: another one for another content, the same for ever for the same.

        Args:
            parent: what it begins with, by an id that names one content only.
        """
        if parent.startswith(UNKNOWN):
            return f"{cluster}-{self.kind.name}-<digest>"
        both = bundle.digest(f"{self.digest} {parent}".encode())[:DIGITS]
        return f"{cluster}-{self.kind.name}-{both}"


def recipes(design: ClusterDesign, root: Path = bundle.ROOT) -> list[Recipe]:
    """The images that a design bakes; none where it bakes none."""
    if not design.image.bake:
        return []
    steps = _steps(root)
    return [Recipe(kind, _digest(design, kind, steps)) for kind in images.kinds(design)]


def site(design: ClusterDesign) -> Site:
    """What a machine that becomes an image knows of its cluster, which is not there yet."""
    known = {"region": str(design.region), **({"project": design.project} if design.project else {})}
    return Site("/", "slurm", "controller", "", driver=known)


def of_members(
    made: Mapping[str, pulumi.Output[str]], design: ClusterDesign
) -> dict[str, dict[str, pulumi.Output[str]]]:
    """Role -> host or partition -> its image.

    Args:
        made: kind -> its image.
    """
    found: dict[str, dict[str, pulumi.Output[str]]] = {}
    for kind in images.kinds(design):
        if kind.name in made:
            found.setdefault(kind.role, {}).update(dict.fromkeys(kind.members, made[kind.name]))
    return found


def _digest(design: ClusterDesign, kind: ImageKind, steps: str) -> str:
    return bundle.digest(json.dumps([steps, images.content(design, kind)], sort_keys=True).encode())


def _steps(root: Path) -> str:
    folder = root / "infra" / "node" / "bootstrap" / "vm"
    return bundle.digest(b"".join((folder / f"{name}.py").read_bytes() for name in STEPS))
