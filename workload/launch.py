"""Starts one task of a user's program: `python -m workload.launch SCRIPT [ARGUMENT …]` under srun.

It tells the task where the others are, in the variables that torch.distributed and TensorFlow read, and then
becomes the program. So signals and the exit status are the program's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from workload import cores, ports, slurm
from workload.errors import WorkloadError
from workload.program import WORK
from workload.rendezvous import Rendezvous, meet, reached_by

LIMIT_SECONDS = 300.0
"""How long a task waits for the others."""
RUN_FOLDER = "SLURM_STACKS_FOLDER"
"""The variable with the run's folder, which all nodes share."""


def variables(step: slurm.Step, addresses: Sequence[str], master_port: int) -> dict[str, str]:
    """Return the variables that tell a task its place among all tasks.

    Args:
        addresses: The `host:port` of each task, in the order of their ranks.
        master_port: MASTER_PORT: a port of the first task's machine that is not in `addresses`.
    """
    return {
        "MASTER_ADDR": addresses[0].rpartition(":")[0],
        "MASTER_PORT": str(master_port),
        "RANK": str(step.rank),
        "WORLD_SIZE": str(step.size),
        "TF_CONFIG": slurm.tf_config(addresses, step.rank),
    }


def local_variables(env: Mapping[str, str], step: slurm.Step) -> dict[str, str]:
    """Return the variables of the task's place on its node, from Slurm's."""
    return {
        "LOCAL_RANK": env.get("SLURM_LOCALID", "0"),
        "LOCAL_WORLD_SIZE": str(step.tasks_on_node),
        "NODE_RANK": env.get("SLURM_NODEID", "0"),
    }


def command(script: str, arguments: Sequence[str], python: str) -> list[str]:
    """Return the command that runs a program of the current folder.

    Python runs `.py` files and folders; other programs are executed.
    """
    path = Path(script)
    if path.suffix == ".py" or path.is_dir():
        return [python, script, *arguments]
    if not os.access(path, os.X_OK):  # allowed, because the folder is the run's own copy
        path.chmod(path.stat().st_mode | 0o755)
    return [str(path.absolute()), *arguments]


def main(arguments: Sequence[str]) -> int:
    env = dict(os.environ)
    try:
        step = slurm.read_step(env)
        rendezvous = Rendezvous(Path(env[RUN_FOLDER]), step)
        # The locks live as long as the program: they are never closed.
        reserved = [ports.reserve() for _ in range(2 if step.chief else 1)]
        (port, _), (master_port, _) = reserved[0], reserved[-1]
        address = reached_by(step.node, env.get("SLURM_LAUNCH_NODE_IPADDR", ""))
        note = {"node": step.node, "address": address, "port": port, "master_port": master_port}
        rendezvous.publish("address", note)
        rendezvous.publish(cores.TOPIC, cores.mine(step.node, None))
        addresses = meet(rendezvous, LIMIT_SECONDS)
        (chief,) = rendezvous.collect("address", range(1), LIMIT_SECONDS, "address")
        env |= variables(step, addresses, chief["master_port"]) | local_variables(env, step)
        # A container image may set another working folder.
        os.chdir(Path(env[RUN_FOLDER], WORK))
    except (WorkloadError, OSError) as error:
        print(f"slurm-stacks: {error}", file=sys.stderr, flush=True)
        return 1
    # This variable led Python to this package; the program must not import the package's modules.
    env.pop("PYTHONPATH", None)
    line = command(arguments[0], arguments[1:], sys.executable)
    try:
        os.execvpe(line[0], line, env)
    except OSError as error:
        print(f"slurm-stacks: {line[0]} cannot be started: {error.strerror}", file=sys.stderr, flush=True)
        return 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
