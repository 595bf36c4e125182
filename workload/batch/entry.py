"""The entry point of the container: `python3 -m workload.batch.entry [PROGRAM [ARGUMENT …]]`.

Every node of the job runs it with the same arguments. The main node's exit status is the job's: the program's
own if it fails on any node, 143 if the job was asked to end, 1 for anything else that goes wrong. Without
arguments the program is the training of ResNet-50. The result record has the values that the program wrote,
and what the main node knows.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workload import files, result
from workload.batch import program, settings
from workload.batch.nodes import MainNode, Outcome, Worker
from workload.batch.protocol import say
from workload.batch.settings import MPI, Settings
from workload.errors import WorkloadError
from workload.program import PROGRESS_LINES, RESULT, VALUES

LINE = "RESULT "
"""The beginning of the log line with the record as JSON, without its history."""


def main(arguments: Sequence[str]) -> int:
    """Run this node's part of the job, and return its exit status."""
    env = with_package(os.environ)
    try:
        node = settings.read(env)
        if not arguments and node.launch == MPI:
            raise WorkloadError(
                "SLURM_STACKS_LAUNCH is mpi, and there is no program: the built-in training of ResNet-50 "
                "does not use MPI. Give the program in the job definition's command"
            )
        if node.is_main:
            settings.check_folders(node)
    except WorkloadError as error:
        print(f"slurm-stacks: {error}", file=sys.stderr, flush=True)
        return 1
    if node.launch != MPI and (unused := program.exported(node.extra_mpi)[1]):
        say(node, f"EXTRA_MPI_PARAMS: without mpirun these have no effect: {' '.join(unused)}")
    command = list(arguments) or list(program.DEFAULT)
    if not node.is_main:
        return asyncio.run(Worker(node, command, env).run())
    try:
        clear_results(node)
        return _main_node(node, command, env)
    except OSError as error:
        say(node, f"JOB_DIR cannot be written any more: {error}")
        return 1


def with_package(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which programs find our package, too: they start in SCRATCH_DIR.

    The image has such a variable. Outside of it the package is found only where Python is started.
    """
    package = str(Path(__file__).resolve().parents[2])
    paths = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {**env, "PYTHONPATH": os.pathsep.join([*paths, *([] if package in paths else [package])])}


def _main_node(node: Settings, command: list[str], env: dict[str, str]) -> int:
    status, outcome = asyncio.run(MainNode(node, command, env).run())
    if outcome is not None:
        record = make_record(node, command, env, outcome)
        for note in record["notes"]:
            say(node, note)
        paths = write_record(node, record)
        say(node, f"result: {paths[0]}")
    return status


def clear_results(settings: Settings) -> None:
    """Remove the results of an earlier attempt, but not its checkpoints."""
    for name in (VALUES, RESULT, *((PROGRESS_LINES,) if settings.attempt == 1 else ())):
        (settings.run_folder / name).unlink(missing_ok=True)


def make_record(
    settings: Settings, command: Sequence[str], env: Mapping[str, str], outcome: Outcome
) -> dict[str, Any]:
    """Return the record of a job whose program has succeeded."""
    folder = settings.run_folder
    values, notes = result.read_values(folder / VALUES)
    history, more = result.read_lines(folder / PROGRESS_LINES)
    taken = sorted(values.keys() & result.BATCH_KEYS.keys())
    if taken:
        notes.append(f"{VALUES}: left out, because the record has values of these names: {', '.join(taken)}")
    return {
        **{name: value for name, value in values.items() if name not in taken},
        "apiVersion": result.BATCH_API_VERSION,
        "scheduler": "batch",
        "stack": env.get("SLURM_STACKS_STACK"),
        "job_id": settings.job,
        "attempt": settings.attempt,
        "nodes": settings.nodes,
        "gpus": sum(outcome.gpus),
        "gpus_per_node": max(outcome.gpus),
        "launch": settings.launch,
        "image": settings.image or None,
        "program": list(command),
        "exit_status": 0,
        "seconds_total": round(outcome.seconds_total, 3),
        "seconds_waited": round(outcome.seconds_waited, 3),
        "versions": {"python": platform.python_version()},
        "history": history,
        "notes": [*notes, *more],
    }


def write_record(settings: Settings, record: Mapping[str, Any]) -> list[Path]:
    """Write the record to the job's folder and, as the latest one, to JOB_DIR, and print its line.

    Raises:
        ValueError: The record is not valid, which is a defect of this package.
        OSError: JOB_DIR cannot be written any more.
    """
    if wrong := result.batch_mistakes(dict(record)):
        raise ValueError("; ".join(wrong))
    paths = [settings.run_folder / RESULT, settings.folder / RESULT]
    for path in paths:
        files.write_json(path, record)
    short = {name: value for name, value in record.items() if name != "history"}
    # One write keeps the line whole, whatever else is printed at the same time.
    print(f"{LINE}{json.dumps(short, allow_nan=False)}", flush=True)
    return paths


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
