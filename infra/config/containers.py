"""The section `containers` of a stack file: what runs the containers of jobs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from infra.config.fields import ABSOLUTE_PATH, SHA256, Section
from node.containers.model import IMAGES


class PackageConfig(Section):
    """A Debian package that machines install, known by its hash."""

    source: str = Field(
        description="A path in this project, or an address: s3:// on AWS, gs:// on Google Cloud, https:// on "
        "both. It ends in .deb."
    )
    sha256: str = Field(pattern=SHA256, description="The SHA-256 of the file: sha256sum FILE.")


class ContainersConfig(Section):
    """Containers for jobs. Nodes and login machines get what it takes."""

    runtime: Literal["oci", "pyxis"] = Field(
        description="oci: Slurm's own `srun --container` with crun, from the distribution's packages. pyxis: "
        "`srun --container-image` with NVIDIA's Enroot and Pyxis, from the packages below or the image."
    )
    packages: list[PackageConfig] = Field(
        default_factory=list,
        description="pyxis: the packages of Enroot, and of Pyxis for the machines' release of Slurm. Empty: "
        "the image has them.",
    )
    images: str = Field(
        IMAGES,
        pattern=ABSOLUTE_PATH,
        description="pyxis: the folder of layers that were fetched. A shared one spares other nodes the "
        "download.",
    )
