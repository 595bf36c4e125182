"""The version of the distribution's package of Slurm on this machine."""

from __future__ import annotations

import platform
from contextlib import suppress

from node.system import subprocesses

PACKAGES = ("slurmctld", "slurm-client", "slurm-smd-slurmctld", "slurm-smd-client")
QUERY_SECONDS = 10.0


def version() -> str | None:
    """Return the version of the installed package. `None` means that there is none."""
    query = ("dpkg-query", "--show", "--showformat=${db:Status-Status} ${Version}\n", *PACKAGES)
    try:
        output = subprocesses.run(query, {"PATH": subprocesses.SEARCH}, QUERY_SECONDS).output
    except OSError:
        return None
    words = [line.split() for line in output.splitlines()]
    return next((word[1] for word in words if len(word) == 2 and word[0] == "installed"), None)


def suite() -> str | None:
    """Return the name of the distribution's release in its archive. `None` means that it has none."""
    with suppress(OSError):
        return platform.freedesktop_os_release().get("VERSION_CODENAME")
    return None


def status() -> dict[str, str | None]:
    """Return both, for the cluster's status."""
    return {"version": version(), "suite": suite()}
