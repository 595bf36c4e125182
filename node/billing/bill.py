"""The bill: what machines cost, by user, account, partition, pool or job.

All that no job had is in rows apart.

The rows add up to what the ledger counts (`./cluster status`): what ended before the record of machines
began, which nobody can divide any more, is a row, too.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node.billing import job_runs
from node.billing.job_runs import SPARE_SECONDS
from node.billing.shares import FOREVER, Kind, Part, split
from node.design.folders import Folders
from node.design.model import Settings, split_label
from node.elastic import machine_record
from node.elastic.machine_record import MachineLife
from node.slurm.control import Control, Slurm, SlurmError
from node.system import plurals, rpc

BEFORE = "not recorded"
"""The kind of a row of what the ledger counts and the record of machines lacks."""
NODES = "nodes"
"""The kind of a row of machines of which nothing says who used them, without accounting."""
OF_MACHINES = ("partition", "pool")
"""What a machine itself says: by these there are bills without accounting."""
DIGITS = 6
"""Decimals of hours and USD: a job's second of a cheap node is no zero."""
HIDDEN = "PrivateData=jobs: root and Slurm's operators see all jobs, for others those of others are idle time"
LEAST_SECONDS = 0.5
"""What is less, of all that is not recorded, comes from the rounding of sums."""
PERIOD_SECONDS = 7 * 86400.0
DAEMON_SECONDS = 30.0
SACCT_SECONDS = 300.0
"""It may have to read millions of records."""


class BillError(RuntimeError):
    """There is no such bill. The text says what to do."""


@dataclass(slots=True)
class _Row:
    seconds: float = 0.0
    usd: float = 0.0
    unpriced: float = 0.0
    jobs: set[int] = field(default_factory=set)
    more: dict[str, str] = field(default_factory=dict)
    pools: set[str] = field(default_factory=set)

    def add(self, seconds: float, price: float | None) -> None:
        self.seconds += seconds
        self.usd += seconds / 3600 * (price or 0.0)
        self.unpriced += seconds if price is None else 0.0

    def amounts(self) -> dict[str, Any]:
        """Return its amounts: where a price is unknown `usd` is null, and the sum at least the other one."""
        return {
            "node_hours": round(self.seconds / 3600, DIGITS),
            "usd": None if self.unpriced > 0 else round(self.usd, DIGITS),
            "at_least_usd": round(self.usd, DIGITS),
        }


def of_cluster(
    settings: Settings, by: str | None, since: float | None, until: float | None
) -> dict[str, Any]:
    """Return the bill of the cluster of this machine; the arguments are those of `bill`.

    Raises:
        BillError: It cannot be made: for this period or this cluster, or because something does not answer.
    """
    control = Control(Folders(settings).slurm_conf, SACCT_SECONDS)
    try:
        return bill(settings, control, by, since, until)
    except (rpc.RpcError, rpc.RpcUnavailableError) as error:
        raise BillError(
            f"the elastic daemon, which counts machines, does not answer ({error}); its log: "
            f"{Folders(settings).log}/elastic.log"
        ) from error
    except SlurmError as error:
        raise BillError(f"the accounting, which knows the jobs, does not answer: {error}") from error


def bill(
    settings: Settings, control: Slurm, by: str | None, since: float | None, until: float | None
) -> dict[str, Any]:
    """Return a bill in the form of `./cluster cost --json`.

    Args:
        by: One of BY; `None` means by user, or without accounting by partition.
        since: Seconds since the epoch; `None` means from the cluster's beginning.
        until: Likewise; `None` means now.

    Raises:
        BillError: It cannot be made for that.
        RpcError, RpcUnavailableError: The elastic daemon does not answer.
        SlurmError: The accounting does not answer.
    """
    accounting, stack = settings.design.slurm.accounting, settings.design.stack
    by = by or ("user" if accounting else "partition")
    if by not in OF_MACHINES and not accounting:
        raise BillError(
            "this cluster keeps no accounting, so there are bills by partition and by pool only, and none by "
            f"{by}: "
            f"write slurm: {{accounting: true}} in Pulumi.{stack}.yaml and run "
            f"`./cluster up --stack {stack}`. From then on Slurm records who has which nodes"
        )
    folders = Folders(settings)
    told = rpc.call(str(folders.status_socket), "lives", DAEMON_SECONDS)
    now = time.time()
    recorded = machine_record.read(Path(str(folders.elastic)), since)
    lives, running = _lives(recorded, told)
    end = now if until is None else min(until, now)
    # Machines that run end now for the daemon, and the clock may have been set back.
    latest = max([end, *(life.ended for life in lives.values() if until is None)])
    tally = _Tally(by, accounting, recorded.restored)
    left_out: set[int] = set()
    for period, some in _periods(lives.values(), -FOREVER if since is None else since, latest):
        runs, damaged = job_runs.read(control, *period) if accounting else ([], set())
        left_out |= damaged
        tally.add(split(some, runs, running, *period))
    if since is None or recorded.began is None or since < recorded.began:
        tally.add_before(told["closed"], (life for life in lives.values() if life.id not in running))
    return {
        "by": by,
        "since": since,
        "until": round(end, 3),
        "recorded_since": recorded.began,
        "rows": tally.shown(),
        "total": tally.total().amounts(),
        "unknown": sorted(tally.unknown),
        "budgets": _budgets(settings, folders) if by == "account" else [],
        "notes": [
            *_notes(recorded, told, tally, len(left_out)),
            *([HIDDEN] if accounting and job_runs.is_private(control) else []),
        ],
    }


def _budgets(settings: Settings, folders: Folders) -> list[dict[str, Any]]:
    """Return what accounts have used of their budgets, as the daemon has last counted it."""
    if not any(account.budget.is_limited for account in settings.design.accounts):
        return []
    told: dict[str, Any] = rpc.call(str(folders.status_socket), "cost", DAEMON_SECONDS)
    budgets: list[dict[str, Any]] = told["accounts"]
    return budgets


def _periods(
    lives: Iterable[MachineLife], since: float, until: float
) -> Iterator[tuple[tuple[float, float], list[MachineLife]]]:
    """Yield weeks, each with the machines of it: the accounting's records of a year are many.

    Weeks without machines are left out. Bills of two periods add up to that of both. Machines of a day
    before or after are there, too, so that a run has the same machine in each of its weeks.
    """
    left = sorted(lives, key=lambda life: min(life.launched, life.ended), reverse=True)
    active: list[MachineLife] = []
    begin = since
    while begin < until and (left or active):
        # Before the first machine there is nothing.
        first = min(min(life.launched, life.ended) for life in (active or left[-1:]))
        end = min(until, max(begin, first) + PERIOD_SECONDS)
        while left and min(left[-1].launched, left[-1].ended) <= end + SPARE_SECONDS:
            active.append(left.pop())
        yield (begin, end), active
        active = [life for life in active if max(life.launched, life.ended) > end - SPARE_SECONDS]
        begin = end


def _lives(
    recorded: machine_record.Recorded, told: Mapping[str, Any]
) -> tuple[dict[str, MachineLife], set[str]]:
    """Return all machines, and the ids of those that run."""
    unrecorded = [MachineLife(**life) for life in told["unrecorded"]]
    running = [MachineLife(**life) for life in told["open"]]
    # One that a listing had left out is in the record, too.
    lives = {**recorded.lives, **{life.id: life for life in [*unrecorded, *running]}}
    return lives, {life.id for life in running}


class _Tally:
    """The rows of a bill, to which parts of machines are added.

    Args:
        by: What the rows are.
        accounting: Whether parts say who had them.
        restored: The ids of machines that a backup has brought.

    Attributes:
        unknown: The partitions, and labels of pools, of which a price is not known.
        restored: The ids of those of these machines that are in the bill.
        restored_usd: What they have cost.
    """

    def __init__(self, by: str, accounting: bool, restored: Collection[str]) -> None:
        self._by = by
        self._accounting = accounting
        self._brought = restored
        self._rows: dict[tuple[str, str], _Row] = {}
        self.unknown: set[str] = set()
        self.restored: set[str] = set()
        self.restored_usd = 0.0

    def add(self, parts: Iterable[Part]) -> None:
        for part in parts:
            row = self._row(self._kind(part), self._name(part))
            row.add(part.seconds, part.life.price)
            if (run := part.run) is not None:
                # Of a year's jobs the numbers would need less memory than the names, and no row shows them.
                row.jobs.add(hash(run.job))
                if self._by == "job":
                    partition, pool = split_label(part.life.partition)
                    row.pools |= {pool} if pool else set()
                    row.more = {"user": run.user, "account": run.account, "partition": partition}
                    row.more["pool"] = ",".join(sorted(row.pools))
            if part.life.price is None:
                self.unknown.add(part.life.partition)
            if part.life.id in self._brought:
                self.restored.add(part.life.id)
                self.restored_usd += part.seconds / 3600 * (part.life.price or 0.0)

    def add_before(self, closed: Mapping[str, Mapping[str, float]], ended: Iterable[MachineLife]) -> None:
        """Add what the ledger has counted of ended machines, and the record of them lacks.

        Args:
            closed: The ledger's sums by partition, and by pools' labels.
            ended: The ended machines of the record.
        """
        known: dict[str, _Row] = {}
        for life in ended:
            if life.id not in self._brought:
                known.setdefault(life.partition, _Row()).add(life.seconds, life.price)
        for partition, total in closed.items():
            has = known.get(partition, _Row())
            seconds, unpriced = total["seconds"] - has.seconds, total["unpriced"] - has.unpriced
            if seconds < LEAST_SECONDS:
                continue
            row = self._row(BEFORE, self._of_machine(partition) if self._by in OF_MACHINES else "")
            row.seconds += seconds
            row.usd += max(0.0, total["usd"] - has.usd)
            if unpriced > LEAST_SECONDS:
                row.unpriced += unpriced
                self.unknown.add(partition)

    def has(self, kind: str) -> bool:
        return any(key[0] == kind for key in self._rows)

    def total(self) -> _Row:
        total = _Row()
        for row in self._rows.values():
            total.seconds, total.usd = total.seconds + row.seconds, total.usd + row.usd
            total.unpriced += row.unpriced
        return total

    def shown(self) -> list[dict[str, Any]]:
        """Return the rows, the dearest of each kind first."""
        kinds = [Kind.JOBS.value, NODES, Kind.IDLE.value, Kind.FAILED_BOOTS.value, BEFORE]

        def order(item: tuple[tuple[str, str], _Row]) -> tuple[int, float, float, str]:
            (kind, name), row = item
            return kinds.index(kind), -row.usd, -row.seconds, name

        return [
            {"kind": kind, "name": name, **row.more, "jobs": len(row.jobs), **row.amounts()}
            for (kind, name), row in sorted(self._rows.items(), key=order)
        ]

    def _row(self, kind: str, name: str) -> _Row:
        return self._rows.setdefault((kind, name), _Row())

    def _kind(self, part: Part) -> str:
        unsaid = not self._accounting and part.kind is Kind.IDLE
        return NODES if unsaid else part.kind.value

    def _name(self, part: Part) -> str:
        """Return what a part is booked to; empty for what no job had, which only machines tell apart."""
        if self._by in OF_MACHINES:
            return self._of_machine(part.life.partition)
        run = part.run
        return "" if run is None else {"user": run.user, "account": run.account, "job": run.job}[self._by]

    def _of_machine(self, label: str) -> str:
        return label if self._by == "pool" else split_label(label)[0]


def _notes(
    recorded: machine_record.Recorded, told: Mapping[str, Any], tally: _Tally, left_out: int
) -> Iterator[str]:
    if tally.has(BEFORE) and recorded.began is not None:
        when = time.strftime("%F %T UTC", time.gmtime(recorded.began))
        yield f"ended machines are recorded since {when}; what ended before has one row"
    if recorded.damaged:
        yield f"{plurals.count(recorded.damaged, 'line')} of the record of machines cannot be read"
    if tally.restored:
        yield (
            f"{plurals.count(len(tally.restored), 'machine')} of a restored backup, {tally.restored_usd:.2f} "
            "USD in all, are in no cost that `status` shows"
        )
    if told["damaged"]:
        yield f"the cost that `status` shows lacks what is in {', '.join(told['damaged'])}"
    if left_out:
        yield f"{plurals.count(left_out, 'record')} of the accounting cannot be read: such jobs count as idle"
