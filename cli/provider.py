"""The interface that every provider implements for the commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from infra.program.stack import Stack
from node.model import BenchmarkDesign, ClusterDesign, Settings

if TYPE_CHECKING:
    # Only for types, because `status` and `exec` must not wait for the import of Pulumi.
    from cli.changes.decision import CheckedChanges
    from cli.changes.jobs import Job
    from cli.changes.table import Change
    from cli.console.progress import Console
    from cli.doctor.finding import Check
    from infra.benchmark import Layout
    from infra.config import StackConfig
    from infra.ssh import Target


TOOL = "slurm-stacks"
"""The name of the cluster's own command on its login machine."""
Outputs = Callable[[], Mapping[str, Any]]
"""Asks the engine, once, for the stack's outputs; empty if the stack is not up or they cannot be read."""


Files = Callable[[str], Path]
"""Maps a path on the login machine, absolute or below the shared home folder, to its path on this machine."""


@dataclass(frozen=True, slots=True)
class Inside:
    """A login machine on this machine that has a root folder of its own.

    Attributes:
        enter: The beginning of a command line that runs there, in the user's home folder.
    """

    enter: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StackUp:
    """What a command needs to know of a stack whose cluster is up.

    Attributes:
        provider: local | aws | gcp
        config: The stack file; `None` where it has mistakes.
    """

    stack: Stack
    provider: str
    config: StackConfig | None = None

    @classmethod
    def of(cls, stack: Stack, config: StackConfig) -> StackUp:
        """A stack whose file has no mistakes."""
        return cls(stack, config.provider, config)


@dataclass(frozen=True, slots=True)
class Command:
    """A process to start on the engineer's machine that acts on the cluster's login machine."""

    argv: list[str]
    env: dict[str, str]
    """The variables that are added to the caller's environment."""


class Scheduler(Protocol):
    """The commands that differ where the scheduler is not Slurm: there is no login machine to ask."""

    def follow(self, console: Console, *, quiet: bool = False) -> dict[str, Any]:
        """Submit the stack's job, wait for it, and return its record."""
        ...

    def status(self) -> dict[str, Any]:
        """The status, in the form of a Slurm cluster's as far as the scheduler has the same."""
        ...

    def show_status(self, status: dict[str, Any]) -> None:
        """Print that status."""
        ...

    def logs(self, what: str | None, *, lines: int, follow: bool) -> int:
        """Print the last lines of a job's log, and return the exit status."""
        ...

    def run(self, console: Console, nodes: str | None, repeat: int | None) -> None:
        """The job on several numbers of nodes."""
        ...

    def cancel(self, console: Console) -> None:
        """End the jobs that have not ended."""
        ...

    def report(self) -> tuple[str, str]:
        """The report's page and its table."""
        ...


class Provider(Protocol):
    """The operations of `./cluster` that differ between clouds."""

    def check_host(self) -> None:
        """Check what every `up` needs on the engineer's machine beyond Python. It installs nothing.

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
        """The paths on the cluster that the benchmark needs."""
        ...

    def access(self, stack: Stack, outputs: Mapping[str, Any], argv: Sequence[str], *, tty: bool) -> Command:
        """The local command that runs `argv` on the login machine.

        Args:
            argv: The command; empty means a shell.
            tty: Whether the command gets a terminal.

        Raises:
            NotUpError: The cluster is not up.
        """
        ...

    def ssh(self, stack: Stack) -> Target:
        """The login machine of the cluster that is up, for OpenSSH's programs.

        Raises:
            NotUpError: The cluster is not up.
            UserError: Exit 3; the login machine has no SSH server.
        """
        ...

    def files_here(self, stack: Stack) -> Files | Inside | None:
        """Where the login machine's files are on this machine; `None` if they are elsewhere.

        Raises:
            NotUpError: The cluster is not up.
        """
        ...

    def settings_here(self, up: StackUp) -> Settings | None:
        """The settings of a cluster whose files are on this machine: its logs can be read without its help.

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
        """The checks for what would keep `up` from working (`./cluster doctor`).

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
        """What `up` would change of a cluster that is up, and the cluster's jobs, for a plan.

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
        """A phrase for each other cluster that has nodes on the CPU cores on which this stack's nodes run."""
        ...

    def kept(self, stack: Stack, outputs: Outputs) -> list[str]:
        """The lines that say what stays of the storage on purpose, what it costs, and how to take it back.

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
