"""The section `partitions[].gcp` of a stack file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from infra.config.fields import CPU_PLATFORM, Name, Section


class GcpPartition(Section):
    """Settings of a partition that only Google Cloud has."""

    secure_boot: bool = Field(False, description="Shielded VM with Secure Boot: signed kernel modules only.")
    placement_policy: Name | None = Field(
        None,
        description="Name of the placement policy that the partition's reservation was made with. Its nodes "
        "are then as close together as the reserved machines.",
    )
    disk_type: Literal["pd-standard", "pd-balanced", "pd-ssd"] | None = Field(
        None, description="Type of a node's root disk; pd-balanced by default."
    )
    min_cpu_platform: str | None = Field(
        None,
        pattern=CPU_PLATFORM,
        description='The oldest processors that a node may have, e.g. "Intel Skylake" on N1, '
        '"Intel Ice Lake" on N2; null: what the zone has free.',
    )
