"""The ledger: how long machines ran, what they cost, and which machine is each node's newest.

With the record of ended machines (`node.elastic.machine_record`), of which it has the sums, it is all that
outlives the daemon.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from node.design.model import ClusterDesign, split_label
from node.elastic.driver import Machine
from node.elastic.machine_record import MachineLife, MachineRecord
from node.elastic.view import log
from node.system import files, foreign
from node.system.codec import from_json, shown

JUMP_SECONDS = 1.0
"""Smaller differences between the clocks come from gradual corrections (NTP) and are no jump."""
LISTING_DELAY_SECONDS = 60.0
"""A machine that was launched this recently may be missing from the cloud's listing although it runs."""
FORGET_SECONDS = 600.0
"""After this time no listing shows a machine again that an earlier listing had left out."""
MINIMUM_BILLED_SECONDS = 60.0
"""AWS and Google Cloud bill a machine by the second, and for one minute at least."""
DAMAGED = "damaged-"
MOST_UNRECORDED = 1000
"""How many ended machines wait for a record that cannot be written. A bill has the others in one sum."""


@dataclass(slots=True)
class _RunningMachine:
    """A machine that runs. The ledger file has these fields.

    Attributes:
        partition: The partition's name; of a pool its label, train/spot.
        launched: Seconds since the epoch.
        price: USD an hour at the time of the launch; `None` means unknown.
        listed: Whether the cloud has listed the machine.
        node: Slurm's name for it.
        registered: Whether Slurm has had it as a node that is up.
    """

    partition: str
    launched: float
    price: float | None
    listed: bool = True
    node: str = ""
    registered: bool = False


@dataclass(slots=True)
class _Total:
    """What ended machines of a partition used. The ledger file has these fields.

    Attributes:
        seconds: Machine-seconds.
        usd: Their price, as far as known.
        unpriced: Those of the seconds whose price was unknown.
    """

    seconds: float = 0.0
    usd: float = 0.0
    unpriced: float = 0.0

    def add(self, seconds: float, price: float | None) -> None:
        """Add machine-seconds.

        Args:
            seconds: A negative number takes back what was added.
            price: USD an hour; `None` means unknown.
        """
        # The sums stay at 0 or above: what is taken back may differ from what was added in the last digit.
        self.seconds = max(0.0, self.seconds + seconds)
        self.usd = max(0.0, self.usd + seconds / 3600 * (price or 0.0))
        self.unpriced = max(0.0, self.unpriced + (seconds if price is None else 0.0))


@dataclass(frozen=True, slots=True)
class Account:
    """What was spent until a moment, including machines that run.

    Attributes:
        usd: The sum of all known prices.
        hours: Partition, or label of a pool -> node-hours.
        unpriced: Likewise: those with nodes whose price was unknown and that `usd` leaves out.
        running: The partition of each running machine and the seconds that it has run.
        damaged: Files that were set aside because they could not be read. No figure includes their content.
    """

    usd: float = 0.0
    hours: dict[str, float] = field(default_factory=dict)
    unpriced: tuple[str, ...] = ()
    running: tuple[tuple[str, float], ...] = ()
    damaged: tuple[str, ...] = ()

    @property
    def node_hours(self) -> float:
        return sum(self.hours.values())


class Ledger:
    """The count of machine-seconds by partition, at the price of each machine when it was launched.

    A machine counts from its launch to the first listing that no longer shows it alive.

    Args:
        file: Where the ledger is stored. It survives restarts of the daemon and changes of the design.
            Machines that ended while the daemon was down count up to its first pass. A file that cannot be
            read is set aside, and the figures say so.
        design: The cluster's design, with the prices of its partitions.
        monotonic: Seconds on a clock that never jumps. With it the costs stay right when the system clock is
            set while machines run.
    """

    def __init__(
        self, file: Path, design: ClusterDesign, monotonic: Callable[[], float] | None = None
    ) -> None:
        self._file = file
        self._design = design
        self._monotonic = monotonic
        self._offset: float | None = None
        self._minimum = 0.0 if design.provider == "local" else MINIMUM_BILLED_SECONDS
        # The reconciler's thread and the launch threads write; the threads that serve requests read.
        self._lock = threading.Lock()
        self._closed: dict[str, _Total] = {}
        self._open: dict[str, _RunningMachine] = {}
        self._newest: dict[str, str] = {}
        # Machine id -> a machine that ended recently, the seconds counted for it, and when it was counted.
        self._ended: dict[str, tuple[_RunningMachine, float, float]] = {}
        self._record = MachineRecord(file.parent)
        self._unrecorded: list[MachineLife] = []
        self._written: dict[str, Any] = self._content()
        self._read()

    def see(self, machines: Iterable[Machine], now: float, up: Collection[str] = ()) -> None:
        """Record one listing of the cloud.

        Args:
            machines: All machines of the listing.
            now: Seconds since the epoch, like the machines' launch times.
            up: The nodes that are up for Slurm.
        """
        with self._lock:
            self._follow(now)
            living = {m.id: m for m in machines if m.state.alive and m.node}
            gone = {m.id for m in machines if not m.state.alive}
            for machine_id, machine in living.items():
                self._begin(machine_id, machine.node or "", machine.launched)
                if machine_id in self._open:
                    known = self._open[machine_id]
                    known.listed, known.node = True, machine.node or ""
                    known.registered |= machine.node in up
            for machine_id in self._open.keys() - living.keys():
                known = self._open[machine_id]
                if known.listed or machine_id in gone or now - known.launched > LISTING_DELAY_SECONDS:
                    del self._open[machine_id]
                    seconds = self._ran(known, now)
                    self._closed.setdefault(known.partition, _Total()).add(seconds, known.price)
                    self._ended[machine_id] = known, seconds, now
                    self._unrecorded.append(self._life(machine_id, known, seconds, now))
            self._ended = {i: entry for i, entry in self._ended.items() if now - entry[2] < FORGET_SECONDS}
            self._write_record(now)
            self._write()

    def newest(self) -> dict[str, str]:
        """Return node -> id of the machine that was launched last for it, unless that was forgotten."""
        with self._lock:
            return dict(self._newest)

    def forget(self, nodes: Iterable[str]) -> None:
        """Forget the newest machines of nodes, on the disk too: they say nothing about the next ones.

        This must be called when Slurm has powered nodes down, and before each launch. Otherwise a daemon that
        is killed in the middle of a launch would take the end of the earlier machine for that of the new one.
        """
        with self._lock:
            if known := self._newest.keys() & set(nodes):
                self._newest = {node: i for node, i in self._newest.items() if node not in known}
                self._write()

    def restore(self, newest: Mapping[str, str]) -> None:
        """Remember machines again that were forgotten before a launch which then launched no other.

        Args:
            newest: Node -> machine id.
        """
        with self._lock:
            self._newest = {**newest, **self._newest}
            self._write()

    def launched(self, machines: dict[str, str], now: float) -> None:
        """Count machines from their launch on, and not only from the next listing.

        Args:
            machines: Node -> machine id, as a launch returns them.
            now: Seconds since the epoch.
        """
        with self._lock:
            self._follow(now)
            for node, machine_id in machines.items():
                self._begin(machine_id, node, now, listed=False)
            self._newest |= machines
            self._write()

    def account(self, now: float) -> Account:
        """Return what was spent until now."""
        with self._lock:
            self._follow(now)
            totals = {name: _Total(t.seconds, t.usd, t.unpriced) for name, t in self._closed.items()}
            for machine in self._open.values():
                totals.setdefault(machine.partition, _Total()).add(self._ran(machine, now), machine.price)
            running = tuple((m.partition, max(0.0, now - m.launched)) for m in self._open.values())
            return Account(
                usd=sum(t.usd for t in totals.values()),
                hours={name: t.seconds / 3600 for name, t in sorted(totals.items())},
                unpriced=tuple(name for name, t in sorted(totals.items()) if t.unpriced > 0),
                running=running,
                damaged=tuple(self._damaged()),
            )

    def lives(self, now: float) -> dict[str, Any]:
        """Return what a bill needs beside the record of ended machines, all of one moment.

        Returns:
            `open`: the machines that run, as lives until now; `unrecorded`: those that ended and are not in
            the record yet; `closed`: partition, or label of a pool -> seconds, USD and seconds without a
            price of all that ended; `damaged`: as in `account`.
        """
        with self._lock:
            self._follow(now)
            running = [self._life(i, m, self._ran(m, now), now) for i, m in self._open.items()]
            return {
                "open": [asdict(life) for life in running],
                "unrecorded": [asdict(life) for life in self._unrecorded],
                "closed": {name: asdict(total) for name, total in self._closed.items()},
                "damaged": self._damaged(),
            }

    def cost(self, now: float) -> dict[str, Any]:
        """Return node-hours and USD so far.

        Returns:
            The cost. `usd` is `None` where a machine had no known price: the sum is then at least
            `at_least_usd`, and `unknown` lists the partitions, and labels of pools, whose nodes it leaves
            out. `by_pool` has the pools only, by their labels.
        """
        spent = self.account(now)
        by_partition: dict[str, float] = {}
        for name, hours in spent.hours.items():
            partition, _ = split_label(name)
            by_partition[partition] = by_partition.get(partition, 0.0) + hours
        return {
            "node_hours": round(spent.node_hours, 4),
            "usd": None if spent.unpriced else round(spent.usd, 4),
            "at_least_usd": round(spent.usd, 4),
            "unknown": list(spent.unpriced),
            "by_partition": {name: round(hours, 4) for name, hours in by_partition.items()},
            "by_pool": {n: round(hours, 4) for n, hours in spent.hours.items() if split_label(n)[1]},
        }

    def _begin(self, machine_id: str, node: str, launched: float, *, listed: bool = True) -> None:
        partition = self._design.partition_of(node)
        if machine_id in self._ended and machine_id not in self._open:
            # An earlier listing left the machine out although it ran. What was counted is taken back and
            # counted again at its end.
            machine, seconds, _ = self._ended.pop(machine_id)
            self._closed[machine.partition].add(-seconds, machine.price)
            self._open[machine_id] = machine
        elif partition is not None and machine_id not in self._open:
            self._open[machine_id] = _RunningMachine(
                partition.label, launched, partition.price_hour, listed, node
            )

    def _life(self, machine_id: str, machine: _RunningMachine, seconds: float, ended: float) -> MachineLife:
        # A node of another size is another machine, so the design still has the size of one that runs.
        partition = self._design.partition_of(machine.node)
        accelerator = partition.accelerator if partition else None
        return MachineLife(
            machine_id,
            machine.node,
            machine.partition,
            machine.launched,
            ended,
            seconds,
            machine.price,
            partition.cpus if partition else 0,
            partition.memory_mib if partition else 0,
            accelerator.resource if accelerator else "",
            accelerator.units if accelerator else 0,
            machine.registered,
        )

    def _damaged(self) -> list[str]:
        return sorted(p.name for p in self._file.parent.glob(f"{self._file.name}.{DAMAGED}*"))

    def _ran(self, machine: _RunningMachine, now: float) -> float:
        return max(self._minimum, now - machine.launched)

    def _follow(self, now: float) -> None:
        """Shift the launch times where the system clock has jumped, so that the durations stay right."""
        if self._monotonic is None:
            return
        offset = now - self._monotonic()
        jump = 0.0 if self._offset is None else offset - self._offset
        self._offset = offset
        if abs(jump) > JUMP_SECONDS:
            for machine in [*self._open.values(), *(ended for ended, _, _ in self._ended.values())]:
                machine.launched += jump

    def _content(self) -> dict[str, Any]:
        return {
            "closed": {name: asdict(total) for name, total in self._closed.items()},
            "open": {machine_id: asdict(machine) for machine_id, machine in self._open.items()},
            "newest": dict(self._newest),
            "unrecorded": [asdict(life) for life in self._unrecorded],
        }

    def _write_record(self, now: float) -> None:
        """Write ended machines to the record; what is not written is kept, here and in the ledger's file.

        The record is written first. A daemon that is killed before the ledger is repeats the lines, of which
        the last one counts.
        """
        try:
            self._record.add(self._unrecorded, now)
            self._unrecorded.clear()
        except OSError as error:  # a full disk must not end the pass; the next pass writes again
            log(f"the record of ended machines cannot be written: {error}")
            del self._unrecorded[:-MOST_UNRECORDED]

    def _write(self) -> None:
        content = self._content()
        if content == self._written:
            return
        try:
            files.write(self._file, json.dumps(content).encode(), durable=True)
        except OSError as error:  # a full disk must not end the pass; the next pass writes again
            log(f"{self._file} cannot be written: {error}")
            return
        self._written = content

    def _read(self) -> None:
        try:
            content = foreign.record(self._file)
            self._closed = {str(name): _total(value) for name, value in content["closed"].items()}
            self._open = {
                str(machine_id): _running_machine(value) for machine_id, value in content["open"].items()
            }
            self._newest = {
                str(node): str(machine_id)
                for node, machine_id in content["newest"].items()
                if self._design.partition_of(str(node)) is not None
            }
            # Ledgers of earlier releases have none.
            self._unrecorded = [from_json(MachineLife, life) for life in content.get("unrecorded", ())]
            self._written = self._content()
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._set_aside(error)

    def _set_aside(self, error: Exception) -> None:
        self._closed, self._open, self._newest, self._unrecorded = {}, {}, {}, []
        aside = self._file.with_name(f"{self._file.name}.{DAMAGED}{time.time_ns()}")
        with contextlib.suppress(OSError):
            self._file.replace(aside)
        log(f"{self._file} cannot be read ({error!r}) and is kept as {aside}: costs are counted from 0 again")


def _total(value: dict[str, Any]) -> _Total:
    return _Total(_number(value["seconds"]), _number(value["usd"]), _number(value["unpriced"]))


def _running_machine(value: dict[str, Any]) -> _RunningMachine:
    price = value["price"]
    return _RunningMachine(
        str(value["partition"]),
        _number(value["launched"]),
        None if price is None else _number(price),
        value["listed"] is True,
        # Ledgers of earlier releases lack these. Their machines are taken for nodes that came up.
        str(value.get("node", "")),
        value.get("registered", True) is True,
    )


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"not an amount: {shown(value)}")
    return float(value)
