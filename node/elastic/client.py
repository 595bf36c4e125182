"""The programs that Slurm calls: resume, resume-fail, suspend, and those that wait; and that of its stop.

Each sends a request to the daemon and exits. slurmctld waits for them, and hundreds may run at once, so they
import next to nothing and know no cloud. While the daemon is down they leave their requests in a folder that
it reads when it starts.

They get almost nothing from slurmctld, and whatever happens must not end its jobs.

Slurm's traps (docs/internals/slurm_traps.md): bare-programs, resume-file, start-tick,
reboot-of-a-node-that-is-up.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time

from node.system import rpc

RESUME_SECONDS = 10.0
RECORD_SECONDS = 10.0
WAIT_ROUND_SECONDS = 240.0
"""After how long the daemon answers a prolog that there is more to wait for, and is asked again."""
SILENT_SECONDS = 300.0
"""A daemon that says nothing for so long after a question is broken. That it has ended is seen at once."""
WAIT_RETRIES = {"wait": 20, "wait_for_release": 110}
"""How often a waiting program looks for a daemon that is away, a second apart."""
EPILOG_SECONDS = 110.0
"""How long the epilog waits: longer than a job takes to end (KillWait, then DOWN), and less than
PrologEpilogTimeout."""


WAITING = {"prolog-slurmctld": "wait", "epilog-slurmctld": "wait_for_release"}
"""The programs that wait, and what they ask the daemon."""


def main(program: str, socket: str, requests: str) -> int:
    """Run one of `programs.NAMES`, or `programs.RECORD`, with its caller's arguments and environment.

    Returns:
        The exit status. It is always 0: Slurm has nothing useful to do with a failure of these programs.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    if program in WAITING:
        return _wait(socket, WAITING[program])
    if program == "record-changes":
        return _record(socket)
    nodes = sys.argv[1] if len(sys.argv) > 1 else ""
    request: dict[str, object] = {
        "id": f"{time.time():.6f}-{os.getpid()}",
        "program": program,
        "nodes": nodes,
        "time": time.time(),
    }
    if program == "resume" and (path := os.environ.get("SLURM_RESUME_FILE")):
        try:
            # A job's features or its `extra` may be bytes that are no text.
            with open(path, encoding="utf-8", errors="replace") as stream:
                request["resume_file"] = stream.read()
        except OSError:
            request["resume_file"] = None
    elif program == "resume":
        # The job that asks for a new machine of nodes that are up (`--reboot`), before 23.02.
        request["job"] = os.environ.get("SLURM_JOB_ID")
    try:
        rpc.call(socket, "request", RESUME_SECONDS, request=request)
    except rpc.RpcUnavailableError:
        _spool(requests, request)
    return 0


def _spool(requests: str, request: dict[str, object]) -> None:
    """Write the request to the folder that the daemon reads when it starts.

    The file appears whole or not at all.
    """
    # Not by `files.write`: hundreds of these programs may run at once, and its imports take longer than this.
    draft = os.path.join(requests, f".{request['id']}")
    with open(draft, "w") as stream:
        json.dump(request, stream)
    os.replace(draft, os.path.join(requests, f"{request['id']}.json"))


def _record(socket: str) -> int:
    """Have the daemon record what people have changed in Slurm, if slurmctld still runs."""
    if os.environ.get("MAINPID"):
        with contextlib.suppress(rpc.RpcUnavailableError, rpc.RpcError):
            rpc.call(socket, "record", RECORD_SECONDS)
    return 0


def _wait(socket: str, method: str) -> int:
    """Wait as the job's prolog until its nodes are up or lost, or as its epilog until they have let go of it.

    When the prolog ends, slurmctld starts the batch script at once. Without it a batch job on fresh nodes
    leaves CONFIGURING only on a 30-second tick of slurmctld.

    `programs.WAITING_TEXT` does the same in Perl.
    """
    job = int(os.environ.get("SLURM_JOB_ID", "0"))
    nodes = os.environ.get("SLURM_JOB_NODELIST", "")
    failures = 0
    while failures < WAIT_RETRIES[method]:
        try:
            if rpc.call(socket, method, SILENT_SECONDS, job=job, nodes=nodes)["over"]:
                return 0
            failures = 0
        except rpc.RpcSilentError:
            break
        except (rpc.RpcUnavailableError, rpc.RpcError):
            failures += 1
            time.sleep(1.0)
    # The job still starts, on slurmctld's own tick, but later.
    return 0
