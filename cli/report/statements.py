"""Computes the titles of plots: a statement on our first series, or on the articles if there is none of ours.

`name` is the label of that series if the plot has several of ours, otherwise `None`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from cli.report import words
from cli.report.runs import MNIST, SYNTHETIC, Run
from cli.report.series import Point, Series

ABOUT_AS_FAST = 0.05
"""A difference below five percent counts as equal."""
DATA = {MNIST: "MNIST", SYNTHETIC: "synthetic digits"}


def time(series: Sequence[Series], name: str | None) -> str:
    if (first := _ours(series)) is not None:
        ends = _ends(first, lambda run: run.seconds_per_epoch, words.seconds)
        return _named(name, f"an epoch takes {ends}" if ends else "training time is not known")
    slower = [
        one for one in series if (up := _up(one, 2)) is not None and up < 1 and one.key.origin == "published"
    ]
    with_two = [one for one in series if _up(one, 2) is not None]
    if slower and len(slower) == len(with_two):
        return f"Published: two nodes are slower than one, on all {len(slower)} clusters"
    return f"Published: two nodes are slower than one on {len(slower)} of {len(with_two)} clusters"


def speed_up(series: Sequence[Series], name: str | None) -> str:
    first = _ours(series)
    if first is not None and (text := compared(first)) is not None:
        return _named(name, text)
    best = max(
        (
            (up.median, point.nodes)
            for one in _published(series)
            for point in one.points
            if point.nodes > 1 and (up := one.speed_up(point)) is not None
        ),
        default=None,
    )
    if best is None:
        return "Speed-up is not known"
    if best[0] < 1:
        return f"Published: more nodes are slower than one, {words.ratio(best[0])} at best"
    return f"Published: at best {words.ratio(best[0])}, with {words.count(best[1], 'node')}"


def compared(series: Series) -> str | None:
    """Compare the most nodes with one: "8 nodes train 3.1× as fast as one". `None`: one is missing."""
    point = series.points[-1]
    up = series.speed_up(point)
    if up is None or point.nodes == 1:
        return None
    if abs(math.log(up.median)) < ABOUT_AS_FAST:
        return f"{point.nodes:,} nodes train about as fast as one"
    if up.median >= 1:
        return f"{point.nodes:,} nodes train {words.ratio(up.median)} as fast as one"
    return f"{point.nodes:,} nodes take {words.ratio(1 / up.median)} as long as one"


def efficiency(series: Sequence[Series], name: str | None) -> str:
    first = _ours(series)
    if first is not None and compared(first) is not None:
        last = first.points[-1]
        found = first.efficiency(last)
        assert found is not None
        assert last.nodes > 1, "one node is compared with nothing"
        text = f"each of {last.nodes:,} nodes does {words.share(found.median)} of what one does alone"
        return _named(name, text)
    shares = [
        found.median
        for one in _published(series)
        if one.points[-1].nodes > 1 and (found := one.efficiency(one.points[-1])) is not None
    ]
    if not shares:
        return "Efficiency is not known"
    return (
        f"Published: with the most nodes, each does {words.share(min(shares))} to "
        f"{words.share(max(shares))} of one alone"
    )


def cost(series: Sequence[Series], name: str | None) -> str:
    first = _ours(series)
    if first is not None and (ends := _ends(first, lambda run: run.cents_per_epoch, words.cents)):
        return _named(name, f"an epoch costs {ends}")
    priced = [
        costs
        for one in _published(series)
        if (costs := [(c, p.nodes) for p in one.points if (c := _median(p, _cost)) is not None])
    ]
    if priced and all(min(costs)[1] == 1 for costs in priced):
        return "Published: an epoch is cheapest on one node"
    return "Published: the price of an epoch"


def accuracy(series: Sequence[Series], name: str | None) -> str:
    if (first := _ours(series)) is not None:
        return _named(name, f"accuracy is {_ends(first, _accuracy, words.fraction)}")
    ends = [(run.accuracy, run.nodes) for one in _published(series) for p in one.points for run in p.runs]
    if not ends:
        return "Accuracy is not known"
    least, most = min(ends), max(ends)
    return (
        f"Published: from {words.fraction(most[0])} on {words.count(most[1], 'node')} down to "
        f"{words.fraction(least[0])} on {words.count(least[1], 'node')}"
    )


def accuracy_alone(series: Sequence[Series], name: str | None) -> str:
    """Return the title of a plot without published figures."""
    first = series[0] if series else None
    if first is None:
        return "Accuracy is not known"
    what = DATA.get(first.key.data, first.key.data)
    return _named(name, f"accuracy on {what} is {_ends(first, _accuracy, words.fraction)}")


def curve(series: Series, slug: str) -> str:
    """Return the title of a plot of loss or accuracy over the epochs."""
    value: Callable[[Run], float] = (lambda run: run.loss) if slug == "loss" else _accuracy
    ends = _ends(series, value, words.fraction)
    return f"After {words.count(series.key.epochs, 'epoch')} the {slug} is {ends}"


def _accuracy(run: Run) -> float:
    return run.accuracy


def _cost(run: Run) -> float | None:
    return run.cents_per_epoch


def _ours(series: Sequence[Series]) -> Series | None:
    return next((one for one in series if one.key.origin == "ours"), None)


def _published(series: Sequence[Series]) -> list[Series]:
    return [one for one in series if one.key.origin == "published"]


def _up(series: Series, nodes: int) -> float | None:
    point = series.point(nodes)
    found = series.speed_up(point) if point else None
    return found.median if found else None


def _median(point: Point, value: Callable[[Run], float | None]) -> float | None:
    spread = point.spread(value)
    return spread.median if spread else None


def _ends(series: Series, value: Callable[[Run], float | None], unit: Callable[[float], str]) -> str:
    """Return the values on the fewest and on the most nodes: "24.0 s on 1 node, 3.20 s on 8 nodes"."""
    known = [(p.nodes, v) for p in series.points if (v := _median(p, value)) is not None]
    ends = known[:1] + known[1:][-1:]
    return ", ".join(f"{unit(v)} on {words.count(nodes, 'node')}" for nodes, v in ends)


def _named(name: str | None, text: str) -> str:
    """Return the statement as a title, with the series' name before it if there is one."""
    return f"{name}: {text}" if name else text[:1].upper() + text[1:]
