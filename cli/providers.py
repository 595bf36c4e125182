"""The providers by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.provider import Provider, Scheduler
from infra.program.stack import Stack
from infra.providers import check_provider

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cli.changes.jobs import Job
    from cli.clouds.listing import Listed
    from cli.clouds.provider import CloudProvider
    from cli.console.progress import Console
    from infra.config import StackConfig
    from infra.program.clusters import Cluster


def load(name: str) -> Provider:
    """The provider of that name.

    Raises:
        UserError: This version does not know the provider, or this machine cannot run it.
    """
    check_provider(name)
    if name == "local":
        from cli.local.provider import LocalProvider

        return LocalProvider()
    return cloud(name)


def cloud(name: str) -> CloudProvider:
    """The provider `aws` or `gcp`."""
    if name == "aws":
        from cli.aws.provider import AwsProvider

        return AwsProvider()
    from cli.gcp.provider import GcpProvider

    return GcpProvider()


def listed_here(cluster: Cluster) -> Listed:
    """The state of a local cluster for `./cluster list`."""
    from cli.local import listing

    return listing.listed(cluster)


def take_down_gone(cluster: Cluster, console: Console, agree: Callable[[Sequence[Job]], None]) -> None:
    """End a local cluster whose checkout is gone.

    Raises:
        UserError: Something of it is left; or the one from `agree`.
    """
    from cli.local import gone_clusters

    gone_clusters.take_down(cluster, console, agree)


def scheduler(stack: Stack, config: StackConfig | None) -> Scheduler | None:
    """The scheduler of a stack without Slurm; `None` for a Slurm cluster, and if the file has mistakes."""
    if config is None or config.cluster.scheduler == "slurm":
        return None
    from cli.aws.batch.commands import BatchCommands
    from infra.design import design
    from infra.instance_types.catalog import catalog

    return BatchCommands(stack, design(config, catalog()))


def of_cluster(stack: Stack) -> str | None:
    """The provider of the cluster that a stack has up, even if the stack file has a mistake by now.

    Returns:
        None if nothing is known to be up and the stack file names no cloud.
    """
    from cli.local.provider import LocalProvider
    from cli.runner import embedded
    from infra.config import stack_file

    if LocalProvider().leftovers(stack, dict) or embedded.has_state(stack):
        return "local"
    from cli.clouds import known_clusters

    said = stack_file.provider(stack.file)
    if said in ("aws", "gcp"):
        return said
    # Only a cluster on Google Cloud has a project.
    noted = known_clusters.read(stack)
    return ("gcp" if noted[-1].project else "aws") if noted else None
