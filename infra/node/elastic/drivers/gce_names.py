"""How Google Compute Engine's instances carry their nodes' names: read alike by driver, machine and engineer.

An instance is named after its node, `<cluster>-<node>`, so no label is needed to know one from the other.
"""

from __future__ import annotations

import re
from typing import NamedTuple

CLUSTER = "slurm-stacks-cluster"
STACK = "slurm-stacks-stack"
ROLE = "slurm-stacks-role"
HOST = "slurm-stacks-host"
PARTITION = "slurm-stacks-partition"
TEMPLATE = "slurm-stacks-template"
"""The short name of the instance template that an instance was made from."""
COMPUTE = "compute"
"""The role of what the driver launches."""
NAME_LENGTH = 63
"""Characters of an instance's name, and of a label's value, at most."""


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
