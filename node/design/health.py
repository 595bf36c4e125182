"""The parts of the design that concern the health of nodes, and the users' own prolog and epilog."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

PROLOG, EPILOG = "prolog", "epilog"
SCRIPTS = (PROLOG, EPILOG)
"""Slurm's programs before and after a job on each of its nodes, which run the users' own."""
CHECKS = ("gpus", "ecc", "memory_rows", "thermal", "nvlink", "dcgm", "xid", "efa", "neuron")
"""The names of the checks, as a stack file leaves them out."""


@dataclass(frozen=True, slots=True)
class Health:
    """How nodes with devices are checked.

    Attributes:
        interval_seconds: The time between two checks of a node that is up (Slurm's HealthCheckInterval).
        skip: The checks that are left out, of `CHECKS`.
    """

    interval_seconds: int = 300
    skip: tuple[str, ...] = ()

    def __str__(self) -> str:
        without = f", without {', '.join(self.skip)}" if self.skip else ""
        return f"every {self.interval_seconds} s{without}"


@dataclass(frozen=True, slots=True)
class JobScript:
    """A user's script that runs on a job's nodes, as root, before or after the job.

    Attributes:
        source: A path in the project.
        timeout: The seconds that it may take.
    """

    source: str
    timeout: int = 60

    def __str__(self) -> str:
        return self.source

    def archived(self, program: str) -> str:
        """Return its path in the node archive, as the script of one of Slurm's programs."""
        return f"scripts/{program}-{PurePosixPath(self.source).name}"
