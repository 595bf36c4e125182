"""How a local cluster's machines are isolated: as process trees or as containers.

The choice is written when the cluster's cloud is made, and stays for the cluster's life.
"""

from __future__ import annotations

import json
from pathlib import Path

from localcloud.containers import ContainerRuntime, socket_path
from localcloud.machines import (
    MachineRuntime,
    ProcessRuntime,
)
from node.design.model import CONTAINER, PROCESS
from node.system import files, foreign


def write_isolation(run: Path, kind: str) -> None:
    """Save the isolation (`process` or `container`) in the cluster's run directory."""
    files.write(_isolation_file(run), json.dumps({"machines": kind}).encode())


def read_isolation(run: Path) -> str:
    """Return the isolation that was saved; `process` if there is none."""
    try:
        return str(foreign.record(_isolation_file(run))["machines"])
    except (OSError, ValueError, KeyError, TypeError):
        return PROCESS


def runtime(run: Path) -> MachineRuntime:
    """Return what starts and stops the cluster's machines."""
    if read_isolation(run) == CONTAINER:
        return ContainerRuntime(run)
    return ProcessRuntime(run, str(run / "python3"))


def agent_socket(run: Path) -> Path:
    """Return the socket of the cluster's agent."""
    return socket_path(run) if read_isolation(run) == CONTAINER else run / "cloud" / "agent.sock"


def _isolation_file(run: Path) -> Path:
    return run / "cloud" / "kind.json"
