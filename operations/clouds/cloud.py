"""The interface of a cloud: a cluster's machines, its bucket, and SSH access to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from infra.clouds.commands import ClusterRef
from infra.program.launcher import Run
from node.design.model import Access
from operations.clouds.kept import KeptStorage

ALIVE = ("pending", "running", "stopping", "stopped")
ENDING = ("ending",)


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of a cluster, as its cloud lists it.

    Attributes:
        id: The identifier that the cloud's own commands take.
        name: The host's or node's name; the id where the machine has no name label.
        state: pending | running | stopping | stopped (it can be started again) | ending.
        launched: When it last started, in seconds since the epoch (UTC).
        private: The private address.
        public: The public address; `None` means that it has none.
        bucket: The bucket in which it publishes its boot report; `None` for nodes.
        stack: The label with the name of its stack; `None` if it has none.
    """

    id: str
    name: str
    role: str
    state: str
    launched: float
    private: str | None
    public: str | None
    bucket: str | None
    zone: str | None = None
    stack: str | None = None

    def ssh_host(self, access: Access) -> str:
        """Return the host name for `ssh`: an address, or the id, which other modes' ProxyCommand takes."""
        return (self.public or self.private or self.id) if access.mode == "ssh" else self.id


@dataclass(frozen=True, slots=True)
class TaggedMachine:
    """A machine with the tag of a cluster.

    Attributes:
        running: Whether it runs and costs; a stopped machine is False.
        launched: When it last started, in seconds since the epoch.
    """

    cluster: str
    stack: str | None
    node: bool
    running: bool
    instance_type: str
    launched: float
    accelerator: tuple[str, int] | None = None


class Cloud(Protocol):
    """One cluster of a cloud, asked with the engineer's own credentials.

    No method looks for credentials before it needs them. Every method raises UserError with one message if
    there are no credentials (exit 3), if the cloud refuses (exit 3), or if it does not answer.
    """

    @property
    def place(self) -> ClusterRef: ...

    @property
    def label(self) -> str:
        """The name of the cloud's machine service for sentences, such as EC2."""
        ...

    def label_of(self, text: str) -> str:
        """Return a text in the form in which the cloud's labels hold it."""
        ...

    def machines(self, *states: str, **labels: str) -> list[Machine]:
        """Return the cluster's machines, from every page of the list.

        Args:
            states: Values of `Machine.state`; without any, machines in every state, also terminated ones.
            labels: Values of further labels: `role`, `host`.
        """
        ...

    def start(self, machines: Sequence[Machine]) -> None:
        """Start stopped machines, without waiting."""
        ...

    def end(self, machines: Sequence[Machine]) -> None:
        """Terminate machines in as few calls as possible, without waiting."""
        ...

    def remove_loose(self) -> None:
        """Remove disks and network interfaces that nodes left behind: they block the network's deletion."""
        ...

    def end_images(self, say: Callable[[str], None]) -> None:
        """Delete the cluster's own images and their builds; the engine's state no longer has them."""
        ...

    def leftovers(self) -> list[str]:
        """One line for each thing of the cluster that still exists and costs; empty after a clean destroy."""
        ...

    def kept(self, paths: Mapping[str, str]) -> list[KeptStorage]:
        """Return what stays of the cluster's storage on purpose, also from an earlier destroy.

        Args:
            paths: Name in the stack file -> path of each directory, as far as they are known.
        """
        ...

    def failure(self, machine: Machine) -> str | None:
        """Return what the cloud finds wrong with a machine that runs; `None` if it finds nothing."""
        ...

    def keeps_root_disk(self, host: str) -> bool:
        """Whether a host's root disk is there although its machine is gone."""
        ...

    def image_slurm(self, image: str) -> str | None:
        """Return the release of Slurm that an image says to hold, such as `23.11`; `None` if it says none."""
        ...

    def bucket(self) -> str | None:
        """Return the cluster's bucket, also while it has no machine; `None` if it has no bucket."""
        ...

    def read(self, bucket: str, key: str) -> bytes | None:
        """Return an object's content; `None` if there is no such object or no such bucket."""
        ...

    def changed(self, bucket: str, key: str) -> float:
        """When an object was last written, in seconds since the epoch (UTC)."""
        ...

    def user(self, access: Access) -> str:
        """Return the user name for `ssh`."""
        ...

    def proxy(self, access: Access, run: Run) -> str | None:
        """OpenSSH's ProxyCommand for this access mode; `None` if the mode needs none.

        Args:
            run: Returns the command that runs a line of `operations`.
        """
        ...

    def console_line(self, machine: Machine) -> str:
        """Return the command by which a user sees the console of a machine that does not report."""
        ...

    def stop_line(self, machine: Machine) -> str:
        """Return the command by which a user switches a machine off that does not answer."""
        ...
