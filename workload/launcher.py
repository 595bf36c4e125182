"""Launches a user's program: it starts each task, and writes the result after the program's end.

The batch script runs two commands of this module. `python -m workload.launcher launch SCRIPT [ARGUMENT …]`
starts one task under srun. It tells the task where the others are, in the variables that torch.distributed
and TensorFlow read, and then becomes the program. So signals and the exit status are the program's own.
`python -m workload.launcher conclude … -- SCRIPT …` runs once, after the program's end, in the run's folder.
A program that succeeded gets its result record. For one that failed, the state file has the exit status and
the time; there is no result, so the run can be submitted again.

Standard library only.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workload import cores, files, rendezvous, result, slurm
from workload.errors import WorkloadError
from workload.program import PROGRESS_LINES, RESULT, STATE, VALUES, WORK
from workload.rendezvous import Rendezvous, meet, reached_by, reserve_program_port
from workload.slurm import read_job

LIMIT_SECONDS = 300.0
"""How long a task waits for the others."""
RUN_FOLDER = "SLURM_STACKS_FOLDER"
"""The variable with the run's folder, which all nodes share."""
PACKAGES = (
    "torch",
    "lightning",
    "pytorch-lightning",
    "tensorflow",
    "tensorflow-cpu",
    "keras",
    "jax",
    "numpy",
)
"""The record has the versions of these packages, if the environment has them."""


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


def launch(arguments: Sequence[str]) -> int:
    env = dict(os.environ)
    try:
        step = slurm.read_step(env)
        rendezvous = Rendezvous(Path(env[RUN_FOLDER]), step)
        # The locks live as long as the program: they are never closed.
        reserved = [reserve_program_port() for _ in range(2 if step.chief else 1)]
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


def make_record(options: argparse.Namespace, env: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """Return the record of a program that has ended.

    Args:
        folder: The run's folder.
    """
    job = read_job(env, time.time())
    nodes = int(env["SLURM_JOB_NUM_NODES"])
    script, *arguments = options.command
    used = cores.noted(folder / rendezvous.FOLDER, job.machine)
    values, notes = result.read_values(folder / VALUES)
    history, more = result.read_lines(folder / PROGRESS_LINES)
    cost = None if job.price_hour is None else round(job.price_hour * nodes * options.seconds / 3600, 6)
    return {
        "apiVersion": result.PROGRAM_API_VERSION,
        "stack": job.stack,
        "job_id": job.job_id,
        "partition": job.partition,
        **({} if job.pool is None else {"pool": job.pool}),
        "machine": job.machine,
        "nodes": nodes,
        "workers": nodes * options.tasks_per_node,
        "gpus_per_node": options.gpus_per_node,
        "cores": None if used is None else used.cores,
        "cores_shared": None if used is None else used.shared,
        "script": script,
        "arguments": arguments,
        "exit_status": options.status,
        "seconds_total": round(options.seconds, 3),
        "start_latency_seconds": None if job.start_latency is None else round(job.start_latency, 3),
        "restarts": job.restarts,
        "digest": job.digest,
        "environment": options.container or Path(sys.prefix).name,
        "versions": {} if options.container else {"python": platform.python_version(), **_versions()},
        "cost_usd": cost,
        "values": values,
        "history": history,
        "notes": [*notes, *more],
    }


def _versions() -> dict[str, str]:
    from importlib import metadata

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def write_result(record: dict[str, Any], folder: Path) -> None:
    """Write the state of the run, and its result if the program succeeded.

    Raises:
        ValueError: The record is not valid, which is a defect of this package.
    """
    if mistakes := result.program_mistakes(record):
        raise ValueError("; ".join(mistakes))
    state = {
        "state": "done" if record["exit_status"] == 0 else "failed",
        **{key: record[key] for key in ("script", "exit_status", "cost_usd")},
        "seconds": record["seconds_total"],
    }
    for note in record["notes"]:
        print(f"slurm-stacks: {note}", file=sys.stderr)
    if record["exit_status"] == 0:
        files.write_json(folder / RESULT, record)
    files.write_json(folder / STATE, state)
    print(
        f"{record['script']} ended with status {record['exit_status']} after {record['seconds_total']:.1f} s"
    )


def conclude(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m workload.launcher conclude", allow_abbrev=False)
    parser.add_argument("--status", type=int, required=True, help="the exit status of the program")
    parser.add_argument("--began", type=float, required=True, help="the uptime when it began, in seconds")
    parser.add_argument("--ended", type=float, required=True, help="the uptime when it ended")
    parser.add_argument("--tasks-per-node", type=int, default=1)
    parser.add_argument("--gpus-per-node", type=int, default=0)
    parser.add_argument("--container", help="the bundle in which the program ran: its packages are unknown")
    parser.add_argument("command", nargs="+", help="the script and its arguments, after --")
    options = parser.parse_args(arguments)
    options.seconds = max(0.0, options.ended - options.began)
    folder = Path.cwd()
    record = make_record(options, os.environ, folder)
    # The files in which the tasks tell each other their addresses.
    shutil.rmtree(folder / rendezvous.FOLDER, ignore_errors=True)
    write_result(record, folder)
    return 0


def main(arguments: Sequence[str]) -> int:
    """Run one of the two commands, and return its exit status."""
    name, *rest = arguments
    return {"launch": launch, "conclude": conclude}[name](rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
