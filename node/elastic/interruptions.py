"""Counts how often the cloud takes a pool's spot machines back. After two times soon, the pool is closed.

Spot capacity that is gone within minutes of its launch costs a job its work again and again. So the jobs get
machines of a later pool that is not spot, and the pool is tried again after a time that grows. A partition
without such a pool goes on as it is. The counts are in memory. A daemon that starts again takes over a pause,
which Slurm has, and how long it was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from node.design.model import ClusterDesign
from node.elastic.failures import POLICIES, ErrorClass

WINDOW_SECONDS = 600.0
"""Machines that are taken back twice within this time close their pool."""
EVENT_SECONDS = 60.0
"""Machines that are taken back so soon after a first one are one event: a job's machines go together."""
QUIET_SECONDS = 4 * 3600.0
"""After this time without a pause the next one is short again."""


@dataclass(slots=True)
class _Seen:
    """What is known of a pool, on a clock that never jumps.

    Attributes:
        machines: Machine -> when it was first seen to be taken back.
        events: The beginnings of the events that have closed nothing yet.
        pause: The last pause.
        until: Its end.
    """

    machines: dict[str, float] = field(default_factory=dict)
    events: list[float] = field(default_factory=list)
    pause: float = 0.0
    until: float = 0.0


class Interruptions:
    """The machines that were taken back, by pool."""

    def __init__(self, design: ClusterDesign) -> None:
        self._seen = {
            pool.name: _Seen()
            for pools in design.slurm_partitions().values()
            for number, pool in enumerate(pools)
            if pool.spot and any(not later.spot for later in pools[number + 1 :])
        }
        self._pool = {node: p.name for p in design.partitions if p.name in self._seen for node in p.nodes()}

    def taken_back(self, machines: Mapping[str, str], now: float) -> list[tuple[str, float]]:
        """Record machines that the cloud takes back, each as often as it is seen.

        Args:
            machines: Node -> the id of its machine.
            now: Seconds on a clock that never jumps.

        Returns:
            The pools to close, and for how many seconds.
        """
        new: dict[str, list[str]] = {}
        for node, machine in machines.items():
            if (pool := self._pool.get(node)) is not None:
                new.setdefault(pool, []).append(machine)
        return [(pool, pause) for pool, ids in new.items() if (pause := _pause(self._seen[pool], ids, now))]

    def adopt(self, pool: str, pause: float, left: float, now: float) -> None:
        """Take over the pause of an earlier daemon.

        Args:
            pool: The pool.
            pause: Its length.
            left: The seconds until its end.
            now: Seconds on a clock that never jumps.
        """
        if (seen := self._seen.get(pool)) is None:
            return
        # The end is told to the minute.
        shortest = POLICIES[ErrorClass.INTERRUPTED].backoff
        pause = shortest * 2 ** round(math.log2(max(1.0, pause / shortest)))
        if pause >= seen.pause:
            seen.pause, seen.until = pause, now + left


def interruption_reason() -> str:
    """Return why a pool is closed."""
    return f"spot machines were taken back twice within {WINDOW_SECONDS / 60:.0f} minutes"


def _pause(seen: _Seen, machines: list[str], now: float) -> float:
    """Return for how long a pool is to be closed after machines were taken back; 0 if it stays open."""
    seen.machines = {machine: at for machine, at in seen.machines.items() if now - at < QUIET_SECONDS}
    if seen.machines.keys() >= set(machines):
        return 0.0
    for machine in machines:
        seen.machines.setdefault(machine, now)
    # While the pool is closed, machines that were left there are taken back. They say nothing new.
    if now < seen.until or (seen.events and now - seen.events[-1] < EVENT_SECONDS):
        return 0.0
    seen.events = [*(at for at in seen.events if now - at <= WINDOW_SECONDS), now]
    if len(seen.events) < 2:
        return 0.0
    policy = POLICIES[ErrorClass.INTERRUPTED]
    doubled = 2 * seen.pause if now - seen.until < QUIET_SECONDS else 0.0
    seen.pause = min(max(policy.backoff, doubled), policy.backoff_max)
    seen.until, seen.events = now + seen.pause, []
    return seen.pause
