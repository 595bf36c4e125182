"""The interface that every provider implements for the commands, and the choice of one by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from infra.errors import UserError
from infra.program.stack import Stack
from infra.providers import check_provider
from node.design.model import BenchmarkDesign, ClusterDesign, Settings
from operations.access import Command, Files, Inside, Outputs, StackUp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cli.changes.decision import CheckedChanges
    from cli.changes.jobs import Job
    from cli.changes.table import Change
    from cli.console.progress import Console
    from cli.findings import Check
    from cli.providers.clouds.base import CloudProvider
    from cli.providers.clouds.listing import Listed
    from infra.benchmark import Layout
    from infra.config import StackConfig
    from infra.program.clusters import Cluster
    from infra.ssh import Target


class Scheduler(Protocol):
    """The commands that differ where the scheduler is not Slurm: there is no login machine to ask."""

    def follow(self, console: Console, *, quiet: bool = False) -> dict[str, Any]:
        """Submit the stack's job, wait for it, and return its record."""
        ...

    def status(self) -> dict[str, Any]:
        """Return the status, in the form of a Slurm cluster's as far as the scheduler has the same."""
        ...

    def show_status(self, status: dict[str, Any]) -> None:
        """Print that status."""
        ...

    def logs(self, what: str | None, *, lines: int, follow: bool) -> int:
        """Print the last lines of a job's log, and return the exit status."""
        ...

    def run(self, console: Console, nodes: str | None, repeat: int | None) -> None:
        """Run the job on several numbers of nodes."""
        ...

    def cancel(self, console: Console) -> None:
        """End the jobs that have not ended."""
        ...

    def report(self) -> tuple[str, str]:
        """Return the report's page and its table."""
        ...


class Provider(Protocol):
    """The operations of `./cluster` that differ between clouds."""

    def check_host(self, design: ClusterDesign) -> None:
        """Check what the `up` of a design needs on the engineer's machine beyond Python. It installs nothing.

        Raises:
            UserError: Something is missing; the message says how to get it.
        """
        ...

    def prepare(self, design: ClusterDesign, say: Callable[[str], None]) -> None:
        """Install or make what this `up` needs on the engineer's machine, once no change is refused.

        Raises:
            UserError: Something is missing; the message says how to get it.
        """
        ...

    def layout(self, design: ClusterDesign) -> Layout:
        """Return the paths on the cluster that the benchmark needs."""
        ...

    def access(self, up: StackUp, argv: Sequence[str], *, tty: bool) -> Command:
        """Return the local command that runs `argv` on the login machine.

        Args:
            argv: The command; empty means a shell.
            tty: Whether the command gets a terminal.

        Raises:
            NotUpError: The cluster is not up.
        """
        ...

    def on_controller(self, up: StackUp, argv: Sequence[str], *, booting: bool = False) -> Command:
        """Return the local command that runs the cluster's own command on the controller, as root.

        Its standard input and output are those of the command there, byte by byte.

        Args:
            argv: The command, which begins with `TOOL`.
            booting: Whether a controller whose boot is not complete, or has failed, is one, too.

        Raises:
            NotUpError: The cluster is not up.
            UserError: Exit 3; the provider's controller is no machine of its own.
        """
        ...

    def ssh(self, up: StackUp) -> Target:
        """Return the login machine of the cluster that is up, for OpenSSH's programs.

        Raises:
            NotUpError: The cluster is not up.
            UserError: Exit 3; the login machine has no SSH server.
        """
        ...

    def files_here(self, up: StackUp) -> Files | Inside | None:
        """Where the login machine's files are on this machine; `None` if they are elsewhere.

        Raises:
            NotUpError: The cluster is not up.
        """
        ...

    def settings_here(self, up: StackUp) -> Settings | None:
        """Return the settings of a cluster whose files are on this machine: its logs need not be asked for.

        Returns:
            None if its files are elsewhere, or if the cluster is not up at all.
        """
        ...

    def make_environment(self, stack: Stack, requirements: Path) -> str:
        """Make a Python environment in the cluster's folder of shared software, and return its path there.

        Args:
            requirements: A requirements file of this machine.

        Raises:
            NotUpError: The cluster is not up.
            UserError: The file cannot be used, it was not made, or this provider makes them at `up` (exit 3).
        """
        ...

    def diagnose(
        self,
        stack: Stack,
        design: ClusterDesign | None,
        training: BenchmarkDesign | None,
    ) -> Sequence[Check]:
        """Return the checks for what would keep `up` from working (`./cluster doctor`).

        Args:
            design: `None` if the stack file has mistakes.
            training: `None` if there is no benchmark, or if the stack file has mistakes.
        """
        ...

    def check_changes(
        self,
        stack: Stack,
        design: ClusterDesign,
        outputs: Outputs,
        say: Callable[[str], None],
        *,
        replace: bool,
    ) -> CheckedChanges:
        """Before `up`, say what the design changes, and refuse what would end jobs or delete files.

        Nothing is installed and no job is ended yet, although no further job starts where some would end.

        Args:
            replace: Whether to make those changes, too.

        Raises:
            UserError: Exit 3; a change is refused.
        """
        ...

    def changes(
        self, stack: Stack, design: ClusterDesign
    ) -> tuple[Sequence[Change], Sequence[Job] | None] | None:
        """Return what `up` would change of a cluster that is up, and the cluster's jobs, for a plan.

        Returns:
            None if there is no such cluster, or if the provider would have to ask a cloud. The jobs are None
            if the cluster does not answer.
        """
        ...

    def drain(
        self,
        stack: Stack,
        outputs: Outputs,
        say: Callable[[str], None],
        agree: Callable[[Sequence[Job]], None],
    ) -> None:
        """Before a destroy, let no further job start, name the jobs, and end those that run.

        This is limited in time. A cluster that does not answer is reported and destroyed as well.

        Args:
            agree: Is called with the jobs; raises UserError if somebody wants to keep them.

        Raises:
            UserError: The one from `agree`; nothing has changed then.
        """
        ...

    def repair(self, stack: Stack, say: Callable[[str], None]) -> None:
        """Restart the parts that have died of a cluster that the engine considers to be up.

        Raises:
            UserError: That is not possible; the message says what is.
        """
        ...

    def silence(self, stack: Stack) -> UserError | None:
        """Return what its cloud knows of a cluster that does not answer: that the controller is gone, or off.

        Returns:
            None if it finds nothing wrong, or if `access` has said it.
        """
        ...

    def explain(self, design: ClusterDesign, since: float) -> str | None:
        """After an `up` that failed, what the machines report about it and the engine does not know.

        Args:
            since: When the `up` began, in seconds since the epoch (UTC).

        Returns:
            None if they report nothing or cannot be asked.
        """
        ...

    def force_cleanup(self, stack: Stack, outputs: Outputs) -> None:
        """End and remove what is left of the cluster, without the engine.

        Args:
            outputs: The outputs from before the destroy, which tell which cluster it was.

        Raises:
            UserError: Something cannot be ended.
        """
        ...

    def neighbours(self, stack: Stack) -> list[str]:
        """Return a phrase for each other cluster with nodes on the CPU cores of this stack's nodes."""
        ...

    def limits_here(self, stack: Stack, design: ClusterDesign) -> list[str]:
        """Return a sentence for whatever a cluster of this design lacks because of this machine."""
        ...

    def lost(
        self, stack: Stack, outputs: Outputs, say: Callable[[str], None], hosts: Sequence[str]
    ) -> Sequence[str] | None:
        """Return which of a cluster's hosts have lost their machines; `None` if that cannot be told.

        Args:
            outputs: As for `force_cleanup`.
            hosts: The hosts that the engine knows.
        """
        ...

    def kept(self, stack: Stack, outputs: Outputs) -> list[str]:
        """Say what stays of the storage on purpose, what it costs, and how to take it back, a line each.

        Args:
            outputs: As for `force_cleanup`.
        """
        ...

    def leftovers(self, stack: Stack, outputs: Outputs) -> list[str]:
        """One line for each thing of the cluster that still exists; empty after a clean destroy.

        Args:
            outputs: As for `force_cleanup`.
        """
        ...


def load(name: str) -> Provider:
    """Return the provider of that name.

    Raises:
        UserError: This version does not know the provider, or this machine cannot run it.
    """
    check_provider(name)
    if name == "local":
        from cli.providers.local.provider import LocalProvider

        return LocalProvider()
    return cloud(name)


def cloud(name: str) -> CloudProvider:
    """Return the provider `aws` or `gcp`."""
    if name == "aws":
        from cli.providers.aws.provider import AwsProvider

        return AwsProvider()
    from cli.providers.gcp.provider import GcpProvider

    return GcpProvider()


def listed_here(cluster: Cluster) -> Listed:
    """Return the state of a local cluster for `./cluster list`."""
    from cli.providers.local.clusters import listed

    return listed(cluster)


def take_down_gone(cluster: Cluster, console: Console, agree: Callable[[Sequence[Job]], None]) -> None:
    """End a local cluster whose checkout is gone.

    Raises:
        UserError: Something of it is left; or the one from `agree`.
    """
    from cli.providers.local import clusters as local_clusters

    local_clusters.take_down_gone(cluster, console, agree)


def scheduler(
    stack: Stack, config: StackConfig | None, cluster: ClusterDesign | None = None
) -> Scheduler | None:
    """Return the scheduler of a stack without Slurm; `None` for a Slurm cluster or a file with mistakes.

    Args:
        cluster: The design of `config`, where it is made already.
    """
    if config is None or config.cluster.scheduler == "slurm":
        return None
    from cli.providers.batch.commands import BatchCommands
    from infra.design import design
    from infra.instance_types.catalog import catalog

    return BatchCommands(stack, cluster or design(config, catalog()))


def of_cluster(stack: Stack) -> str | None:
    """Return the provider of the cluster that a stack has up, even if the stack file has a mistake by now.

    Returns:
        None if nothing is known to be up and the stack file names no cloud.
    """
    from cli.engine import embedded
    from cli.providers.local.provider import LocalProvider
    from infra.config import stack_file

    if LocalProvider().leftovers(stack, dict) or embedded.has_state(stack):
        return "local"
    from cli.providers.clouds import known_clusters

    named = stack_file.provider(stack.file, stack.project)
    if named in ("aws", "gcp"):
        return named
    # Only a cluster on Google Cloud has a project.
    noted = known_clusters.known_places(stack)
    return ("gcp" if noted[-1].project else "aws") if noted else None
