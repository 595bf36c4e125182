"""The tags by which the resources of a cluster are found.

The termination of nodes, the search for leftovers, the driver and the bill use them.
"""

from __future__ import annotations

from node.design.model import ClusterDesign
from node.elastic.drivers.ec2.names import CLUSTER, COMPUTE, PARTITION, ROLE, STACK

__all__ = ["BUCKET", "CLUSTER", "COMPUTE", "HOST", "PARTITION", "RECIPE", "ROLE", "STACK", "tags"]

HOST = "slurm-stacks:host"
"""The tag of a machine that lives as long as its cluster: its name in the design."""
BUCKET = "slurm-stacks:bucket"
"""The tag of such a machine that names the bucket with its boot report, which has its host keys."""

KEPT = "slurm-stacks:keep"
"""The tag of a disk or a file system that stays after a destroy: its name in the stack file."""
SAVED = "slurm-stacks:snapshot"
"""The tag of a disk or a file system that a destroy saves, and of its snapshot or backup: likewise."""
RECIPE = "slurm-stacks:recipe"
"""The tag of a baked image: the name of its recipe."""
SLURM = "slurm-stacks:slurm"
"""The tag of a baked image: the release of Slurm that it holds."""


def tags(design: ClusterDesign, name: str, **more: str) -> dict[str, str]:
    """Return the tags of one resource: the stack file's and the cluster's own.

    Args:
        name: The name that AWS's console shows.
        more: `role`, `host`, `partition`. The prefix is added.
    """
    return {**design.tags, **identifying_tags(design, name, **more)}


def identifying_tags(design: ClusterDesign, name: str, **more: str) -> dict[str, str]:
    """Return the cluster's own tags of one resource, by which it is found: they stay when others change.

    Args:
        name: The name that AWS's console shows.
        more: `role`, `host`, `partition`. The prefix is added.
    """
    return {
        "Name": name,
        CLUSTER: design.name,
        STACK: design.stack,
        **{f"slurm-stacks:{key}": value for key, value in more.items()},
    }


def log_group(cluster: str) -> str:
    """Return the name of the cluster's log group."""
    return f"/slurm-stacks/{cluster}"


def reservation_group(cluster: str, partition: str) -> str:
    """Return the name of the group of a partition's capacity reservations."""
    return f"{cluster}-{partition}"


def store(cluster: str) -> str:
    """Return the logical name of the cluster's bucket.

    Pulumi adds characters that make it unique in the world.
    """
    return f"{cluster}-bucket-store"
