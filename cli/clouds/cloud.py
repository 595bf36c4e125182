"""The interface of a cloud: a cluster's machines, its bucket, and SSH access to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cli.clouds.kept_storage import KeptStorage
from infra.clouds.commands import ClusterRef
from node.model import Access

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
        """The host name for `ssh`: an address, or the id, which the ProxyCommand of other modes takes."""
        return (self.public or self.private or self.id) if access.mode == "ssh" else self.id


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
        """A text in the form in which the cloud's labels hold it."""
        ...

    def machines(self, *states: str, **labels: str) -> list[Machine]:
        """The cluster's machines, from every page of the list.

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
        """What stays of the cluster's storage on purpose, also from an earlier destroy.

        Args:
            paths: Name in the stack file -> path of each directory, as far as they are known.
        """
        ...

    def read(self, bucket: str, key: str) -> bytes | None:
        """An object's content; `None` if there is no such object or no such bucket."""
        ...

    def changed(self, bucket: str, key: str) -> float:
        """When an object was last written, in seconds since the epoch (UTC)."""
        ...

    def user(self, access: Access) -> str:
        """The user name for `ssh`."""
        ...

    def proxy(self, access: Access, python: str) -> str | None:
        """OpenSSH's ProxyCommand for this access mode; `None` if the mode needs none.

        Args:
            python: The command that starts this project's Python with this project in its path.
        """
        ...

    def console_line(self, machine: Machine) -> str:
        """The command by which a user sees the console of a machine that does not report."""
        ...

    def start_line(self, machine: Machine) -> str:
        """The command by which a user starts a machine that is stopped."""
        ...
