"""How SSH reaches a cluster's machines: at a public address, or through Identity-Aware Proxy."""

from __future__ import annotations

import shlex

from infra.clouds.commands import ClusterRef
from infra.program.launcher import Run, anywhere, pasted

OPERATIONS = "operations.gcp"
"""The module that the stack's commands run."""


def proxy(place: ClusterRef, mode: str, run: Run = pasted) -> str | None:
    """Return the ProxyCommand of OpenSSH for an access mode, with an instance's name for %h.

    `None` means that none is needed.

    Args:
        mode: `access.mode`: ssh | iap.
        run: Returns the command that runs a line of `operations`.
    """
    if mode != "iap":
        return None
    where = shlex.join(["--project", str(place.project), "--zone", str(place.zone)])
    # OpenSSH would expand a per cent sign.
    where += _settings(place).replace("%", "%%")
    return run(f"{OPERATIONS} proxy {where} --instance %h --port %p")


def ask(place: ClusterRef, run: Run = anywhere) -> str:
    """Return the command that says which user `ssh` logs in as.

    It is the user who connects, who need not be the one who made the cluster.
    """
    return run(f"{OPERATIONS} user --project {shlex.quote(str(place.project))}{_settings(place)}")


def _settings(place: ClusterRef) -> str:
    if place.provider_settings is None:
        return ""
    return f" {shlex.join(['--provider-settings', place.provider_settings])}"
