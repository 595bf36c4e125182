"""The cluster's status from its elastic daemon; where there is none, which part is silent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from infra.node import rpc
from infra.node.bootstrap.report import failure
from infra.node.model import Folders
from infra.node.slurm.control import Control, SlurmError

STATUS_SECONDS = 10.0
PING_SECONDS = 5.0


class SilentError(Exception):
    """There is no status; the text says which part of the cluster does not answer."""


def status(folders: Folders) -> dict[str, Any]:
    """The status contract (`./cluster status --json`), within STATUS_SECONDS and PING_SECONDS.

    Raises:
        SilentError: something does not answer.
    """
    try:
        found: dict[str, Any] = rpc.call(str(folders.daemon_socket), "status", STATUS_SECONDS)
    except rpc.RpcUnavailableError as error:
        raise SilentError(_boot(folders) or _slurmctld(folders) or _daemon(folders, error)) from error
    except rpc.RpcError as error:
        raise SilentError(_behind(error)) from error
    return found


def _boot(folders: Folders) -> str | None:
    """The controller's boot, if that is what failed or is not over."""
    path = Path(str(folders.lib)) / ("boot/controller.json" if folders.process else "boot.json")
    if why := failure(path):
        return f"the controller's boot failed at {why}"
    try:
        report = json.loads(path.read_text())
        step = report["steps"][-1]["name"] if report["steps"] else "first"
        return f"the controller still boots: step {step}" if report["state"] == "booting" else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _slurmctld(folders: Folders) -> str | None:
    """Whether it is slurmctld that everybody waits for."""
    try:
        Control(folders.slurm_conf, PING_SECONDS).run("scontrol", "ping")
    except SlurmError as error:
        return f"slurmctld does not answer ({error})"
    return None


def _daemon(folders: Folders, error: rpc.RpcUnavailableError) -> str:
    return f"the elastic daemon does not answer ({error}); its log: {folders.log}/elastic.log"


def _behind(error: rpc.RpcError) -> str:
    """What the daemon itself could not reach."""
    if error.code in ("SlurmDown", "SlurmError"):
        return f"slurmctld does not answer ({error})"
    return str(error)
