"""Nodes that come up for a job which has lost others of its nodes and so cannot run: used, or released.

They would idle for SuspendTime. The daemon remembers them only while it lives: what a restart forgets goes
after SuspendTime.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from infra.node.slurm.states import NodeState

PATIENCE_SECONDS = 15.0
"""How long a node waits for a job that it seems to fit."""


@dataclass(frozen=True, slots=True)
class Release:
    """Attributes:
    up: to be powered down if no job has taken them meanwhile.
    coming: not up yet, for which Slurm knows only the hard way.
    """

    up: tuple[str, ...] = ()
    coming: tuple[str, ...] = ()


class Strays:
    """Told by the launches of several threads, asked by one loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: dict[str, int] = {}
        self._strays: dict[str, float] = {}

    def wanted(self, jobs: Mapping[str, int]) -> None:
        """Nodes are being launched; node -> the job that waits for it."""
        with self._lock:
            self._wanted.update(jobs)
            for node in jobs:
                self._strays.pop(node, None)

    def lost(self, nodes: tuple[str, ...], jobs: Mapping[str, int], now: float) -> None:
        """Some nodes of jobs cannot be had: what else comes up for these jobs is astray."""
        failed = {jobs[node] for node in nodes if node in jobs}
        with self._lock:
            for node in nodes:
                self._wanted.pop(node, None)
            for node, job in self._wanted.items():
                if job in failed:
                    self._strays.setdefault(node, now)

    def release(self, nodes: Mapping[str, NodeState], needed: Callable[[str], bool], now: float) -> Release:
        """What nobody will use. A node that was named is not named again.

        Args:
            needed: whether some job that waits may take this node.
        """
        with self._lock:
            self._wanted = {
                n: job for n, job in self._wanted.items() if n in nodes and not _is_gone(nodes[n])
            }
            self._strays = {
                n: since
                for n, since in self._strays.items()
                if n in nodes and not (_is_gone(nodes[n]) or nodes[n].has_job or nodes[n].is_drained)
            }
            idle = [
                n for n, since in self._strays.items() if now - since >= PATIENCE_SECONDS or not needed(n)
            ]
            for name in idle:
                del self._strays[name]
        up = tuple(name for name in idle if nodes[name].is_up)
        return Release(up, tuple(name for name in idle if name not in up))


def _is_gone(state: NodeState) -> bool:
    return state.is_powering_down or (state.is_powered_down and not state.has_job)
