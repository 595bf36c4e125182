"""How the cluster's addresses are used: pure arithmetic.

A subnetwork of Google's is a whole region's, so there is one, with all of the network's addresses.
"""

from __future__ import annotations

import ipaddress

from infra.errors import UserError
from infra.node import words
from infra.node.model import ClusterDesign

TAKEN = 4
"""Addresses of a subnetwork that Google keeps."""


def cidr(design: ClusterDesign) -> str:
    """The subnetwork's addresses.

    Raises:
        UserError: not every host and node can have one.
    """
    whole = str(design.network.cidr)
    free = ipaddress.ip_network(whole).num_addresses - TAKEN - len(design.hosts)
    nodes = sum(partition.max for partition in design.partitions)
    if nodes > free:
        raise UserError(
            f"slurm-stacks:cluster.network.cidr: {whole} has {words.count(free, 'address', 'addresses')} for "
            f"nodes, and the partitions have {words.count(nodes, 'node')} at most; give a larger network, or "
            "lower nodes.max"
        )
    return whole
