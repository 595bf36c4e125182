"""The options of the training. Standard library only, so a mistake is found before TensorFlow is loaded."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NETWORKS = ("resnet50", "tiny")
PRECISIONS = ("auto", "mixed", "float32")
DATA = ("auto", "tfrecords", "synthetic")


@dataclass(frozen=True, slots=True)
class Options:
    """What is trained, on what, and how long.

    Attributes:
        folder: The run's folder, which all nodes share: checkpoints, TensorBoard's logs, the result.
        data_folder: The folder with the TFRecords.
        data: tfrecords | synthetic; auto takes TFRecords if there are any.
        network: resnet50, or a tiny network of the same kind for tests.
        epochs: The epochs of the whole training.
        steps: The most steps of an epoch; 0 means all images.
        batch: The images of a step on each GPU, or on each worker without a GPU.
        image_size: The pixels of an image's side.
        learning_rate: The rate for 256 images a step; it is scaled by the number of images of a step.
        warmup_epochs: The epochs in which the learning rate grows to its peak.
        precision: mixed | float32; auto means mixed on GPUs, else float32.
        checkpoint_steps: The steps from one checkpoint to the next; 0 means only at the end of epochs.
        seed: The seed of the first weights and of the order of images.
    """

    folder: Path
    data_folder: Path
    data: str = "auto"
    network: str = "resnet50"
    epochs: int = 90
    steps: int = 0
    batch: int = 256
    image_size: int = 224
    learning_rate: float = 0.1
    warmup_epochs: float = 10.0
    precision: str = "auto"
    checkpoint_steps: int = 1000
    seed: int = 0


def parse(arguments: Sequence[str] | None, env: Mapping[str, str]) -> Options:
    """Read the options. Defaults are the entry point's variables JOB_DIR, BATCH_SIZE and the run's folder."""
    parser = argparse.ArgumentParser(prog="python3 -m workload.resnet.train", allow_abbrev=False)
    job = env.get("JOB_DIR") or "."
    run = env.get("SLURM_STACKS_FOLDER") or str(Path(job, "runs", "local"))
    parser.add_argument(
        "--folder", type=Path, default=Path(run), help="the run's folder, which all nodes share"
    )
    parser.add_argument(
        "--data-folder", type=Path, default=Path(job), help="the folder with the TFRecords (default: JOB_DIR)"
    )
    parser.add_argument("--data", choices=DATA, default="auto")
    parser.add_argument("--network", choices=NETWORKS, default="resnet50")
    parser.add_argument("--epochs", type=_count, default=90)
    parser.add_argument(
        "--steps", type=_number, default=0, help="the most steps of an epoch; 0 means all images"
    )
    parser.add_argument(
        "--batch",
        type=_count,
        default=env.get("BATCH_SIZE") or "256",
        help="images of a step on each GPU (default: BATCH_SIZE)",
    )
    parser.add_argument("--image-size", type=_count, default=224)
    parser.add_argument(
        "--learning-rate", type=_positive, default=0.1, help="the learning rate for 256 images a step"
    )
    parser.add_argument("--warmup-epochs", type=_not_negative, default=10.0)
    parser.add_argument("--precision", choices=PRECISIONS, default="auto")
    parser.add_argument(
        "--checkpoint-steps",
        type=_number,
        default=1000,
        help="steps between two checkpoints; 0 means only at the end of epochs",
    )
    parser.add_argument("--seed", type=_number, default=0)
    return Options(**vars(parser.parse_args(arguments)))


def from_environment(arguments: Sequence[str] | None = None) -> Options:
    """Read the options of this process."""
    return parse(arguments, os.environ)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def _count(text: str) -> int:
    if (number := _number(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is less than 1")
    return number


def _not_negative(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return number


def _positive(text: str) -> float:
    if (number := _not_negative(text)) == 0:
        raise argparse.ArgumentTypeError("a learning rate must be more than 0")
    return number
