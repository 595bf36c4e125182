"""How the local cloud behaves: a part of the design, and what its agent holds to."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LocalCloud:
    """How the local cloud behaves: its limits, and what goes wrong in it. None is no limit."""

    boot_delay: float = 0.0
    """Seconds from launch to running."""
    boot_spread: float = 0.0
    """Up to so many seconds more, another number for each machine."""
    quota_nodes: int | None = None
    """Compute machines at once; a launch beyond it fails as it would on a cloud."""
    quota_gpus: int | None = None
    """Their devices at once."""
    capacity: dict[str, int] = field(default_factory=dict)
    """Machines at once that a pool has: a partition's name, or `partition/zone`."""
    never_register: float = 0.0
    """Share of compute machines (0 to 1) that run and never become a node."""
    api_error: str | None = None
    """How calls fail: quota | capacity | placement | permission | throttled | config."""
    api_latency: float = 0.0
    """Seconds that every call takes longer."""
    list_lag: float = 0.0
    """Seconds for which a new machine is missing from the list."""
