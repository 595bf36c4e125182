"""The lines of slurm.conf for the health of nodes and for users' prologs; none where nobody asks for them."""

from __future__ import annotations

from node.bootstrap import time_limits
from node.folders import Folders
from node.health.check import expected
from node.health.model import EPILOG, PROLOG
from node.health.programs import HEALTH_CHECK
from node.model import Settings


def options(settings: Settings) -> list[tuple[str, object]]:
    """Return the options of slurm.conf."""
    design, programs = settings.design, Folders(settings).code / "bin"
    found: list[tuple[str, object]] = []
    if design.health is not None and _checked(settings):
        found += [
            ("HealthCheckProgram", programs / HEALTH_CHECK),
            ("HealthCheckInterval", design.health.interval_seconds),
            # Nodes with jobs are checked, too: a job on a broken device loses its time.
            ("HealthCheckNodeState", "ANY"),
        ]
    if has_prolog(settings):
        found.append(("Prolog", programs / PROLOG))
        # The prolog runs on all nodes of a job when it gets them, not on each before its first step there.
        found.append(("PrologFlags", "Alloc"))
    if design.slurm.epilog is not None:
        found.append(("Epilog", programs / EPILOG))
    return found


def longest(settings: Settings) -> int:
    """Return the seconds that a prolog or an epilog may take; 0 for none. Slurm must wait as long."""
    slurm = settings.design.slurm
    checks = time_limits.HEALTH if _checked(settings) else 0
    return max(
        checks + (slurm.prolog.timeout if slurm.prolog else 0), slurm.epilog.timeout if slurm.epilog else 0
    )


def has_prolog(settings: Settings) -> bool:
    """Return whether jobs have a prolog on their nodes."""
    return _checked(settings) or settings.design.slurm.prolog is not None


def _checked(settings: Settings) -> bool:
    design = settings.design
    return any(expected(design, f"{partition.name}-0") is not None for partition in design.partitions)
