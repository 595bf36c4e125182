"""What every provider's cluster offers a Pulumi program: one inventory, one shell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypedDict

if TYPE_CHECKING:
    # Only for types: a plain value needs no Pulumi.
    import pulumi

    from infra.benchmark import Shell


class Inventory(TypedDict):
    """What is known of a deployed cluster: the same keys for every provider.

    Attributes:
        id: An id that changes when the cluster is destroyed and made again, and its queue with it.
        login_machine: What the access mode takes for the login machine: an instance's id or name, or the id
            of a local cluster.
        login_ssh: The command that opens a shell on the login machine, or runs a command there, as ssh does.
        host_keys: Public SSH host keys of the login machine; empty if it is this machine.
        shared: The shared folder that holds benchmark runs.
    """

    id: pulumi.Output[str]
    login_address: pulumi.Output[str]
    login_machine: pulumi.Output[str]
    controller_address: pulumi.Output[str]
    login_ssh: pulumi.Output[str]
    scheduler_version: pulumi.Output[str]
    host_keys: pulumi.Output[list[str]]
    shared: pulumi.Output[str]


class ClusterComponent(Protocol):
    """A provider's cluster: it makes what the design says and decides nothing about Slurm."""

    @property
    def inventory(self) -> Inventory: ...

    @property
    def head(self) -> pulumi.Resource:
        """The machine that holds the queue."""
        ...

    @property
    def shell(self) -> Shell:
        """How the benchmark reaches the login machine."""
        ...
