"""Results of the users' own programs in the report: time, speed-up and what each program says of itself.

They are never put beside the built-in training's or the published runs, because they computed something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cli.commands.report import words
from cli.commands.report.charts import Chart, Dot, Line, Style
from cli.commands.report.runs import LARGEST, UNKNOWN_CHECKOUT, printable
from cli.commands.report.series import Spread, spread_of
from cli.console.jobs import values
from cli.hints import hint
from cli.results import Kept
from workload.result import PROGRAM_SECONDS

MOST_SHOWN = 12
"""The most values of a run in the page. The table in CSV has all."""
MOST_PLOTTED = 4


@dataclass(frozen=True, slots=True)
class Program:
    """One run of a program of a user's. Units are seconds and USD. `None` means not known, never zero.

    Attributes:
        source: The kept file's name.
        checkout_label: The checkout for display. `None` means that all results of the stack are of one
            checkout.
        seconds_total: Seconds from the start of the first task to the end of the last one.
        seconds_train: The training in it, where the program says so (the value `seconds_train`).
        cores: CPU cores of all tasks together, at their start.
        cores_shared: Whether any core was more than one node's.
        said: The values that the program has given.
    """

    source: str
    kept_at: str
    stack: str
    checkout: str | None
    checkout_label: str | None
    script: str
    arguments: tuple[str, ...]
    job_id: str | None
    partition: str | None
    pool: str | None
    machine: str | None
    nodes: int
    workers: int
    gpus_per_node: int
    seconds_total: float
    seconds_train: float | None
    start_latency_seconds: float | None
    restarts: int
    digest: str | None
    environment: str
    versions: tuple[tuple[str, str], ...]
    cost_usd: float | None
    cores: int | None
    cores_shared: bool | None
    said: tuple[tuple[str, str | int | float | bool | None], ...]

    @property
    def seconds(self) -> float:
        """The time that is compared: of the training where the program says it, else of the whole."""
        return self.seconds_total if self.seconds_train is None else self.seconds_train

    @property
    def pretended_price(self) -> bool:
        """Whether the price is not real: local machines cost nothing, but a stack file may price them."""
        return self.machine is not None and self.machine.startswith("local.")

    @property
    def line(self) -> str:
        """The values in one line: epoch 8, loss 0.1234."""
        return values(dict(self.said), MOST_SHOWN)


class Key(NamedTuple):
    """What the runs of one series have in common: everything except the number of nodes.

    Attributes:
        cores_each: CPU cores of each task, if none is shared.
        timed: Whether the program says how long its training took.
    """

    stack: str
    checkout_label: str | None
    script: str
    arguments: tuple[str, ...]
    partition: str | None
    pool: str | None
    machine: str | None
    gpus_per_node: int
    workers_per_node: float
    environment: str
    digest: str | None
    cores_each: float | None
    cores_shared: bool | None
    timed: bool


@dataclass(frozen=True, slots=True)
class Point:
    """The runs of a series on one number of nodes."""

    nodes: int
    runs: tuple[Program, ...]

    @property
    def seconds(self) -> Spread:
        spread = spread_of([run.seconds for run in self.runs])
        assert spread is not None  # a point has at least one run
        return spread

    @property
    def cost_usd(self) -> Spread | None:
        return spread_of([run.cost_usd for run in self.runs if not run.pretended_price])


@dataclass(frozen=True, slots=True)
class ProgramSeries:
    """Runs that differ only in the number of nodes, by that number."""

    key: Key
    points: tuple[Point, ...]

    def speed_up(self, point: Point) -> Spread | None:
        """Return the speed-up over the median on one node.

        `None` without a run on one node, and of local nodes that shared cores: they were not alike.
        """
        if self.key.cores_shared and point.runs[0].pretended_price:
            return None
        alone = next((item.seconds.median for item in self.points if item.nodes == 1), None)
        seconds = point.seconds
        if alone is None or seconds.low <= 0:
            return None
        return Spread(alone / seconds.median, alone / seconds.high, alone / seconds.low, seconds.count)

    @property
    def name(self) -> str:
        return " ".join([self.key.script, *self.key.arguments])

    @property
    def measured(self) -> str:
        return "training" if self.key.timed else "whole run"


def of(kept: Kept, stack: str, checkout: str | None = None, *, several: bool = False) -> Program:
    """Turn a kept result of a program into a run.

    Args:
        checkout: The short name of its checkout. `None` means not known.
        several: Whether the stack has results of several checkouts.

    Raises:
        ValueError: A number is larger than any run can have. The message names the key.
    """
    record: Mapping[str, Any] = {"cores": None, "cores_shared": None, **kept.record}
    numbers = ("nodes", "workers", "gpus_per_node", "seconds_total", "restarts", "cost_usd", "cores")
    if too_large := [key for key in numbers if record[key] is not None and record[key] > LARGEST]:
        raise ValueError(f"result.{too_large[0]}: more than {LARGEST:g} is no measurement")
    timed, whole = seconds(record)
    label = f"checkout {printable(checkout)}" if checkout else UNKNOWN_CHECKOUT
    return Program(
        source=printable(kept.path.name),
        kept_at=printable(kept.kept_at),
        stack=printable(stack),
        checkout=None if checkout is None else printable(checkout),
        checkout_label=label if several else None,
        script=printable(record["script"]),
        arguments=tuple(printable(text) for text in record["arguments"]),
        seconds_train=None if whole else timed,
        versions=tuple((printable(name), printable(value)) for name, value in record["versions"].items()),
        said=tuple(
            (printable(name), printable(value) if isinstance(value, str) else value)
            for name, value in record["values"].items()
        ),
        pool=_text(record.get("pool")),
        **{key: _text(record[key]) for key in ("job_id", "partition", "machine", "digest", "environment")},
        **{key: record[key] for key in (*numbers, "cores_shared", "start_latency_seconds")},
    )


def seconds(record: Mapping[str, Any]) -> tuple[float, bool]:
    """Return the time of a program that is compared, and whether it is of the whole program.

    It is the training's, where the program says how long that took.
    """
    timed = record["values"].get(PROGRAM_SECONDS)
    if isinstance(timed, int | float) and not isinstance(timed, bool) and 0 < timed <= LARGEST:
        return float(timed), False
    return float(record["seconds_total"]), True


def _text(value: str | None) -> Any:
    return None if value is None else printable(value)


def group(runs: Iterable[Program]) -> list[ProgramSeries]:
    """Group runs into series, in the order of their first runs."""
    by_key: dict[Key, dict[int, list[Program]]] = {}
    for run in runs:
        by_key.setdefault(_key(run), {}).setdefault(run.nodes, []).append(run)
    return [
        ProgramSeries(key, tuple(Point(nodes, tuple(by_nodes[nodes])) for nodes in sorted(by_nodes)))
        for key, by_nodes in by_key.items()
    ]


def _key(run: Program) -> Key:
    return Key(
        run.stack,
        run.checkout_label,
        run.script,
        run.arguments,
        run.partition,
        run.pool,
        run.machine,
        run.gpus_per_node,
        run.workers / run.nodes,
        run.environment,
        run.digest,
        None if run.cores is None or run.cores_shared else run.cores / run.workers,
        run.cores_shared,
        run.seconds_train is not None,
    )


def compared(result: Mapping[str, Any], kept: Iterable[Kept], stack: str) -> str | None:
    """Return one sentence for the end of `up`: how much faster this run was than one node, by kept results.

    Returns:
        The sentence; the command that measures it where no run of one node is kept; `None` for a result of
        one node.
    """
    measured = of(Kept(Path("result.json"), dict(result)), stack)
    if measured.nodes == 1:
        return None
    runs = [
        run
        for result_file in kept
        if result_file.program and _key(run := of(result_file, stack)) == _key(measured)
    ]
    base = spread_of([run.seconds for run in runs if run.nodes == 1])
    if base is None or measured.seconds <= 0:
        command = hint("run", stack, f"--nodes 1,{measured.nodes}")
        nodes = words.count(measured.nodes, "node").replace(words.SPACE, " ")
        return f"`{command}` measures how much faster {nodes} are than 1."
    text = (
        f"{words.count(measured.nodes, 'node')} ran {measured.script} "
        f"{words.ratio(base.median / measured.seconds)} as fast as 1: "
        f"{words.seconds(measured.seconds)}, on 1 node {words.seconds(base.median)}."
    )
    return text.replace(words.SPACE, " ")


def charts(series: Sequence[ProgramSeries]) -> list[Chart]:
    """Return plots of time and speed-up for the programs that ran on several numbers of nodes."""
    drawn = []
    several = [item for item in series if len(item.points) > 1]
    for number, item in enumerate(several[:MOST_PLOTTED], 1):
        style, label = Style(f"s{number}", "o"), item.key.script.rpartition("/")[2][:16]
        seconds = tuple(_dot(point, point.seconds) for point in item.points)
        measure = f"Time of the {item.measured}; medians, with the least and the greatest value."
        drawn.append(
            Chart(
                f"program-{number}-time",
                f"{item.name[:80]}: time",
                measure,
                "nodes",
                "seconds",
                (Line(label, style, seconds),),
            )
        )
        ratios = [(point, ratio) for point in item.points if (ratio := item.speed_up(point)) is not None]
        if ratios:
            drawn.append(
                Chart(
                    f"program-{number}-speed-up",
                    f"{item.name[:80]}: speed-up",
                    f"Time of the {item.measured} on one node, divided by the time on more.",
                    "nodes",
                    "times",
                    (Line(label, style, tuple(_dot(point, ratio) for point, ratio in ratios)),),
                    ideal="rising",
                )
            )
    return drawn


def _dot(point: Point, spread: Spread) -> Dot:
    return Dot(point.nodes, spread.median, spread.low, spread.high)


def cells(run: Program) -> dict[str, object]:
    """Return a line of report.csv: column -> value, for the columns that a program has."""
    return {
        **{name: getattr(run, name) for name in _SHARED},
        "origin": "ours",
        "versions": "; ".join(f"{name} {value}" for name, value in run.versions),
        "comparable": "no",
        "cores_shared": None if run.cores_shared is None else "yes" if run.cores_shared else "no",
        "script": run.script,
        "arguments": " ".join(run.arguments),
        "values": "; ".join(f"{name} {value}" for name, value in run.said),
    }


_SHARED = (
    *("stack", "checkout", "source", "kept_at", "job_id", "partition", "pool", "machine", "nodes", "workers"),
    *("cores", "gpus_per_node", "seconds_total", "seconds_train", "start_latency_seconds", "restarts"),
    *("digest", "cost_usd"),
)
