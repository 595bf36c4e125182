"""Where EC2 says that instances are in its network (DescribeInstanceTopology)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from node.elastic.driver import Machine
from node.slurm.topology import Place

IDS = 100
"""The largest number of ids that a call takes. A page size may not stand beside ids."""


def places(client: Any, machines: Sequence[Machine]) -> dict[str, Place]:
    """Return node -> its network nodes, the widest first.

    Partitions share network nodes, whose ids are the account's. Nodes are left out whose instance type has no
    topology, or whose instance does not run any more.

    Raises:
        ClientError, BotoCoreError: EC2 refuses, or does not answer.
    """
    nodes = {machine.id: machine.node for machine in machines if machine.node is not None}
    ids, found = list(nodes), {}
    for first in range(0, len(ids), IDS):
        pages = client.get_paginator("describe_instance_topology").paginate(
            InstanceIds=ids[first : first + IDS]
        )
        for instance in (one for page in pages for one in page["Instances"]):
            if place := tuple(instance.get("NetworkNodes", ())):
                found[nodes[instance["InstanceId"]]] = place
    return found
