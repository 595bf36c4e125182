"""Groups comparable runs into series, with medians, speed-up and efficiency for each number of nodes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cli.commands.report.runs import Run


class Key(NamedTuple):
    """What runs of one series have in common: everything except the number of nodes.

    So a node of a series is like any other of it, with as many CPU cores to itself. The digest names the
    training code and its locked packages. Runs of other code form another series, so their times are never
    averaged together and no speed-up compares the two.

    Attributes:
        checkout_label: The checkout's name, if there are several.
        batch: Examples for each worker and step.
        cores_each: CPU cores of each worker, if none is shared; not told of runs that were disturbed, nor
            whether cores were shared.
        disturbed: Whether other programs took much of the cores' time.
    """

    origin: str
    stack: str
    checkout_label: str | None
    partition: str | None
    pool: str | None
    machine: str | None
    gpus_per_node: int
    workers_per_node: float
    profile: str
    data: str
    epochs: int
    batch: float
    learning_rate: float | None
    digest: str | None
    cores_each: float | None
    cores_shared: bool | None
    disturbed: bool


def key(run: Run) -> Key:
    return Key(
        run.origin,
        run.stack,
        run.checkout_label,
        run.partition,
        run.pool,
        run.machine,
        run.gpus_per_node,
        run.workers / run.nodes,
        run.profile,
        run.data,
        run.epochs,
        run.batch,
        run.learning_rate,
        run.digest,
        # What other programs have disturbed is compared with nothing, so it is one series.
        None if run.disturbed else run.cores_each,
        None if run.disturbed else run.cores_shared,
        run.disturbed,
    )


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and greatest value of repeated measurements."""

    median: float
    low: float
    high: float
    count: int


def spread_of(values: Iterable[float | None]) -> Spread | None:
    """Return the spread of the known values. `None` means that none is known."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(statistics.median(known), min(known), max(known), len(known))


@dataclass(frozen=True, slots=True)
class Point:
    """The runs of a series on one number of nodes."""

    nodes: int
    runs: tuple[Run, ...]

    def spread(self, value: Callable[[Run], float | None]) -> Spread | None:
        """Return the spread of a value over the repeats. `None` means that no run has the value."""
        return spread_of([value(run) for run in self.runs])

    def of(self, name: str) -> Spread | None:
        """Return the spread of an attribute of the runs, by the attribute's name."""
        return self.spread(lambda run: getattr(run, name))

    @property
    def seconds_per_epoch(self) -> Spread | None:
        return self.of("seconds_per_epoch")


@dataclass(frozen=True, slots=True)
class Series:
    """Runs that differ only in the number of nodes.

    Attributes:
        key: What the runs have in common.
        points: The runs of each number of nodes, ascending; at least one.
    """

    key: Key
    points: tuple[Point, ...]

    @property
    def any_run(self) -> Run:
        """One of its runs, for values that all of them have in common."""
        return self.points[0].runs[0]

    @property
    def latest(self) -> str:
        """When its newest result was kept. Empty for published series."""
        return max(run.kept_at or "" for point in self.points for run in point.runs)

    def point(self, nodes: int) -> Point | None:
        return next((point for point in self.points if point.nodes == nodes), None)

    @property
    def uneven(self) -> bool:
        """Whether its nodes had unlike parts of cores: local nodes that shared, or were disturbed."""
        return self.key.disturbed or (self.any_run.local and bool(self.key.cores_shared))

    def speed_up(self, point: Point) -> Spread | None:
        """Return the speed-up over this series' median on one node.

        `None` means that there is no run on one node: a speed-up over another number of nodes would be
        another figure; or that its nodes are not alike (`uneven`).
        """
        if self.uneven:
            return None
        base = self.point(1)
        alone = base.seconds_per_epoch if base else None
        seconds = point.seconds_per_epoch
        if alone is None or seconds is None:
            return None
        return Spread(
            alone.median / seconds.median,
            alone.median / seconds.high,
            alone.median / seconds.low,
            seconds.count,
        )

    def efficiency(self, point: Point) -> Spread | None:
        """Return the speed-up divided by the number of nodes; 1.0 is ideal."""
        up = self.speed_up(point)
        if up is None:
            return None
        return Spread(up.median / point.nodes, up.low / point.nodes, up.high / point.nodes, up.count)

    def allowed(self, point: Point) -> float | None:
        """Return the speed-up that local nodes' one machine allows: theirs, if no exchange took any time.

        They share its memory, so a step takes longer the more of them compute. What is missing from here to
        the number of nodes is the machine's; what is missing from the speed-up to here is the training's.
        `None` means that its nodes are machines of their own, had unlike parts of cores, or that the runs on
        one node or on these do not tell how long workers compute.
        """
        if self.uneven or not self.any_run.local:
            return None
        base = self.point(1)
        alone = base.of("step_seconds") if base else None
        beside = point.of("step_seconds")
        if alone is None or beside is None or not beside.median:
            return None
        return point.nodes * alone.median / beside.median

    def predicted(self, nodes: int) -> float | None:
        """Return the speed-up over one node that the runs of several nodes let expect.

        `None` means that no run tells how long workers compute and how long they exchange. The run of the
        most nodes counts, because its exchange is the nearest to that of more. Nothing is predicted of local
        nodes: they share one machine's memory, so a step takes longer the more of them compute.
        """
        if self.any_run.local:
            return None
        alone = self.point(1)
        step = alone.of("step_seconds") if alone else None
        for point in reversed(self.points):
            measurements = [measured for run in point.runs if (measured := run.scaling) is not None]
            if measurements and self.key.workers_per_node == 1:
                if nodes == 1:  # whatever its run was, one node is as fast as itself
                    return 1.0
                base = None if step is None else step.median
                return statistics.median(measured.speed_up(nodes, base) for measured in measurements)
        return None


def group(runs: Iterable[Run]) -> list[Series]:
    """Group runs into series, in the order of their first runs."""
    by_key: dict[Key, dict[int, list[Run]]] = {}
    for run in runs:
        by_key.setdefault(key(run), {}).setdefault(run.nodes, []).append(run)
    return [
        Series(k, tuple(Point(nodes, tuple(by_nodes[nodes])) for nodes in sorted(by_nodes)))
        for k, by_nodes in by_key.items()
    ]


def ranked(series: Sequence[Series]) -> list[Series]:
    """Order series: most numbers of nodes first, then the newest. The stacks take turns."""
    stacks: dict[str, list[Series]] = {}
    for item in series:
        stacks.setdefault(item.key.stack, []).append(item)
    for members in stacks.values():
        members.sort(key=lambda s: s.latest, reverse=True)
        members.sort(key=lambda s: len(s.points), reverse=True)
    turns = max((len(members) for members in stacks.values()), default=0)
    return [members[turn] for turn in range(turns) for members in stacks.values() if turn < len(members)]
