"""The release of Slurm that a stack gets, as far as it is known before `up`."""

from __future__ import annotations

import contextlib
import platform

from infra import slurm_releases
from infra.config import distributions
from infra.config.cluster import ClusterConfig
from infra.instance_types.catalog import Catalog


def chosen(cluster: ClusterConfig, facts: Catalog) -> str | None:
    """Return the release of Slurm that a stack gets, such as 24.11.

    On the local stack it is that of the suite, or of this machine's distribution.

    Args:
        facts: The facts of instance types, with the stack's own.

    Returns:
        `None` if it is not known: the packages are the user's own, or the distribution is not in the table.
    """
    table, slurm = slurm_releases.table(), cluster.slurm
    if slurm.packages or slurm.repository is not None:
        return None
    if cluster.provider != "local":
        name = distributions.slurm_package(cluster, facts)
        package = table.packages[name] if name is not None else None
    elif slurm.source is not None:
        package = table.packages[slurm.source]
    else:
        given = cluster.local.suite if cluster.local is not None else None
        package = table.package_of_suite(given or _suite_here())
    return slurm_releases.release_in(package.version) if package is not None else None


def _suite_here() -> str | None:
    with contextlib.suppress(OSError):
        return platform.freedesktop_os_release().get("VERSION_CODENAME")
    return None
