"""One training in the report: a kept result of ours, or a row of a published table."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cli.results import Kept
from infra.instance_types.catalog import Catalog, catalog
from workload.result import Epoch
from workload.scaling import Measured

LARGEST = 1e12
PUBLISHED_EPOCHS = 8
PUBLISHED_BATCH = 64
PUBLISHED_RATE = 0.2
SYNC, LOCAL_SGD = "sync", "local-sgd"
MNIST = "mnist"
SYNTHETIC = "digits-synthetic"
UNKNOWN_CHECKOUT = "unknown checkout"
"""The name in results that do not say their checkout."""
_TEXTS = ("job_id", "partition", "machine", "profile", "data", "digest")
_NUMBERS = (
    *("nodes", "workers", "gpus_per_node", "epochs", "global_batch", "seconds_total", "seconds_train"),
    *(
        "images_per_second",
        "loss",
        "accuracy",
        "test_accuracy",
        "start_latency_seconds",
        "restarts",
        "cost_usd",
    ),
    *("seed", "learning_rate", "average_every", "cores", "cores_shared", "cores_others"),
    *("step_seconds", "exchange_seconds"),
)
COMPARABLE_PROFILES = ("published", "sync")
"""Profiles whose every step uses the whole batch, as in the articles."""

MUCH = 0.1
"""The part of its cores' time from which on other programs have made a run slow: no other run's time tells
how much faster it was. On a quiet machine it is some hundredths."""


@dataclass(frozen=True, slots=True)
class Run:
    """One training. Units are seconds and USD. `None` means not known, never zero. Texts are printable.

    Attributes:
        source: The file's name, or the article's title.
        kept_at: When the result was kept, UTC: 20261121T141109Z.
        checkout: The end of its checkout's path. `None` means not known, or a published row.
        checkout_label: The checkout for display. `None` means that all results of the stack are of one
            checkout.
        accuracy: Accuracy on the training data after the last epoch, as in the articles.
        test_accuracy: Accuracy on held-out data, which the articles do not have.
        cost_usd: Cost of the nodes during the run, without the head and storage.
        learning_rate: The learning rate for a batch of 64.
        average_every: Steps that a worker of profile `local-sgd` trains alone.
        cores: CPU cores that all workers together could use.
        cores_shared: Whether any core was more than one node's.
        cores_others: The part of the cores' time that other programs took, 0 to 1.
        step_seconds: Mean time in which a worker computes a step. `None` if it was not told apart from the
            exchange.
        exchange_seconds: Mean time in which the workers exchange the weights, with the wait for the slowest
            of them.
        phases: The parts of the run in order, each with its seconds.
    """

    origin: Literal["ours", "published"]
    source: str
    kept_at: str | None
    stack: str
    checkout: str | None
    checkout_label: str | None
    job_id: str | None
    partition: str | None
    pool: str | None
    machine: str | None
    accelerator: str | None
    nodes: int
    workers: int
    gpus_per_node: int
    devices: tuple[str, ...]
    profile: str
    data: str
    epochs: int
    global_batch: int
    seconds_total: float | None
    seconds_train: float
    images_per_second: float | None
    loss: float
    accuracy: float
    test_accuracy: float | None
    history: tuple[Epoch, ...]
    start_latency_seconds: float | None
    restarts: int | None
    digest: str | None
    versions: tuple[tuple[str, str], ...]
    cost_usd: float | None
    seed: int | None = None
    learning_rate: float | None = None
    average_every: int | None = None
    cores: int | None = None
    cores_shared: bool | None = None
    cores_others: float | None = None
    step_seconds: float | None = None
    exchange_seconds: float | None = None
    phases: tuple[tuple[str, float], ...] = ()

    @property
    def scaling(self) -> Measured | None:
        """What the run tells of other numbers of workers; nothing if it exchanged nothing."""
        every = self.average_every or (1 if self.profile == "sync" else None)
        if not (self.workers > 1 and self.step_seconds and self.exchange_seconds and every):
            return None
        return Measured(self.step_seconds, self.exchange_seconds, self.workers, every)

    @property
    def cores_each(self) -> float | None:
        """CPU cores of each worker. `None` if they are not known, or shared."""
        return None if self.cores is None or self.cores_shared else self.cores / self.workers

    @property
    def disturbed(self) -> bool:
        """Whether other programs took much of its cores' time. A cloud's machine belongs to its run alone."""
        return self.local and (self.cores_others or 0.0) >= MUCH

    @property
    def usd_per_hour(self) -> float | None:
        """The price of a node, from the run's cost. `None` if it has none."""
        seconds = self.seconds_total or self.seconds_train
        if self.cost_usd is None or not seconds:
            return None
        return self.cost_usd * 3600 / (self.nodes * seconds)

    @property
    def batch(self) -> float:
        """Examples for each worker and step."""
        return self.global_batch / self.workers

    @property
    def seconds_per_epoch(self) -> float | None:
        """Training time of one epoch. `None` means that the time is zero, so it was not measured."""
        return self.seconds_train / self.epochs if self.seconds_train > 0 else None

    @property
    def cents_per_epoch(self) -> float | None:
        """Price of the nodes for the training time of one epoch, in US cents.

        Start-up is left out, because the published times do not include it (see the page's notes).
        """
        if self.cost_usd is None or self.pretended_price:
            return None
        share = 1.0 if self.seconds_total is None else _share(self.seconds_train, self.seconds_total)
        return 100 * self.cost_usd * share / self.epochs

    @property
    def gpu(self) -> bool:
        return self.gpus_per_node > 0

    @property
    def local(self) -> bool:
        """Whether its workers shared one machine's cores, as on the local stack."""
        return self.machine is not None and self.machine.startswith("local.")

    @property
    def pretended_price(self) -> bool:
        """Whether the price is not real: local machines cost nothing, but a stack file may price them."""
        return self.local

    @property
    def comparable(self) -> bool:
        """Whether loss and accuracy are comparable with the published ones: same data, batch and epochs."""
        return (
            self.data == MNIST
            and self.epochs == PUBLISHED_EPOCHS
            and self.profile in COMPARABLE_PROFILES
            and self.batch == PUBLISHED_BATCH
        )


def of(kept: Kept, stack: str, checkout: str | None = None, *, several: bool = False) -> Run:
    """Turn a kept result into a run.

    Args:
        kept: The result.
        stack: The stack's name.
        checkout: The short name of its checkout. `None` means not known.
        several: Whether the stack has results of several checkouts.

    Raises:
        ValueError: A number is larger than any training can have. The message names the key.
    """
    record: Mapping[str, Any] = kept.record
    values = {key: record[key] for key in _NUMBERS}
    numbers = [*values.items(), *(item for epoch in record["history"] for item in epoch.items())]
    if too_large := [key for key, value in numbers if value is not None and abs(value) > LARGEST]:
        raise ValueError(f"result.{too_large[0]}: more than {LARGEST:g} is no measurement")
    values["pool"] = printable(record["pool"]) if "pool" in record else None
    values |= {key: None if record[key] is None else printable(record[key]) for key in _TEXTS}
    return Run(
        origin="ours",
        source=printable(kept.path.name),
        kept_at=printable(kept.kept_at),
        stack=printable(stack),
        checkout=None if checkout is None else printable(checkout),
        checkout_label=None
        if not several
        else f"checkout {printable(checkout)}"
        if checkout
        else UNKNOWN_CHECKOUT,
        accelerator=None,
        devices=tuple(printable(name) for name in record["devices"]),
        history=tuple(Epoch(e["epoch"], e["loss"], e["accuracy"], e["seconds"]) for e in record["history"]),
        phases=tuple((printable(name), seconds) for name, seconds in record["phases"].items()),
        versions=tuple((printable(name), printable(value)) for name, value in record["versions"].items()),
        **values,
    )


def printable(text: str) -> str:
    """Replace what XML or UTF-8 cannot hold: control characters and single surrogates."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _share(part: float, whole: float) -> float:
    return min(part / whole, 1.0) if whole > 0 else 1.0


PUBLISHED_FILE = Path(__file__).resolve().parents[3] / "workload" / "published.csv"


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """A row of a published table.

    Attributes:
        cluster: aws-cpu, gcp-cpu, aws-gpu, gcp-gpu
        price_usd_hour: USD an hour for one node. `None` means that the article names no price.
    """

    source: str
    cluster: str
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
            pool=None,
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


def published_rows(path: Path = PUBLISHED_FILE) -> tuple[PublishedRow, ...]:
    """Read all rows in the order of the file: by table, then by nodes."""
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(
            PublishedRow(
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


def published_runs(facts: Catalog | None = None) -> tuple[Run, ...]:
    """Return all rows as runs of the report."""
    facts = facts or catalog()
    return tuple(row.run(facts) for row in published_rows())
