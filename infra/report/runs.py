"""One training as the report sees it: a kept result of ours, or a row of a published table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from infra.results import Kept

LARGEST = 1e12
PUBLISHED_EPOCHS = 8
PUBLISHED_BATCH = 64
MNIST = "mnist"
SYNTHETIC = "digits-synthetic"
UNKNOWN_CHECKOUT = "unknown checkout"
"""Of results that a version has kept which did not note whose they are."""
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
)
COMPARABLE_PROFILES = ("published", "sync")
"""Profiles whose mathematics is that of the articles."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch of a run's history."""

    epoch: int
    loss: float
    accuracy: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Run:
    """One training. Seconds, USD; None is "not known", never zero. Texts are printable."""

    origin: Literal["ours", "published"]
    source: str
    """The file's name, or the article's title."""
    kept_at: str | None
    """UTC: 20261121T141109Z."""
    stack: str
    checkout: str | None
    """Whose result it is, by the end of that checkout's path; None: not known, or published."""
    whose: str | None
    """The same in words, where the report has results of several checkouts; else None."""
    job_id: str | None
    partition: str | None
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
    """On the training data, after the last epoch; as in the articles."""
    test_accuracy: float | None
    """On held-out data, which the articles do not have."""
    history: tuple[Epoch, ...]
    start_latency_seconds: float | None
    restarts: int | None
    digest: str | None
    versions: tuple[tuple[str, str], ...]
    cost_usd: float | None
    """Of the nodes while the run lasted; neither head nor storage."""

    @property
    def batch(self) -> float:
        """Examples a worker and step."""
        return self.global_batch / self.workers

    @property
    def seconds_per_epoch(self) -> float | None:
        """Training time of one epoch; a time of zero is no measurement."""
        return self.seconds_train / self.epochs if self.seconds_train > 0 else None

    @property
    def cents_per_epoch(self) -> float | None:
        """US cents of the nodes for the training time of one epoch.

        Start-up is left out, because the published times have none (see the page's notes).
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
        """Whether its workers shared one machine's cores: the machines of the local stack do."""
        return self.machine is not None and self.machine.startswith("local.")

    @property
    def pretended_price(self) -> bool:
        """The machines of the local stack cost nothing; a stack file may give them a price to try budgets."""
        return self.local

    @property
    def comparable(self) -> bool:
        """Whether its loss and accuracy may stand beside the published ones: same data, same recipe."""
        return (
            self.data == MNIST
            and self.epochs == PUBLISHED_EPOCHS
            and self.profile in COMPARABLE_PROFILES
            and self.batch == PUBLISHED_BATCH
        )


def of(kept: Kept, stack: str, checkout: str | None = None, *, several: bool = False) -> Run:
    """A kept result.

    Args:
        stack: under whose name it is kept.
        checkout: whose it is; None: nobody knows.
        several: whether there are results of other checkouts beside it.

    Raises:
        ValueError: a number is beyond anything that a training can have; it names the key.
    """
    record: Mapping[str, Any] = kept.record
    values = {key: record[key] for key in _NUMBERS}
    numbers = [*values.items(), *(item for epoch in record["history"] for item in epoch.items())]
    if found := [key for key, value in numbers if value is not None and abs(value) > LARGEST]:
        raise ValueError(f"result.{found[0]}: more than {LARGEST:g} is no measurement")
    values |= {key: None if record[key] is None else printable(record[key]) for key in _TEXTS}
    return Run(
        origin="ours",
        source=printable(kept.path.name),
        kept_at=printable(kept.kept_at),
        stack=printable(stack),
        checkout=None if checkout is None else printable(checkout),
        whose=None if not several else f"checkout {printable(checkout)}" if checkout else UNKNOWN_CHECKOUT,
        accelerator=None,
        devices=tuple(printable(name) for name in record["devices"]),
        history=tuple(Epoch(e["epoch"], e["loss"], e["accuracy"], e["seconds"]) for e in record["history"]),
        versions=tuple((printable(name), printable(value)) for name, value in record["versions"].items()),
        **values,
    )


def printable(text: str) -> str:
    """The text without what neither XML nor UTF-8 can hold: control characters and halves of pairs."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _share(part: float, whole: float) -> float:
    return min(part / whole, 1.0) if whole > 0 else 1.0
