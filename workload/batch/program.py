"""The program of a job without MPI: its environment variables, and its start on a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workload import slurm
from workload.batch.node import with_interface
from workload.batch.process import Process
from workload.batch.settings import Settings
from workload.program import PROGRESS_LINES, VALUES

DEFAULT = ("python3", "-m", "workload.resnet.train")
"""The program that runs if the job names none."""
NOT_STARTED = 126
"""The exit status of a node whose program cannot be started, as in shells."""


def results(settings: Settings) -> dict[str, str]:
    """Return the variables that tell a program where its results go. Slurm stacks use the same ones."""
    folder = settings.run_folder
    return {
        "SLURM_STACKS_FOLDER": str(folder),
        "SLURM_STACKS_PROGRESS": str(folder / PROGRESS_LINES),
        "SLURM_STACKS_RESULT": str(folder / VALUES),
    }


def environment(
    settings: Settings, env: Mapping[str, str], addresses: Sequence[str], master: str, address: str
) -> dict[str, str]:
    """Return the variables of the program on this node.

    Args:
        settings: This node's settings.
        env: This node's environment variables.
        addresses: The `host:port` of each node, in the order of their ranks.
        master: The `host:port` for MASTER_ADDR and MASTER_PORT.
        address: This node's address.
    """
    rank = settings.rank(settings.node)
    host, _, port = master.rpartition(":")
    return {**with_interface(env, address), **exported(settings.extra_mpi)[0]} | {
        "RANK": str(rank),
        "WORLD_SIZE": str(settings.nodes),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": str(rank),
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "TF_CONFIG": slurm.tf_config(addresses, rank),
        **results(settings),
    }


def exported(extra: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """What EXTRA_MPI_PARAMS means where no mpirun starts the program.

    Returns:
        The variables of its `-x NAME=VALUE`, and the words that have no effect. `-x NAME` needs none:
        programs have all of the node's variables.
    """
    variables: dict[str, str] = {}
    unused: list[str] = []
    words = iter(extra)
    for word in words:
        if word != "-x":
            unused.append(word)
            continue
        name, equals, value = next(words, "").partition("=")
        if equals:
            variables[name] = value
    return variables, unused


async def start(settings: Settings, command: Sequence[str], env: Mapping[str, str]) -> Process:
    """Start the program in SCRATCH_DIR.

    Raises:
        WorkloadError: It cannot be started.
    """
    return await Process.start(command, env, settings.scratch)
