"""Who has used a machine: the intervals of machines and of the runs of jobs become parts of machines' time.

A job has the largest of its shares of a node's CPUs, memory and devices, as Slurm's MAX_TRES has it: who
takes all GPUs of a node leaves nothing for which anybody would start it. Where that makes more than one node
in all, such as when one job has the CPUs and another one the memory, each has its part of the sum. What
nobody has is idle: the boot, the wait before the machine ends, and what is left beside small jobs.

A job that is suspended keeps its share, because its node cannot go. The accounting has one sum of a job's
resources for all of its nodes, so each node has an equal part of them.

Pure: no clock, no file, no program.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from node.elastic.machine_record import MachineLife

FOREVER = float("inf")
ROUNDED_SECONDS = 1.0
"""The accounting cuts off parts of seconds. A machine may be launched in the second in which a run began."""


class Kind(StrEnum):
    """What a part of a machine's time was."""

    JOBS = "jobs"
    IDLE = "idle"
    """No job had it: the boot, the wait before the end, and the rest of a node beside small jobs."""
    FAILED_BOOTS = "failed boots"
    """The machine has ended, and never was a node."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job; one that was queued again has several.

    Attributes:
        job: The job as sacct names it: 12, 12_3, 12+1.
        user: The user's name.
        account: The account that it is booked to.
        nodes: The nodes' names.
        start: Seconds since the epoch.
        end: Likewise; `None`: it runs.
        cpus: The CPUs that it has on each node, on average.
        memory_mib: The memory, likewise.
        gres: Generic resource -> how much of it, likewise.
        surely_ran: Whether its end says that its script began.
    """

    job: str
    user: str
    account: str
    nodes: tuple[str, ...]
    start: float
    end: float | None
    cpus: float = 0.0
    memory_mib: float = 0.0
    gres: Mapping[str, float] = field(default_factory=dict)
    surely_ran: bool = False

    @property
    def until(self) -> float:
        return FOREVER if self.end is None else self.end


@dataclass(frozen=True, slots=True)
class Part:
    """Seconds of a machine.

    Attributes:
        life: The machine.
        kind: What they were.
        run: Who had them; `None` if no job.
        seconds: How many: of a node that jobs share, by their shares.
    """

    life: MachineLife
    kind: Kind
    run: Run | None
    seconds: float


def share(run: Run, life: MachineLife) -> float:
    """Return a run's share of a node, from 0 to 1. A node whose size is unknown is its whole."""
    sizes = (
        (run.cpus, life.cpus),
        (run.memory_mib, life.memory_mib),
        (run.gres.get(life.gres, 0.0), life.devices),
    )
    return min(1.0, max((used / size for used, size in sizes if size > 0), default=1.0))


def split(
    lives: Iterable[MachineLife],
    runs: Iterable[Run],
    running: Collection[str] = (),
    since: float = -FOREVER,
    until: float = FOREVER,
) -> Iterator[Part]:
    """Yield all that machines ran between two times. The parts of a machine add up to what it ran.

    Args:
        lives: The machines, in any order; those that run end now.
        runs: The runs of jobs, in any order.
        running: The ids of the machines that run.
        since: Seconds since the epoch.
        until: Likewise.
    """
    of_node: dict[str, list[MachineLife]] = defaultdict(list)
    for life in lives:
        of_node[life.node].append(life)
    on_node: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        for node in dict.fromkeys(run.nodes):
            if node in of_node:
                on_node[node].append(run)
    for node, machines in of_node.items():
        machines.sort(key=lambda life: (life.launched, life.ended, life.id))
        yield from _of_node(machines, on_node.pop(node, []), running, since, until)


def _of_node(
    machines: Sequence[MachineLife],
    runs: Sequence[Run],
    running: Collection[str],
    since: float,
    until: float,
) -> Iterator[Part]:
    launches = [life.launched for life in machines]
    # A short job may have come and gone between two looks at Slurm's nodes.
    came_up = {life.id for life in machines if life.registered}
    for run in runs:
        if run.surely_ran and (life := _machine(run, machines, launches)) is not None:
            came_up.add(life.id)
    usable = [life for life in machines if life.id in came_up]
    launches = [life.launched for life in usable]
    on_machine: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if (life := _machine(run, usable, launches)) is not None:
            on_machine[life.id].append(run)
    for life in machines:
        # One that boots may come up yet.
        failed = life.id not in came_up and life.id not in running
        rest = Kind.FAILED_BOOTS if failed else Kind.IDLE
        yield from _of_machine(life, on_machine.get(life.id, []), rest, since, until)


def _machine(run: Run, machines: Sequence[MachineLife], launches: Sequence[float]) -> MachineLife | None:
    """Return the machine on which a run was; `None` if none is known.

    A run is on one machine of a node. It may be recorded as begun before the machine, whose boot it awaits;
    one whose end was lost never ends.
    """
    first = max(0, bisect_right(launches, run.start + ROUNDED_SECONDS) - 1)
    for index in range(first, len(machines)):
        if machines[index].launched >= run.until:
            break
        if _overlap(run, machines[index]):
            return machines[index]
    # The end of the one before may be seen late, when its successor has been launched.
    before = machines[first - 1] if first > 0 else None
    return before if before is not None and _overlap(run, before) else None


def _overlap(run: Run, life: MachineLife) -> bool:
    return run.start < life.ended and life.launched < run.until and run.start < run.until


def _of_machine(
    life: MachineLife, runs: Sequence[Run], rest: Kind, since: float, until: float
) -> Iterator[Part]:
    first, last = max(life.launched, since), min(life.ended, until)
    used, unused = _used(life, runs, first, last) if first < last else ({}, 0.0)
    for number, seconds in used.items():
        if seconds > 0:
            yield Part(life, Kind.JOBS, runs[number], seconds)
    if since < life.ended <= until:
        # A cloud bills a minute at least.
        unused += max(0.0, life.seconds - max(0.0, life.ended - life.launched))
    if unused > 0:
        yield Part(life, rest, None, unused)


def _used(
    life: MachineLife, runs: Sequence[Run], first: float, last: float
) -> tuple[dict[int, float], float]:
    """Return the seconds of each run, by its place in the list, and those that nobody had."""
    events: list[tuple[float, int, bool]] = []
    for number, run in enumerate(runs):
        begin, end = max(run.start, first), min(run.until, last)
        if begin < end:
            events += [(begin, number, True), (end, number, False)]
    events.sort()
    used: dict[int, float] = defaultdict(float)
    active: dict[int, float] = {}
    unused, before = 0.0, first
    for at, number, begins in events:
        unused += _divide(active, at - before, used)
        before = at
        if begins:
            active[number] = share(runs[number], life)
        else:
            del active[number]
    return used, unused + _divide(active, last - before, used)


def _divide(active: Mapping[int, float], seconds: float, used: dict[int, float]) -> float:
    """Give an interval to those who share it, and return what nobody has."""
    if seconds <= 0:
        return 0.0
    whole = sum(active.values())
    for number, part in active.items():
        used[number] += seconds * part / max(1.0, whole)
    return seconds * max(0.0, 1.0 - whole)
