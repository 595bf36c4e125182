"""The command line of `python -m workload.train`."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROFILES = ("published", "sync", "local-sgd")
PROFILE: Final = "local-sgd"
"""The default: the fastest profile on several workers that keeps the accuracy of one. On one worker it is the
same training as `sync`."""
EPOCHS, BATCH, LEARNING_RATE = 8, 64, 0.2
"""The published recipe's."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a training, as `parse` describes them.

    Attributes:
        batch: Examples a step of one worker.
        average_every: `local-sgd`: steps that a worker trains alone; None means that the training measures
            and chooses.
        parts: `sync`: the number of parts in which a batch is computed.
    """

    profile: str
    epochs: int
    data: str
    mnist_file: Path | None
    batch: int
    gpus_per_node: int
    result: Path
    cache: Path
    seed: int
    learning_rate: float
    average_every: int | None
    rendezvous_timeout: float
    parts: int
    steps_per_epoch: int | None
    weights: Path | None
    checkpoint_seconds: float


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def _rate(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def parse(arguments: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m workload.train",
        description="Train the published Keras model on one task of a Slurm job step, or alone.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--profile",
        default=PROFILE,
        choices=PROFILES,
        help="published: Keras fit as in the articles; sync: every step with the gradients of all workers; "
        "local-sgd: workers train alone for some steps and then average their weights",
    )
    parser.add_argument("--epochs", type=_positive, default=EPOCHS)
    parser.add_argument(
        "--data",
        default="auto",
        choices=("auto", "mnist", "synthetic"),
        help="auto: MNIST if its file is here or can be downloaded, else synthetic digits",
    )
    parser.add_argument("--mnist", type=Path, dest="mnist_file", metavar="FILE", help="a local mnist.npz")
    parser.add_argument("--batch", type=_positive, default=BATCH, help="examples a worker and step")
    parser.add_argument(
        "--gpus-per-node",
        type=_count,
        default=0,
        metavar="N",
        help="GPUs that each node must have; the run fails on any other number",
    )
    parser.add_argument(
        "--result",
        type=Path,
        default=Path("result.json"),
        metavar="PATH",
        help="where the result record goes, in a folder that all tasks share; progress.json lies beside it",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="FOLDER",
        help="where data sets are kept (default: slurm-stacks in the user's cache folder)",
    )
    parser.add_argument(
        "--seed", type=_count, default=0, help="the seed of the first weights and of the data's order"
    )
    parser.add_argument(
        "--learning-rate",
        type=_rate,
        default=LEARNING_RATE,
        metavar="RATE",
        help=f"the learning rate for a batch of {BATCH}; published never scales it, the others do",
    )
    parser.add_argument(
        "--average-every",
        type=_positive,
        metavar="STEPS",
        help="local-sgd: how many steps a worker trains alone (default: chosen by measuring first steps)",
    )
    parser.add_argument(
        "--rendezvous-timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long a task waits for the others to appear",
    )
    parser.add_argument(
        "--parts",
        type=_positive,
        metavar="N",
        help=f"sync: compute each batch in N parts (default: parts of {BATCH} examples on CPUs, else 1)",
    )
    parser.add_argument(
        "--steps-per-epoch",
        type=_positive,
        metavar="N",
        help="for smoke tests: fewer steps than an epoch has; the result is no benchmark",
    )
    parser.add_argument(
        "--weights", type=Path, metavar="FOLDER", help="save each task's final weights as weights-<rank>.npz"
    )
    parser.add_argument(
        "--checkpoint-seconds",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="save this often, and on SIGTERM, so that a job that is queued again goes on from there; "
        "saving takes a hundredth of the time at most",
    )
    values = vars(parser.parse_args(arguments))
    values["cache"] = values["cache"] or default_cache()
    values["parts"] = values["parts"] or _parts(values["batch"], values["gpus_per_node"])
    return Options(**values)


def _parts(batch: int, gpus_per_node: int) -> int:
    """Return the number of parts (see `workload.sync`). A GPU computes a batch at once."""
    return batch // BATCH if gpus_per_node == 0 and batch % BATCH == 0 else 1


def default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "slurm-stacks"
