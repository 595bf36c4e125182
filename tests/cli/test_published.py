"""The published tables: nothing of the articles is missing, doubled or mistyped."""

from __future__ import annotations

import csv
from decimal import Decimal
from typing import Any

import pytest
import yaml

from cli.commands.report import runs
from cli.commands.report.series import Series, group
from infra.instance_types.catalog import catalog
from tests.support.checkout import ROOT

# Counted and added up from the articles' text: rows, sums of nodes, seconds, loss and accuracy.
TABLES = {
    ("gcp-cpu", "n1-standard-2", 0): (7, 34, "1687.322", "0.2858", "6.9139"),
    ("aws-cpu", "m4.large", 0): (7, 34, "3388.333", "0.2694", "6.9200"),
    ("aws-cpu", "c4.2xlarge", 0): (7, 34, "726.948", "0.2858", "6.9144"),
    ("gcp-gpu", "n1-standard-2", 1): (6, 24, "555.841", "0.1896", "5.9430"),
    ("gcp-gpu", "n1-standard-2", 2): (4, 10, "570.506", "0.0720", "3.9795"),
    ("gcp-gpu", "n1-standard-2", 4): (2, 3, "407.833", "0.0173", "1.9954"),
    ("aws-gpu", "p3.2xlarge", 1): (8, 54, "626.389", "0.3651", "7.8917"),
}
ROWS = runs.published_rows()


def lines() -> list[dict[str, str]]:
    with runs.PUBLISHED_FILE.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_table_has_its_rows_and_sums() -> None:
    found: dict[tuple[str, str, int], Any] = {}
    for line in lines():
        table = (line["cluster"], line["machine"], int(line["gpus_per_node"]))
        found.setdefault(table, []).append(line)
    sums = {
        table: (
            len(rows),
            sum(int(row["nodes"]) for row in rows),
            *(str(sum(Decimal(row[key]) for row in rows)) for key in ("seconds", "loss", "accuracy")),
        )
        for table, rows in found.items()
    }
    assert sums == TABLES
    assert len(ROWS) == sum(expected[0] for expected in TABLES.values()) == 41


def test_numbers_are_written_as_printed() -> None:
    for line in lines():
        assert [len(line[key].partition(".")[2]) for key in ("seconds", "loss", "accuracy")] == [3, 4, 4]


def test_rows_are_typed_and_say_where_they_are_from() -> None:
    first, last = ROWS[0], ROWS[-1]
    assert (first.machine, first.gpu, first.nodes, first.seconds, first.loss) == (
        "n1-standard-2", None, 1, 393.793, 0.0041,
    )  # fmt: skip
    assert (last.machine, last.gpu, last.nodes, last.seconds, last.accuracy) == (
        "p3.2xlarge", "v100", 20, 60.9, 0.9676,
    )  # fmt: skip
    assert {(row.cluster, row.source) for row in ROWS} == {
        ("gcp-cpu", "High Performance Computing with Slurm on GCP"),
        ("aws-cpu", "High Performance Computing with Slurm on AWS"),
        ("gcp-gpu", "High Performance Computing on GPUs (GCP vs AWS)"),
        ("aws-gpu", "High Performance Computing on GPUs (GCP vs AWS)"),
    }
    assert {row.provider for row in ROWS if row.cluster.startswith("aws")} == {"aws"}
    assert {row.gpu for row in ROWS if row.gpus_per_node} == {"v100"}
    assert {row.gpu for row in ROWS if not row.gpus_per_node} == {None}


def test_the_articles_slip_is_kept() -> None:
    two, three = (row for row in ROWS if row.cluster == "aws-gpu" and row.nodes in (2, 3))
    assert (two.loss, two.accuracy) == (three.loss, three.accuracy) == (0.0127, 0.9966)
    assert two.seconds != three.seconds


def series(machine: str, gpus: int) -> Series:
    (found,) = (
        s for s in group(runs.published_runs()) if (s.key.machine, s.key.gpus_per_node) == (machine, gpus)
    )
    return found


def test_each_table_is_a_series() -> None:
    assert [(s.key.stack, s.key.machine, s.key.gpus_per_node) for s in group(runs.published_runs())] == list(
        TABLES
    )


@pytest.mark.parametrize(
    ("machine", "gpus", "nodes", "speed_up"),
    [
        ("n1-standard-2", 0, 10, 3.885),  # "almost four times"
        ("m4.large", 0, 10, 1.397),
        ("c4.2xlarge", 0, 2, 0.708),
        ("p3.2xlarge", 1, 20, 0.448),
    ],
)
def test_their_speed_up(machine: str, gpus: int, nodes: int, speed_up: float) -> None:
    one = series(machine, gpus)
    point = one.point(nodes)
    assert point is not None
    up = one.speed_up(point)
    assert up is not None
    assert up.median == pytest.approx(speed_up, abs=0.0006)


def test_prices_are_the_articles_else_the_snapshots_else_unknown() -> None:
    facts = catalog()
    prices = {(row.machine, row.gpus_per_node): row.price(facts) for row in ROWS}
    assert prices == {
        ("m4.large", 0): 0.12,
        ("c4.2xlarge", 0): 0.454,
        ("n1-standard-2", 0): 0.104584,  # europe-west4, where they ran
        ("n1-standard-2", 1): pytest.approx(0.104584 + 2.604),
        ("n1-standard-2", 2): pytest.approx(0.104584 + 2 * 2.604),
        ("n1-standard-2", 4): pytest.approx(0.104584 + 4 * 2.604),
        ("p3.2xlarge", 1): 3.823,  # retired: the articles' file has it
    }
    listed = yaml.safe_load((ROOT / "tests" / "infra" / "data" / "prices.yaml").read_text())
    assert listed["machines"]["aws"]["p3.2xlarge"]["price"]["eu-central-1"] == 3.823
    ten = next(run for run in runs.published_runs() if run.machine == "m4.large" and run.nodes == 10)
    assert ten.cost_usd == pytest.approx(0.12 * 10 * 272.9 / 3600, abs=1e-6)
