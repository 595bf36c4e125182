"""Surplus nodes: nodes that come up for a job that lost others of its nodes. They are used or released.

Without this they would idle for SuspendTime. The daemon keeps them in memory only; after a restart they do
idle for SuspendTime.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from node.slurm.states import NodeState

SURPLUS_SECONDS = 15.0
"""How long a node waits for a job that it seems to fit."""


@dataclass(frozen=True, slots=True)
class Release:
    """Nodes to power down.

    Attributes:
        up: Nodes that are up. Slurm powers them down unless a job has taken them in the meantime.
        coming: Nodes that are not up yet. Slurm can power those down only by force.
    """

    up: tuple[str, ...] = ()
    coming: tuple[str, ...] = ()


class SurplusNodes:
    """The surplus nodes. Launch threads write it, and one loop reads it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: dict[str, int] = {}
        self._surplus: dict[str, float] = {}

    def wanted(self, jobs: Mapping[str, int]) -> None:
        """Record that nodes are being launched.

        Args:
            jobs: Node -> the job that waits for it.
        """
        with self._lock:
            self._wanted.update(jobs)
            for node in jobs:
                self._surplus.pop(node, None)

    def lost(self, nodes: tuple[str, ...], jobs: Mapping[str, int], now: float) -> None:
        """Record nodes that cannot be launched: the other nodes of the same jobs are surplus.

        Args:
            nodes: The nodes that cannot be launched.
            jobs: Node -> the job that waits for it.
            now: Seconds on a clock that never jumps.
        """
        failed = {jobs[node] for node in nodes if node in jobs}
        with self._lock:
            for node in nodes:
                self._wanted.pop(node, None)
            for node, job in self._wanted.items():
                if job in failed:
                    self._surplus.setdefault(node, now)

    def release(self, nodes: Mapping[str, NodeState], needed: Callable[[str], bool], now: float) -> Release:
        """Return the surplus nodes that no job will use. Each node is returned once.

        Args:
            nodes: Node -> its state.
            needed: Returns whether some waiting job may take a node.
            now: Seconds on a clock that never jumps.
        """
        with self._lock:
            self._wanted = {
                n: job for n, job in self._wanted.items() if n in nodes and not _is_gone(nodes[n])
            }
            self._surplus = {
                n: since
                for n, since in self._surplus.items()
                if n in nodes and not (_is_gone(nodes[n]) or nodes[n].has_job or nodes[n].is_drained)
            }
            idle = [
                n for n, since in self._surplus.items() if now - since >= SURPLUS_SECONDS or not needed(n)
            ]
            for name in idle:
                del self._surplus[name]
        up = tuple(name for name in idle if nodes[name].is_up)
        return Release(up, tuple(name for name in idle if name not in up))


def _is_gone(state: NodeState) -> bool:
    return state.is_powering_down or (state.is_powered_down and not state.has_job)
