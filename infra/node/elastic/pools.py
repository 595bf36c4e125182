"""Pools that cannot give machines: what is known of each, and how many nodes may be asked for. Pure.

A pool is a partition, or one of its zones. A failed launch is a `Trouble` of its pool; while there is one,
the partition's nodes that are off are *fenced*: drained with our reason, so that Slurm places no job on what
cannot be had. How a trouble ends: the cloud says that there is room again; or, where the cloud cannot tell,
its back-off is over and the next launch tells; or, where boots keep failing, one node is tried and comes up.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from infra.node.elastic.driver import Room
from infra.node.elastic.errors import POLICIES, ErrorClass, Failure
from infra.node.model import ClusterDesign

OF_PARTITION = (ErrorClass.BUDGET, ErrorClass.BOOTSTRAP)
"""Classes that no other zone helps against: each is a pool of its own, beside the zones."""
API_TROUBLE = ErrorClass.THROTTLED
"""What the cloud answers when it cannot answer: nothing is learned of the pool."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A partition, or one of its zones; or with `kind` what limits the partition in all zones."""

    partition: str
    zone: str | None = None
    kind: ErrorClass | None = None

    @staticmethod
    def of(partition: str, zone: str | None, kind: ErrorClass) -> Pool:
        """The pool that a failure of a class belongs to."""
        return Pool(partition, None, kind) if kind in OF_PARTITION else Pool(partition, zone)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a pool cannot give what was asked for.

    Attributes:
        failure: the latest, naming no nodes.
        until: end of the back-off, on a clock that never jumps.
        wanted: the least that was asked for in vain.
        count: how many machines could be had now.
        known: the cloud's `room` speaks of this obstacle, so it also tells its end; None: not asked yet.
        tried: boots failed, the back-off is over, and one node is tried.
    """

    failure: Failure
    until: float
    wanted: int = 1
    count: int = 0
    known: bool | None = None
    tried: bool = False


@dataclass(frozen=True, slots=True)
class Limit:
    """How many more nodes of a partition may be asked for, and why no more.

    Attributes:
        count: a node that Slurm waits for and that has no machine yet is one of them.
        booting: nodes count until they are up, and not only until they have a machine.
    """

    count: int
    failure: Failure
    booting: bool = False


class Pools:
    """What is known of all pools. Launches of several threads tell it, and one loop asks."""

    def __init__(self, design: ClusterDesign) -> None:
        self._zones = {
            p.name: tuple(Pool(p.name, zone) for zone in p.zones or (None,)) for p in design.partitions
        }
        self._boot = float(design.slurm.resume_timeout)
        self._lock = threading.Lock()
        self._troubles: dict[Pool, Trouble] = {}
        self._streaks: dict[Pool, int] = {}

    def zones(self, partition: str) -> tuple[Pool, ...]:
        """The pools that a launch tries, in this order."""
        return self._zones[partition]

    def failed(
        self, pool: Pool, failure: Failure, now: float, *, wanted: int = 1, pause: float | None = None
    ) -> None:
        """A launch failed, or a boot.

        Args:
            wanted: the least that would have been of use.
            pause: seconds of back-off; None for the class's own, doubled with each failure in a row.
        """
        with self._lock:
            streak = self._streaks.get(pool, 0)
            self._streaks[pool] = streak + 1
            policy = POLICIES[failure.kind]
            lasts = min(policy.backoff * 2**streak, policy.backoff_max) if pause is None else pause
            known = False if pool.kind is ErrorClass.BOOTSTRAP else None
            failure = dataclasses.replace(failure, nodes=())
            self._troubles[pool] = Trouble(failure, now + lasts, wanted, known=known)

    def adopt(self, partition: str, failure: Failure, now: float) -> None:
        """Take over a fence that an earlier daemon has left. Where the cloud tells of room, it is over."""
        pools: tuple[Pool, ...] = (Pool.of(partition, None, failure.kind),)
        if failure.kind not in OF_PARTITION:
            pools = self._zones[partition]
        with self._lock:
            for pool in pools:
                until = now + POLICIES[failure.kind].backoff
                known = pool.kind is not ErrorClass.BOOTSTRAP
                self._troubles.setdefault(pool, Trouble(failure, until, known=known))
                self._streaks.setdefault(pool, 1)

    def launched(self, pool: Pool, count: int, *, whole: bool) -> None:
        """Machines came: there is room for so many less.

        Args:
            whole: all that was asked for came.
        """
        with self._lock:
            if whole:
                self._streaks.pop(pool, None)
            if (trouble := self._troubles.get(pool)) is not None:
                self._troubles[pool] = dataclasses.replace(trouble, count=max(0, trouble.count - count))

    def healed(self, pool: Pool) -> None:
        """What was in the way is gone."""
        with self._lock:
            self._troubles.pop(pool, None)
            self._streaks.pop(pool, None)

    def answered(self, pool: Pool, room: Room | None) -> None:
        """What the cloud, or the budget, says of a pool.

        Args:
            room: for all nodes of the partition that are off; None: it cannot tell.
        """
        with self._lock:
            trouble = self._troubles.get(pool)
            if trouble is None or pool.kind is ErrorClass.BOOTSTRAP:
                return
            silent = room is not None and room.failure is not None and room.failure.kind is API_TROUBLE
            if silent and trouble.failure.kind is not API_TROUBLE:
                self._troubles[pool] = dataclasses.replace(trouble, count=0)
            elif room is None or (not trouble.known and room.count >= trouble.wanted):
                # Right after a failure it sees no obstacle: it does not see this one.
                self._troubles[pool] = dataclasses.replace(trouble, known=False, count=0)
            elif room.failure is None:
                del self._troubles[pool]
            else:
                failure = dataclasses.replace(room.failure, nodes=())
                self._troubles[pool] = Trouble(failure, trouble.until, trouble.wanted, room.count, known=True)

    def tick(self, now: float) -> None:
        """Back-offs end: the pool is open again, or one node of it where boots kept failing."""
        with self._lock:
            for pool, trouble in list(self._troubles.items()):
                if now < trouble.until:
                    continue
                if pool.kind is ErrorClass.BOOTSTRAP and not trouble.tried:
                    until = now + self._boot
                    self._troubles[pool] = dataclasses.replace(trouble, until=until, count=1, tried=True)
                elif trouble.known is False:
                    # Of boots: nobody has wanted the node. The next failure closes the pool at once.
                    del self._troubles[pool]

    def troubles(self) -> dict[Pool, Trouble]:
        """Those of all pools, as they are now."""
        with self._lock:
            return dict(self._troubles)

    def refusal(self, pool: Pool, count: int, *, whole: bool) -> Failure | None:
        """Why a launch need not even be tried; None: it may be.

        Args:
            whole: fewer than `count` are of no use.
        """
        with self._lock:
            trouble = self._troubles.get(pool)
        if trouble is None or (trouble.count >= count if whole else trouble.count > 0):
            return None
        return trouble.failure

    def limit(self, partition: str) -> Limit | None:
        """How many more nodes may be asked for; None: nothing limits them."""
        return limit(self.troubles(), partition, self._zones[partition])


def limit(troubles: Mapping[Pool, Trouble], partition: str, zones: tuple[Pool, ...]) -> Limit | None:
    """The tightest of the budget, the boots and the zones.

    A job's nodes go to one zone, so the zone with the most room counts, and not all of them together: with a
    smaller number no machine is out of reach, because where some were launched the next zone takes over.
    """
    found = []
    for kind in OF_PARTITION:
        if (trouble := troubles.get(Pool(partition, None, kind))) is not None:
            found.append(Limit(trouble.count, trouble.failure, kind is ErrorClass.BOOTSTRAP))
    troubled = [(pool, troubles[pool]) for pool in zones if pool in troubles]
    if len(troubled) == len(zones):
        causes = [(pool.zone, trouble.failure) for pool, trouble in troubled]
        found.append(Limit(max(trouble.count for _, trouble in troubled), together(causes)))
    return min(found, key=lambda one: one.count, default=None)


def together(causes: list[tuple[str | None, Failure]], nodes: tuple[str, ...] = ()) -> Failure:
    """One failure of all zones that were tried, which its message names.

    Args:
        causes: zone -> its failure, in the order of the tries.
    """
    last = causes[-1][1]
    if len(causes) == 1:
        return dataclasses.replace(last, nodes=nodes)
    message = ", ".join(f"{zone}: {failure.message}" for zone, failure in causes)
    return Failure(nodes, last.kind, last.code, message)
