"""The termination of nodes: a resource that does nothing until a destroy, and then ends what Slurm launched.

Nodes are not Pulumi resources, and a running controller would launch more of them after the termination. So
the head depends on this resource, and this resource depends on the network, the templates and the roles. A
plain `pulumi destroy` then deletes the head first, ends the nodes, and only then deletes what the nodes need.

A network that is replaced goes in the same order. The termination is replaced with it, and is deleted before
it is made again. What cannot stay without it is deleted first: not what `depends_on` names, but what has a
property from it that cannot be changed, and the head has one (`behind`). The head's successor starts in the
new network when the nodes of the old one have ended, and the old subnets go last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pulumi
import pulumi_command as command

from infra.clouds import commands
from infra.clouds.commands import ClusterRef
from node.model import ClusterDesign


def terminate_on_destroy(
    name: str,
    module: str,
    design: ClusterDesign,
    network: Sequence[pulumi.Input[str]],
    after: Sequence[pulumi.Resource],
    parent: pulumi.Resource,
) -> command.local.Command:
    """Declares the termination of a cluster's nodes.

    Args:
        module: The module of the provider's operations.
        network: Ids that are others when, and only when, the network of all nodes is another one. One more
            zone must not end the nodes of the others.
        after: What the nodes need. It is deleted after the termination.
    """
    arguments = ClusterRef.of(design).arguments()
    return command.local.Command(
        name,
        create="true",
        delete=commands.line(module, "terminate-nodes", design, *arguments),
        # A cluster that moves leaves nodes where it was. An update would not end those, so a move replaces
        # this.
        triggers=[*arguments, *network],
        opts=pulumi.ResourceOptions(parent=parent, depends_on=list(after), delete_before_replace=True),
    )


def behind(base: pulumi.Resource, value: pulumi.Input[str]) -> pulumi.Output[str]:
    """The value, for a property that cannot be changed of what must be deleted before its base is.

    Such are machines, which must go before the nodes are ended, and a queue before its environment.
    """
    own: Any = pulumi.Output.from_input(value)
    reached: pulumi.Output[str] = pulumi.Output.all(own, base.urn).apply(lambda known: str(known[0]))
    return reached
