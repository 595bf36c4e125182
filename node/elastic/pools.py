"""Pools that cannot give machines: what is known of each, and how many nodes may be asked for. Pure.

A pool is a partition, or one of its zones; where the stack file divides a partition into pools, each of these
counts as a partition here. A failed launch is a `PoolFailure` of its pool. While a pool has
one, the partition's nodes that are off get a capacity drain (`capacity`), so that Slurm places no job
on machines that cannot be had. A failure ends in one of three ways: the cloud says that there is capacity
again; where the cloud cannot tell, the back-off ends and the next launch tells; where boots keep failing, one
node is tried and comes up.

Slurm uses the next pool of a partition when one is drained. A failure after which it should not
(`failures.FALLS_BACK`) holds the later pools, too.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from node.design.model import ClusterDesign
from node.elastic.driver import AvailableCapacity
from node.elastic.failures import API_FAILURES, FALLS_BACK, POLICIES, ErrorClass, Failure

PARTITION_WIDE = (ErrorClass.BUDGET, ErrorClass.BOOTSTRAP, ErrorClass.HEALTH, ErrorClass.INTERRUPTED)
"""Classes against which another zone does not help. Each is a pool of its own, beside the zones."""
PAUSING = (ErrorClass.BOOTSTRAP, ErrorClass.HEALTH)
"""Classes after which not even that is launched for which Slurm has asked already."""
OF_MACHINES = (*PAUSING, ErrorClass.INTERRUPTED)
"""Classes of failures of machines that were launched. The cloud's capacity says nothing about them."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A partition, or one of its zones. With `kind` it is what limits the partition in all zones."""

    partition: str
    zone: str | None = None
    kind: ErrorClass | None = None

    @staticmethod
    def of(partition: str, zone: str | None, kind: ErrorClass) -> Pool:
        """Return the pool to which a failure of a class belongs."""
        return Pool(partition, None, kind) if kind in PARTITION_WIDE else Pool(partition, zone)


@dataclass(frozen=True, slots=True)
class PoolFailure:
    """Why a pool cannot give what was asked for.

    Attributes:
        failure: The latest failure, naming no nodes.
        until: When the back-off ends, on a clock that never jumps.
        wanted: The smallest number of machines that was refused.
        count: How many machines could be had now.
        known: Whether the cloud's `available_capacity` reports this failure, and so also its end; `None`
            means it was not asked yet.
        tried: Whether one node is tried, after boots failed and the back-off is over.
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
        count: The number of nodes. It includes nodes that Slurm waits for and that have no machine yet.
        failure: Why no more.
        booting: Whether nodes count until they are up, and not only until they have a machine.
        held_by: The design's name of the earlier pool whose failure this is; `None` means its own.
    """

    count: int
    failure: Failure
    booting: bool = False
    held_by: str | None = None


class Pools:
    """What is known of all pools. Launch threads write it, and one loop reads it."""

    def __init__(self, design: ClusterDesign) -> None:
        self._zones = {
            p.name: tuple(Pool(p.name, zone) for zone in p.zones or (None,)) for p in design.partitions
        }
        self._earlier = {
            pool.name: pools[:number]
            for pools in design.slurm_partitions().values()
            for number, pool in enumerate(pools)
        }
        self._boot = float(design.slurm.resume_timeout)
        self._lock = threading.Lock()
        self._failures: dict[Pool, PoolFailure] = {}
        self._in_a_row: dict[Pool, int] = {}
        self._news = threading.Event()

    def zones(self, partition: str) -> tuple[Pool, ...]:
        """Return the pools that a launch tries, in this order."""
        return self._zones[partition]

    def failed(
        self, pool: Pool, failure: Failure, now: float, *, wanted: int = 1, pause: float | None = None
    ) -> None:
        """Record a failed launch or boot.

        Args:
            pool: The pool.
            failure: The failure.
            now: Seconds on a clock that never jumps.
            wanted: The smallest number of machines that would have been of use.
            pause: Seconds of back-off; `None` means the class's own, doubled with each failure in a row.
        """
        with self._lock:
            in_a_row = self._in_a_row.get(pool, 0)
            self._in_a_row[pool] = in_a_row + 1
            policy = POLICIES[failure.kind]
            lasts = min(policy.backoff * 2**in_a_row, policy.backoff_max) if pause is None else pause
            known = False if pool.kind in OF_MACHINES else None
            failure = dataclasses.replace(failure, nodes=())
            self._failures[pool] = PoolFailure(failure, now + lasts, wanted, known=known)
        self._news.set()

    def wake(self) -> None:
        """End the wait of `wait_for_failure`: Slurm has powered down the nodes of a failed launch."""
        self._news.set()

    def wait_for_failure(self, seconds: float) -> None:
        """Wait until a pool has failed since the last call, or the time is up."""
        self._news.wait(seconds)
        self._news.clear()

    def adopt(self, partition: str, failure: Failure, now: float, pause: float | None = None) -> None:
        """Take over the capacity drain of an earlier daemon. It ends if the cloud reports capacity.

        Args:
            partition: The partition of the drained node.
            failure: The drain's cause.
            now: Seconds on a clock that never jumps.
            pause: Seconds until it ends, where the drain tells; `None` means the class's first back-off.
        """
        for earlier in self._earlier[partition]:
            if failure.message.startswith(prefix := f"{earlier.pool}: "):
                # The later pool was only held.
                failure = dataclasses.replace(failure, message=failure.message.removeprefix(prefix))
                partition = earlier.name
        pools: tuple[Pool, ...] = (Pool.of(partition, None, failure.kind),)
        if failure.kind not in PARTITION_WIDE:
            pools = self._zones[partition]
        with self._lock:
            for pool in pools:
                until = now + (POLICIES[failure.kind].backoff if pause is None else pause)
                known = pool.kind not in OF_MACHINES
                self._failures.setdefault(pool, PoolFailure(failure, until, known=known))
                self._in_a_row.setdefault(pool, 1)

    def launched(self, pool: Pool, count: int, *, whole: bool) -> None:
        """Record that machines were launched, so that the capacity is smaller by as many.

        Args:
            whole: Whether everything that was asked for was launched.
        """
        with self._lock:
            if whole:
                self._in_a_row.pop(pool, None)
            if (failing := self._failures.get(pool)) is not None:
                self._failures[pool] = dataclasses.replace(failing, count=max(0, failing.count - count))

    def recovered(self, pool: Pool) -> None:
        """Forget a pool's failure: its cause is gone."""
        with self._lock:
            self._failures.pop(pool, None)
            self._in_a_row.pop(pool, None)

    def answered(self, pool: Pool, capacity: AvailableCapacity | None) -> None:
        """Record what the cloud, or the budget, says of a pool.

        Args:
            pool: The pool.
            capacity: The capacity for all nodes of the partition that are off; `None` means the cloud cannot
                tell.
        """
        with self._lock:
            failing = self._failures.get(pool)
            if failing is None or pool.kind in OF_MACHINES:
                return
            silent = (
                capacity is not None
                and capacity.failure is not None
                and capacity.failure.kind in API_FAILURES
            )
            if silent and failing.failure.kind not in API_FAILURES:
                self._failures[pool] = dataclasses.replace(failing, count=0)
            elif capacity is None or (not failing.known and capacity.count >= failing.wanted):
                # The cloud reports enough capacity right after it refused. So it does not see this cause.
                self._failures[pool] = dataclasses.replace(failing, known=False, count=0)
            elif capacity.failure is None:
                del self._failures[pool]
            else:
                failure = dataclasses.replace(capacity.failure, nodes=())
                self._failures[pool] = PoolFailure(
                    failure, failing.until, failing.wanted, capacity.count, known=True
                )

    def tick(self, now: float) -> None:
        """End the back-offs that are over.

        The pool is then open again, or one node of it where boots kept failing.
        """
        with self._lock:
            for pool, failing in list(self._failures.items()):
                if now < failing.until:
                    continue
                if pool.kind is ErrorClass.BOOTSTRAP and not failing.tried:
                    until = now + self._boot
                    self._failures[pool] = dataclasses.replace(failing, until=until, count=1, tried=True)
                elif failing.known is False:
                    # If boots had failed, no job has wanted the node that could be tried. The next failure
                    # closes the pool at once.
                    del self._failures[pool]

    def failures(self) -> dict[Pool, PoolFailure]:
        """Return the failures of all pools, as they are now."""
        with self._lock:
            return dict(self._failures)

    def refusal(self, pool: Pool, count: int, *, whole: bool) -> Failure | None:
        """Return why a launch need not be tried; `None` means it may be tried.

        Args:
            whole: Whether fewer than `count` machines are of no use.
        """
        with self._lock:
            failing = self._failures.get(pool)
        if failing is None or (failing.count >= count if whole else failing.count > 0):
            return None
        return failing.failure

    def limit(self, partition: str) -> Limit | None:
        """Return how many more nodes may be asked for; `None` means nothing limits them."""
        failures = self.failures()
        if (own := limit(failures, partition, self._zones[partition])) is not None and not own.count:
            return own
        for earlier in self._earlier[partition]:
            if (why := holding(failures, earlier.name, self._zones[earlier.name])) is not None:
                return Limit(0, of_pool(why, earlier.pool), held_by=earlier.name)
        return own


def holding(failures: Mapping[Pool, PoolFailure], partition: str, zones: tuple[Pool, ...]) -> Failure | None:
    """Return the failure for which the pools after this one are held; `None` if there is none."""
    found = [failures[pool] for kind in PARTITION_WIDE if (pool := Pool(partition, None, kind)) in failures]
    if all(zone in failures for zone in zones):
        found += [failures[zone] for zone in zones]
    return next((one.failure for one in found if not FALLS_BACK[one.failure.kind].falls), None)


def joint_cause(causes: Sequence[tuple[str | None, Failure]]) -> Failure:
    """Return one cause for a job: that of the first partition, or those of all of its pools.

    Args:
        causes: A pool's name, `None` for a partition without pools, and why it gets no more machines.
    """
    pools = [(pool, failure) for pool, failure in causes if pool is not None]
    if not pools:
        return causes[0][1]
    told: list[tuple[str | None, Failure]] = []
    for pool, failure in pools:
        # A pool that is held has an earlier one's failure, with its name.
        if not any(failure == of_pool(other, earlier) for earlier, other in told):
            told.append((pool, failure))
    return of_pool(told[0][1], told[0][0]) if len(told) == 1 else combined(told)


def of_pool(failure: Failure, pool: str | None) -> Failure:
    """Return a failure whose message names its pool; the failure itself where a partition has no pools."""
    if pool is None:
        return failure
    return dataclasses.replace(failure, message=f"{pool}: {failure.message}")


def limit(failures: Mapping[Pool, PoolFailure], partition: str, zones: tuple[Pool, ...]) -> Limit | None:
    """Return the tightest limit of the budget, the boots and the zones.

    All nodes of a job are in one zone, so the zone with the most capacity counts and not the sum of all
    zones. The smaller number makes no machine unreachable: once some were launched, the next zone takes over.
    """
    limits = []
    for kind in PARTITION_WIDE:
        if (failing := failures.get(Pool(partition, None, kind))) is not None:
            limits.append(Limit(failing.count, failing.failure, kind is ErrorClass.BOOTSTRAP))
    failing_zones = [(pool, failures[pool]) for pool in zones if pool in failures]
    if len(failing_zones) == len(zones):
        zone_failures = [(pool.zone, failing.failure) for pool, failing in failing_zones]
        limits.append(Limit(max(failing.count for _, failing in failing_zones), combined(zone_failures)))
    return min(limits, key=lambda limit: limit.count, default=None)


def combined(zone_failures: Sequence[tuple[str | None, Failure]], nodes: tuple[str, ...] = ()) -> Failure:
    """Return one failure for all zones or pools that were tried, which its message names.

    Args:
        zone_failures: The zones and their failures, in the order of the tries.
        nodes: The nodes of the new failure.
    """
    last = zone_failures[-1][1]
    if len(zone_failures) == 1:
        return dataclasses.replace(last, nodes=nodes)
    message = ", ".join(f"{zone}: {failure.message}" for zone, failure in zone_failures)
    return Failure(nodes, last.kind, last.code, message)
