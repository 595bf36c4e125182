"""The termination of nodes: a resource that does nothing until a destroy, and then ends what Slurm launched.

Nodes are not Pulumi resources, and a running controller would launch more of them after the termination. So
the head depends on this resource, and this resource depends on the network, the templates and the roles. A
plain `pulumi destroy` then deletes the head first, ends the nodes, and only then deletes what the nodes need.
"""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
import pulumi_command as command

from infra.clouds import commands
from infra.clouds.commands import ClusterRef
from node.model import ClusterDesign


def terminate_on_destroy(
    name: str, module: str, design: ClusterDesign, after: Sequence[pulumi.Resource], parent: pulumi.Resource
) -> command.local.Command:
    """Declares the termination of a cluster's nodes.

    Args:
        module: The module of the provider's operations.
        after: What the nodes need. It is deleted after the termination.
    """
    arguments = ClusterRef.of(design).arguments()
    return command.local.Command(
        name,
        create="true",
        delete=commands.line(module, "sweep", design, *arguments),
        # A cluster that moves leaves nodes where it was. An update would not end those, so a move replaces
        # this.
        triggers=arguments,
        opts=pulumi.ResourceOptions(parent=parent, depends_on=list(after)),
    )
