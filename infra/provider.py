"""What every provider offers the rest of the program: one inventory, one way in, one audit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from infra.node.model import BenchmarkDesign, ClusterDesign, Settings

if TYPE_CHECKING:
    # Only for types: `status` and `exec` must not wait for the import of Pulumi.
    import pulumi

    from infra.benchmark import Shell
    from infra.changes.jobs import Job
    from infra.changes.reach import Weighed
    from infra.changes.table import Change
    from infra.config import StackConfig
    from infra.doctor.finding import Check
    from infra.ssh.target import Target


TOOL = "slurm-stacks"
"""The cluster's own command, on its login machine."""
Outputs = Callable[[], Mapping[str, Any]]
"""Asks the engine, once, for the stack's outputs; empty: it is not up, or they cannot be had."""


class Inventory(TypedDict):
    """What a provider's cluster came to: the same keys on every cloud."""

    id: pulumi.Output[str]
    """Another one when the cluster was destroyed and made anew, and its queue with it."""
    login_address: pulumi.Output[str]
    controller_address: pulumi.Output[str]
    login_ssh: pulumi.Output[str]
    """The command that opens a shell on the login machine; with another behind it, as ssh, it runs that."""
    scheduler_version: pulumi.Output[str]
    host_keys: pulumi.Output[list[str]]
    """Public SSH host keys of the login machine; empty where it is this machine."""
    shared: pulumi.Output[str]
    """The shared folder below which benchmark runs lie."""
    sweep: pulumi.Output[dict[str, str]]
    """The ids by which a sweep finds this cluster's machines."""


class ClusterComponent(Protocol):
    """A provider's cluster: iterates the design and decides nothing about Slurm."""

    @property
    def inventory(self) -> Inventory: ...

    @property
    def head(self) -> pulumi.Resource:
        """The machine that holds the queue."""
        ...


Files = Callable[[str], Path]
"""From a path on the login machine, absolute or below the shared home folder, to where that lies here."""


@dataclass(frozen=True, slots=True)
class StackUp:
    """A stack whose cluster is up and whose file cannot be used: as much of a `StackConfig` as that needs."""

    stack: str
    provider: str
    """local | aws | gcp"""


@dataclass(frozen=True, slots=True)
class Command:
    """A process to start on the engineer's machine that acts on the cluster's login machine."""

    argv: list[str]
    env: dict[str, str]
    """Added to the environment of the caller."""


class Provider(Protocol):
    """The operations that differ from cloud to cloud.

    `create` and `shell` run inside a Pulumi program; the rest serves `./cluster`.
    """

    def prepare(self, design: ClusterDesign, say: Callable[[str], None]) -> None:
        """Have on the engineer's machine what `up` of a design needs beyond Python.

        Raises:
            UserError: it cannot be had; the message says how.
        """
        ...

    def create(self, design: ClusterDesign) -> ClusterComponent:
        """Declare the cluster's resources."""
        ...

    def shell(self, design: ClusterDesign) -> Shell:
        """How the benchmark reaches the login machine."""
        ...

    def access(
        self, project: Path, stack: str, outputs: Mapping[str, Any], argv: Sequence[str], *, tty: bool
    ) -> Command:
        """How to run `argv` (empty: a shell) on the login machine.

        Raises:
            NotUpError: the cluster is not up.
        """
        ...

    def ssh(self, project: Path, stack: str) -> Target:
        """The login machine of the cluster that is up, for OpenSSH's programs.

        Raises:
            NotUpError: the cluster is not up.
            UserError: exit 3; it has no SSH server.
        """
        ...

    def files_here(self, project: Path, stack: str) -> Files | None:
        """Where the login machine's files lie on this very machine; None: they do not.

        Raises:
            NotUpError: the cluster is not up.
        """
        ...

    def settings_here(self, project: Path, config: StackConfig | StackUp) -> Settings | None:
        """What the cluster's machines know of it, where their files lie on this very machine: its logs can be
        read without its help. None: they do not, or the cluster is not up at all."""
        ...

    def diagnose(
        self,
        project: Path,
        stack: str,
        design: ClusterDesign | None,
        training: BenchmarkDesign | None,
    ) -> Sequence[Check]:
        """What would keep `up` from working, to be looked at before anything is made (`./cluster doctor`).

        Args:
            design: None where the stack file has mistakes.
            training: None where there is none, or the stack file has mistakes.
        """
        ...

    def weigh(
        self,
        project: Path,
        stack: str,
        design: ClusterDesign,
        outputs: Outputs,
        say: Callable[[str], None],
        *,
        replace: bool,
    ) -> Weighed:
        """Before `up`: say what the design changes of a cluster that is up, and refuse what would cost jobs
        or files.

        Args:
            replace: make those changes too.

        Raises:
            UserError: exit 3; refused.
        """
        ...

    def changes(
        self, project: Path, stack: str, design: ClusterDesign
    ) -> tuple[Sequence[Change], Sequence[Job] | None] | None:
        """What `up` would change of a cluster that is up, and its jobs, for a plan.

        Returns:
            None where there is no such cluster, or the provider would have to ask a cloud. The jobs are None
            where the cluster does not answer.
        """
        ...

    def drain(
        self,
        project: Path,
        stack: str,
        outputs: Outputs,
        say: Callable[[str], None],
        agree: Callable[[Sequence[Job]], None],
    ) -> None:
        """Before a destroy: have no further job start, name those that there are, and have those that run
        end. Bounded in time; a cluster that does not answer is a sentence, and is destroyed all the same.

        Args:
            agree: told which jobs there are; raises UserError where somebody wants to keep them.

        Raises:
            UserError: `agree`'s; nothing has changed then.
        """
        ...

    def mend(self, project: Path, stack: str, say: Callable[[str], None]) -> None:
        """Start again what has died of a cluster that the engine has up; nothing to do: nothing.

        Raises:
            UserError: that is not possible; the message says what is.
        """
        ...

    def explain(self, design: ClusterDesign, since: float) -> str | None:
        """After an `up` that failed: what the machines say of it, and the engine does not know; None:
        nothing, or nobody can be asked.

        Args:
            since: when it began, in seconds since the epoch (UTC).
        """
        ...

    def clear(self, project: Path, stack: str, outputs: Outputs) -> None:
        """End and remove what is left of the cluster, without the engine.

        Args:
            outputs: of before the destroy; they say which cluster it was.

        Raises:
            UserError: something cannot be ended.
        """
        ...

    def leftovers(self, project: Path, stack: str, outputs: Outputs) -> list[str]:
        """What of this cluster still exists, a line each; empty after a clean destroy.

        Args:
            outputs: as for `clear`.
        """
        ...
