"""What every provider offers the rest of the program: one inventory, one way in, one audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

import pulumi

from infra.node.model import BenchmarkDesign, ClusterDesign


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


@dataclass(frozen=True, slots=True)
class Command:
    """A process to start on the engineer's machine that acts on the cluster's login machine."""

    argv: list[str]
    env: dict[str, str]
    """Added to the environment of the caller."""


class Provider(Protocol):
    """The operations of `./cluster` that differ from cloud to cloud."""

    def create(self, design: ClusterDesign, benchmark: BenchmarkDesign | None) -> ClusterComponent:
        """Declare the cluster's resources; runs inside a Pulumi program."""
        ...

    def access(self, stack: str, outputs: Mapping[str, Any], argv: Sequence[str], *, tty: bool) -> Command:
        """How to run `argv` (empty: a shell) on the login machine.

        Raises:
            infra.errors.UserError: the cluster is not up.
        """
        ...

    def leftovers(self, stack: str, design: ClusterDesign) -> list[str]:
        """What of this cluster still exists, a line each; empty after a clean destroy."""
        ...
