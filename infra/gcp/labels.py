"""The labels by which the resources of a cluster are found: by the termination of nodes, the search for
leftovers, the driver and the bill."""

from __future__ import annotations

from node.elastic.drivers.gce.names import CLUSTER, COMPUTE, HOST, PARTITION, ROLE, STACK, value
from node.model import ClusterDesign

__all__ = ["CLUSTER", "COMPUTE", "HOST", "PARTITION", "ROLE", "STACK", "labels", "value"]


def labels(design: ClusterDesign, **more: str) -> dict[str, str]:
    """The labels of one resource.

    Args:
        more: `role`, `host`, `partition`. The prefix is added.
    """
    return {
        CLUSTER: value(design.name),
        STACK: value(design.stack),
        **{f"slurm-stacks-{key}": value(text) for key, text in more.items()},
    }
