"""The health checks of a cluster: which it has, by its stack file and its partitions' devices. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from infra.config.cluster import ClusterConfig
from node.health.model import Health
from node.model import Partition


def health(cluster: ClusterConfig, partitions: Sequence[Partition]) -> Health | None:
    """Return the checks; `None` means that no node is checked."""
    said = cluster.health
    if not any(p.accelerator or p.efa for p in partitions) or cluster.scheduler == "batch":
        return None
    real = any(p.efa or (p.accelerator and not p.accelerator.simulated) for p in partitions)
    if not (real if said.enabled is None else said.enabled):
        return None
    made = Health(skip=tuple(said.skip))
    return made if said.interval_seconds is None else replace(made, interval_seconds=said.interval_seconds)
