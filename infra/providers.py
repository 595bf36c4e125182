"""The cluster of a design, in a Pulumi program: a component of its provider."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from infra.errors import EXIT_REFUSED, UserError
from infra.inventory import ClusterComponent
from node.design.model import ClusterDesign

if TYPE_CHECKING:
    # Only for types: commands ask for the provider without Pulumi.
    import pulumi

    from infra.program.stand_ins import StandIns


def check_provider(name: str) -> None:
    """Refuse a provider that this version does not know, or that does not work on this machine.

    Raises:
        UserError: With exit code 3.
    """
    if name == "local" and platform.system() != "Linux":
        raise UserError(
            f"the local stack needs Linux, and this machine's system is {platform.system()}: run it in a "
            "Linux container or virtual machine, or plan one on a cloud: ./cluster plan --stack aws-cpu",
            EXIT_REFUSED,
            code="provider.needs-linux",
        )
    if name not in ("local", "aws", "gcp"):
        raise UserError(
            f"provider {name!r} is not available in this version; available: local, aws, gcp",
            EXIT_REFUSED,
            code="provider.unknown",
        )


def create_cluster(
    name: str,
    design: ClusterDesign,
    values: StandIns,
    opts: pulumi.ResourceOptions | None = None,
) -> ClusterComponent:
    """Declare the cluster's resources.

    Args:
        name: The name of the component, with which its resources' names begin.
        values: What stands in the design for values of other resources.

    Raises:
        UserError: With exit code 3; this version, or this machine, cannot make such a cluster.
    """
    check_provider(design.provider)
    # Imported only when needed, because the SDK of each cloud takes seconds.
    if design.provider == "local":
        from infra.local import create

        return create(name, design, opts)
    if design.scheduler == "batch":
        from infra.aws.batch.cluster import BatchCluster

        return BatchCluster(name, design, values, opts)
    if design.provider == "aws":
        from infra.aws.cluster import AwsCluster

        return AwsCluster(name, design, values, opts)
    from infra.gcp.cluster import GcpCluster

    return GcpCluster(name, design, values, opts)
