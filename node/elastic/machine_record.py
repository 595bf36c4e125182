"""The record of machines that have ended, from which bills are made: files of lines, one file a day.

    <elastic>/machines/2026-11-28.jsonl       the machines that were seen to end on this day, one a line
    <elastic>/machines/2026-11-27.jsonl.gz    a day that is over

A line is written once and never changed. A machine that ends again, because a listing had left it out, has a
further line, and the last one counts. The newest KEPT_DAYS files are kept, whatever the clock says: with
1,000 nodes that start five times a day a year takes 82 MB, and a day 1.2 MB until it is packed. The money of
files that are gone stays in the ledger's sums.

A restored backup's files have another name (RESTORED). The ledger's sums never had those machines.
"""

from __future__ import annotations

import calendar
import contextlib
import gzip
import json
import os
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from node.elastic.view import log
from node.system import files, foreign

FOLDER = "machines"
"""The record's folder in that of the daemon."""
KEPT_DAYS = 400
"""The greatest number of days in the record: a year and a month, so that a bill of the last year is whole."""
DAY, PACKED = ".jsonl", ".jsonl.gz"
OWN = "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]"
RESTORED = "restored-"
DAY_SECONDS = 86400.0
BEGAN = "began"
"""The key of the first line, which says since when ended machines are recorded."""
MOST_LINE = 64 * 1024
_UNREADABLE = (EOFError, gzip.BadGzipFile, zlib.error)
"""What the reader of a damaged packed file raises."""
_TEXTS = ("id", "node", "partition", "gres")
_AMOUNTS = ("launched", "ended", "seconds")
_COUNTS = ("cpus", "memory_mib", "devices")


@dataclass(frozen=True, slots=True)
class MachineLife:
    """A machine that ran for a node. A line of the record has these fields.

    Attributes:
        id: The cloud's id.
        node: Slurm's name.
        partition: The partition's name; of a pool its label, train/spot.
        launched: Seconds since the epoch.
        ended: When a listing first missed it, in seconds since the epoch.
        seconds: What the ledger counts: at least the shortest time that the cloud bills.
        price: USD an hour at the time of the launch; `None` means unknown.
        cpus: The node's CPUs.
        memory_mib: The node's memory that jobs may use.
        gres: The generic resource of its accelerators; empty if it has none.
        devices: How much of that it has.
        registered: Whether Slurm has ever had it as a node that is up.
    """

    id: str
    node: str
    partition: str
    launched: float
    ended: float
    seconds: float
    price: float | None
    cpus: int = 0
    memory_mib: int = 0
    gres: str = ""
    devices: int = 0
    registered: bool = True


@dataclass(slots=True)
class Recorded:
    """What a record says.

    Attributes:
        lives: Machine id -> its last line.
        restored: The ids of those that a backup has brought, which the ledger's sums lack.
        began: Since when all ended machines are recorded; `None` if there is no record.
        damaged: The number of lines that could not be read.
    """

    lives: dict[str, MachineLife] = field(default_factory=dict)
    restored: set[str] = field(default_factory=set)
    began: float | None = None
    damaged: int = 0


class MachineRecord:
    """The record's writer. One thread at a time may use it.

    Args:
        folder: The daemon's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._begun = False

    def add(self, lives: Iterable[MachineLife], now: float) -> None:
        """Write machines that have ended.

        Args:
            lives: The machines, in the order of their ends.
            now: Seconds since the epoch.

        Raises:
            OSError: They cannot be written, or not all of them. The same call may be repeated.
        """
        lines = [json.dumps(asdict(life), separators=(",", ":")) for life in lives]
        if not self._begun:
            self._folder.mkdir(mode=0o755, exist_ok=True)
            if not days(self._folder):
                lines.insert(0, json.dumps({BEGAN: now}))
        if lines:
            self._append(self._folder / f"{_day(now)}{DAY}", "".join(f"{line}\n" for line in lines).encode())
        self._begun = True

    def _append(self, file: Path, content: bytes) -> None:
        if not file.exists():
            self._tidy()
        with foreign.log(file) as stream:
            # A power failure may have left half a line.
            if stream.tell() and foreign.end(file, 1) != b"\n":
                content = b"\n" + content
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())

    def _tidy(self) -> None:
        """Pack the days that are over, and remove the oldest. What fails is done on another day."""
        try:
            for file in self._folder.glob(f"{OWN}{DAY}"):
                packed = file.with_name(file.name.removesuffix(DAY) + PACKED)
                # Lines that are there twice count once, so an interruption does no harm.
                before = gzip.decompress(packed.read_bytes()) if packed.exists() else b""
                files.write(packed, gzip.compress(before + file.read_bytes()), durable=True)
                file.unlink()
            for file in days(self._folder)[: 1 - KEPT_DAYS]:
                file.unlink()
        except (OSError, *_UNREADABLE) as error:
            log(f"{self._folder}: days that are over cannot be packed: {error}")


def days(folder: Path) -> list[Path]:
    """Return a record's own files, the oldest first."""
    return sorted([*folder.glob(f"{OWN}{DAY}"), *folder.glob(f"{OWN}{PACKED}")], key=_order)


def _order(file: Path) -> tuple[str, bool]:
    """Return a key that puts a day's packed file, whose lines are older, before the other one."""
    return file.name.partition(".")[0], file.name.endswith(DAY)


def read(elastic: Path, since: float | None = None) -> Recorded:
    """Return the machines that ended at a time or later, and perhaps some that ended before.

    Args:
        elastic: The daemon's folder.
        since: Seconds since the epoch; `None` means all.

    Raises:
        OSError: A file cannot be read.
    """
    folder, recorded = elastic / FOLDER, Recorded()
    # The clock may have been set back a little between a machine's end and the line.
    first = "" if since is None else _day(max(0.0, since - DAY_SECONDS))
    restored = sorted(folder.glob(f"{RESTORED}*{PACKED}"))
    own = days(folder)
    for file in [*restored, *(file for file in own if file.name >= first)]:
        try:
            _read(file, recorded)
        except (*_UNREADABLE, foreign.UnusableError):
            recorded.damaged += 1
    if own:
        recorded.began = _began(own[0])
    return recorded


def _read(file: Path, recorded: Recorded) -> None:
    is_restored = file.name.startswith(RESTORED)
    for line in _lines(file):
        life = _life(line)
        if life is None:
            recorded.damaged += not line.startswith(b'{"began"')
            continue
        recorded.lives[life.id] = life
        if is_restored:
            recorded.restored.add(life.id)
        else:
            recorded.restored.discard(life.id)


def _lines(file: Path) -> Iterator[bytes]:
    with foreign.opened(file) as handle, open(handle, "rb", closefd=False) as plain:
        stream: Any = gzip.GzipFile(fileobj=plain) if file.name.endswith(PACKED) else plain
        while line := stream.readline(MOST_LINE):
            if line.strip():
                yield line


def _life(line: bytes) -> MachineLife | None:
    """Return a line's machine; `None` if it has none. Fields of later releases are left out.

    There may be a million lines, for which `node.system.codec` would take a minute.
    """
    try:
        found = json.loads(line)
        # Many machines have the same node.
        values: dict[str, Any] = {key: sys.intern(found[key]) for key in _TEXTS}
        values |= {key: float(found[key]) for key in _AMOUNTS}
        values |= {key: int(found[key]) for key in _COUNTS}
        values["price"] = None if found["price"] is None else float(found["price"])
        life = MachineLife(**values, registered=found["registered"] is True)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    amounts = (life.launched, life.ended, life.seconds, life.price or 0.0)
    return life if all(map(foreign.is_time, amounts)) else None


def _began(file: Path) -> float:
    """Return since when the record is whole: since its first line, or since the oldest day that is left."""
    with contextlib.suppress(ValueError, AttributeError, StopIteration, *_UNREADABLE):
        if foreign.is_time(began := foreign.parse(next(_lines(file))).get(BEGAN)):
            return float(began)
    year, month, day = map(int, file.name[:10].split("-"))
    return float(calendar.timegm((year, month, day, 0, 0, 0)))


def _day(when: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(min(when, foreign.LAST_TIME)))
