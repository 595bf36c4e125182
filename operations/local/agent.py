"""Starts the agent of a local cluster, and ends all processes of a cluster in whatever state they are."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from infra import environments
from infra.errors import UserError
from infra.program import locations
from localcloud import addresses, containers
from localcloud.machines import CLUSTER_VARIABLE
from node.system import files, foreign, rpc, subprocesses
from node.system.processes import ProcessId, end_all
from operations.local.run_directory import RunDirectory
from operations.waiting import attempts, wait_until

AGENT = "localcloud.agent"
AGENT_START_SECONDS = 60.0
ANSWER_SECONDS = 5.0
"""Seconds for the shortest call, after which an agent counts as hanging."""
HUNG_SECONDS = 6.0
SHUTDOWN_SECONDS = 30.0
PATIENCE_SECONDS = 2.0
"""Seconds after which a wait is explained."""


def start_agent(project: Path, run: RunDirectory) -> None:
    """Start an agent, unless one answers. An agent that hangs is ended first: machines outlive their agent.

    Raises:
        UserError: The agent does not start.
    """
    log = run.cloud / "agent.log"
    started: subprocess.Popen[bytes] | None = None
    known: ProcessId | None = None
    since = time.monotonic()
    for _ in attempts(AGENT_START_SECONDS, 0.02):
        if agent_answers(run):
            return
        now = time.monotonic()
        other = agent_process(run)
        if started is not None and other is not None and other.pid == started.pid:
            other = None
        if other != known:
            # Another command has started this agent just now, so its time to answer begins here.
            known, since = other, now
        ended = started is not None and started.poll() is not None
        if other is not None and ended:
            started = None  # ours gave way to the other one; if that ends too, a new one is started
        if other is not None and now - since > HUNG_SECONDS:
            say(f"the local cloud's agent (process {other.pid}) does not answer: it is ended")
            _kill(other)
        elif other is None and started is None:
            started = _spawn(project, run, log)
        elif other is None and ended:
            break
    raise UserError(
        f"the local cloud's agent did not start; the end of {log}:\n{tail(log)}", code="agent.not-started"
    )


def agent_answers(run: RunDirectory) -> bool:
    """Whether an agent serves. An agent that is shutting down does not."""
    return _agent_says(run) == "serving"


def _agent_says(run: RunDirectory) -> Literal["serving", "closing", "nothing"]:
    try:
        run.call("limits", ANSWER_SECONDS)
    except rpc.RpcUnavailableError:
        return "nothing"
    except rpc.RpcError as error:
        return "closing" if error.code == "Unavailable" else "serving"
    return "serving"


def agent_process(run: RunDirectory) -> ProcessId | None:
    """Return the cluster's running agent, whether or not it answers; `None` if there is none."""
    try:
        pid = int((run.cloud / "agent.lock").read_text())
        command = _words(pid)
    except (OSError, ValueError):
        return None
    process = ProcessId.of(pid)
    is_agent = os.fsencode(run.path) in command and AGENT.encode() in command
    return process if is_agent and process is not None and process.alive() else None


def _words(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def end_hung_agent(run: RunDirectory) -> None:
    """End the agent before its machines are ended in another way: it must not act meanwhile."""
    if (process := agent_process(run)) is not None:
        _kill(process)


def end_cluster(run: RunDirectory) -> None:
    """End all of a cluster's processes and remove its run directory, even if parts are dead or hang.

    Raises:
        UserError: A process or a part of a machine cannot be removed.
    """
    if (agent := agent_process(run)) is not None:
        _shut_down(run, agent)
    with explain_wait(f"ending what is left of the cluster in {run.path}"):
        containers.end_machines(run.path)
        left = end_all(run.pids)
    if left:
        raise UserError(
            f"these processes of the cluster cannot be ended: {left}", code="agent.processes-left"
        )
    if stays := containers.remove_leftovers(run.path):
        raise UserError(
            f"these parts of the cluster's machines cannot be removed: {', '.join(stays)}",
            code="agent.parts-left",
        )
    addresses.public_note(run.path).unlink(missing_ok=True)
    files.remove(run.path)


def controller_is_dead(run: RunDirectory) -> bool:
    """Whether the controller's machine does not run, after a reboot for example."""
    try:
        records = foreign.record(run.cloud / "machines.json")["machines"]
        controllers = [r for r in records if r["tags"]["role"] == "controller" and r["state"] != "terminated"]
        # A controller without a process is about to start.
        return not any(r["process"] is None or ProcessId(**r["process"]).alive() for r in controllers)
    except (OSError, ValueError, KeyError, TypeError):
        return True


def how_to_restart(stack: str) -> str:
    """Return the message for a cluster whose controller does not run."""
    return (
        f"the controller of stack {stack} does not run: the machine was restarted, or somebody ended it.\n"
        f"`./cluster up --stack {stack}` starts it again with its queue, `./cluster down --stack {stack}` "
        "removes the cluster."
    )


@contextlib.contextmanager
def explain_wait(text: str) -> Iterator[None]:
    """Print what the body waits for, once that takes longer than `PATIENCE_SECONDS`."""
    timer = threading.Timer(PATIENCE_SECONDS, say, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def tail(log: Path, lines: int = 15) -> str:
    """Return the end of a log."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return "(no log)"


def _spawn(project: Path, run: RunDirectory, log: Path) -> subprocess.Popen[bytes]:
    # Not the caller's environment, because the agent outlives the caller and machines inherit it.
    env = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(locations.home()),
        "PYTHONPATH": str(environments.code_of(project)),
        "LANG": "C.UTF-8",
        CLUSTER_VARIABLE: str(run.path),
    }
    with log.open("ab") as output:
        return subprocesses.start([sys.executable, "-P", "-m", AGENT, str(run.path)], env, output)


def _shut_down(run: RunDirectory, agent: ProcessId) -> None:
    """Let the agent end its machines and itself; if it hangs, it is killed."""
    if _agent_says(run) == "nothing":
        say(f"the local cloud's agent (process {agent.pid}) does not answer: its machines end without it")
    else:
        with explain_wait("ending the cluster's machines"), contextlib.suppress(rpc.RpcUnavailableError):
            run.call("shutdown", SHUTDOWN_SECONDS)
            wait_until(lambda: not agent.alive(), ANSWER_SECONDS, 0.02)
    _kill(agent)


def _kill(process: ProcessId) -> None:
    """Send SIGKILL, which ends a stopped process, too, and wait for the end."""
    for _ in attempts(ANSWER_SECONDS, 0.02):
        if not process.alive():
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def say(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)
