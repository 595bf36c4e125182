"""What the cluster may still spend on nodes: how many more may start, and whether it is used up.

A launch counts as what it costs at least: the machine boots and, even if nobody uses it, stays for
SuspendTime. Machines that run count with what they have cost, and with what they will cost at least before
they can be given back. So a fleet that is launched a moment before the limit does not pass it; what passes it
is a job that runs for longer, and only as long as `running_jobs` says keep.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from infra.node.elastic.driver import LaunchGroup, Room
from infra.node.elastic.errors import ErrorClass, Failure
from infra.node.elastic.ledger import LEAST_SECONDS, Account, Ledger
from infra.node.model import ClusterDesign

BOOT_SECONDS = 120.0
"""What a boot on a cloud takes at least."""
LOCAL_BOOT_SECONDS = 2.0
TOLERANCE = 1e-9
"""Of sums of money, which are no whole numbers."""


@dataclass(frozen=True, slots=True)
class _Limit:
    """One of the budget's two.

    Attributes:
        key: in the stack file.
        unit: USD or node-hours, as `most` and the rest are.
        bound: what the machines that run, or are being launched, will cost at least.
        each: what one more node costs at least.
    """

    key: str
    unit: str
    most: float
    spent: float
    bound: float
    each: float

    def room(self, count: int) -> int:
        if self.each <= 0:
            return count
        left = self.most - self.spent - self.bound
        return max(0, min(count, int(left / self.each + TOLERANCE)))

    def failure(self, stack: str, partition: str | None) -> Failure:
        """Args:
        partition: what a node is wanted of; None: no more is to start at all.
        """
        message = f"{amount(self.spent)} of {amount(self.most)} {self.unit} are spent"
        if partition is not None:
            if self.bound > 0:
                message += f", the nodes that run will cost {amount(self.bound)} more at least"
            message += f", one more of {partition} costs {amount(self.each)} at least"
        return Failure((), ErrorClass.BUDGET, f"budget.{self.key} in Pulumi.{stack}.yaml", message)


def launch_seconds(design: ClusterDesign) -> float:
    """How long a machine runs at least: it boots, and is given back after SuspendTime if nobody uses it."""
    if design.provider == "local":
        return LOCAL_BOOT_SECONDS + design.local.boot_delay + design.slurm.suspend_time
    return max(LEAST_SECONDS, BOOT_SECONDS + design.slurm.suspend_time)


def room(
    design: ClusterDesign, account: Account, underway: Mapping[str, int], partition: str, count: int
) -> Room:
    """How many of `count` more nodes of a partition may start.

    Args:
        underway: machines by partition whose launch has been asked for and is not in the account.
    """
    tightest = min(
        _limits(design, account, underway, partition), key=lambda limit: limit.room(count), default=None
    )
    if tightest is None or tightest.room(count) == count:
        return Room(count)
    return Room(tightest.room(count), tightest.failure(design.stack, partition))


def used_up(design: ClusterDesign, account: Account) -> Failure | None:
    """Why nothing more may be spent; None while something is left."""
    for limit in _limits(design, account, {}, None):
        if limit.spent >= limit.most:
            return limit.failure(design.stack, None)
    return None


def summary(design: ClusterDesign, account: Account) -> dict[str, Any] | None:
    """The budget in the status contract; None where there is none."""
    limits = {limit.key: limit for limit in _limits(design, account, {}, None)}
    if not limits:
        return None
    left = {key: round(max(0.0, limit.most - limit.spent), 4) for key, limit in limits.items()}
    return {
        "max_usd": design.budget.max_usd,
        "max_hours": design.budget.max_hours,
        "left_usd": left.get("max_usd"),
        "left_hours": left.get("max_hours"),
        "used": round(max(limit.spent / limit.most for limit in limits.values()), 4),
        "running_jobs": design.budget.running_jobs,
    }


def amount(number: float) -> str:
    """Money or hours for a person: two decimals, or two digits of what is small."""
    return f"{number:.2f}" if number >= 0.1 or number == 0 else f"{number:.2g}"


def _limits(
    design: ClusterDesign, account: Account, underway: Mapping[str, int], partition: str | None
) -> list[_Limit]:
    """Args:
    partition: whose nodes are wanted; None: none are.
    """
    least = launch_seconds(design)
    seconds = [(name, max(least - age, float(design.slurm.suspend_time))) for name, age in account.running]
    seconds += [(name, least * count) for name, count in underway.items()]
    prices = {p.name: p.price_hour or 0.0 for p in design.partitions}
    each = 0.0 if partition is None else least / 3600
    result = []
    if (usd := design.budget.max_usd) is not None:
        bound = sum(lasts / 3600 * prices.get(name, 0.0) for name, lasts in seconds)
        price = prices.get(partition, 0.0) if partition is not None else 0.0
        result.append(_Limit("max_usd", "USD", usd, account.usd, bound, each * price))
    if (hours := design.budget.max_hours) is not None:
        bound = sum(lasts / 3600 for _, lasts in seconds)
        result.append(_Limit("max_hours", "node-hours", hours, account.node_hours, bound, each))
    return result


class Budget:
    """The budget of a running cluster. Launches of several threads never pass it together.

    Args:
        now: seconds since the epoch.
    """

    def __init__(self, design: ClusterDesign, ledger: Ledger, now: Callable[[], float] = time.time) -> None:
        self._design = design
        self._ledger = ledger
        self._now = now
        self._static = design.static_nodes()
        self._lock = threading.Lock()
        # Node -> its partition, while its launch is asked for.
        self._underway: dict[str, str] = {}

    def room(self, partition: str, count: int) -> Room:
        """How many of `count` more nodes, none of them static, may start now."""
        with self._lock:
            return self._room(partition, count)

    def used_up(self) -> Failure | None:
        """Why nothing more may be spent; None while something is left."""
        return used_up(self._design, self._ledger.account(self._now()))

    @contextlib.contextmanager
    def admission(self, group: LaunchGroup) -> Iterator[tuple[LaunchGroup | None, Failure | None]]:
        """What of a group may be launched, within the `with`, and why the rest may not.

        Static nodes are never refused: they are up as long as the cluster is. Of a group that is wanted whole
        it is all or nothing. What came of the launch is to be told to `launched` before the `with` ends.
        """
        with self._lock:
            allowed, failure = self._admit(group)
            self._underway |= dict.fromkeys(allowed.nodes if allowed else (), group.partition)
        try:
            yield allowed, failure
        finally:
            with self._lock:
                for node in allowed.nodes if allowed else ():
                    self._underway.pop(node, None)

    def launched(self, machines: dict[str, str]) -> None:
        """Args:
        machines: node -> machine id, as a launch returned them.
        """
        with self._lock:
            self._ledger.launched(machines, self._now())
            for node in machines:
                self._underway.pop(node, None)

    def _room(self, partition: str, count: int) -> Room:
        account = self._ledger.account(self._now())
        return room(self._design, account, Counter(self._underway.values()), partition, count)

    def _admit(self, group: LaunchGroup) -> tuple[LaunchGroup | None, Failure | None]:
        wanted = [node for node in group.nodes if node not in self._static]
        found = self._room(group.partition, len(wanted))
        if found.failure is None:
            return group, None
        refused = set(group.nodes if group.all_or_nothing else wanted[found.count :])
        nodes = tuple(node for node in group.nodes if node not in refused)
        failure = dataclasses.replace(found.failure, nodes=tuple(n for n in group.nodes if n in refused))
        # Another wish than the whole group's: a cloud refuses a token that it knows with other nodes.
        token = hashlib.sha256("\n".join([group.token, *nodes]).encode()).hexdigest()[:32]
        return (dataclasses.replace(group, nodes=nodes, token=token) if nodes else None), failure
