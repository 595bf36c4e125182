"""What the design says of the containers of jobs."""

from __future__ import annotations

from dataclasses import dataclass

IMAGES = "/var/cache/enroot"
"""Where a node keeps the layers of images that it fetched, unless the stack file says otherwise."""


@dataclass(frozen=True, slots=True)
class Package:
    """A Debian package that machines install, known by its hash.

    Attributes:
        source: A path in the project, or an address.
    """

    source: str
    sha256: str

    def archived(self) -> str:
        """Return where a machine finds it: its address, or its path in the node archive."""
        return self.source if "://" in self.source else f"packages/{self.sha256}.deb"


@dataclass(frozen=True, slots=True)
class Containers:
    """What runs the containers of jobs.

    Attributes:
        runtime: oci: Slurm's `--container` with crun. pyxis: `--container-image` with Enroot and Pyxis.
        packages: pyxis: the packages with Enroot and Pyxis; empty if the image has them.
        images: pyxis: the folder of layers that were fetched.
    """

    runtime: str
    packages: tuple[Package, ...] = ()
    images: str = IMAGES
