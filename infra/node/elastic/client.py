"""What Slurm calls: resume, resume-fail, suspend, and the prolog that waits. Each asks the daemon and ends.

slurmctld waits for these, and there may be hundreds at once: they import next to nothing, know no cloud, and
when the daemon is down they leave their request in a folder where it finds it at its start.

Traps that the code answers, all met in practice (Slurm 22.05): programs get no PATH, no SLURM_CONF, a closed
stdin and blocked signals; a resume file is gone once slurmctld stops; a prolog that fails requeues the job.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from infra.node import rpc

RESUME_SECONDS = 10.0
WAIT_ROUND_SECONDS = 30.0
WAIT_RETRIES = 20


def main(program: str, socket: str, requests: str) -> int:
    """Run one of `programs.NAMES` with Slurm's arguments and environment.

    Returns:
        The exit status: 1 only where Slurm should know, which no program here wants.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    if program == "prolog-slurmctld":
        return _wait(socket)
    nodes = sys.argv[1] if len(sys.argv) > 1 else ""
    request: dict[str, object] = {
        "id": f"{time.time():.6f}-{os.getpid()}",
        "program": program,
        "nodes": nodes,
        "time": time.time(),
    }
    if program == "resume" and (path := os.environ.get("SLURM_RESUME_FILE")):
        try:
            with open(path) as stream:
                request["resume_file"] = stream.read()
        except OSError:
            request["resume_file"] = None
    try:
        rpc.call(socket, "request", RESUME_SECONDS, request=request)
    except rpc.RpcUnavailableError:
        _leave(requests, request)
    return 0


def _leave(requests: str, request: dict[str, object]) -> None:
    """Put the request where the daemon looks when it starts; whole or not at all."""
    draft = os.path.join(requests, f".{request['id']}")
    with open(draft, "w") as stream:
        json.dump(request, stream)
    os.replace(draft, os.path.join(requests, f"{request['id']}.json"))


def _wait(socket: str) -> int:
    """Until the job's nodes are up, or will not be: its end lets slurmctld start the batch script at once.

    Without it a batch job on fresh nodes leaves CONFIGURING only on a 30-second tick of slurmctld.
    """
    job = int(os.environ.get("SLURM_JOB_ID", "0"))
    nodes = os.environ.get("SLURM_JOB_NODELIST", "")
    asked = time.monotonic()
    failures = 0
    while failures < WAIT_RETRIES:
        try:
            # The daemon ends a round by itself, so silence means that it is gone and not that it waits.
            if rpc.call(socket, "wait", WAIT_ROUND_SECONDS + 15, job=job, nodes=nodes, asked=asked)["over"]:
                return 0
            failures = 0
        except (rpc.RpcUnavailableError, rpc.RpcError):
            failures += 1
            time.sleep(1.0)
    # The job then starts on slurmctld's own tick: later, but it starts.
    return 0
