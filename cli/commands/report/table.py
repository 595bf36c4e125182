"""Makes report.csv: one line for each training, ours and published, in the same columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from cli.commands.report import programs
from cli.commands.report.programs import Program
from cli.commands.report.runs import Run
from cli.spreadsheet import quoted


class Column(NamedTuple):
    of: Callable[[Run], object]
    means: str


def _joined(pairs: Iterable[tuple[str, str]]) -> str:
    return "; ".join(f"{name} {value}" for name, value in pairs)


COLUMNS: Mapping[str, Column] = {
    "origin": Column(lambda r: r.origin, "ours or published"),
    "stack": Column(
        lambda r: r.stack, "the stack; for published rows the stack that describes their cluster"
    ),
    "checkout": Column(
        lambda r: r.checkout,
        "the checkout: the last folders of its path, as many as needed to tell it from others",
    ),
    "source": Column(lambda r: r.source, "the kept file, or the article's title"),
    "kept_at": Column(lambda r: r.kept_at, "when it was kept, UTC"),
    "job_id": Column(lambda r: r.job_id, "Slurm's number of the job"),
    "partition": Column(lambda r: r.partition, "Slurm's partition"),
    "pool": Column(lambda r: r.pool, "the pool of its nodes, if the partition has pools"),
    "machine": Column(lambda r: r.machine, "machine type of the nodes"),
    "accelerator": Column(lambda r: r.accelerator, "type of GPU, for published rows"),
    "nodes": Column(lambda r: r.nodes, "nodes of the job"),
    "workers": Column(lambda r: r.workers, "training processes"),
    "gpus_per_node": Column(lambda r: r.gpus_per_node, "GPUs a node"),
    "devices": Column(lambda r: "; ".join(r.devices), "devices that TensorFlow saw"),
    "profile": Column(lambda r: r.profile, "training loop: published, sync or local-sgd"),
    "data": Column(lambda r: r.data, "mnist or digits-synthetic"),
    "epochs": Column(lambda r: r.epochs, "epochs"),
    "global_batch": Column(lambda r: r.global_batch, "examples a step, all workers together"),
    "seconds_total": Column(lambda r: r.seconds_total, "start of the process to the result, seconds"),
    "seconds_train": Column(
        lambda r: r.seconds_train,
        "the sum of the epochs’ seconds; for published rows their code execution time",
    ),
    "seconds_per_epoch": Column(lambda r: _rounded(r.seconds_per_epoch), "seconds_train / epochs"),
    "images_per_second": Column(lambda r: r.images_per_second, "images trained on a second, all workers"),
    "learning_rate": Column(lambda r: r.learning_rate, "for a batch of 64; sync and local-sgd scale it"),
    "seed": Column(lambda r: r.seed, "of the first weights and of the data's order"),
    "average_every": Column(
        lambda r: r.average_every, "steps that a worker of profile local-sgd trained alone"
    ),
    "step_seconds": Column(lambda r: r.step_seconds, "mean time in which a worker computes a step, seconds"),
    "exchange_seconds": Column(
        lambda r: r.exchange_seconds,
        "mean time in which the workers exchange the weights, with the wait for the slowest, seconds",
    ),
    "phases": Column(
        lambda r: _joined((name, f"{seconds:g}") for name, seconds in r.phases),
        "the parts of the run that wrote the result, seconds",
    ),
    "cores": Column(lambda r: r.cores, "CPU cores that all workers together could use"),
    "cores_others": Column(
        lambda r: _rounded(r.cores_others),
        "the part of the cores' time that other programs took while it trained, 0 to 1",
    ),
    "cores_shared": Column(
        lambda r: None if r.cores_shared is None else "yes" if r.cores_shared else "no",
        "whether any core was more than one node's",
    ),
    "loss": Column(lambda r: r.loss, "on the training data, last epoch"),
    "accuracy": Column(lambda r: r.accuracy, "on the training data, last epoch, 0 to 1"),
    "test_accuracy": Column(lambda r: r.test_accuracy, "on held-out data, 0 to 1"),
    "comparable": Column(
        lambda r: "yes" if r.comparable else "no",
        "whether loss and accuracy may be compared with published ones",
    ),
    "start_latency_seconds": Column(
        lambda r: r.start_latency_seconds,
        "from when Slurm could start the job (its submission, or the end of the jobs that it waited for) to "
        "the start of its batch script, seconds",
    ),
    "restarts": Column(lambda r: r.restarts, "how often Slurm started the job again"),
    "digest": Column(lambda r: r.digest, "SHA-256 of the training code"),
    "versions": Column(lambda r: _joined(r.versions), "versions of Python and the packages"),
    "cost_usd": Column(
        lambda r: r.cost_usd, "nodes × price × time, USD; for local.* machines a pretended price"
    ),
    "script": Column(lambda r: None, "a program of your own; its lines have no loss and no accuracy"),
    "arguments": Column(lambda r: None, "the program’s arguments"),
    "values": Column(lambda r: None, "what the program says of itself"),
}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def text(runs: Iterable[Run], user_programs: Iterable[Program] = ()) -> str:
    """Return the table as CSV. A value that is not known is empty.

    Args:
        runs: Runs of the built-in training, ours and published.
        user_programs: Runs of the users' own programs.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run in runs:
        writer.writerow([quoted(column.of(run)) for column in COLUMNS.values()])
    for program in user_programs:
        known = programs.cells(program)
        writer.writerow([quoted(known.get(name)) for name in COLUMNS])
    return buffer.getvalue()
