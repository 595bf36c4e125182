"""Where the names of lines go: beside their last points, and not upon each other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

HEIGHT = 13.5
STEP = 2.5
FARTHEST = 48.0
DOT = 4.5
SAMPLE = 6.0
LABEL_COST, DOT_COST, LINE_COST = 20.0, 4.0, 1.0
FAR = 7.0
"""Points of way that cost as much as being crossed once."""


def apart(wanted: Sequence[float], gap: float, top: float) -> list[float]:
    """Ascending places near the wanted ones with a gap between any two, below `top` where they fit."""
    places: list[float] = []
    for place in wanted:
        places.append(max(place, places[-1] + gap) if places else place)
    limit = top
    for index in reversed(range(len(places))):
        places[index] = min(places[index], limit)
        limit = places[index] - gap
    return places


class Box(NamedTuple):
    """In points, from the lower left."""

    left: float
    right: float
    low: float
    high: float

    def meets(self, other: Box) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.low < other.high
            and other.low < self.high
        )


def place(
    wanted: Sequence[Box], paths: Sequence[Sequence[tuple[float, float]]], bottom: float, top: float
) -> list[float]:
    """How far up each label moves, in points: clear of the others, of dots and of lines, and not far.

    Args:
        wanted: where the labels would best be; those that come first choose first.
        paths: dots of each line.
        bottom, top: labels' middles stay between these.
    """
    marks = [(_around(x, y, DOT), DOT_COST) for path in paths for x, y in path]
    marks += [(_around(x, y, 1.0), LINE_COST) for path in paths for x, y in _along(path)]
    moves = []
    for box in wanted:
        middle = (box.low + box.high) / 2

        def cost(move: float, box: Box = box) -> float:
            here = moved(box, move)
            return abs(move) / FAR + sum(price for mark, price in marks if here.meets(mark))

        best = min([move for move in _tries() if bottom <= middle + move <= top] or [0.0], key=cost)
        moves.append(best)
        marks.append((moved(box, best), LABEL_COST))
    return moves


def _around(x: float, y: float, reach: float) -> Box:
    return Box(x - reach, x + reach, y - reach, y + reach)


def _along(path: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Places on the line between its dots."""
    for (x0, y0), (x1, y1) in itertools.pairwise(path):
        count = int(max(abs(x1 - x0), abs(y1 - y0)) / SAMPLE)
        for index in range(1, count):
            yield x0 + (x1 - x0) * index / count, y0 + (y1 - y0) * index / count


def moved(box: Box, up: float) -> Box:
    return box._replace(low=box.low + up, high=box.high + up)


def _tries() -> Iterator[float]:
    yield 0.0
    for step in range(1, int(FARTHEST / STEP) + 1):
        yield step * STEP
        yield -step * STEP
