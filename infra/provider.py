"""What every provider offers the rest of the program: one inventory, one way in, one audit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from infra.node.model import ClusterDesign

if TYPE_CHECKING:
    # Only for types: `status` and `exec` must not wait for the import of Pulumi.
    import pulumi

    from infra.benchmark import Shell


class Inventory(TypedDict):
    """What a provider's cluster came to: the same keys on every cloud."""

    login_address: pulumi.Output[str]
    controller_address: pulumi.Output[str]
    login_ssh: pulumi.Output[str]
    """The command that opens a shell on the login machine."""
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

    def prepare(self, say: Callable[[str], None]) -> None:
        """Have on the engineer's machine what `up` needs beyond Python.

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
            UserError: the cluster is not up.
        """
        ...

    def leftovers(self, project: Path, stack: str) -> list[str]:
        """What of this cluster still exists, a line each; empty after a clean destroy."""
        ...
