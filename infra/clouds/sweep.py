"""The sweep: a resource that does nothing until the stack is destroyed, and then ends what Slurm launched.

Nodes are no Pulumi resources, and a controller that lives launches more behind any sweep. So the head depends
on the sweep, and the sweep on network, templates and roles: a plain `pulumi destroy` takes the head first,
sweeps, and only then takes what nodes stand on.
"""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
import pulumi_command as command

from infra.clouds import operations
from infra.clouds.cloud import Place
from infra.node.model import ClusterDesign


def sweep(
    name: str, module: str, design: ClusterDesign, after: Sequence[pulumi.Resource], parent: pulumi.Resource
) -> command.local.Command:
    """Args:
    module: the provider's operations.
    after: what nodes stand on, which goes after the sweep.
    """
    place = Place.of(design).arguments()
    return command.local.Command(
        name,
        create="true",
        delete=operations.line(module, "sweep", design, *place),
        # A cluster that is made anew elsewhere leaves nodes where it was: an update would sweep nowhere.
        triggers=place,
        opts=pulumi.ResourceOptions(parent=parent, depends_on=list(after)),
    )
