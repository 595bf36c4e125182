"""The processes of a local cluster in whatever state they were left: the agent started, all of it ended."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from infra.errors import UserError
from infra.local.cloud import containers
from infra.local.cloud.machines import CLUSTER_VARIABLE, of_cluster
from infra.local.site import RunDirectory
from infra.node import rpc
from infra.node.processes import ProcessId, end_all
from infra.runner import locations

AGENT_START_SECONDS = 60.0
ANSWER_SECONDS = 5.0
"""How long an agent may take to answer the shortest call before it counts as hanging."""
HUNG_SECONDS = 6.0
SHUTDOWN_SECONDS = 30.0
PATIENCE_SECONDS = 2.0
"""How long a wait may last before it says what it is for."""


def start_agent(project: Path, run: RunDirectory) -> None:
    """Have an agent that answers. One that hangs is ended first: machines outlive their agent.

    Raises:
        UserError: none can be had.
    """
    log = run.cloud / "agent.log"
    mine: subprocess.Popen[bytes] | None = None
    known: ProcessId | None = None
    began = since = time.monotonic()
    while not agent_answers(run):
        now = time.monotonic()
        other = agent_process(run)
        if mine is not None and other is not None and other.pid == mine.pid:
            other = None
        if other != known:
            # Another command's, started just now: it has its own time to come to its first answer.
            known, since = other, now
        ended = mine is not None and mine.poll() is not None
        if other is not None and ended:
            mine = None  # it gave way; should the other one end, there is another to be had
        if other is not None and now - since > HUNG_SECONDS:
            _say(f"the local cloud's agent (process {other.pid}) does not answer: it is ended")
            _kill(other)
        elif other is None and mine is None:
            mine = _spawn(project, run, log)
        elif (other is None and ended) or now - began > AGENT_START_SECONDS:
            raise UserError(f"the local cloud's agent did not start; the end of {log}:\n{tail(log)}")
        time.sleep(0.02)


def agent_answers(run: RunDirectory) -> bool:
    """Whether an agent serves; one that is shutting down does not."""
    return _agent_says(run) == "serving"


def _agent_says(run: RunDirectory) -> Literal["serving", "closing", "nothing"]:
    try:
        rpc.call(str(run.agent_socket), "limits", ANSWER_SECONDS)
    except rpc.RpcUnavailableError:
        return "nothing"
    except rpc.RpcError as error:
        return "closing" if error.code == "Unavailable" else "serving"
    return "serving"


def agent_process(run: RunDirectory) -> ProcessId | None:
    """The cluster's living agent, whether or not it answers."""
    try:
        pid = int((run.cloud / "agent.lock").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    process = ProcessId.of(pid)
    ours = os.fsencode(run.path) in command and b"infra.local.cloud.agent" in command
    return process if ours and process is not None and process.alive() else None


def end_hung_agent(run: RunDirectory) -> None:
    """Before its machines are ended by other means: it must not wake up meanwhile."""
    if (process := agent_process(run)) is not None:
        _kill(process)


def end_cluster(run: RunDirectory) -> None:
    """End all of a cluster's processes and remove its run directory, whatever has died before or hangs.

    Raises:
        UserError: something cannot be ended.
    """
    if (agent := agent_process(run)) is not None:
        _shut_down(run, agent)
    with saying(f"ending what is left of the cluster in {run.path}"):
        containers.end_machines(run.path)
        left = end_all(lambda: of_cluster(run.path))
    if left:
        raise UserError(f"these processes of the cluster cannot be ended: {left}")
    if stays := containers.remove_traces(run.path):
        raise UserError(f"these parts of the cluster's machines cannot be removed: {', '.join(stays)}")
    shutil.rmtree(run.path, ignore_errors=True)


def fallen(run: RunDirectory) -> bool:
    """Whether the controller's machine is dead: after a reboot, or because somebody ended it."""
    try:
        records = json.loads((run.cloud / "machines.json").read_text())["machines"]
        controllers = [r for r in records if r["tags"]["role"] == "controller" and r["state"] != "terminated"]
        # One that has no process yet is about to start.
        return not any(r["process"] is None or ProcessId(**r["process"]).alive() for r in controllers)
    except (OSError, ValueError, KeyError, TypeError):
        return True


def why_gone(project: Path, stack: str, run: RunDirectory) -> str:
    """What to say of a cluster that has no run directory, or only the beginnings of one."""
    # Here: it brings half of Pulumi along, which commands that find their cluster do without.
    from infra.runner import embedded

    if run.path.exists() or not embedded.remembers(project, stack):
        return f"stack {stack} is not up: bring it up with `./cluster up --stack {stack}`"
    return (
        f"stack {stack} was up, but {run.path} is gone: the machine was restarted, or "
        f"{run.path.parent.parent} was tidied. `./cluster up --stack {stack}` makes the cluster anew, "
        f"`./cluster down --stack {stack}` forgets it; kept results stay."
    )


def how_to_restart(stack: str) -> str:
    """What to say where the controller has `fallen`."""
    return (
        f"the controller of stack {stack} does not run: the machine was restarted, or somebody ended it. "
        f"`./cluster up --stack {stack}` starts it again with its queue, `./cluster down --stack {stack}` "
        "clears the cluster away."
    )


@contextlib.contextmanager
def saying(text: str) -> Iterator[None]:
    """For a wait that is short as a rule: say what it is for once it is not."""
    timer = threading.Timer(PATIENCE_SECONDS, _say, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def tail(log: Path, lines: int = 15) -> str:
    """The end of a log."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return "(no log)"


def _spawn(project: Path, run: RunDirectory, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "infra.local.cloud.agent", str(run.path)],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # Not the caller's environment: the agent outlives it, and machines inherit from the agent.
            env={
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "HOME": str(locations.home()),
                "PYTHONPATH": str(project),
                "LANG": "C.UTF-8",
                CLUSTER_VARIABLE: str(run.path),
            },
            # Ctrl-C in the caller's terminal, and its end, are none of the agent's business.
            start_new_session=True,
        )


def _shut_down(run: RunDirectory, agent: ProcessId) -> None:
    """Have the agent end its machines and itself; after this it is dead in any case."""
    if _agent_says(run) == "nothing":
        _say(f"the local cloud's agent (process {agent.pid}) does not answer: its machines end without it")
    else:
        with saying("ending the cluster's machines"), contextlib.suppress(rpc.RpcUnavailableError):
            rpc.call(str(run.agent_socket), "shutdown", SHUTDOWN_SECONDS)
            deadline = time.monotonic() + ANSWER_SECONDS
            while agent.alive() and time.monotonic() < deadline:
                time.sleep(0.02)
    _kill(agent)


def _kill(process: ProcessId) -> None:
    """SIGKILL, which a stopped process gets, too."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while process.alive() and time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.02)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
