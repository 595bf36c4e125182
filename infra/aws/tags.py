"""The tags by which everything of a cluster is found again: by the sweep, the audit, the driver, the bill."""

from __future__ import annotations

from infra.node.elastic.drivers.ec2_names import CLUSTER, COMPUTE, PARTITION, ROLE, STACK
from infra.node.model import ClusterDesign

__all__ = ["BUCKET", "CLUSTER", "COMPUTE", "HOST", "PARTITION", "RECIPE", "ROLE", "STACK", "tags"]

HOST = "slurm-stacks:host"
"""Of a machine that lives as long as its cluster: its name in the design."""
BUCKET = "slurm-stacks:bucket"
"""Of such a machine: where it publishes its boot report, with its host keys."""

RECIPE = "slurm-stacks:recipe"
"""Of an image that was baked: the name of its recipe."""


def tags(design: ClusterDesign, name: str, **more: str) -> dict[str, str]:
    """The tags of one resource.

    Args:
        name: what the console shows.
        more: `role`, `host`, `partition`; the prefix is added.
    """
    return {
        "Name": name,
        CLUSTER: design.name,
        STACK: design.stack,
        **{f"slurm-stacks:{key}": value for key, value in more.items()},
    }


def log_group(cluster: str) -> str:
    return f"/slurm-stacks/{cluster}"


def store(cluster: str) -> str:
    """The logical name of the cluster's bucket; Pulumi adds to it what makes it the only one in the world."""
    return f"{cluster}-bucket-store"
