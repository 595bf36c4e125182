"""What a cloud is to the shared parts: which cluster, its machines, its bucket, the way in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from infra.node.model import Access, ClusterDesign

ALIVE = ("pending", "running", "stopping", "stopped")
ENDING = ("ending",)
PYTHON = ".venv/bin/python"
"""Of the project's folder, where the engine runs commands: relative, so that moving it is no change."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which cluster, and where: all that its cloud needs to find everything of it."""

    cluster: str
    region: str
    zone: str | None = None
    project: str | None = None

    @classmethod
    def of(cls, design: ClusterDesign) -> Place:
        return cls(design.name, str(design.region), design.zone, design.project)

    @classmethod
    def known(cls, outputs: Mapping[str, Any]) -> Place | None:
        """Of the cluster that is up: its stack file may name another by now. None: its outputs do not say."""
        there = outputs.get("cluster")
        if not isinstance(there, Mapping) or not there.get("region") or not there.get("name"):
            return None
        more = (str(there[key]) if there.get(key) else None for key in ("zone", "project"))
        return cls(str(there["name"]), str(there["region"]), *more)

    def named(self) -> dict[str, str]:
        """What is known of it, by name."""
        said = {"region": self.region, "zone": self.zone, "project": self.project, "cluster": self.cluster}
        return {key: value for key, value in said.items() if value}

    def arguments(self) -> list[str]:
        """Of a command line of `infra.clouds.operations`."""
        return [word for key, value in self.named().items() for word in (f"--{key}", value)]


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of a cluster, as its cloud lists it.

    Attributes:
        id: what the cloud's own commands take for it.
        name: its host's or node's; its id where nothing says it.
        state: pending | running | stopping | stopped (it can be started again) | ending.
        launched: when it last started, in seconds since the epoch (UTC).
        public: its public address, None without.
        bucket: where it publishes its boot report; None for nodes.
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


class Cloud(Protocol):
    """One cluster of a cloud, asked with the engineer's own credentials.

    No method looks for credentials before it needs them. Each raises UserError with one message where there
    are none (exit 3), where the cloud refuses (exit 3) or does not answer.
    """

    @property
    def place(self) -> Place: ...

    @property
    def label(self) -> str:
        """The cloud's service of machines, in sentences: EC2."""
        ...

    def machines(self, *states: str, **labels: str) -> list[Machine]:
        """The cluster's machines, every page.

        Args:
            states: of `Machine.state`; none for every state, those included that are gone.
            labels: values of further labels: `role`, `host`.
        """
        ...

    def start(self, machines: Sequence[Machine]) -> None:
        """Start machines that are stopped; does not wait."""
        ...

    def end(self, machines: Sequence[Machine]) -> None:
        """End machines for ever, in as few calls as there can be; does not wait."""
        ...

    def remove_loose(self) -> None:
        """Remove what nodes have left behind, on which the network hangs: disks, network interfaces."""
        ...

    def end_images(self, say: Callable[[str], None]) -> None:
        """End the cluster's own images, and what builds them: none is in the engine's state any more."""
        ...

    def leftovers(self) -> list[str]:
        """What of the cluster still exists and costs, a line each; empty after a clean destroy."""
        ...

    def read(self, bucket: str, key: str) -> bytes | None:
        """An object's content; None: there is no such object, or no such bucket."""
        ...

    def changed(self, bucket: str, key: str) -> float:
        """When an object was last written, in seconds since the epoch (UTC)."""
        ...

    def user(self) -> str:
        """Whom `ssh` logs in as."""
        ...

    def host(self, machine: Machine, access: Access) -> str:
        """What `ssh` takes for a machine's address."""
        ...

    def proxy(self, access: Access, python: str) -> str | None:
        """OpenSSH's ProxyCommand for a way in; None: it needs none.

        Args:
            python: the command that starts this project's Python with this project in its path.
        """
        ...

    def console_line(self, machine: Machine) -> str:
        """The command by which a user sees the console of a machine that does not report."""
        ...

    def start_line(self, machine: Machine) -> str:
        """The command by which a user starts a machine that is stopped."""
        ...
