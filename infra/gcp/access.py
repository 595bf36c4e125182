"""How SSH reaches a cluster's machines: at a public address, or through Identity-Aware Proxy."""

from __future__ import annotations

import shlex

from infra.clouds.commands import ClusterRef
from infra.program.launcher import RUN

OPERATIONS = "operations.gcp"
"""The module that the stack's commands run."""


def proxy(place: ClusterRef, mode: str, run: str = RUN) -> str | None:
    """Return the ProxyCommand of OpenSSH for an access mode, with an instance's name for %h.

    `None` means that none is needed.

    Args:
        mode: `access.mode`: ssh | iap.
        run: The command that runs a module of `operations`.
    """
    if mode != "iap":
        return None
    where = shlex.join(["--project", str(place.project), "--zone", str(place.zone)])
    return f"{run} {OPERATIONS} proxy {where} --instance %h --port %p"


def ask(place: ClusterRef, run: str = RUN) -> str:
    """Return the command that says which user `ssh` logs in as.

    It is the user who connects, who need not be the one who made the cluster.
    """
    return f"{run} {OPERATIONS} user --project {shlex.quote(str(place.project))}"
