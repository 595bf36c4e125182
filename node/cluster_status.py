"""The cluster's status from its elastic daemon, or which part of the cluster does not answer."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from node.backup import record
from node.bootstrap.report import failure
from node.design.folders import Folders
from node.elastic.disks import Disks
from node.logs.find import Cluster
from node.logs.remarks import remarks
from node.slurm import packaged
from node.slurm.control import Control, SlurmError
from node.system import foreign, rpc

STATUS_SECONDS = 10.0
PING_SECONDS = 5.0


class SilentError(Exception):
    """There is no status. The text says which part of the cluster does not answer."""


def status(folders: Folders) -> dict[str, Any]:
    """Return the status (`./cluster status --json`) within STATUS_SECONDS and PING_SECONDS.

    Raises:
        SilentError: A part of the cluster does not answer.
    """
    try:
        answer: dict[str, Any] = rpc.call(str(folders.status_socket), "status", STATUS_SECONDS)
    except rpc.RpcUnavailableError as error:
        why = _boot(folders) or _slurmctld(folders) or _daemon(folders, error)
        raise SilentError(_unsaved(folders) + why) from error
    except rpc.RpcError as error:
        raise SilentError(_unsaved(folders) + _behind(error)) from error
    return {
        **answer,
        "slurm": packaged.status(),
        "backup": record.status(folders.settings),
        "remarks": remarks(Cluster(folders.settings)),
    }


def _boot(folders: Folders) -> str | None:
    """Return a sentence on the controller's boot. `None` means that it has neither failed nor is running."""
    path = Path(str(folders.lib)) / ("boot/controller.json" if folders.process else "boot.json")
    if why := failure(path):
        return f"the controller's boot failed at {why}"
    try:
        report = foreign.record(path)
        step = report["steps"][-1]["name"] if report["steps"] else "first"
        return f"the controller still boots: step {step}" if report["state"] == "booting" else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _unsaved(folders: Folders) -> str:
    """Return a clause if Slurm cannot save its state, which may be why nothing answers; empty if it can."""
    if not folders.process and socket.gethostname() != folders.settings.design.controller().name:
        return ""
    why = Disks(folders).status()["unsaved"]
    return "" if why is None else f"Slurm cannot save its state: {why}; "


def _slurmctld(folders: Folders) -> str | None:
    """Return a sentence if slurmctld does not answer."""
    try:
        Control(folders.slurm_conf, PING_SECONDS).run("scontrol", "ping")
    except SlurmError as error:
        return f"slurmctld does not answer ({error})"
    return None


def _daemon(folders: Folders, error: rpc.RpcUnavailableError) -> str:
    return f"the elastic daemon does not answer ({error}); its log: {folders.log}/elastic.log"


def _behind(error: rpc.RpcError) -> str:
    """Return the sentence for an error that the daemon answered, such as a slurmctld that is silent."""
    if error.code in ("SlurmDown", "SlurmError"):
        return f"slurmctld does not answer ({error})"
    return str(error)
