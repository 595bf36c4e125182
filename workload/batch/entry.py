"""The entry point of the container: `python3 -m workload.batch.entry [PROGRAM [ARGUMENT …]]`.

Every node of the job runs it with the same arguments. The main node's exit status is the job's: the program's
own if it fails on any node, 143 if the job was asked to end, 1 for anything else that goes wrong. Without
arguments the program is the training of ResNet-50.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from workload.batch import program, record, settings
from workload.batch.main_node import MainNode
from workload.batch.node import say
from workload.batch.settings import MPI, Settings
from workload.batch.worker import Worker
from workload.errors import WorkloadError


def main(arguments: Sequence[str]) -> int:
    """Run this node's part of the job, and return its exit status."""
    env = with_package(os.environ)
    try:
        read = settings.read(env)
        if not arguments and read.launch == MPI:
            raise WorkloadError(
                "SLURM_STACKS_LAUNCH is mpi, and there is no program: the built-in training of ResNet-50 "
                "does not use MPI. Give the program in the job definition's command"
            )
        if read.is_main:
            settings.check_folders(read)
    except WorkloadError as error:
        print(f"slurm-stacks: {error}", file=sys.stderr, flush=True)
        return 1
    if read.launch != MPI and (unused := program.exported(read.extra_mpi)[1]):
        say(read, f"EXTRA_MPI_PARAMS: without mpirun these have no effect: {' '.join(unused)}")
    command = list(arguments) or list(program.DEFAULT)
    if not read.is_main:
        return asyncio.run(Worker(read, command, env).run())
    try:
        record.clear(read)
        return _main_node(read, command, env)
    except OSError as error:
        say(read, f"JOB_DIR cannot be written any more: {error}")
        return 1


def with_package(env: Mapping[str, str]) -> dict[str, str]:
    """The variables with which programs find our package, too: they start in SCRATCH_DIR.

    The image has such a variable. Outside of it the package is found only where Python is started.
    """
    ours = str(Path(__file__).resolve().parents[2])
    paths = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {**env, "PYTHONPATH": os.pathsep.join([*paths, *([] if ours in paths else [ours])])}


def _main_node(read: Settings, command: list[str], env: dict[str, str]) -> int:
    status, outcome = asyncio.run(MainNode(read, command, env).run())
    if outcome is not None:
        made = record.make(read, command, env, outcome)
        for note in made["notes"]:
            say(read, note)
        files = record.write(read, made)
        say(read, f"result: {files[0]}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
