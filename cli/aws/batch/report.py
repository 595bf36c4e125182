"""The report of a Batch stack: our runs beside the published scaling, as a page and a table.

The article states one figure, about 100,000 images a second on 160 V100s, and that the scaling from 8 to 160
GPUs was linear. `published.csv` has both: the stated row, and the rows that follow from it.
"""

from __future__ import annotations

import csv
import html
import io
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.aws.batch import run_records
from cli.report import charts, draw
from cli.report.charts import Chart, Dot, Line, Style
from node import plurals

FILE = Path(__file__).with_name("published.csv")
SOURCE = (
    "Scalable deep learning training using multi-node parallel jobs with AWS Batch and Amazon FSx for Lustre "
    "(AWS Compute Blog)"
)
COLUMNS = (
    "origin", "nodes", "gpus", "machine", "images_per_second", "images_per_second_per_gpu", "speed_up",
    "seconds", "cost_usd", "job_id", "note",
)  # fmt: skip
COLOURS = (
    "--surface:#fff;--ink:#161a21;--muted:#57606f;--grid:#e3e6eb;--pub:#7a8394;--s1:#0067a8",
    "--surface:#12161d;--ink:#e9ecf1;--muted:#a3adbb;--grid:#2b323e;--pub:#8b95a5;--s1:#5cb6f2",
)
"""The page's colours, light and dark: those of the other report."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table.

    Attributes:
        rate: Images a second of all GPUs.
        stated: Whether the article states the rate; other published rows follow from linear scaling.
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


def published(path: Path = FILE) -> list[Row]:
    """The published scaling, by number of nodes."""
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
    """The page and the table of a stack."""
    theirs, own = published(), ours(run_records.load(stack))
    rows = [*own, *theirs]
    return _page(stack, own, rows, _speed_ups(own) | _speed_ups(theirs)), _table(rows, own, theirs)


def speed_ups(rows: list[Row]) -> dict[int, float]:
    """Number of nodes -> speed-up over one node, computed from the runs on the fewest nodes."""
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


def chart(own: list[Row], theirs: list[Row]) -> Chart:
    """The speed-up over the number of nodes."""
    lines = []
    for label, rows, style in (
        ("ours", own, Style("s1", charts.MARKERS[0])),
        ("published", theirs, Style("pub", charts.MARKERS[1], charts.DASHES[0], strong=False)),
    ):
        if found := speed_ups(rows):
            lines.append(Line(label, style, tuple(Dot(x, y, y, y) for x, y in found.items())))
    return Chart(
        name="scaling",
        title="Twenty machines were twenty times as fast as one",
        measure="Speed-up: images a second, as a multiple of one machine's (eight GPUs).",
        x_label="machines with eight GPUs",
        unit="times",
        lines=tuple(lines),
        ideal="rising",
    )


def _table(rows: list[Row], own: list[Row], theirs: list[Row]) -> str:
    times = _speed_ups(own) | _speed_ups(theirs)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_cells(row, times) for row in rows)
    return buffer.getvalue()


def _cells(row: Row, times: dict[tuple[str, int], float]) -> list[str]:
    def known(value: float | None, digits: int) -> str:
        return "" if value is None else f"{value:.{digits}f}"

    return [
        row.origin, str(row.nodes), str(row.gpus), row.machine, known(row.rate, 1),
        known(row.rate / row.gpus if row.gpus else None, 1), known(times.get((row.origin, row.nodes)), 2),
        known(row.seconds, 0), known(row.cost, 2), row.job,
        "" if row.stated else "follows from linear scaling",
    ]  # fmt: skip


def _page(stack: str, own: list[Row], rows: list[Row], times: dict[tuple[str, int], float]) -> str:
    """One HTML file that loads nothing."""
    theirs = [row for row in rows if row.origin == "published"]
    light, dark = COLOURS
    heads = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in COLUMNS)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in _cells(row, times))}</tr>\n"
        for row in rows
    )
    drawn = chart(own, theirs)
    best = max(own, key=lambda row: row.rate, default=None)
    lead = (
        f"Our fastest run, on {plurals.count(best.gpus, 'GPU')}, in images a second: {best.rate:,.0f}."
        if best is not None
        else "No run of this stack is kept yet: these are the published figures alone."
    )
    return f"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{html.escape(stack)}: ResNet-50 on AWS Batch</title>
<style>
:root {{ {light} }}
@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}
body {{ margin: 2rem auto; max-width: 60rem; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif;
  background: var(--surface); color: var(--ink); }}
p, figcaption {{ color: var(--muted); }}
.chart {{ width: 100%; max-width: 40rem; }}
.chart .label text {{ paint-order: stroke; stroke: var(--surface); stroke-width: 3px; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: .85rem; }}
th, td {{ padding: .3rem .6rem; border-bottom: 1px solid var(--grid); text-align: left; }}
</style>
</head>
<body>
<h1>{html.escape(stack)}: ResNet-50 on AWS Batch</h1>
<p>{html.escape(lead)} Published: about 100,000 images a second on 160 V100s, with linear scaling from 8
to 160 GPUs. Source: {html.escape(SOURCE)}.</p>
<figure>
<figcaption><h2>Speed-up over the number of machines</h2>{html.escape(drawn.caption)}</figcaption>
{draw.svg(drawn)}
</figure>
<div class="scroll">
<table>
<thead><tr>{heads}</tr></thead>
<tbody>
{body}</tbody>
</table>
</div>
<p>The article states the row of 160 GPUs. Its other rows follow from the linear scaling that it reports.</p>
</body>
</html>
"""
