"""The interface between the elastic daemon and a cloud: launch, terminate, list, available capacity, places.

Each cloud has one driver that implements it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from node.elastic.failures import Failure
from node.slurm.topology import Place


class MachineState(StrEnum):
    """A machine's state as the cloud reports it. Terminated machines may stay in listings for a while."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    TERMINATED = "terminated"

    @property
    def alive(self) -> bool:
        return self in (MachineState.PENDING, MachineState.RUNNING)


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of this cluster, as the cloud lists it.

    Attributes:
        id: The cloud's id.
        node: Slurm's name for the machine; `None` where the cloud does not know it.
        launched: When the cloud accepted the launch, in seconds since the epoch (UTC).
        failure: Why the machine will not become a node, from its boot report; `None` means nothing is known.
        zone: Where the machine was launched; `None` where the launch named no zone.
        notice: When the cloud will take the machine back, in seconds since the epoch (UTC); `None` means the
            cloud has announced nothing.
        outdated: Whether its partition's new machines are made from another template or instance type by now.
        addresses: Its addresses in the cluster's network, from which it speaks to the controller.
    """

    id: str
    node: str | None
    state: MachineState
    launched: float
    failure: str | None = None
    zone: str | None = None
    notice: float | None = None
    outdated: bool = False
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchGroup:
    """Nodes to launch with one call.

    Attributes:
        partition: The partition of all the nodes.
        nodes: Slurm's names.
        all_or_nothing: Whether a job needs all the nodes: if one cannot be launched, none is kept.
        token: An idempotency token. A repeated request has the same token and launches nothing twice.
        job: The job that the nodes are for, if it is a single job.
        zone: Where to launch the nodes; `None` means the cloud chooses.
    """

    partition: str
    nodes: tuple[str, ...]
    all_or_nothing: bool
    token: str
    job: int | None = None
    zone: str | None = None

    def part(self, nodes: Sequence[str]) -> LaunchGroup:
        """Return a request for some of the nodes. A cloud refuses a known token with other nodes."""
        if tuple(nodes) == self.nodes:
            return self
        token = hashlib.sha256("\n".join([self.token, *nodes]).encode()).hexdigest()[:32]
        return replace(self, nodes=tuple(nodes), token=token)


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """The result of a launch.

    Attributes:
        launched: Node -> machine id.
        failures: The nodes that were not launched, with the causes.
    """

    launched: dict[str, str] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True)
class AvailableCapacity:
    """How many machines of a pool a launch would give now.

    Attributes:
        count: How many of the machines that were asked about.
        failure: Why not all of them, naming no nodes; `None` means all of them can be launched.
    """

    count: int
    failure: Failure | None = None


LAUNCH_THREADS = 4
"""Parallel launches on a cloud that answers a launch only when its machines are placed.

More threads would only reach the cloud's rate limits sooner.
"""


class Driver(Protocol):
    """A cloud.

    The methods are called from several threads and may take seconds; slurmctld waits for none of them. A
    driver classifies every error of its cloud as a `Failure` and raises only what it cannot classify.

    Attributes:
        launch_threads: How many launches may run in parallel.
    """

    launch_threads: int

    def launch(self, group: LaunchGroup) -> LaunchResult: ...

    def terminate(self, ids: Sequence[str]) -> None:
        """Terminate machines. The call is idempotent: an unknown id is no error."""
        ...

    def list(self) -> list[Machine]:
        """List every compute machine of this cluster, with terminated ones that the cloud still shows."""
        ...

    def available_capacity(self, partition: str, zone: str | None, count: int) -> AvailableCapacity | None:
        """Return how many of `count` more machines of a partition a launch would give now.

        This launches nothing.

        Returns:
            The capacity; `None` where the cloud cannot tell without launching.
        """
        ...

    def places(self, machines: Sequence[Machine]) -> Mapping[str, Place]:
        """Return where machines are in the cloud's network.

        Args:
            machines: Running machines, each with its node.

        Returns:
            Node -> its place. Nodes are left out of which the cloud does not tell.

        Raises:
            Exception: The cloud refuses, or does not answer.
        """
        ...
