"""How Google Compute Engine's instances carry their nodes' names: read alike by driver, machine and engineer.

An instance is named after its node, `<cluster>-<node>`, so no label is needed to know one from the other.
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
"""The short name of the instance template that an instance was made from."""
BUCKET = "slurm-stacks-bucket"
"""Metadata of a controller or login machine, with the name of the cluster's bucket: whoever may see the
machine knows it without a list of all buckets."""
COMPUTE = "compute"
"""The role of what the driver launches."""
NAME_LENGTH = 63
"""Characters of an instance's name, a disk's, and of a label's value, at most."""
DIGEST = 6
"""Characters by which a name that had to be changed is told from others."""


class Identity(NamedTuple):
    """An instance, and not only its name: the next one of the same node has the same name.

    Attributes:
        number: Compute Engine's own, of this one instance.
    """

    zone: str
    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.zone}/{self.name}/{self.number}"

    @staticmethod
    def parse(text: str) -> Identity:
        """Raises:
        ValueError: the text is no id of a machine.
        """
        zone, name, number = text.split("/")
        return Identity(zone, name, int(number))


def instance_of(cluster: str, node: str) -> str:
    """The name of a node's instance."""
    return f"{cluster}-{node}"


def node_of(cluster: str, instance: str) -> str:
    """The node whose instance has this name.

    Raises:
        ValueError: it is none of the cluster's.
    """
    prefix = f"{cluster}-"
    if not instance.startswith(prefix) or instance == prefix:
        raise ValueError(f"the instance {instance} is none of the cluster {cluster}")
    return instance.removeprefix(prefix)


def value(text: str) -> str:
    """A text as Google takes it in a label: Pulumi lets stacks have capitals and dots in their names."""
    return re.sub(r"[^a-z0-9_-]", "-", text.lower())[:NAME_LENGTH]


def short(link: str) -> str:
    """The last part of a resource's address, e.g. `t-compute-0` of `…/instances/t-compute-0`."""
    return link.rstrip("/").rpartition("/")[2]


def zone_of(link: str) -> str:
    """The zone in the address of a zone's resource.

    Raises:
        ValueError: it names none.
    """
    parts = link.split("/")
    return parts[parts.index("zones") + 1]


def part_of(path: str, most: int) -> str:
    """How a directory is called in the names of its disk or file system: `data-sets` of /data/sets.

    Letters, digits and hyphens of RFC 1035, a letter or digit last; what stands before it has a letter first.
    A path that is spelled otherwise has a digest of itself at the end of its name. One that is spelled so has
    none: a disk keeps its name, for one of another name is another disk.

    Args:
        most: its length.
    """
    plain = path.strip("/").replace("/", "-")
    if len(plain) <= most and re.fullmatch(r"([a-z0-9-]*[a-z0-9])", plain):
        return plain
    mark = hashlib.sha256(path.encode()).hexdigest()[:DIGEST]
    letters = re.sub(r"[^a-z0-9-]", "-", plain.lower())[: most - DIGEST - 1].strip("-")
    return f"{letters}-{mark}" if letters else mark


def resource_of(cluster: str, path: str, ending: str = "") -> str:
    """What a directory's disk or file system is called, or what it has beside it: with an ending."""
    return f"{cluster}-{part_of(path, NAME_LENGTH - len(f'{cluster}-{ending}'))}{ending}"
