"""The `sbatch` scripts of the built-in training and of a user's program.

The built-in training's script has the directives and names of the published ones. This module runs on the
engineer's machine, which has Jinja; the cluster's machines get the finished text.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from workload import program
from workload.options import BATCH, EPOCHS, LEARNING_RATE, PROFILE, PROFILES
from workload.preemption import STATUS

TEMPLATES = Path(__file__).parent

WARNING_SECONDS = 60
"""How long before its time limit the job gets SIGTERM. Slurm may send it up to a minute early, and the
training needs some seconds to save."""

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")


class Pool(NamedTuple):
    """A pool of the job's partition, of which the record names the one that the job gets.

    Attributes:
        nodes: What its nodes' names begin with, before the last hyphen: <partition>-<pool>.
        name: Its name in the partition.
        machine: The instance type.
        price_hour: USD a node and hour; `None` means not known.
    """

    nodes: str
    name: str
    machine: str
    price_hour: float | None


@dataclass(frozen=True, slots=True)
class Job:
    """What Slurm is asked for, and what the result record says of it.

    Attributes:
        python: The interpreter of the job's environment, `<apps>/envs/<digest>/bin/python`.
        code: The folder that holds the staged `workload/`.
        gpu_type: Slurm's type, for `gpu:<type>:<n>`; without it the script asks for `gpu:<n>`.
        exclusive: Whether the job takes whole nodes. A benchmark must not share its nodes, and its one task
            on a node needs all of the node's CPUs if Slurm binds tasks to the CPUs that they asked for.
        stack, machine, digest, price_hour: For the result record; the price is USD a node and hour.
        pools: Likewise, instead of the machine and the price: the partition's pools.
    """

    partition: str
    nodes: int
    python: str
    code: str
    gpus_per_node: int = 0
    gpu_type: str | None = None
    tasks_per_node: int = 1
    exclusive: bool = True
    stack: str | None = None
    machine: str | None = None
    digest: str | None = None
    price_hour: float | None = None
    pools: tuple[Pool, ...] = ()

    def __post_init__(self) -> None:
        """Check each value.

        Raises:
            ValueError: A value cannot stand in a directive, because directives have no quoting.
        """
        for what, word in (("partition", self.partition), ("gpu_type", self.gpu_type)):
            if word is not None and not _WORD.fullmatch(word):
                raise ValueError(f"{what} {word!r} cannot stand in an #SBATCH directive")
        _at_least_one(nodes=self.nodes, tasks=self.tasks_per_node)

    @property
    def gres(self) -> str | None:
        """The devices of a node, as Slurm is asked for them."""
        kind = ["gpu", *([self.gpu_type] if self.gpu_type else [])]
        return ":".join([*kind, str(self.gpus_per_node)]) if self.gpus_per_node else None

    @property
    def exports(self) -> list[tuple[str, str]]:
        """The variables for the result record."""
        exports = {
            "SLURM_STACKS_STACK": self.stack,
            "SLURM_STACKS_MACHINE": self.machine,
            "SLURM_STACKS_WORKLOAD_DIGEST": self.digest,
            "SLURM_STACKS_PRICE_HOUR": None if self.price_hour is None else repr(self.price_hour),
            "SLURM_STACKS_POOLS": json.dumps(self.pools) if self.pools else None,
        }
        return [(name, value) for name, value in exports.items() if value is not None]


@dataclass(frozen=True, slots=True)
class Training:
    """The options of the built-in training.

    Attributes:
        cache: The folder of data sets, which outlives the job.
        result: The record's path; a relative one begins at the run folder.
    """

    epochs: int = EPOCHS
    profile: str = PROFILE
    data: str = "auto"
    batch: int = BATCH
    seed: int = 0
    learning_rate: float = LEARNING_RATE
    average_every: int | None = None
    cache: str | None = None
    mnist_file: str | None = None
    result: str = "result.json"

    def __post_init__(self) -> None:
        """Check each value.

        Raises:
            ValueError: `workload.train` would refuse a value.
        """
        _at_least_one(epochs=self.epochs, batch=self.batch)
        if self.profile not in PROFILES:
            raise ValueError(f"profile {self.profile!r} is none of {', '.join(PROFILES)}")


def render(job: Job, training: Training) -> str:
    """Return the script of the built-in training. Submit it with the run folder as its working folder."""
    options = {
        "--profile": training.profile,
        "--epochs": training.epochs,
        "--data": training.data,
        "--batch": training.batch,
        "--seed": training.seed,
        "--learning-rate": training.learning_rate,
        "--average-every": training.average_every,
        "--gpus-per-node": job.gpus_per_node,
        "--mnist": training.mnist_file,
        "--cache": training.cache,
        "--result": training.result,
    }
    return _text(
        "run_keras.j2",
        job,
        job_name="kerasGPU-job" if job.gpus_per_node else "keras-job",
        warning_seconds=WARNING_SECONDS,
        again=STATUS,
        output="out-kerasGPU.txt" if job.gpus_per_node else "out-keras.txt",
        # Python finds the staged package here.
        exports=[("PYTHONPATH", job.code), *job.exports],
        arguments=[
            f"{name} {shlex.quote(str(value))}" for name, value in options.items() if value is not None
        ],
    )


def render_program(job: Job, command: Sequence[str], container: str | None = None) -> str:
    """Return the script of a user's program. Submit it with the run folder as its working folder.

    Args:
        command: The program's path below the staged files, and its arguments.
        container: The OCI bundle in which its tasks run, by the image's own Python. `None` means none.
    """
    stem = PurePosixPath(command[0]).stem
    return _text(
        "run_program.j2",
        job,
        job_name=stem if _WORD.fullmatch(stem) else "program",
        warning_seconds=None,
        output="out-program.txt",
        exports=job.exports,
        code=job.code,
        gpus_per_node=job.gpus_per_node,
        command=shlex.join(command),
        container=container,
        names=program,
        state=json.dumps({"state": "running", "script": command[0]}),
    )


def _at_least_one(**numbers: int) -> None:
    for what, number in numbers.items():
        if number < 1:
            raise ValueError(f"{what}: {number} is less than 1")


def _text(template: str, job: Job, **values: Any) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["sh"] = shlex.quote
    return environment.get_template(template).render(
        partition=job.partition,
        nodes=job.nodes,
        tasks_per_node=job.tasks_per_node,
        exclusive=job.exclusive,
        python=job.python,
        gres=job.gres,
        **values,
    )
