"""The models of the jobs that a stack file describes: AWS Batch's (`scheduler: batch`) and the benchmark.

Field names are a contract; descriptions go into the schema.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from infra.config.fields import (
    BATCH_NAME,
    REPOSITORY,
    ROLE,
    MountPath,
    Name,
    Section,
    SecurityGroups,
    Text,
)
from node.design.model import KERAS_MNIST

# Names in AWS Batch: up to 128 letters, digits, hyphens and underscores.
BatchName = Annotated[str, Field(pattern=BATCH_NAME)]
# Names of repositories in ECR: small letters and digits, with separators between them.
RepositoryName = Annotated[str, Field(pattern=REPOSITORY, min_length=2, max_length=256)]


class Vcpus(Section):
    """The limits of the compute environment's vCPUs."""

    min: int = Field(
        0, ge=0, description="vCPUs that are always up; with 0 no machine runs while there is no job."
    )
    desired: int = Field(0, ge=0, description="vCPUs to start with.")
    max: int = Field(gt=0, le=1_000_000, description="Most vCPUs at once.")


class Volume(Section):
    """A folder of the machine that is mounted in the container."""

    source: MountPath = Field(description="Folder on the machine, e.g. /fsx.")
    path: MountPath | None = Field(
        None, description="Folder in the container; the same as `source` by default."
    )


class Container(Section):
    """The container that runs on each node of the job."""

    image: str | None = Field(
        None,
        min_length=1,
        description="Container image that exists, e.g. <account>.dkr.ecr.<region>.amazonaws.com/name:tag. "
        "null: the stack makes a repository, and `up` builds `workload/batch` and pushes it there.",
    )
    repository: RepositoryName | None = Field(
        None, description="Name of the repository that the stack makes; the cluster's name by default."
    )
    cached: bool = Field(
        False,
        description="true: the baked image of the machines (image.bake) has this image in Docker's cache, so "
        "that machines fetch only what has changed since.",
    )
    vcpus: int = Field(gt=0, le=1024, description="vCPUs for the container.")
    memory_mib: int = Field(gt=0, le=100_000_000, description="Memory for the container, MiB.")
    gpus: int | None = Field(
        None, ge=0, description="GPUs for the container; all of the machine's by default."
    )
    shared_memory_mib: int | None = Field(
        None,
        ge=64,
        le=100_000_000,
        description="Size of /dev/shm, MiB; an eighth of the container's memory by default. NCCL needs more "
        "than Docker's own 64.",
    )
    command: list[str] = Field(
        default_factory=list,
        description="Command; empty: the image's own. `Ref::manifest` "
        "stands for the manifest that started the job (`start_on_manifest`), `Ref::name` for a value of "
        "`batch.parameters`.",
    )
    job_role: str | None = Field(
        None,
        pattern=ROLE,
        description="ARN of an existing role for the job; null: one is made.",
    )
    environment: dict[str, Text] = Field(
        default_factory=dict,
        description="Environment variables, e.g. JOB_DIR, BATCH_SIZE, EXTRA_MPI_PARAMS, MPI_GPUS. Numbers "
        "may be bare. Names that start with AWS_BATCH belong to Batch.",
    )
    volumes: list[Volume] = Field(default_factory=list, description="Folders of the machine to mount.")


class BatchConfig(Section):
    """An AWS Batch compute environment, queue and multi-node parallel job definition."""

    nodes: int = Field(ge=1, le=1000, description="Nodes of one job (numNodes).")
    instance_types: list[str] = Field(
        min_length=1, description="Machines the environment may use; the first one is the job definition's."
    )
    vcpus: Vcpus = Field(description="Limits of the compute environment.")
    container: Container = Field(description="The container of each node.")
    compute_environment: BatchName | None = Field(None, description="Its name; <cluster>-ce by default.")
    queue: Name | None = Field(None, description="The queue's name; <cluster>-queue by default.")
    job_definition: BatchName | None = Field(None, description="Its name; <cluster>-job by default.")
    placement_group: BatchName | None = Field(
        None, description="Name of the cluster placement group that is made; null for none."
    )
    efa: bool = Field(
        False, description="Elastic Fabric Adapters for the nodes; their machine must have them."
    )
    file_system: Literal["stack", "job"] = Field(
        "stack",
        description="stack: FSx for Lustre is there as long as the stack. job: a state machine makes it for "
        "each job, and deletes it after the export to S3.",
    )
    start_on_manifest: bool = Field(
        False,
        description="true: the stack has a bucket, and each object below manifests/ in it starts a job.",
    )
    disk_gib: int = Field(50, ge=30, le=16384, description="Root disk of each node in GiB.")
    attempts: int = Field(1, ge=1, le=10, description="How often a job that fails is tried.")
    parameters: dict[str, Text] = Field(
        default_factory=dict,
        description="Values for `Ref::name` in the container's command, such as hyperparameters. A job may "
        "be submitted with others (submit-job --parameters).",
    )
    timeout: int | None = Field(
        None, ge=60, le=366 * 86400, description="Seconds for the whole job; null for no limit."
    )
    tags: dict[str, Text] = Field(
        default_factory=dict, description="EC2 tags of the machines, besides the cluster's `tags`."
    )
    security_groups: SecurityGroups = Field(
        default_factory=list,
        description="More security groups of the machines, of the VPC under network.aws.",
    )


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
