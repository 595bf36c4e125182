"""What accounts have spent in the cluster's life and in this month, as bills have it.

A bill of a year would have to read a year's jobs. So days that are over are added up once and kept in a file,
and each question is a bill of the last day or two. The file is only a memory: without it, or with one that
does not fit, all is counted anew from the record of machines and the accounting.
"""

from __future__ import annotations

import calendar
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from node.elastic.machine_record import FOLDER, PACKED, RESTORED
from node.elastic.view import log
from node.system import files, foreign
from node.system.codec import from_json

FILE = "account-spending.json"
DAY_SECONDS = 86400.0


@dataclass(frozen=True, slots=True)
class Amounts:
    """What jobs have spent; USD as far as prices are known."""

    usd: float = 0.0
    hours: float = 0.0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(self.usd + other.usd, self.hours + other.hours)


ByAccount = Mapping[str, Amounts]
Ask = Callable[[float | None, float], ByAccount]
"""Returns a bill by account, since one time (`None`: the beginning) until another."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Account -> what it has spent.

    Attributes:
        life: In the cluster's life.
        month: In the present month of the calendar, in UTC.
    """

    life: dict[str, Amounts] = field(default_factory=dict)
    month: dict[str, Amounts] = field(default_factory=dict)

    def plus(self, more: ByAccount, *, of_month: bool) -> Spent:
        return Spent(_sum(self.life, more), _sum(self.month, more) if of_month else self.month)


def _sum(one: ByAccount, other: ByAccount) -> dict[str, Amounts]:
    return {name: one.get(name, Amounts()) + other.get(name, Amounts()) for name in {**one, **other}}


@dataclass(frozen=True, slots=True)
class _Settled:
    """The sums of the days that are over. The file has these fields.

    Attributes:
        until: Up to when, in seconds since the epoch.
        month: When the month began whose sum it has.
        restored: The files of machines that a backup had brought.
    """

    until: float
    month: float
    spent: Spent
    restored: tuple[str, ...] = ()


def month_of(now: float) -> float:
    """Return when the month began, in UTC. Times are seconds since the epoch."""
    then = time.gmtime(now)
    return float(calendar.timegm((then.tm_year, then.tm_mon, 1, 0, 0, 0)))


def of_bill(bill: Mapping[str, Any]) -> dict[str, Amounts]:
    """Return what accounts have spent by a bill in the form of `./cluster cost --by account --json`."""
    rows = (row for row in bill["rows"] if row["kind"] == "jobs")
    return {row["name"]: Amounts(float(row["at_least_usd"]), float(row["node_hours"])) for row in rows}


def spent(elastic: Path, ask: Ask, now: float) -> Spent:
    """Return what accounts have spent so far.

    Args:
        elastic: The daemon's folder.
        ask: Makes bills.
        now: Seconds since the epoch.

    Raises:
        Exception: What `ask` raises.
    """
    restored = tuple(sorted(file.name for file in (elastic / FOLDER).glob(f"{RESTORED}*{PACKED}")))
    month = month_of(now)
    settled = _read(elastic / FILE, month, restored)
    # The accounting has all of a job within a day.
    until = math.floor(now / DAY_SECONDS - 1) * DAY_SECONDS
    if settled is None or settled.until > now:
        settled = _Settled(until, month, _with_bills(Spent(), ask, None, until, month), restored)
        _write(elastic / FILE, settled)
    elif settled.until < until:
        former = settled.spent if settled.month == month else Spent(settled.spent.life)
        settled = _Settled(until, month, _with_bills(former, ask, settled.until, until, month), restored)
        _write(elastic / FILE, settled)
    elif settled.month != month:
        settled = _Settled(settled.until, month, Spent(settled.spent.life), restored)
    return _with_bills(settled.spent, ask, settled.until, now, month)


def _with_bills(sums: Spent, ask: Ask, since: float | None, until: float, month: float) -> Spent:
    for begin, end in _parts(since, until, month):
        sums = sums.plus(ask(begin, end), of_month=begin is not None and begin >= month)
    return sums


def _parts(since: float | None, until: float, month: float) -> Iterator[tuple[float | None, float]]:
    """Yield a time as one or two, none of which is in two months."""
    if (since is None or since < month) and month < until:
        yield since, month
        since = month
    if since is None or since < until:
        yield since, until


def _read(file: Path, month: float, restored: tuple[str, ...]) -> _Settled | None:
    """Return the sums; `None` if there are none that fit."""
    try:
        settled = from_json(_Settled, foreign.record(file))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log(f"what accounts have spent is counted anew: {error}")
        return None
    # The clock may have been in another month, and a restored backup has brought jobs of former days.
    if settled.restored != restored or (settled.month != month and settled.until > month):
        return None
    return settled


def _write(file: Path, settled: _Settled) -> None:
    try:
        files.write(file, json.dumps(asdict(settled)).encode())
    except OSError as error:  # a full disk must keep no account from being stopped
        log(f"{file} cannot be written: {error}")
