"""A simulated cloud for the elastic daemon, with all the faults of one, on a clock of the test's own."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from node.elastic.driver import (
    LAUNCH_THREADS,
    AvailableCapacity,
    Driver,
    LaunchGroup,
    LaunchResult,
    Machine,
    MachineState,
)
from node.elastic.failures import ErrorClass, Failure
from node.slurm.topology import Place
from node.system.rpc import RpcUnavailableError

SHOWN_SECONDS = 60.0
"""For how long an ended machine is listed."""
STOP_SECONDS = 1.0
REGISTER_SECONDS = 1.0
"""Seconds from a running machine to a slurmd that answers."""


@dataclass
class Record:
    """A machine.

    Attributes:
        dead: When it ended; `None` means it is alive.
        listed: Whether a listing has shown it. No lag hides it any more.
    """

    id: str
    node: str
    partition: str
    asked: float
    launched: float
    runs_at: float
    state: MachineState = MachineState.PENDING
    mute: bool = False
    broken: bool = False
    frozen: bool = False
    outdated: bool = False
    taken_at: float | None = None
    ends_at: float | None = None
    dead: float | None = None
    listed: bool = False

    @property
    def lives(self) -> bool:
        return self.state.alive


class SimulatedCloud(Driver):
    """A cloud. Its attributes set the faults.

    Attributes:
        quota: Machines at once.
        capacity: Partition, or pool of one -> its machines at once.
        error: The class of every launch's failure; `errors`: partition -> that of its launches.
        unreachable: Whether no call is answered.
        empty, halved: How listings are wrong.
        lag: Seconds for which a new machine is in no listing. What was listed stays listed.
        slowness: Seconds that a listing takes.
        unique: Whether a name is given once, as on the local stack and Google Cloud; otherwise as on EC2.
        mute: How many of the next machines never register; `broken`: how many boots fail.
    """

    launch_threads = LAUNCH_THREADS

    def __init__(
        self, clock: Callable[[], float], epoch: Callable[[float], float], unique: bool = True
    ) -> None:
        self._clock, self._epoch = clock, epoch
        self.unique = unique
        self.records: dict[str, Record] = {}
        self.quota: int | None = None
        self.capacity: dict[str, int] = {}
        self.errors: dict[str, ErrorClass] = {}
        self.error: ErrorClass | None = None
        self.unreachable = self.empty = self.halved = False
        self.lag = 0.0
        self.boot_delay = 2.0
        self.mute = self.broken = 0
        self.tells_room = True
        self._tokens: dict[str, LaunchResult] = {}
        self.before_terminate: Callable[[Record], None] = lambda record: None
        self.before_launch: Callable[[LaunchGroup], None] = lambda group: None
        self._spent = 0.0
        self.sleep: Callable[[float], None] = lambda seconds: None
        self.slowness = 0.0

    def calm(self) -> None:
        """End all faults."""
        self.quota = self.error = None
        self.capacity, self.errors = {}, {}
        self.unreachable = self.empty = self.halved = False
        self.lag, self.slowness, self.mute, self.broken = 0.0, 0.0, 0, 0

    def living(self) -> builtins.list[Record]:
        return [r for r in self.records.values() if r.lives]

    def answering(self, node: str) -> tuple[str, float] | None:
        """Return the machine that answers as this node's slurmd now, and when it booted."""
        for record in reversed(self.records.values()):
            if record.node != node or record.state is not MachineState.RUNNING:
                continue
            ready = record.runs_at + REGISTER_SECONDS
            if self._clock() >= ready and not (record.mute or record.broken or record.frozen):
                return record.id, ready
        return None

    def tick(self) -> None:
        now = self._clock()
        for record in list(self.records.values()):
            if record.state is MachineState.PENDING and now >= record.runs_at:
                record.state = MachineState.RUNNING
            if record.lives and record.taken_at is not None and now >= record.taken_at:
                self.kill(record)
            if record.state is MachineState.STOPPING and now >= (record.ends_at or 0.0):
                record.state, record.dead = MachineState.TERMINATED, now
            if record.dead is not None and now - record.dead > SHOWN_SECONDS:
                self._spent += record.dead - record.asked
                del self.records[record.id]

    def spent(self) -> float:
        """Return machine-hours."""
        ends = ((r, self._clock() if r.dead is None else r.dead) for r in self.records.values())
        return (self._spent + sum(end - r.asked for r, end in ends)) / 3600

    def kill(self, record: Record) -> None:
        record.state, record.dead = MachineState.TERMINATED, self._clock()

    # --- Driver ------------------------------------------------------------------------------------------

    def launch(self, group: LaunchGroup) -> LaunchResult:
        if self.unreachable:
            return LaunchResult({}, (self._failure(group.nodes, ErrorClass.UNAVAILABLE, "no answer"),))
        if group.token in self._tokens:
            return self._tokens[group.token]
        if (error := self.errors.get(group.partition, self.error)) is not None:
            return LaunchResult({}, (self._failure(group.nodes, error, "refused"),))
        named = {r.node for r in self.records.values() if r.state is not MachineState.TERMINATED}
        if self.unique and named & set(group.nodes):
            if group.all_or_nothing or set(group.nodes) <= named:
                return LaunchResult({}, (self._in_use(group.nodes),))
            part = self.launch(group.part([node for node in group.nodes if node not in named]))
            in_use = self._in_use([node for node in group.nodes if node in named])
            return LaunchResult(part.launched, (*part.failures, in_use))
        self.before_launch(group)
        room = self._room(group.partition, len(group.nodes))
        if room < (len(group.nodes) if group.all_or_nothing else 1):
            return LaunchResult({}, (self._failure(group.nodes, ErrorClass.QUOTA, "quota"),))
        made = {node: self._make(node, group.partition) for node in group.nodes[:room]}
        refused = group.nodes[room:]
        failures = (self._failure(refused, ErrorClass.QUOTA, "quota"),) if refused else ()
        self._tokens[group.token] = LaunchResult(made, failures)
        return self._tokens[group.token]

    def terminate(self, ids: Sequence[str]) -> None:
        self._answer()
        for identity in ids:
            record = self.records.get(identity)
            if record is not None and record.lives:
                self.before_terminate(record)
                record.state, record.ends_at = MachineState.STOPPING, self._clock() + STOP_SECONDS

    def list(self) -> builtins.list[Machine]:
        self._answer()
        self.sleep(self.slowness)
        if self.empty:
            return []
        shown = [r for r in self.records.values() if r.listed or self._clock() >= r.asked + self.lag]
        if self.halved:
            shown = shown[: len(shown) // 2]
        for record in shown:
            record.listed = True
        return [
            Machine(
                r.id,
                r.node,
                r.state,
                r.launched,
                "step mounts: no route" if r.broken and r.state is MachineState.RUNNING else None,
                None,
                None if r.taken_at is None else self._epoch(r.taken_at),
                r.outdated,
            )
            for r in shown
        ]

    def available_capacity(self, partition: str, zone: str | None, count: int) -> AvailableCapacity | None:
        if self.unreachable:
            return AvailableCapacity(0, self._failure((), ErrorClass.UNAVAILABLE, "no answer"))
        if not self.tells_room:
            return None
        if (error := self.errors.get(partition, self.error)) is not None:
            return AvailableCapacity(0, self._failure((), error, "refused"))
        room = self._room(partition, count)
        return AvailableCapacity(
            room, None if room == count else self._failure((), ErrorClass.QUOTA, "quota")
        )

    def places(self, machines: Sequence[Machine]) -> dict[str, Place]:
        self._answer()
        return {}

    def _answer(self) -> None:
        if self.unreachable:
            raise RpcUnavailableError("the cloud does not answer")

    def _room(self, partition: str, wanted: int) -> int:
        if self.quota is not None:
            wanted = min(wanted, self.quota - len(self.living()))
        if partition in self.capacity:
            living = sum(1 for record in self.living() if record.partition == partition)
            wanted = min(wanted, self.capacity[partition] - living)
        return max(0, wanted)

    def _make(self, node: str, partition: str) -> str:
        now = self._clock()
        identity = f"m-{len(self._tokens)}-{node}-{len(self.records)}-{now:g}"
        record = Record(identity, node, partition, now, self._epoch(now), now + self.boot_delay)
        if self.mute:
            record.mute, self.mute = True, self.mute - 1
        elif self.broken:
            record.broken, self.broken = True, self.broken - 1
        self.records[identity] = record
        return identity

    def _in_use(self, nodes: Sequence[str]) -> Failure:
        return Failure(tuple(nodes), ErrorClass.UNAVAILABLE, "NameInUse", "name in use", own=True)

    def _failure(self, nodes: Sequence[str], kind: ErrorClass, words: str) -> Failure:
        return Failure(tuple(nodes), kind, "Code", words)
