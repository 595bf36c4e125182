"""Whether a stack's Slurm keeps accounting, and whether its users may rely on that Slurm."""

from __future__ import annotations

from infra import slurm_releases
from infra.config import distributions
from infra.config.cluster import ClusterConfig
from infra.instance_types.catalog import Catalog


def is_on(cluster: ClusterConfig, facts: Catalog) -> bool:
    """Return whether slurmdbd runs: as the stack file says, or else where it costs little and is safe.

    By default it runs on a cloud's controller and on local machines that boot, because many clients of Slurm
    ask `sacct` (docs/clients.md). Process machines belong to one person, on a machine that may be small. A
    Slurm that nobody maintains has published faults of slurmdbd. Packages of the user's own need not have
    slurmdbd among them.

    Args:
        facts: The facts of instance types, with the stack's own.
    """
    if cluster.slurm.accounting is not None:
        return cluster.slurm.accounting
    own_packages = bool(cluster.slurm.packages) or cluster.slurm.repository is not None
    if cluster.scheduler != "slurm" or cluster.has_process_machines() or own_packages:
        return False
    return cluster.provider == "local" or reliable(cluster, facts)


def reliable(cluster: ClusterConfig, facts: Catalog) -> bool:
    """Return whether a cloud's stack has a Slurm that is maintained, or accepts what is open in it.

    The user's own packages count as maintained: their version is not known before they are installed.

    Args:
        facts: As for `is_on`.
    """
    table, name = slurm_releases.table(), distributions.slurm_package(cluster, facts)
    if name is None or table.maintained(package := table.packages[name]):
        return True
    accepted = cluster.slurm.accept_unmaintained
    latest = max((advisory.date for advisory in table.open_in(package.version)), default=table.date)
    return accepted is not None and accepted >= latest.isoformat()
