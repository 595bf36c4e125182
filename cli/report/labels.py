"""Places the names of lines beside their last points, without overlaps."""

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
"""Distance, in points, that costs as much as one crossing of a line."""


def apart(wanted: Sequence[float], gap: float, top: float) -> list[float]:
    """Return ascending places near the wanted ones, with a gap between any two, below `top` if they fit."""
    places: list[float] = []
    for place in wanted:
        places.append(max(place, places[-1] + gap) if places else place)
    limit = top
    for index in reversed(range(len(places))):
        places[index] = min(places[index], limit)
        limit = places[index] - gap
    return places


class Box(NamedTuple):
    """A rectangle, in points from the lower left."""

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
    """Return how far up each label moves, in points, to avoid other labels, dots and lines.

    Args:
        wanted: The best places of the labels. The first ones choose first.
        paths: The dots of each line.
        bottom: The least height of a label's middle.
        top: The greatest height of a label's middle.
    """
    marks = _marks(paths)
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


def clearest(
    wanted: Sequence[Box], paths: Sequence[Sequence[tuple[float, float]]], taken: Sequence[Box]
) -> Box:
    """Return the place for a label that covers the least: of equals the first.

    Args:
        wanted: The places that it may have; at least one.
        paths: The dots of each line.
        taken: The places of other labels.
    """
    marks = [*_marks(paths), *((box, LABEL_COST) for box in taken)]
    return min(wanted, key=lambda box: sum(price for mark, price in marks if box.meets(mark)))


def _marks(paths: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[Box, float]]:
    """Return what the dots and lines cover, with what it costs to cover it."""
    marks = [(_around(x, y, DOT), DOT_COST) for path in paths for x, y in path]
    return marks + [(_around(x, y, 1.0), LINE_COST) for path in paths for x, y in _along(path)]


def _around(x: float, y: float, reach: float) -> Box:
    return Box(x - reach, x + reach, y - reach, y + reach)


def _along(path: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield points on the line between its dots."""
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
