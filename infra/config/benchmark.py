"""The model of `slurm-stacks:benchmark`. Field names are a contract; descriptions go into the schema."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from infra.config.fields import Section
from node.model import KERAS_MNIST

LONGEST_PATH = 1000


class BenchmarkConfig(Section):
    """The training that follows the creation of the cluster (`slurm-stacks:benchmark`)."""

    enabled: bool = Field(True, description="false: bring the cluster up and down without a training.")
    script: str = Field(
        KERAS_MNIST,
        min_length=1,
        max_length=LONGEST_PATH,
        description="keras-mnist: the built-in training. Else a program of yours, relative to this file: "
        "train.py, a folder with __main__.py, or another program that Linux can execute. epochs, profile, "
        "data, batch, learning_rate, seed and average_every are the built-in training's.",
    )
    files: list[str] = Field(
        default_factory=list,
        max_length=100,
        description="Your program: further files and folders that it needs, relative to this file.",
    )
    arguments: list[str | int | float] = Field(
        default_factory=list, max_length=1000, description="Your program: the arguments on its command line."
    )
    requirements: str | None = Field(
        None,
        min_length=1,
        max_length=LONGEST_PATH,
        description="Your program: a file with its Python packages, as pip reads it, relative to this file. "
        "Without it the program runs in the training environment (TensorFlow, numpy, scikit-learn).",
    )
    tasks_per_node: int = Field(
        1, ge=1, le=512, description="Your program: how many tasks of it start on each node."
    )
    container: str | None = Field(
        None,
        min_length=1,
        max_length=LONGEST_PATH,
        description="Your program: the OCI bundle in which its tasks run, an absolute path in a folder that "
        "all nodes share (docs/containers.md). It needs `containers` under the cluster, and the image Python "
        "3.11 or newer.",
    )
    partition: str | None = Field(None, description="Where it runs; the default partition if left out.")
    nodes: int = Field(1, ge=1, description="Nodes of the job.")
    gpus_per_node: int | None = Field(
        None, ge=0, description="GPUs asked for on each node (--gres); all of the node's by default."
    )
    epochs: int = Field(8, ge=1, le=10000, description="Passes over the data.")
    profile: Literal["published", "sync", "local-sgd"] = Field(
        "local-sgd",
        description="local-sgd: workers train alone and average their weights every few steps. sync: every "
        "step with the gradients of all workers, the learning rate scaled to the batch. published: tf_keras "
        "fit as in the published runs.",
    )
    data: Literal["auto", "mnist", "synthetic"] = Field(
        "auto", description="auto: MNIST where it can be had, else synthetic digits; the result says which."
    )
    batch: int = Field(64, ge=1, le=60000, description="Examples for each worker and step.")
    learning_rate: float = Field(
        0.2,
        gt=0,
        le=100,
        description="For a batch of 64. All profiles except published scale it to the batch.",
    )
    seed: int = Field(
        0, ge=0, le=2**31 - 1, description="Decides the first weights and the order of the data."
    )
    average_every: int | None = Field(
        None,
        ge=1,
        le=10000,
        description="local-sgd: the steps that a worker trains alone; measured if left out.",
    )
