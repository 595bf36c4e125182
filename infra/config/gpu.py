"""The section `gpu` of a stack file: what nodes with NVIDIA's GPUs get besides the driver."""

from __future__ import annotations

from pydantic import Field

from infra.config.containers import PackageConfig
from infra.config.fields import Section


class GdrcopyConfig(Section):
    """GDRCopy, by which programs copy small messages to and from GPUs with little delay."""

    packages: list[PackageConfig] = Field(
        min_length=1,
        description="NVIDIA's packages gdrdrv-dkms and libgdrapi for Ubuntu 24.04, which have no published "
        "checksums; gdrcopy-tests and gdrcopy if you like.",
    )


class GpuConfig(Section):
    """What nodes with NVIDIA's GPUs get besides the driver."""

    gdrcopy: GdrcopyConfig | None = Field(None, description="GDRCopy; null: none.")
