"""The bill: what machines cost, by user, account, partition or job, with all that no job had in rows apart.

The rows add up to what the ledger counts (`./cluster status`): what ended before the record of machines
began, which nobody can divide any more, is a row, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node.billing import job_runs
from node.billing.shares import Kind, Part, Run, split
from node.design.folders import Folders
from node.design.model import Settings
from node.elastic import machine_record
from node.elastic.machine_record import MachineLife
from node.slurm.control import Control, Slurm, SlurmError
from node.system import plurals, rpc

BEFORE = "not recorded"
"""The kind of a row of what the ledger counts and the record of machines lacks."""
NODES = "nodes"
"""The kind of a row of machines of which nothing says who used them, without accounting."""
DIGITS = 6
"""Decimals of hours and USD: a job's second of a cheap node is no zero."""
LEAST_SECONDS = 0.5
"""What is less, of all that is not recorded, comes from the rounding of sums."""
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
    jobs: set[str] = field(default_factory=set)
    more: dict[str, str] = field(default_factory=dict)

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


Rows = dict[tuple[str, str], _Row]
"""Kind and name -> the row."""


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
    if by != "partition" and not accounting:
        raise BillError(
            f"this cluster keeps no accounting, so there is a bill by partition only, and none by {by}: "
            f"write slurm: {{accounting: true}} in Pulumi.{stack}.yaml and run "
            f"`./cluster up --stack {stack}`. From then on Slurm records who has which nodes"
        )
    folders = Folders(settings)
    told = rpc.call(str(folders.daemon_socket), "lives", DAEMON_SECONDS)
    now = time.time()
    recorded = machine_record.read(Path(str(folders.elastic)), since)
    lives, running = _lives(recorded, told)
    end = now if until is None else min(until, now)
    runs, left_out = job_runs.read(control, since, end) if accounting else ([], 0)
    # Machines that run end now for the daemon, whose clock may be a moment ahead.
    latest = max([end, *(life.ended for life in lives.values() if until is None)])
    first = float("-inf") if since is None else since
    parts = [*split(lives.values(), runs, running, first, latest)]
    rows = _rows(parts, by, accounting=accounting)
    unknown = {part.life.partition for part in parts if part.life.price is None}
    if since is None or recorded.began is None or since < recorded.began:
        counted = [
            life for life in lives.values() if life.id not in running and life.id not in recorded.restored
        ]
        unknown |= _add_before(rows, told["closed"], counted, by)
    total = _Row()
    for row in rows.values():
        total.seconds, total.usd = total.seconds + row.seconds, total.usd + row.usd
        total.unpriced += row.unpriced
    return {
        "by": by,
        "since": since,
        "until": round(end, 3),
        "recorded_since": recorded.began,
        "rows": [_shown(key, row) for key, row in _sorted(rows)],
        "total": total.amounts(),
        "unknown": sorted(unknown),
        "notes": list(_notes(recorded, told, parts, left_out, old=any(kind == BEFORE for kind, _ in rows))),
    }


def _lives(
    recorded: machine_record.Recorded, told: Mapping[str, Any]
) -> tuple[dict[str, MachineLife], set[str]]:
    """Return all machines, and the ids of those that run."""
    unrecorded = [MachineLife(**life) for life in told["unrecorded"]]
    running = [MachineLife(**life) for life in told["open"]]
    # One that a listing had left out is in the record, too.
    lives = {**recorded.lives, **{life.id: life for life in [*unrecorded, *running]}}
    return lives, {life.id for life in running}


def _rows(parts: Iterable[Part], by: str, *, accounting: bool) -> Rows:
    rows: Rows = {}
    for part in parts:
        kind = part.kind.value
        if part.run is None and not accounting and part.kind is Kind.IDLE:
            kind = NODES
        name = _name(part, by)
        row = rows.setdefault((kind, name), _Row())
        row.add(part.seconds, part.life.price)
        if (run := part.run) is not None:
            row.jobs.add(run.job)
            if by == "job":
                row.more = {"user": run.user, "account": run.account, "partition": part.life.partition}
    return rows


def _name(part: Part, by: str) -> str:
    """Return what a part is booked to; empty for what no job had, which only partitions tell apart."""
    run: Run | None = part.run
    if by == "partition":
        return part.life.partition
    if run is None:
        return ""
    return {"user": run.user, "account": run.account, "job": run.job}[by]


def _add_before(
    rows: Rows, closed: Mapping[str, Mapping[str, float]], counted: Iterable[MachineLife], by: str
) -> set[str]:
    """Add what the ledger has of ended machines and their record lacks, and return whose price is unknown.

    Args:
        closed: The ledger's sums by partition.
        counted: The ended machines that are in these sums, and in the record.
    """
    known: dict[str, _Row] = {}
    for life in counted:
        known.setdefault(life.partition, _Row()).add(life.seconds, life.price)
    unknown = set()
    for partition, total in closed.items():
        has = known.get(partition, _Row())
        seconds, unpriced = total["seconds"] - has.seconds, total["unpriced"] - has.unpriced
        if seconds < LEAST_SECONDS:
            continue
        row = rows.setdefault((BEFORE, partition if by == "partition" else ""), _Row())
        row.seconds += seconds
        row.usd += max(0.0, total["usd"] - has.usd)
        if unpriced > LEAST_SECONDS:
            row.unpriced += unpriced
            unknown.add(partition)
    return unknown


def _sorted(rows: Rows) -> list[tuple[tuple[str, str], _Row]]:
    kinds = [Kind.JOBS.value, NODES, Kind.IDLE.value, Kind.FAILED_BOOTS.value, BEFORE]
    return sorted(
        rows.items(), key=lambda item: (kinds.index(item[0][0]), -item[1].usd, -item[1].seconds, item[0][1])
    )


def _shown(key: tuple[str, str], row: _Row) -> dict[str, Any]:
    kind, name = key
    return {"kind": kind, "name": name, **row.more, "jobs": len(row.jobs), **row.amounts()}


def _notes(
    recorded: machine_record.Recorded,
    told: Mapping[str, Any],
    parts: Iterable[Part],
    left_out: int,
    *,
    old: bool,
) -> Iterable[str]:
    if old and recorded.began is not None:
        when = time.strftime("%F %T UTC", time.gmtime(recorded.began))
        yield f"ended machines are recorded since {when}; what ended before has one row"
    if recorded.damaged:
        yield f"{plurals.count(recorded.damaged, 'line')} of the record of machines cannot be read"
    restored, usd = set(), 0.0
    for part in parts:
        if part.life.id in recorded.restored:
            restored.add(part.life.id)
            usd += part.seconds / 3600 * (part.life.price or 0.0)
    if restored:
        yield (
            f"{plurals.count(len(restored), 'machine')} of a restored backup, {usd:.2f} USD in all, are in "
            "no cost that `status` shows"
        )
    if told["damaged"]:
        yield f"the cost that `status` shows lacks what is in {', '.join(told['damaged'])}"
    if left_out:
        yield f"{plurals.count(left_out, 'record')} of the accounting cannot be read: such jobs count as idle"
