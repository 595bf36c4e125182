"""The `sbatch` script of the benchmark, with the directives and names of the published ones.

Runs on the engineer's machine, which has Jinja; the cluster's machines get the finished text.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from workload.options import BATCH, EPOCHS, PROFILES
from workload.preemption import STATUS

TEMPLATE = Path(__file__).with_name("run_keras.j2")

WARNING_SECONDS = 60
"""Before its time limit the job is told to save: Slurm may be up to a minute early, and the training takes
some seconds."""

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")


def render(
    *,
    partition: str,
    nodes: int,
    python: str,
    code: str,
    result: str = "result.json",
    epochs: int = EPOCHS,
    profile: str = "sync",
    data: str = "auto",
    batch: int = BATCH,
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
    """The script's text, the same for the same arguments. Submit it with the run folder as working folder.

    Args:
        python: the training environment's interpreter, `<apps>/envs/<lock digest>/bin/python`.
        code: the folder that holds `workload/`, for PYTHONPATH.
        result: the record's path; a relative one lies in the run folder.
        gpu_type: Slurm's type, for `gpu:<type>:<n>`; without it `gpu:<n>`.
        exclusive: take whole nodes. A benchmark shares its nodes with nobody, and its one task a node needs
            all of the node's CPUs where Slurm binds tasks to what they asked for.
        cache: where data sets are kept, a folder that outlives the job.
        stack, machine, digest, price_hour: for the result record; the price is USD a node and hour.

    Raises:
        ValueError: a value cannot stand in a directive, which has no quoting, or `workload.train` would
            refuse it.
    """
    import jinja2

    for what, word in (("partition", partition), ("gpu_type", gpu_type)):
        if word is not None and not _WORD.fullmatch(word):
            raise ValueError(f"{what} {word!r} cannot stand in an #SBATCH directive")
    for what, number in (("nodes", nodes), ("epochs", epochs), ("batch", batch), ("tasks", tasks_per_node)):
        if number < 1:
            raise ValueError(f"{what}: {number} is less than 1")
    if profile not in PROFILES:
        raise ValueError(f"profile {profile!r} is none of {', '.join(PROFILES)}")
    gpus = gpus_per_node > 0
    # The variables of the result record, and where Python finds the staged package.
    exports = {
        "PYTHONPATH": code,
        "SLURM_STACKS_STACK": stack,
        "SLURM_STACKS_MACHINE": machine,
        "SLURM_STACKS_WORKLOAD_DIGEST": digest,
        "SLURM_STACKS_PRICE_HOUR": None if price_hour is None else repr(price_hour),
    }
    options = {
        "--profile": profile,
        "--epochs": epochs,
        "--data": data,
        "--batch": batch,
        "--gpus-per-node": gpus_per_node,
        "--mnist": mnist_file,
        "--cache": cache,
        "--result": result,
    }
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    environment.filters["sh"] = shlex.quote
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        partition=partition,
        nodes=nodes,
        tasks_per_node=tasks_per_node,
        exclusive=exclusive,
        python=python,
        job_name="kerasGPU-job" if gpus else "keras-job",
        warning_seconds=WARNING_SECONDS,
        again=STATUS,
        output="out-kerasGPU.txt" if gpus else "out-keras.txt",
        gres=":".join(["gpu", *([gpu_type] if gpu_type else []), str(gpus_per_node)]) if gpus else None,
        exports=[(name, value) for name, value in exports.items() if value is not None],
        arguments=[
            f"{name} {shlex.quote(str(value))}" for name, value in options.items() if value is not None
        ],
    )
