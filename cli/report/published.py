"""The published tables: every row of the three articles that the benchmark follows, as printed.

A line of `workload/published.csv` is a row: the article's title, the cluster by our stacks' names, provider,
region, machine, type of GPU, nodes, GPUs a node, "code execution time" in seconds, loss and accuracy on the
training data after eight epochs, and the price in USD an hour where the article names one.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from cli.report.runs import MNIST, PUBLISHED_BATCH, PUBLISHED_EPOCHS, Run
from infra.instance_types.catalog import Catalog, catalog

FILE = Path(__file__).resolve().parents[2] / "workload" / "published.csv"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a published table."""

    source: str
    cluster: str
    """aws-cpu, gcp-cpu, aws-gpu, gcp-gpu"""
    provider: str
    region: str
    machine: str
    gpu: str | None
    nodes: int
    gpus_per_node: int
    seconds: float
    loss: float
    accuracy: float
    price_usd_hour: float | None
    """USD an hour for one node. `None` means that the article names no price."""

    def price(self, facts: Catalog) -> float | None:
        """Return USD for a node and hour: the article's price, else the snapshot's. `None` is not known."""
        if self.price_usd_hour is not None:
            return self.price_usd_hour
        accelerator = (self.gpu, self.gpus_per_node) if self.gpu else None
        return facts.price(self.machine, self.region, accelerator=accelerator)

    def run(self, facts: Catalog) -> Run:
        """Return the row as a run of the report.

        The articles' batch is 64 a worker (their log has 234 steps an epoch on four nodes) and grows with the
        nodes, not with the GPUs of a node.
        """
        price = self.price(facts)
        return Run(
            origin="published",
            source=self.source,
            kept_at=None,
            stack=self.cluster,
            checkout=None,
            checkout_label=None,
            job_id=None,
            partition=None,
            machine=self.machine,
            accelerator=self.gpu,
            nodes=self.nodes,
            workers=self.nodes,
            gpus_per_node=self.gpus_per_node,
            devices=(),
            profile="published",
            data=MNIST,
            epochs=PUBLISHED_EPOCHS,
            global_batch=PUBLISHED_BATCH * self.nodes,
            seconds_total=None,
            seconds_train=self.seconds,
            images_per_second=None,
            loss=self.loss,
            accuracy=self.accuracy,
            test_accuracy=None,
            history=(),
            start_latency_seconds=None,
            restarts=None,
            digest=None,
            versions=(),
            cost_usd=None if price is None else round(price * self.nodes * self.seconds / 3600, 6),
        )


def load(path: Path = FILE) -> tuple[Row, ...]:
    """Read all rows in the order of the file: by table, then by nodes."""
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(
            Row(
                source=line["source"],
                cluster=line["cluster"],
                provider=line["provider"],
                region=line["region"],
                machine=line["machine"],
                gpu=line["gpu"] or None,
                nodes=int(line["nodes"]),
                gpus_per_node=int(line["gpus_per_node"]),
                seconds=float(line["seconds"]),
                loss=float(line["loss"]),
                accuracy=float(line["accuracy"]),
                price_usd_hour=float(line["price_usd_hour"]) if line["price_usd_hour"] else None,
            )
            for line in csv.DictReader(file)
        )


def runs(facts: Catalog | None = None) -> tuple[Run, ...]:
    """Return all rows as runs of the report."""
    facts = facts or catalog()
    return tuple(row.run(facts) for row in load())
