"""What every provider does for the commands, and what only some can: a class names its capabilities as bases.

A command that goes without a capability where it is missing asks with `isinstance`. One that cannot go
without it calls `need`, which refuses in the provider's own words.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from infra.errors import UserError

if TYPE_CHECKING:
    from cli.changes.decision import CheckedChanges
    from cli.changes.jobs import Job
    from cli.changes.table import Change
    from cli.console.progress import Console
    from cli.findings import Check
    from infra.benchmark import Layout
    from infra.program.stack import Stack
    from infra.ssh import Target
    from node.design.model import BenchmarkDesign, ClusterDesign, Settings
    from operations.access import Command, Files, Inside, Outputs, StackUp

C = TypeVar("C")
Lacks = Mapping[type, "Callable[[StackUp, str], UserError]"]
"""A capability that a command needs and a provider lacks -> the answer, which says what to do instead.

The answer gets the stack, and what was asked for: the command, or the file that it was given.
"""


@dataclass(frozen=True, slots=True)
class Runs:
    """What `./cluster run` was asked for; all is None if it continues what is under way.

    Attributes:
        nodes: Numbers of nodes, as in `1,2,4`.
        repeat: How often each combination runs.
        partitions: Names of partitions, as in `cpu,gpu`. None: that of the benchmark.
        gpus: Numbers of GPUs a node, as in `1,2`. None: the benchmark's, or all of a node's.
    """

    nodes: str | None = None
    repeat: int | None = None
    partitions: str | None = None
    gpus: str | None = None


class Provider(abc.ABC):
    """The operations of `./cluster` that every provider has, each in its way."""

    LACKS: ClassVar[Lacks] = {}

    @abc.abstractmethod
    def check_host(self, design: ClusterDesign) -> None:
        """Check what the `up` of a design needs on the engineer's machine beyond Python. It installs nothing.

        Raises:
            UserError: Something is missing; the message says how to get it.
        """

    @abc.abstractmethod
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

    @abc.abstractmethod
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

    @abc.abstractmethod
    def repair(self, up: StackUp, say: Callable[[str], None]) -> None:
        """Restart the parts that have died of a cluster that the engine considers to be up.

        Raises:
            UserError: That is not possible; the message says what is.
        """

    @abc.abstractmethod
    def drain(
        self,
        up: StackUp,
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

    @abc.abstractmethod
    def force_cleanup(self, up: StackUp, outputs: Outputs) -> None:
        """End and remove what is left of the cluster, without the engine.

        Args:
            outputs: The outputs from before the destroy, which tell which cluster it was.

        Raises:
            UserError: Something cannot be ended.
        """

    @abc.abstractmethod
    def leftovers(self, up: StackUp, outputs: Outputs) -> list[str]:
        """One line for each thing of the cluster that still exists; empty after a clean destroy.

        Args:
            outputs: As for `force_cleanup`.
        """

    # --- the scheduler's commands: Slurm's are in cli.providers.slurm ----------------------------------

    @abc.abstractmethod
    def status(self, up: StackUp) -> dict[str, Any]:
        """Return the status contract (`./cluster status --json`) from the cluster itself.

        Raises:
            UserError: The cluster is not up or does not answer; the message says which part, and where to
                look.
        """

    @abc.abstractmethod
    def show_status(self, up: StackUp, status: dict[str, Any]) -> None:
        """Print that status as tables."""

    @abc.abstractmethod
    def logs(self, up: StackUp, what: str | None, *, lines: int, follow: bool) -> int:
        """Print the last lines of the logs that are asked for, and return the exit status.

        Args:
            what: A job's id, or what else has logs; `None` means what a user sees first.
            lines: The number of lines of each log.
            follow: Whether to go on as the logs grow.
        """

    @abc.abstractmethod
    def follow(
        self,
        up: StackUp,
        training: BenchmarkDesign | None,
        console: Console,
        *,
        outputs: Mapping[str, Any],
        quiet: bool,
    ) -> dict[str, Any] | None:
        """Wait for the result of the stack's own job, print and keep it; `None` if there is no own result.

        Args:
            training: The benchmark; `None` if the stack has none.
            outputs: The stack's outputs.
            quiet: Whether to print nothing on standard output.

        Raises:
            UserError: The job ended without a result; or the user does not wait any longer (exit 130).
        """

    @abc.abstractmethod
    def run(self, up: StackUp, console: Console, asked: Runs) -> None:
        """Run the stack's own job on several numbers of nodes, up to the report.

        Raises:
            UserError: A run has no result, the arguments are wrong, or the user interrupted it.
        """

    @abc.abstractmethod
    def cancel(self, up: StackUp, console: Console) -> None:
        """End those runs that have not ended. Results that have arrived are kept."""


class HasLoginMachine(abc.ABC):
    """There is a machine to log in to, which has Slurm's commands and the cluster's own."""

    @abc.abstractmethod
    def access(self, up: StackUp, argv: Sequence[str], *, tty: bool) -> Command:
        """Return the local command that runs `argv` on the login machine.

        Args:
            argv: The command; empty means a shell.
            tty: Whether the command gets a terminal.

        Raises:
            NotUpError: The cluster is not up.
        """

    @abc.abstractmethod
    def ssh(self, up: StackUp) -> Target:
        """Return the login machine of the cluster that is up, for OpenSSH's programs.

        Raises:
            NotUpError: The cluster is not up.
            UserError: Exit 3; the login machine has no SSH server.
        """

    @abc.abstractmethod
    def layout(self, design: ClusterDesign) -> Layout:
        """Return the paths on the cluster that the benchmark needs."""


class HasController(abc.ABC):
    """The controller may be asked as root: for backups of Slurm's state."""

    @abc.abstractmethod
    def on_controller(self, up: StackUp, argv: Sequence[str], *, booting: bool = False) -> Command:
        """Return the local command that runs the cluster's own command on the controller, as root.

        Its standard input and output are those of the command there, byte by byte.

        Args:
            argv: The command, which begins with `TOOL`.
            booting: Whether a controller whose boot is not complete, or has failed, is one, too.

        Raises:
            NotUpError: The cluster is not up.
            UserError: Exit 3; the controller is no machine of its own.
        """


class BillsJobs(abc.ABC):
    """The cluster knows which jobs its machines were for, and so what each user has cost."""

    @abc.abstractmethod
    def bill(self, up: StackUp, by: str | None, since: float | None, until: float | None) -> dict[str, Any]:
        """Return what was spent in a period (`./cluster cost --json`).

        Args:
            by: user, account, partition, pool or job; `None` means what the cluster can.
            since: Seconds since the epoch; `None` means from the cluster's beginning.
            until: Likewise; `None` means now.

        Raises:
            NotUpError: The cluster is not up.
            UserError: It cannot tell; the message says what it lacks, or which part does not answer.
        """


class HasFilesHere(abc.ABC):
    """The cluster's files are on this machine: they are copied and read without a connection."""

    @abc.abstractmethod
    def files_here(self, up: StackUp) -> Files | Inside:
        """Where the login machine's files are on this machine.

        Raises:
            NotUpError: The cluster is not up.
        """

    @abc.abstractmethod
    def settings_here(self, up: StackUp) -> Settings | None:
        """Return the settings of the cluster; `None` if it is not up at all."""


class MakesEnvironments(abc.ABC):
    """The engineer's machine makes Python environments for the cluster."""

    @abc.abstractmethod
    def make_environment(self, stack: Stack, requirements: Path) -> str:
        """Make a Python environment in the cluster's folder of shared software, and return its path there.

        Args:
            requirements: A requirements file of this machine.

        Raises:
            NotUpError: The cluster is not up.
            UserError: The file cannot be used, or the environment was not made.
        """


class InstallsHere(abc.ABC):
    """The machines are on this one, which needs programs for them."""

    @abc.abstractmethod
    def prepare(self, design: ClusterDesign, say: Callable[[str], None]) -> None:
        """Install or make what this `up` needs on the engineer's machine, once no change is refused.

        Raises:
            UserError: Something is missing; the message says how to get it.
        """


class SharesCores(abc.ABC):
    """The nodes have this machine's CPU cores, and its limits."""

    @abc.abstractmethod
    def neighbours(self, stack: Stack) -> list[str]:
        """Return a phrase for each other cluster with nodes on the CPU cores of this stack's nodes."""

    @abc.abstractmethod
    def limits_here(self, stack: Stack, design: ClusterDesign) -> list[str]:
        """Return a sentence for whatever a cluster of this design lacks because of this machine."""


class PlansChanges(abc.ABC):
    """A plan may ask the cluster that is up, because no cloud has to be asked for it."""

    @abc.abstractmethod
    def changes(
        self, stack: Stack, design: ClusterDesign
    ) -> tuple[Sequence[Change], Sequence[Job] | None] | None:
        """Return what `up` would change of a cluster that is up, and the cluster's jobs, for a plan.

        Returns:
            None if there is no such cluster. The jobs are None if the cluster does not answer.
        """


class KnowsMachines(abc.ABC):
    """A cloud tells what has become of the machines of a cluster that does not answer."""

    @abc.abstractmethod
    def silence(self, up: StackUp) -> UserError | None:
        """Return what is known of a cluster that does not answer: that the controller is gone, or off.

        Returns:
            None if nothing is wrong.
        """

    @abc.abstractmethod
    def lost(
        self, up: StackUp, outputs: Outputs, say: Callable[[str], None], hosts: Sequence[str]
    ) -> Sequence[str] | None:
        """Return which of a cluster's hosts have lost their machines; `None` if that cannot be told.

        Args:
            outputs: As for `Provider.force_cleanup`.
            hosts: The hosts that the engine knows.
        """


class KeepsStorage(abc.ABC):
    """Storage may stay on purpose when its cluster goes."""

    @abc.abstractmethod
    def kept(self, up: StackUp, outputs: Outputs) -> list[str]:
        """Say what stays of the storage on purpose, what it costs, and how to take it back, a line each.

        Args:
            outputs: As for `Provider.force_cleanup`.
        """


class ExplainsFailures(abc.ABC):
    """The cloud has more to say of an `up` that failed than the engine passes on."""

    @abc.abstractmethod
    def explain(self, design: ClusterDesign, since: float) -> str | None:
        """After an `up` that failed, what the machines report about it and the engine does not know.

        Args:
            since: When the `up` began, in seconds since the epoch (UTC).

        Returns:
            None if they report nothing or cannot be asked.
        """


class HasOwnReport(abc.ABC):
    """Its jobs measure something else than the benchmark, so that their report is another one."""

    @abc.abstractmethod
    def report(self, stack: str, *, alone: bool) -> tuple[str, str]:
        """Return the page and the table of a stack's results.

        Args:
            alone: Whether no other stack is asked for.

        Raises:
            UserError: Exit 2; there are other stacks beside it.
        """


class ChecksItsEnd(abc.ABC):
    """What `up` with another scheduler ends of its clusters, only this provider can tell."""

    @abc.abstractmethod
    def check_end(self, design: ClusterDesign, outputs: Outputs) -> None:
        """Refuse a design that would delete files or end jobs of the cluster that is up.

        Raises:
            UserError: Exit 3; the message names each, and what to do.
        """


def need(chosen: Provider, capability: type[C], up: StackUp, asked: str) -> C:
    """Return the provider, which has the capability.

    Args:
        asked: What was asked for: the command, or the file that it was given.

    Raises:
        UserError: It has not.
    """
    if isinstance(chosen, capability):
        return chosen
    raise chosen.LACKS[capability](up, asked)
