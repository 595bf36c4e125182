"""What a baked image is made from, as a digest. On every cloud, equal recipes are one image."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pulumi

from infra import bundle, slurm_releases
from infra.config import distributions
from infra.program.mode import UNKNOWN
from node.bootstrap.vm import images
from node.bootstrap.vm.images import ImageKind
from node.design.model import ClusterDesign, Site
from node.design.sites import AwsSite, GcpSite

STEPS = (
    "apt",
    "baking",
    "drivers",
    "images",
    "lustre",
    "openpgp",
    "packages",
    "slurm_packages",
    "slurm_source",
)
"""The modules below `node/bootstrap/vm` that decide what an image holds.

Other modules do not count. A machine from an image that older code has made goes through the same steps as
any machine, and installs what is missing. So a change of other code costs no new image.
"""
DIGEST_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Recipe:
    """An image that a design needs.

    Attributes:
        digest: The digest of all that the image holds, except the image that it is built from.
    """

    kind: ImageKind
    digest: str

    def name(self, cluster: str, parent: str) -> str:
        """Return the image's name, which the content determines.

        Args:
            parent: The image that it is built from, by an id that always means the same content.
        """
        if parent.startswith(UNKNOWN):
            return f"{cluster}-{self.kind.name}-<digest>"
        both = bundle.digest(f"{self.digest} {parent}".encode())[:DIGEST_DIGITS]
        return f"{cluster}-{self.kind.name}-{both}"


def recipes(design: ClusterDesign, root: Path = bundle.ROOT) -> list[Recipe]:
    """Return the images that a design bakes."""
    if not design.image.bake:
        return []
    steps = _steps(root)
    return [Recipe(kind, _digest(design, kind, steps)) for kind in images.kinds(design)]


def slurm_release(design: ClusterDesign) -> str | None:
    """Return the release of Slurm that baked images hold; `None` if it is not known before they are made."""
    table, slurm = slurm_releases.table(), design.slurm
    if (
        slurm.packages
        or slurm.repository is not None
        or (slurm.source is None and design.image.id is not None)
    ):
        return None
    if slurm.source is not None:
        return slurm_releases.release_in(table.packages[slurm.source].version)
    package = table.package_of_suite(distributions.of(design.image.source).suite)
    return slurm_releases.release_in(package.version) if package is not None else None


def site(design: ClusterDesign) -> Site:
    """Return what a machine that becomes an image knows of its cluster, which does not exist yet."""
    region = str(design.region)
    cloud = AwsSite(region) if design.provider == "aws" else GcpSite(str(design.project), region)
    return Site("/", "slurm", "controller", "", cloud=cloud)


def images_by_member(
    built: Mapping[str, pulumi.Output[str]], design: ClusterDesign
) -> dict[str, dict[str, pulumi.Output[str]]]:
    """Return the baked images: role -> host or partition -> its image.

    Args:
        built: kind -> its image.
    """
    by_role: dict[str, dict[str, pulumi.Output[str]]] = {}
    for kind in images.kinds(design):
        if kind.name in built:
            by_role.setdefault(kind.role, {}).update(dict.fromkeys(kind.members, built[kind.name]))
    return by_role


def _digest(design: ClusterDesign, kind: ImageKind, steps: str) -> str:
    return bundle.digest(json.dumps([steps, images.content(design, kind)], sort_keys=True).encode())


def _steps(root: Path) -> str:
    folder = root / "node" / "bootstrap" / "vm"
    return bundle.digest(b"".join((folder / f"{name}.py").read_bytes() for name in STEPS))
