"""The cluster's status from its elastic daemon, or which part of the cluster does not answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from node import rpc
from node.bootstrap.report import failure
from node.folders import Folders
from node.slurm import packaged
from node.slurm.control import Control, SlurmError

STATUS_SECONDS = 10.0
PING_SECONDS = 5.0


class SilentError(Exception):
    """There is no status. The text says which part of the cluster does not answer."""


def status(folders: Folders) -> dict[str, Any]:
    """Returns the status (`./cluster status --json`) within STATUS_SECONDS and PING_SECONDS.

    Raises:
        SilentError: A part of the cluster does not answer.
    """
    try:
        found: dict[str, Any] = rpc.call(str(folders.daemon_socket), "status", STATUS_SECONDS)
    except rpc.RpcUnavailableError as error:
        raise SilentError(_boot(folders) or _slurmctld(folders) or _daemon(folders, error)) from error
    except rpc.RpcError as error:
        raise SilentError(_behind(error)) from error
    return {**found, "slurm": packaged.status()}


def _boot(folders: Folders) -> str | None:
    """Returns a sentence on the controller's boot. `None` means that it has neither failed nor is running."""
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
    """Returns a sentence if slurmctld does not answer."""
    try:
        Control(folders.slurm_conf, PING_SECONDS).run("scontrol", "ping")
    except SlurmError as error:
        return f"slurmctld does not answer ({error})"
    return None


def _daemon(folders: Folders, error: rpc.RpcUnavailableError) -> str:
    return f"the elastic daemon does not answer ({error}); its log: {folders.log}/elastic.log"


def _behind(error: rpc.RpcError) -> str:
    """Returns the sentence for an error that the daemon answered, such as a slurmctld that is silent."""
    if error.code in ("SlurmDown", "SlurmError"):
        return f"slurmctld does not answer ({error})"
    return str(error)
