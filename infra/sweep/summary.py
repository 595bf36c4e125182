"""What a sweep came to, and what it may cost: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from infra.console.sweep import Line
from infra.node import words
from infra.report import runs, series
from infra.results import Kept
from infra.sweep.plan import Wish

SAME = ("partition", "machine", "gpus_per_node", "profile", "epochs", "digest")
"""What an earlier result must share with a run, beside its number of nodes, to foretell its time."""


def tables(kept: Iterable[Kept], stack: str) -> list[tuple[str, list[Line]]]:
    """A title and medians a number of nodes. Several, where the runs could not have the same data."""
    return [(_title(one), _lines(one)) for one in series.group(runs.of(result, stack) for result in kept)]


def _title(one: series.Series) -> str:
    key = one.key
    data = key.data if key.data == runs.MNIST else f"{key.data} (not MNIST)"
    epochs = words.count(key.epochs, "epoch")
    return f"Medians on {key.partition} ({key.machine}), {epochs}, {key.profile}, {data}"


def _lines(one: series.Series) -> list[Line]:
    return [
        Line(
            nodes=point.nodes,
            runs=len(point.runs),
            seconds=_median(point.spread(lambda run: run.seconds_train)),
            images_per_second=_median(point.spread(lambda run: run.images_per_second)),
            accuracy=_median(point.spread(lambda run: run.accuracy)),
            speed_up=_median(one.speed_up(point)),
        )
        for point in one.points
    ]


def _median(spread: series.Spread | None) -> float | None:
    return None if spread is None else spread.median


def cost(
    wanted: Wish, price_hour: float | None, like: Mapping[str, Any], earlier: Iterable[Kept]
) -> str | None:
    """A sentence on what the runs cost; None where the machines are free.

    Args:
        price_hour: USD a node and hour.
        like: the runs' values of SAME.
        earlier: kept results.
    """
    if price_hour is None:
        return f"price of {like['machine']} unknown"
    if price_hour == 0:
        return None
    longest: dict[int, float] = {}
    for record in (one.record for one in earlier):
        if all(record[key] == like[key] for key in SAME):
            nodes = record["nodes"]
            longest[nodes] = max(longest.get(nodes, 0.0), record["seconds_total"])
    rate = f"a node costs {price_hour:.4g} USD an hour"
    if unknown := [str(nodes) for nodes in wanted.nodes if nodes not in longest]:
        return f"{rate}; no earlier result says how long a run on {', '.join(unknown)} takes"
    usd = sum(price_hour * nodes * longest[nodes] / 3600 for nodes in wanted.nodes) * wanted.repeat
    return (
        f"{rate}; as long as the longest of the earlier results, the runs cost {usd:.2f} USD, "
        "and the minutes in which nodes start and wait come on top"
    )
