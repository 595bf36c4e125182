"""The choice of a provider, by its name and the scheduler of the stack."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from cli.providers.interface import BillsJobs, HasLoginMachine, Provider, need
from infra.program.stack import Stack
from infra.providers import check_provider
from operations.access import Outputs, StackUp

if TYPE_CHECKING:
    from cli.changes.jobs import Job
    from cli.console.progress import Console
    from cli.providers.clouds.base import CloudProvider
    from cli.providers.clouds.listing import Listed
    from infra.program.clusters import Cluster


def load(name: str, scheduler: str = "slurm") -> Provider:
    """Return the provider of that name for clusters with that scheduler.

    Raises:
        UserError: This version does not know the provider, or this machine cannot run it.
    """
    check_provider(name)
    if name == "local":
        from cli.providers.local.provider import LocalProvider

        return LocalProvider()
    if scheduler == "batch":
        from cli.providers.batch.provider import BatchProvider

        return BatchProvider()
    return cloud(name)


def of(up: StackUp) -> Provider:
    """Return the provider of a stack.

    Raises:
        UserError: As for `load`.
    """
    return load(up.provider, up.scheduler)


def machine(up: StackUp, asked: str) -> HasLoginMachine:
    """Return the provider of a stack, for a command that needs a login machine.

    Args:
        asked: The command.

    Raises:
        UserError: As for `load`; or exit 3, there is no login machine.
    """
    return need(of(up), HasLoginMachine, up, asked)


def biller(up: StackUp, asked: str) -> BillsJobs:
    """Return the provider of a stack, for a command that needs to know what jobs have cost.

    Args:
        asked: The command.

    Raises:
        UserError: As for `load`; or exit 3, nothing tells which job had which machine.
    """
    return need(of(up), BillsJobs, up, asked)


def of_what_is_up(up: StackUp, outputs: Outputs) -> Provider:
    """Return the provider of the cluster that is up, whose scheduler may be another one than the file's."""
    if up.provider != "aws":
        return of(up)
    cluster = outputs().get("cluster")
    scheduler = cluster.get("scheduler") if isinstance(cluster, Mapping) else None
    named = scheduler.get("name") if isinstance(scheduler, Mapping) else up.scheduler
    return load(up.provider, str(named))


def cloud(name: str) -> CloudProvider:
    """Return the provider `aws` or `gcp`."""
    if name == "aws":
        from cli.providers.aws.provider import AwsProvider

        return AwsProvider()
    from cli.providers.gcp.provider import GcpProvider

    return GcpProvider()


def listed_here(cluster: Cluster) -> Listed:
    """Return the state of a local cluster for `./cluster list`."""
    from cli.providers.local.listed import listed

    return listed(cluster)


def take_down_gone(cluster: Cluster, console: Console, agree: Callable[[Sequence[Job]], None]) -> None:
    """End a local cluster whose checkout is gone.

    Raises:
        UserError: Something of it is left; or the one from `agree`.
    """
    from cli.providers.local import clusters as local_clusters

    local_clusters.take_down_gone(cluster, console, agree)


def of_cluster(stack: Stack) -> str | None:
    """Return the provider of the cluster that a stack has up, even if the stack file has a mistake by now.

    Returns:
        None if nothing is known to be up and the stack file names no cloud.
    """
    from cli.engine.state import has_state
    from cli.providers.local.provider import LocalProvider
    from infra.config import stack_file

    if LocalProvider().leftovers(StackUp(stack, "local"), dict) or has_state(stack):
        return "local"
    from cli.providers.clouds import known_clusters

    named = stack_file.provider(stack.file, stack.project)
    if named in ("aws", "gcp"):
        return named
    # Only a cluster on Google Cloud has a project.
    noted = known_clusters.known_places(stack)
    return ("gcp" if noted[-1].project else "aws") if noted else None
