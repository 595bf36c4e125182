"""Runs that may be compared form a series; medians, speed-up and efficiency over its numbers of nodes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from infra.report.runs import Run


class Key(NamedTuple):
    """What runs of one series have in common: everything but the number of nodes.

    The digest names the training code and its locked packages; another one is another series, and neither is
    a time of other code averaged with this one's nor a speed-up taken across the two.
    """

    origin: str
    stack: str
    whose: str | None
    """Whose results they are, where there are several checkouts."""
    partition: str | None
    machine: str | None
    gpus_per_node: int
    workers_per_node: float
    profile: str
    data: str
    epochs: int
    batch: float
    """Examples a worker and step."""
    digest: str | None


def key(run: Run) -> Key:
    return Key(
        run.origin,
        run.stack,
        run.whose,
        run.partition,
        run.machine,
        run.gpus_per_node,
        run.workers / run.nodes,
        run.profile,
        run.data,
        run.epochs,
        run.batch,
        run.digest,
    )


@dataclass(frozen=True, slots=True)
class Spread:
    """Repeats of one measurement."""

    median: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class Point:
    """The runs of a series on one number of nodes."""

    nodes: int
    runs: tuple[Run, ...]

    def spread(self, value: Callable[[Run], float | None]) -> Spread | None:
        """Median, least and most of a value over the repeats; None where no run has it."""
        known = [v for run in self.runs if (v := value(run)) is not None]
        if not known:
            return None
        return Spread(statistics.median(known), min(known), max(known), len(known))

    def of(self, name: str) -> Spread | None:
        """`spread` of an attribute of the runs, by its name."""
        return self.spread(lambda run: getattr(run, name))

    @property
    def seconds_per_epoch(self) -> Spread | None:
        return self.of("seconds_per_epoch")


@dataclass(frozen=True, slots=True)
class Series:
    """Runs that differ in the number of nodes only.

    Attributes:
        points: by number of nodes, ascending; at least one.
    """

    key: Key
    points: tuple[Point, ...]

    @property
    def one(self) -> Run:
        """Any of its runs, for what they have in common."""
        return self.points[0].runs[0]

    @property
    def latest(self) -> str:
        """When its youngest result was kept; empty for published ones."""
        return max(run.kept_at or "" for point in self.points for run in point.runs)

    def point(self, nodes: int) -> Point | None:
        return next((point for point in self.points if point.nodes == nodes), None)

    def speed_up(self, point: Point) -> Spread | None:
        """How many times as fast as this series' own median on one node.

        None without a run on one node: a speed-up over some other number of nodes is another figure.
        """
        base = self.point(1)
        alone = base.seconds_per_epoch if base else None
        there = point.seconds_per_epoch
        if alone is None or there is None:
            return None
        return Spread(
            alone.median / there.median, alone.median / there.high, alone.median / there.low, there.count
        )

    def efficiency(self, point: Point) -> Spread | None:
        """Speed-up a node; 1.0 is ideal."""
        up = self.speed_up(point)
        if up is None:
            return None
        return Spread(up.median / point.nodes, up.low / point.nodes, up.high / point.nodes, up.count)


def group(runs: Iterable[Run]) -> list[Series]:
    """The series of some runs, in the order of their first runs."""
    found: dict[Key, dict[int, list[Run]]] = {}
    for run in runs:
        found.setdefault(key(run), {}).setdefault(run.nodes, []).append(run)
    return [
        Series(k, tuple(Point(nodes, tuple(by_nodes[nodes])) for nodes in sorted(by_nodes)))
        for k, by_nodes in found.items()
    ]


def ranked(series: Sequence[Series]) -> list[Series]:
    """The most telling first: most numbers of nodes, then the youngest; the stacks take turns."""
    stacks: dict[str, list[Series]] = {}
    for one in series:
        stacks.setdefault(one.key.stack, []).append(one)
    for own in stacks.values():
        own.sort(key=lambda s: s.latest, reverse=True)
        own.sort(key=lambda s: len(s.points), reverse=True)
    turns = max((len(own) for own in stacks.values()), default=0)
    return [own[turn] for turn in range(turns) for own in stacks.values() if turn < len(own)]
