"""The table: a line a training, ours and published in the same columns, for a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from infra.report.runs import Run


class Column(NamedTuple):
    of: Callable[[Run], object]
    means: str


def _joined(pairs: Iterable[tuple[str, str]]) -> str:
    return "; ".join(f"{name} {value}" for name, value in pairs)


COLUMNS: Mapping[str, Column] = {
    "origin": Column(lambda r: r.origin, "ours or published"),
    "stack": Column(lambda r: r.stack, "the stack; of published rows the stack that describes their cluster"),
    "checkout": Column(
        lambda r: r.checkout, "whose result it is: the last folders of the checkout's path that tell it apart"
    ),
    "source": Column(lambda r: r.source, "the kept file, or the article's title"),
    "kept_at": Column(lambda r: r.kept_at, "when it was kept, UTC"),
    "job_id": Column(lambda r: r.job_id, "Slurm's number of the job"),
    "partition": Column(lambda r: r.partition, "Slurm's partition"),
    "machine": Column(lambda r: r.machine, "machine type of the nodes"),
    "accelerator": Column(lambda r: r.accelerator, "type of GPU, of published rows"),
    "nodes": Column(lambda r: r.nodes, "nodes of the job"),
    "workers": Column(lambda r: r.workers, "training processes"),
    "gpus_per_node": Column(lambda r: r.gpus_per_node, "GPUs a node"),
    "devices": Column(lambda r: "; ".join(r.devices), "devices that TensorFlow saw"),
    "profile": Column(lambda r: r.profile, "training loop: published, sync or local-sgd"),
    "data": Column(lambda r: r.data, "mnist or digits-synthetic"),
    "epochs": Column(lambda r: r.epochs, "epochs"),
    "global_batch": Column(lambda r: r.global_batch, "examples a step, of all workers"),
    "seconds_total": Column(lambda r: r.seconds_total, "start of the process to the result, seconds"),
    "seconds_train": Column(
        lambda r: r.seconds_train, "training, seconds; of published rows their code execution time"
    ),
    "seconds_per_epoch": Column(lambda r: _rounded(r.seconds_per_epoch), "seconds_train / epochs"),
    "images_per_second": Column(lambda r: r.images_per_second, "images trained on a second, all workers"),
    "loss": Column(lambda r: r.loss, "on the training data, last epoch"),
    "accuracy": Column(lambda r: r.accuracy, "on the training data, last epoch, 0 to 1"),
    "test_accuracy": Column(lambda r: r.test_accuracy, "on held-out data, 0 to 1"),
    "comparable": Column(
        lambda r: "yes" if r.comparable else "no", "whether loss and accuracy may stand beside published ones"
    ),
    "start_latency_seconds": Column(
        lambda r: r.start_latency_seconds,
        "from when Slurm could start the job (its submission, or the end of the jobs that it waited for) to "
        "the start of its batch script, seconds",
    ),
    "restarts": Column(lambda r: r.restarts, "times that Slurm started the job again"),
    "digest": Column(lambda r: r.digest, "SHA-256 of the training code"),
    "versions": Column(lambda r: _joined(r.versions), "of Python and the packages"),
    "cost_usd": Column(
        lambda r: r.cost_usd, "nodes × price × time, USD; of local.* machines a pretended price"
    ),
}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def text(runs: Iterable[Run]) -> str:
    """The table as CSV; what is not known is empty."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run in runs:
        writer.writerow([_cell(column.of(run)) for column in COLUMNS.values()])
    return buffer.getvalue()


def _cell(value: object) -> object:
    """A spreadsheet takes a text that begins like this for a formula, and would run it."""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return "" if value is None else value
