"""Writes the result of a user's program after its end: `python -m workload.conclude … -- SCRIPT …`.

The batch script runs it once, in the run's folder. A program that succeeded gets its result record. For one
that failed, the state file has the exit status and the time; there is no result, so the run can be submitted
again.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from workload import cores, program_record, result
from workload.options import read_job
from workload.program import PROGRESS_LINES, RESULT, STATE, VALUES
from workload.rendezvous import FOLDER as RENDEZVOUS

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


def record(options: argparse.Namespace, env: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """Return the record of a program that has ended.

    Args:
        folder: The run's folder.
    """
    job = read_job(env, time.time())
    nodes = int(env["SLURM_JOB_NUM_NODES"])
    script, *arguments = options.command
    used = cores.noted(folder / RENDEZVOUS, job.machine)
    values, notes = program_record.read_values(folder / VALUES)
    history, more = program_record.read_lines(folder / PROGRESS_LINES)
    cost = None if job.price_hour is None else round(job.price_hour * nodes * options.seconds / 3600, 6)
    return {
        "apiVersion": program_record.API_VERSION,
        "stack": job.stack,
        "job_id": job.job_id,
        "partition": job.partition,
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
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def conclude(made: dict[str, Any], folder: Path) -> None:
    """Write the state of the run, and its result if the program succeeded.

    Raises:
        ValueError: The record is not valid, which is a defect of this package.
    """
    if wrong := program_record.mistakes(made):
        raise ValueError("; ".join(wrong))
    state = {
        "state": "done" if made["exit_status"] == 0 else "failed",
        **{key: made[key] for key in ("script", "exit_status", "cost_usd")},
        "seconds": made["seconds_total"],
    }
    for note in made["notes"]:
        print(f"slurm-stacks: {note}", file=sys.stderr)
    if made["exit_status"] == 0:
        result.write_json(folder / RESULT, made)
    result.write_json(folder / STATE, state)
    print(f"{made['script']} ended with status {made['exit_status']} after {made['seconds_total']:.1f} s")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m workload.conclude", allow_abbrev=False)
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
    made = record(options, os.environ, folder)
    # The files in which the tasks tell each other their addresses.
    shutil.rmtree(folder / RENDEZVOUS, ignore_errors=True)
    conclude(made, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
