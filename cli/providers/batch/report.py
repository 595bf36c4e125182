"""The report of a Batch stack: our runs beside the published scaling, as a page and a table.

The article states one figure, about 100,000 images a second on 160 V100s, and that the scaling from 8 to 160
GPUs was linear. `published.csv` has both: the stated row, and the rows that follow from it.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cli.commands.report import charts, draw, words
from cli.commands.report.charts import Chart, Dot, Line, Style
from cli.commands.report.page import Drawn, environment
from cli.providers.batch import run_records
from node.system import plurals

FILE = Path(__file__).with_name("published.csv")
TEMPLATE = Path(__file__).with_name("report.html.j2")
SOURCE = (
    "Scalable deep learning training using multi-node parallel jobs with AWS Batch and Amazon FSx for Lustre "
    "(AWS Compute Blog)"
)
COLUMNS = (
    "origin", "nodes", "gpus", "machine", "images_per_second", "images_per_second_per_gpu", "speed_up",
    "seconds", "cost_usd", "job_id", "note",
)  # fmt: skip
INFERRED = "follows from “linear”"
"""The origin of a published row that the article does not state."""
NOTES = (
    "Published: about 100,000 images a second on 160 V100s, with linear scaling from 8 to 160 GPUs. "
    f"Source: {SOURCE}.",
    "The article states one row, that of 160 GPUs. The other rows without a job of ours, and the published "
    "line in the plot, only follow from the word “linear”: nobody has published a measurement of them.",
)


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table.

    Attributes:
        rate: Images a second of all GPUs.
        stated: Whether the article states the rate; other published rows follow from linear scaling.
        where: Where the row is from, in words.
    """

    origin: str
    nodes: int
    gpus: int
    machine: str
    rate: float
    seconds: float | None = None
    cost: float | None = None
    job: str = ""
    stated: bool = True

    @property
    def where(self) -> str:
        return self.origin if self.stated else INFERRED


def published(path: Path = FILE) -> list[Row]:
    """Return the published scaling, by number of nodes."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Row(
                origin="published",
                nodes=int(line["nodes"]),
                gpus=int(line["gpus"]),
                machine=line["machine"],
                rate=float(line["images_per_second"]),
                stated=line["stated"] == "yes",
            )
            for line in csv.DictReader(file)
        ]


def ours(records: list[dict[str, Any]]) -> list[Row]:
    """Our runs whose program reported images a second."""
    return [
        Row(
            origin="ours",
            nodes=int(record["nodes"]),
            gpus=int(record["gpus"]),
            machine=str(record["machine"]),
            rate=rate,
            seconds=record.get("seconds_job"),
            cost=record.get("cost_usd"),
            job=str(record["job_id"]),
        )
        for record in records
        if (rate := run_records.rate(record)) is not None
    ]


def make(stack: str) -> tuple[str, str]:
    """Return the page, ResNet-50 on AWS Batch, and the table of a stack."""
    theirs, our_rows = published(), ours(run_records.load_records(stack))
    rows = [*our_rows, *theirs]
    times = _speed_ups(our_rows) | _speed_ups(theirs)
    return _page(stack, our_rows, rows, times, datetime.now(UTC)), _table(rows, times)


def speed_ups(rows: list[Row]) -> dict[int, float]:
    """Return the number of nodes -> speed-up over one node, computed from the runs on the fewest nodes."""
    medians = {
        nodes: statistics.median(row.rate for row in rows if row.nodes == nodes)
        for nodes in sorted({row.nodes for row in rows})
    }
    if not medians:
        return {}
    first = min(medians)
    return {nodes: rate / medians[first] * first for nodes, rate in medians.items()}


def _speed_ups(rows: list[Row]) -> dict[tuple[str, int], float]:
    return {(rows[0].origin, nodes): times for nodes, times in speed_ups(rows).items()} if rows else {}


def chart(our_rows: list[Row], theirs: list[Row]) -> Chart:
    """Return the speed-up over the number of nodes."""
    lines = []
    for label, rows, style in (
        ("ours", our_rows, Style("s1", charts.MARKERS[0])),
        ("published: linear", theirs, Style("pub", charts.MARKERS[1], charts.DASHES[0], strong=False)),
    ):
        if points := speed_ups(rows):
            lines.append(Line(label, style, tuple(Dot(x, y, y, y) for x, y in points.items())))
    return Chart(
        name="scaling",
        title=_title(our_rows),
        measure="Speed-up: images a second, as a multiple of one machine's (eight GPUs). The published line "
        "follows from the word “linear”; only the rate of 20 machines is stated.",
        x_label="machines with eight GPUs",
        unit="times",
        lines=tuple(lines),
        ideal="rising",
    )


def _title(our_rows: list[Row]) -> str:
    """Return a statement on our runs, or on the published ones where none of ours can be compared."""
    times = speed_ups(our_rows)
    first, last = (min(times), max(times)) if times else (1, 1)
    if last > first:
        ratio = words.ratio(times[last] / first)
        return f"{last:,} machines train {ratio} as fast as {'one' if first == 1 else first}"
    return "Published: about 100,000 images a second on 160 V100s, and “linear” scaling from 8 on"


def _table(rows: list[Row], times: dict[tuple[str, int], float]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_cells(row, times) for row in rows)
    return buffer.getvalue()


def _cells(row: Row, times: dict[tuple[str, int], float]) -> list[str]:
    def known(value: float | None, digits: int) -> str:
        return "" if value is None else f"{value:.{digits}f}"

    return [
        row.where, str(row.nodes), str(row.gpus), row.machine, known(row.rate, 1),
        known(row.rate / row.gpus if row.gpus else None, 1), known(times.get((row.origin, row.nodes)), 2),
        known(row.seconds, 0), known(row.cost, 2), row.job,
        "" if row.stated else "follows from linear scaling",
    ]  # fmt: skip


def _shown(rows: list[Row], times: dict[tuple[str, int], float]) -> tuple[list[str], list[list[str]]]:
    """Return the heads and the rows of the page's table, without columns of which no row has anything.

    A head with # is one of numbers.
    """

    def known(value: float | None, show: Callable[[float], str]) -> str:
        return "–" if value is None else show(value)

    columns: dict[str, Callable[[Row], str]] = {
        "From": lambda row: row.where,
        "#Machines": lambda row: words.whole(row.nodes),
        "#GPUs": lambda row: words.whole(row.gpus),
        "Machine": lambda row: row.machine,
        "#Images/s": lambda row: words.whole(row.rate),
        "#Images/s a GPU": lambda row: known(row.rate / row.gpus if row.gpus else None, words.whole),
        "#Speed-up": lambda row: known(times.get((row.origin, row.nodes)), words.factor),
        "#Time": lambda row: known(row.seconds, words.seconds),
        "#Cost": lambda row: known(row.cost, words.usd),
        "Job": lambda row: row.job or "–",
    }
    cells = {head: [cell(row) for row in rows] for head, cell in columns.items()}
    used = {head: column for head, column in cells.items() if set(column) != {"–"}}
    return list(used), [list(row) for row in zip(*used.values(), strict=True)]


def _page(
    stack: str, our_rows: list[Row], rows: list[Row], times: dict[tuple[str, int], float], generated: datetime
) -> str:
    """One HTML file that loads nothing, made of the same parts as the report of a Slurm stack."""
    drawn = chart(our_rows, [row for row in rows if row.origin == "published"])
    best = max(our_rows, key=lambda row: row.rate, default=None)
    heads, cells = _shown(rows, times)
    values: dict[str, Any] = {
        "stacks": [stack],
        "made": generated,
        "headline": drawn.title,
        "leads": [
            f"Our fastest run, on {plurals.count(best.gpus, 'GPU')}, in images a second: {best.rate:,.0f}."
            if best is not None
            else "No run of this stack is kept yet: this is what the article says, and what follows from it."
        ],
        "figures": [],
        "drawn": Drawn(drawn, draw.svg(drawn)),
        "heads": heads,
        "rows": cells,
        "notes": NOTES,
    }
    return str(environment(TEMPLATE.parent).get_template(TEMPLATE.name).render(values))
