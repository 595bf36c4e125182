"""The labels by which all of a cluster is found again: by the sweep, the audit, the driver, the bill."""

from __future__ import annotations

from infra.node.elastic.drivers.gce_names import (
    CLUSTER,
    COMPUTE,
    HOST,
    PARTITION,
    ROLE,
    STACK,
    value,
)
from infra.node.model import ClusterDesign

__all__ = ["CLUSTER", "COMPUTE", "HOST", "PARTITION", "ROLE", "STACK", "labels", "value"]


def labels(design: ClusterDesign, **more: str) -> dict[str, str]:
    """The labels of one resource.

    Args:
        more: `role`, `host`, `partition`; the prefix is added.
    """
    return {
        CLUSTER: value(design.name),
        STACK: value(design.stack),
        **{f"slurm-stacks-{key}": value(text) for key, text in more.items()},
    }
