"""What the simulated slurmctld has saved on its disk, which is seldom the newest state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

CHECKPOINT_SECONDS = 300.0


class Disk:
    """Nodes that boot and jobs that wait for them, as they were saved last.

    Attributes:
        due: Whether slurmctld will save. A node's registration, or the start of a job that waited for it, is
            no reason for it to save.
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
