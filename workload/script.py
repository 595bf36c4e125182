"""The `sbatch` scripts of the built-in training and of a user's program.

The built-in training's script has the directives and names of the published ones. This module runs on the
engineer's machine, which has Jinja; the cluster's machines get the finished text.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from workload import program
from workload.options import BATCH, EPOCHS, LEARNING_RATE, PROFILE, PROFILES
from workload.preemption import STATUS

TEMPLATES = Path(__file__).parent

WARNING_SECONDS = 60
"""How long before its time limit the job gets SIGTERM. Slurm may send it up to a minute early, and the
training needs some seconds to save."""

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")


def render(
    *,
    partition: str,
    nodes: int,
    python: str,
    code: str,
    result: str = "result.json",
    epochs: int = EPOCHS,
    profile: str = PROFILE,
    data: str = "auto",
    batch: int = BATCH,
    seed: int = 0,
    learning_rate: float = LEARNING_RATE,
    average_every: int | None = None,
    gpus_per_node: int = 0,
    gpu_type: str | None = None,
    tasks_per_node: int = 1,
    exclusive: bool = True,
    cache: str | None = None,
    mnist_file: str | None = None,
    stack: str | None = None,
    machine: str | None = None,
    digest: str | None = None,
    price_hour: float | None = None,
) -> str:
    """Return the script of the built-in training. Submit it with the run folder as its working folder.

    Args:
        python: The training environment's interpreter, `<apps>/envs/<lock digest>/bin/python`.
        code: The folder that holds `workload/`, for PYTHONPATH.
        result: The record's path; a relative one begins at the run folder.
        gpu_type: Slurm's type, for `gpu:<type>:<n>`; without it the script asks for `gpu:<n>`.
        exclusive: Whether the job takes whole nodes. A benchmark must not share its nodes, and its one task
            on a node needs all of the node's CPUs if Slurm binds tasks to the CPUs that they asked for.
        cache: The folder of data sets, which outlives the job.
        stack, machine, digest, price_hour: For the result record; the price is USD a node and hour.

    Raises:
        ValueError: A value cannot stand in a directive, because directives have no quoting, or
            `workload.train` would refuse it.
    """
    _check(
        {"partition": partition, "gpu_type": gpu_type},
        nodes=nodes,
        epochs=epochs,
        batch=batch,
        tasks=tasks_per_node,
    )
    if profile not in PROFILES:
        raise ValueError(f"profile {profile!r} is none of {', '.join(PROFILES)}")
    gpus = gpus_per_node > 0
    options = {
        "--profile": profile,
        "--epochs": epochs,
        "--data": data,
        "--batch": batch,
        "--seed": seed,
        "--learning-rate": learning_rate,
        "--average-every": average_every,
        "--gpus-per-node": gpus_per_node,
        "--mnist": mnist_file,
        "--cache": cache,
        "--result": result,
    }
    return _text(
        "run_keras.j2",
        partition=partition,
        nodes=nodes,
        tasks_per_node=tasks_per_node,
        exclusive=exclusive,
        python=python,
        job_name="kerasGPU-job" if gpus else "keras-job",
        warning_seconds=WARNING_SECONDS,
        again=STATUS,
        output="out-kerasGPU.txt" if gpus else "out-keras.txt",
        gres=_gres(gpus_per_node, gpu_type),
        # Python finds the staged package here.
        exports=[("PYTHONPATH", code), *_exports(stack, machine, digest, price_hour)],
        arguments=[
            f"{name} {shlex.quote(str(value))}" for name, value in options.items() if value is not None
        ],
    )


def render_program(
    *,
    partition: str,
    nodes: int,
    python: str,
    code: str,
    command: Sequence[str],
    gpus_per_node: int = 0,
    tasks_per_node: int = 1,
    container: str | None = None,
    stack: str | None = None,
    machine: str | None = None,
    digest: str | None = None,
    price_hour: float | None = None,
) -> str:
    """Return the script of a user's program. Submit it with the run folder as its working folder.

    Args:
        python: The interpreter of the program's environment.
        code: The folder that holds the staged `workload/`.
        command: The program's path below the staged files, and its arguments.
        container: The OCI bundle in which its tasks run, by the image's own Python. `None` means none.
        stack, machine, digest, price_hour: As for `render`.

    Raises:
        ValueError: A value cannot stand in a directive.
    """
    _check({"partition": partition}, nodes=nodes, tasks=tasks_per_node)
    stem = PurePosixPath(command[0]).stem
    return _text(
        "run_program.j2",
        partition=partition,
        nodes=nodes,
        tasks_per_node=tasks_per_node,
        exclusive=True,
        python=python,
        job_name=stem if _WORD.fullmatch(stem) else "program",
        warning_seconds=None,
        output="out-program.txt",
        gres=_gres(gpus_per_node, None),
        exports=_exports(stack, machine, digest, price_hour),
        code=code,
        gpus_per_node=gpus_per_node,
        command=shlex.join(command),
        container=container,
        names=program,
        state=json.dumps({"state": "running", "script": command[0]}),
    )


def _check(words: Mapping[str, str | None], **numbers: int) -> None:
    for what, word in words.items():
        if word is not None and not _WORD.fullmatch(word):
            raise ValueError(f"{what} {word!r} cannot stand in an #SBATCH directive")
    for what, number in numbers.items():
        if number < 1:
            raise ValueError(f"{what}: {number} is less than 1")


def _gres(gpus_per_node: int, gpu_type: str | None) -> str | None:
    return ":".join(["gpu", *([gpu_type] if gpu_type else []), str(gpus_per_node)]) if gpus_per_node else None


def _exports(
    stack: str | None, machine: str | None, digest: str | None, price_hour: float | None
) -> list[tuple[str, str]]:
    """Return the lines that export the variables for the result record."""
    exports = {
        "SLURM_STACKS_STACK": stack,
        "SLURM_STACKS_MACHINE": machine,
        "SLURM_STACKS_WORKLOAD_DIGEST": digest,
        "SLURM_STACKS_PRICE_HOUR": None if price_hour is None else repr(price_hour),
    }
    return [(name, value) for name, value in exports.items() if value is not None]


def _text(template: str, **values: Any) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["sh"] = shlex.quote
    return environment.get_template(template).render(values)
