"""How Compute Engine instances carry their nodes' names.

The driver, the machines and `./cluster` use this module. An instance is named after its node,
`<cluster>-<node>`, so the names need no label.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

CLUSTER = "slurm-stacks-cluster"
STACK = "slurm-stacks-stack"
ROLE = "slurm-stacks-role"
HOST = "slurm-stacks-host"
PARTITION = "slurm-stacks-partition"
TEMPLATE = "slurm-stacks-template"
"""The short name of the instance template from which an instance was made."""
SLURM = "slurm-stacks-slurm"
"""The label of a baked image: the release of Slurm that it holds."""
BUCKET = "slurm-stacks-bucket"
"""Metadata of a controller or login machine: the name of the cluster's bucket.

Whoever may see the machine finds the bucket without a list of all buckets.
"""
COMPUTE = "compute"
"""The role of the machines that the driver launches."""
NAME_LENGTH = 63
"""The largest length of an instance's or disk's name, and of a label's value."""
DIGEST = 6
"""The length of the digest that distinguishes a name that had to be changed."""


class Identity(NamedTuple):
    """One particular instance: the next instance of the same node has the same name.

    Attributes:
        zone: Its zone.
        name: Its name.
        number: Compute Engine's id of this instance.
    """

    zone: str
    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.zone}/{self.name}/{self.number}"

    @staticmethod
    def parse(text: str) -> Identity:
        """Read a machine id.

        Raises:
            ValueError: The text is no machine id.
        """
        zone, name, number = text.split("/")
        return Identity(zone, name, int(number))


def instance_of(cluster: str, node: str) -> str:
    """Return the name of a node's instance."""
    return f"{cluster}-{node}"


def node_of(cluster: str, instance: str) -> str:
    """Return the node whose instance has this name.

    Raises:
        ValueError: The instance belongs to another cluster.
    """
    prefix = f"{cluster}-"
    if not instance.startswith(prefix) or instance == prefix:
        raise ValueError(f"the instance {instance} does not belong to the cluster {cluster}")
    return instance.removeprefix(prefix)


def value(text: str) -> str:
    """Return a text in the form of a label's value: Pulumi allows capitals and dots in names of stacks."""
    return re.sub(r"[^a-z0-9_-]", "-", text.lower())[:NAME_LENGTH]


def short(link: str) -> str:
    """Return the last part of a resource's address, such as `t-compute-0` of `…/instances/t-compute-0`."""
    return link.rstrip("/").rpartition("/")[2]


def part_of(path: str, most: int) -> str:
    """Return how a directory is called in the names of its disk or file system: `data-sets` for /data/sets.

    The name has the letters, digits and hyphens of RFC 1035 and ends with a letter or digit; what comes
    before it begins with a letter. If the path has other characters or is too long, the name ends with a
    digest of the path. Otherwise it has no digest, so that a disk keeps its name: a disk of another name is
    another disk.

    Args:
        path: The directory.
        most: The largest length of the name.
    """
    plain = path.strip("/").replace("/", "-")
    if len(plain) <= most and re.fullmatch(r"([a-z0-9-]*[a-z0-9])", plain):
        return plain
    digest = hashlib.sha256(path.encode()).hexdigest()[:DIGEST]
    letters = re.sub(r"[^a-z0-9-]", "-", plain.lower())[: most - DIGEST - 1].strip("-")
    return f"{letters}-{digest}" if letters else digest


def resource_of(cluster: str, path: str, ending: str = "") -> str:
    """Return the name of a directory's disk or file system.

    Args:
        cluster: The cluster's name.
        path: The directory.
        ending: The end of the name of something that belongs to the disk or file system.
    """
    return f"{cluster}-{part_of(path, NAME_LENGTH - len(f'{cluster}-{ending}'))}{ending}"
