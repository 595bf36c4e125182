"""How much the cluster may still spend on nodes: how many more may start, and whether the budget is used up.

A launch counts with its minimum cost: the machine boots and, even if nobody uses it, stays for SuspendTime.
Running machines count with what they have cost, and with the minimum until they can be powered down. So a
fleet that is launched a moment before the limit does not exceed it. Only a job that runs longer can exceed
it, and only as long as `running_jobs` says `keep`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.design.folders import Folders
from node.design.model import ClusterDesign, Settings
from node.design.sharing import STOPPED_ACCOUNTS
from node.elastic.driver import AvailableCapacity, LaunchGroup
from node.elastic.failures import ErrorClass, Failure
from node.elastic.ledger import MINIMUM_BILLED_SECONDS, Account, Ledger

BOOT_SECONDS = 120.0
"""The shortest boot on a cloud."""
LOCAL_BOOT_SECONDS = 2.0
"""The shortest boot of a machine of the local stack."""
TOLERANCE = 1e-9
"""Rounding error of sums of money, which are no whole numbers."""


@dataclass(frozen=True, slots=True)
class _BudgetLimit:
    """One of the budget's two limits.

    Attributes:
        key: The limit's key in the stack file.
        unit: The unit of all amounts: USD or node-hours.
        maximum: The limit.
        spent: What was spent.
        committed: What the running machines, and those that are being launched, will cost at least.
        per_node: What one more node costs at least.
    """

    key: str
    unit: str
    maximum: float
    spent: float
    committed: float
    per_node: float

    def available_capacity(self, count: int) -> int:
        if self.per_node <= 0:
            return count
        left = self.maximum - self.spent - self.committed
        return max(0, min(count, int(left / self.per_node + TOLERANCE)))

    def failure(self, stack: str, partition: str | None) -> Failure:
        """Return why no more nodes may start.

        Args:
            stack: The stack's name.
            partition: The partition of the wanted node; `None` means that no node at all may start.
        """
        message = f"{amount(self.spent)} of {amount(self.maximum)} {self.unit} are spent"
        if partition is not None:
            if self.committed > 0:
                message += f", the nodes that run will cost {amount(self.committed)} more at least"
            message += f", one more node of {partition} costs {amount(self.per_node)} at least"
        return Failure((), ErrorClass.BUDGET, f"budget.{self.key} in Pulumi.{stack}.yaml", message)


def launch_seconds(design: ClusterDesign) -> float:
    """Return how long a machine runs at least: it boots, and stays for SuspendTime if nobody uses it."""
    if design.provider == "local":
        return LOCAL_BOOT_SECONDS + design.local.boot_delay + design.slurm.suspend_time
    return max(MINIMUM_BILLED_SECONDS, BOOT_SECONDS + design.slurm.suspend_time)


def available_capacity(
    design: ClusterDesign, account: Account, underway: Mapping[str, int], partition: str, count: int
) -> AvailableCapacity:
    """Return how many of `count` more nodes of a partition may start.

    Args:
        design: The cluster's design, with the budget.
        account: What was spent.
        underway: Partition -> machines that are being launched and are not in the account yet.
        partition: The partition's name.
        count: The number of nodes.
    """
    tightest = min(
        _limits(design, account, underway, partition),
        key=lambda limit: limit.available_capacity(count),
        default=None,
    )
    if tightest is None or tightest.available_capacity(count) == count:
        return AvailableCapacity(count)
    label = design.partition(partition).label
    return AvailableCapacity(tightest.available_capacity(count), tightest.failure(design.stack, label))


def used_up(design: ClusterDesign, account: Account) -> Failure | None:
    """Return why nothing more may be spent; `None` while something is left."""
    for limit in _limits(design, account, {}, None):
        if limit.spent >= limit.maximum:
            return limit.failure(design.stack, None)
    return None


def summary(design: ClusterDesign, account: Account) -> dict[str, Any] | None:
    """Return the budget in the form of the status contract; `None` if there is no budget."""
    limits = {limit.key: limit for limit in _limits(design, account, {}, None)}
    if not limits:
        return None
    left = {key: round(max(0.0, limit.maximum - limit.spent), 4) for key, limit in limits.items()}
    return {
        "max_usd": design.budget.max_usd,
        "max_hours": design.budget.max_hours,
        "left_usd": left.get("max_usd"),
        "left_hours": left.get("max_hours"),
        "used": round(max(limit.spent / limit.maximum for limit in limits.values()), 4),
        "running_jobs": design.budget.running_jobs,
    }


def has_account_budgets(settings: Settings) -> bool:
    """Return whether accounts have budgets, or are still stopped because they had some."""
    design = settings.design
    record = Path(str(Folders(settings).state)) / STOPPED_ACCOUNTS
    limited = any(account.budget.is_limited for account in design.accounts)
    return design.slurm.accounting and (limited or record.exists())


def amount(number: float) -> str:
    """Format an amount of money or hours: two decimals, or two significant digits if it is small."""
    return f"{number:.2f}" if number >= 0.1 or number == 0 else f"{number:.2g}"


def _limits(
    design: ClusterDesign, account: Account, underway: Mapping[str, int], partition: str | None
) -> list[_BudgetLimit]:
    """Return the budget's limits.

    Args:
        partition: The partition whose nodes are wanted; `None` means that no node is wanted.
    """
    minimum = launch_seconds(design)
    seconds = [(name, max(minimum - age, float(design.slurm.suspend_time))) for name, age in account.running]
    seconds += [(name, minimum * count) for name, count in underway.items()]
    # The account has pools by their labels, launches have them by the names in the design.
    prices = {name: p.price_hour or 0.0 for p in design.partitions for name in (p.name, p.label)}
    per_node = 0.0 if partition is None else minimum / 3600
    result = []
    if (usd := design.budget.max_usd) is not None:
        committed = sum(lasts / 3600 * prices.get(name, 0.0) for name, lasts in seconds)
        price = prices.get(partition, 0.0) if partition is not None else 0.0
        result.append(_BudgetLimit("max_usd", "USD", usd, account.usd, committed, per_node * price))
    if (hours := design.budget.max_hours) is not None:
        committed = sum(lasts / 3600 for _, lasts in seconds)
        result.append(_BudgetLimit("max_hours", "node-hours", hours, account.node_hours, committed, per_node))
    return result


class Budget:
    """The budget of a running cluster. Parallel launches never exceed it together.

    Args:
        design: The cluster's design, with the budget.
        ledger: What was spent.
        now: Returns seconds since the epoch.
    """

    def __init__(self, design: ClusterDesign, ledger: Ledger, now: Callable[[], float] = time.time) -> None:
        self._design = design
        self._ledger = ledger
        self._now = now
        self._static = design.static_nodes()
        self._lock = threading.Lock()
        # Node -> its partition, while it is being launched.
        self._underway: dict[str, str] = {}

    def available_capacity(self, partition: str, count: int) -> AvailableCapacity:
        """Return how many of `count` more dynamic nodes may start now."""
        with self._lock:
            return self._available_capacity(partition, count)

    def used_up(self) -> Failure | None:
        """Return why nothing more may be spent; `None` while something is left."""
        return used_up(self._design, self._ledger.account(self._now()))

    @contextlib.contextmanager
    def admission(self, group: LaunchGroup) -> Iterator[tuple[LaunchGroup | None, Failure | None]]:
        """Yield the part of a group that may be launched within the `with`, and why the rest may not.

        Static nodes are never refused: they are up as long as the cluster is. An all-or-nothing group is
        allowed or refused as a whole. The result of the launch must be passed to `launched` before the `with`
        ends.
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
        """Record launched machines.

        Args:
            machines: Node -> machine id, as a launch returns them.
        """
        with self._lock:
            self._ledger.launched(machines, self._now())
            for node in machines:
                self._underway.pop(node, None)

    def _available_capacity(self, partition: str, count: int) -> AvailableCapacity:
        account = self._ledger.account(self._now())
        return available_capacity(self._design, account, Counter(self._underway.values()), partition, count)

    def _admit(self, group: LaunchGroup) -> tuple[LaunchGroup | None, Failure | None]:
        wanted = [node for node in group.nodes if node not in self._static]
        capacity = self._available_capacity(group.partition, len(wanted))
        if capacity.failure is None:
            return group, None
        refused = set(group.nodes if group.all_or_nothing else wanted[capacity.count :])
        nodes = tuple(node for node in group.nodes if node not in refused)
        failure = dataclasses.replace(capacity.failure, nodes=tuple(n for n in group.nodes if n in refused))
        return (group.part(nodes) if nodes else None), failure
