"""What the elastic core asks of a cloud: launch, terminate, list, room. One driver a cloud implements it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from infra.node.elastic.errors import Failure


class MachineState(StrEnum):
    """A machine's life as the cloud tells it. TERMINATED machines may still be listed for a while."""

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
        id: the cloud's.
        node: Slurm's name for it; None where the cloud does not say.
        launched: when the cloud took the request, in seconds since the epoch (UTC).
        failure: why it will not become a node, by its boot report; None: nothing is known.
        zone: where it was launched; None where the launch named none.
        notice: when the cloud will take it back, in seconds since the epoch (UTC); None: it has not said so.
        outdated: its partition's machines are made otherwise by now.
    """

    id: str
    node: str | None
    state: MachineState
    launched: float
    failure: str | None = None
    zone: str | None = None
    notice: float | None = None
    outdated: bool = False


@dataclass(frozen=True, slots=True)
class LaunchGroup:
    """Nodes that one call shall launch.

    Attributes:
        nodes: Slurm's names, all of one partition.
        all_or_nothing: a job of several nodes: if one cannot be had, none is kept.
        token: the same for the same wish, so that a repeated call launches nothing twice.
        job: whose nodes they are, where it is one job's.
        zone: where to launch them; None: the cloud chooses.
    """

    partition: str
    nodes: tuple[str, ...]
    all_or_nothing: bool
    token: str
    job: int | None = None
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """What became of a group: node -> machine id, and failures."""

    launched: dict[str, str] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True)
class Room:
    """How much of a pool could be had right now.

    Attributes:
        count: machines, of those that were asked for.
        failure: why not all of them, naming no nodes; None: all of them can be had.
    """

    count: int
    failure: Failure | None = None


LAUNCH_THREADS = 4
"""Of a cloud that answers a launch when its machines are placed: more would only meet its limits sooner."""


class Driver(Protocol):
    """A cloud. Calls come from several threads and may take seconds; none is made while slurmctld waits.

    A driver classifies every error of its cloud (`Failure`) and raises only what it cannot classify.

    Attributes:
        launch_threads: launches that are made at once, at most.
    """

    launch_threads: int

    def launch(self, group: LaunchGroup) -> LaunchResult: ...

    def terminate(self, ids: Sequence[str]) -> None:
        """Idempotent: an id that is gone is no error."""
        ...

    def list(self) -> list[Machine]:
        """Every compute machine of this cluster, all pages, and terminated ones while they are shown."""
        ...

    def room(self, partition: str, zone: str | None, count: int) -> Room | None:
        """How many of `count` more machines of a partition a launch would give now. Launches nothing.

        Returns:
            None where the cloud cannot tell without launching.
        """
        ...
