"""The summary of a sweep's results, and an estimate of its cost. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cli.console.sweep import Line
from cli.report import programs, runs, series, words
from cli.results import Kept
from cli.sweep.plan import SweepRequest
from node import plurals


def tables(kept: Iterable[Kept], stack: str) -> list[tuple[str, list[Line]]]:
    """Return a title and a line of medians for each number of nodes.

    There are several tables if the runs trained on different data.
    """
    kept = list(kept)
    trained = series.group(runs.of(result, stack) for result in kept if not result.program)
    own = programs.group(programs.of(result, stack) for result in kept if result.program)
    return [
        *((_title(one), _lines(one)) for one in trained),
        *(
            (f"Medians of {one.name} on {one.key.partition} ({one.key.machine})", _own_lines(one))
            for one in own
        ),
    ]


def _own_lines(one: programs.ProgramSeries) -> list[Line]:
    return [
        Line(
            nodes=point.nodes,
            runs=len(point.runs),
            seconds=point.seconds.median,
            images_per_second=None,
            accuracy=None,
            speed_up=_median(one.speed_up(point)),
            whole=not one.key.timed,
        )
        for point in one.points
    ]


def _title(one: series.Series) -> str:
    key = one.key
    data = key.data if key.data == runs.MNIST else f"{key.data} (not MNIST)"
    epochs = plurals.count(key.epochs, "epoch")
    how = words.how_cores(one)
    return f"Medians on {key.partition} ({key.machine}), {epochs}, {key.profile}, {data}{how and f', {how}'}"


def _lines(one: series.Series) -> list[Line]:
    return [
        Line(
            nodes=point.nodes,
            runs=len(point.runs),
            seconds=_median(point.spread(lambda run: run.seconds_train)),
            images_per_second=_median(point.spread(lambda run: run.images_per_second)),
            accuracy=_median(point.spread(lambda run: run.accuracy)),
            speed_up=_median(one.speed_up(point)),
            cores=_cores(point),
        )
        for point in one.points
    ]


def _cores(point: series.Point) -> str:
    """Say which cores the runs of a number of nodes had; nothing of runs on machines of their own."""
    first = point.runs[0]
    if not first.local or first.cores is None:
        return ""
    text = f"{first.cores}, shared" if first.cores_shared else f"{first.cores}"
    taken = series.spread_of(run.cores_others for run in point.runs)
    return f"{text}, {100 * taken.median:.0f} % others'" if taken is not None else text


def _median(spread: series.Spread | None) -> float | None:
    return None if spread is None else spread.median


def cost(
    wanted: SweepRequest, price_hour: float | None, like: Mapping[str, Any], earlier: Iterable[Kept]
) -> str | None:
    """Return a sentence on what the runs cost. `None` means that the machines are free.

    Args:
        wanted: The numbers of nodes and the repetitions.
        price_hour: USD for a node and hour. `None` means that the price is not known.
        like: Values of the runs' records, which an earlier result must have to estimate their time.
        earlier: Results that are kept from earlier runs.
    """
    if price_hour is None:
        return f"price of {like['machine']} unknown"
    if price_hour == 0:
        return None
    longest: dict[int, float] = {}
    for record in (one.record for one in earlier):
        if all(record.get(key) == value for key, value in like.items()):
            nodes = record["nodes"]
            longest[nodes] = max(longest.get(nodes, 0.0), record["seconds_total"])
    rate = f"a node costs {price_hour:.4g} USD an hour"
    if unknown := [str(nodes) for nodes in wanted.nodes if nodes not in longest]:
        return f"{rate}; no earlier result says how long a run on {', '.join(unknown)} takes"
    usd = sum(price_hour * nodes * longest[nodes] / 3600 for nodes in wanted.nodes) * wanted.repeat
    return (
        f"{rate}; if each takes as long as the longest earlier result, the runs cost {usd:.2f} USD, "
        "plus the minutes in which nodes start and wait"
    )
