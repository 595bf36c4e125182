"""What the simulated slurmctld has on its disk: seldom the newest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

CHECKPOINT_SECONDS = 300.0


class Disk:
    """Nodes that boot and jobs that wait for them, as they were saved last.

    Attributes:
        due: something has happened after which slurmctld saves; that a node registered is no such thing, nor
            that a job which waited for it began.
    """

    def __init__(self) -> None:
        self.due = True
        self._saved_at = 0.0
        self._rising: set[str] = set()
        self._waiting: set[tuple[int, int]] = set()

    def tick(self, now: float, nodes: Iterable[Any], jobs: Iterable[Any]) -> None:
        if not self.due and now - self._saved_at < CHECKPOINT_SECONDS:
            return
        self.due, self._saved_at = False, now
        self._rising = {node.name for node in nodes if node.power in ("asked", "rising")}
        self._waiting = {(job.id, job.restarts) for job in jobs if job.state == "CONFIGURING"}

    def restore(self, nodes: Iterable[Any], jobs: Iterable[Any]) -> None:
        for node in nodes:
            if node.power == "up" and node.name in self._rising:
                node.power, node.silent, node.boot, node.told = "rising", True, None, True
        for job in jobs:
            if job.state == "RUNNING" and (job.id, job.restarts) in self._waiting:
                job.state, job.machines = "CONFIGURING", {}
