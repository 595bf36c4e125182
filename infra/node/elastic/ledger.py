"""How long machines ran and what that cost: the daemon's only memory on disk."""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from infra.node.elastic.driver import Machine
from infra.node.elastic.view import log
from infra.node.model import ClusterDesign

JUMP_SECONDS = 1.0
LISTED_SECONDS = 60.0
"""A machine that was launched so recently may be missing from the cloud's listing, and runs."""
AGAIN_SECONDS = 600.0
"""By then no listing shows a machine again that an earlier one had left out."""
LEAST_SECONDS = 60.0
"""AWS and Google Cloud bill a machine by the second, from its first minute on."""
DAMAGED = "damaged-"


@dataclass(slots=True)
class _Life:
    """A machine that runs.

    Attributes:
        launched: seconds since the epoch.
        price: USD an hour when it was launched; None: not known.
        listed: the cloud has shown it.
    """

    partition: str
    launched: float
    price: float | None
    listed: bool = True


@dataclass(slots=True)
class _Total:
    """What ran in a partition and is no more.

    Attributes:
        unpriced: those of the seconds that no price was known for.
    """

    seconds: float = 0.0
    usd: float = 0.0
    unpriced: float = 0.0

    def add(self, seconds: float, price: float | None) -> None:
        """Args:
        seconds: below 0 to take back what was added.
        """
        # Never below nothing: what is taken back may differ from what was added in the last digit.
        self.seconds = max(0.0, self.seconds + seconds)
        self.usd = max(0.0, self.usd + seconds / 3600 * (price or 0.0))
        self.unpriced = max(0.0, self.unpriced + (seconds if price is None else 0.0))


@dataclass(frozen=True, slots=True)
class Account:
    """What was spent until a moment, machines that run included.

    Attributes:
        usd: leaves out what has no known price.
        hours: node-hours by partition.
        unpriced: partitions with nodes whose price was not known, which `usd` leaves out.
        running: of each machine that runs its partition and for how many seconds it does.
        damaged: files that were set aside because they could not be read: what they held is in no figure.
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
    """Machine-seconds by partition, from each machine's launch to the pass that no longer sees it alive, at
    the price that it had when it was launched.

    Args:
        file: survives restarts of the daemon and changes of the design; machines that ended meanwhile count
            up to the first pass after. A file that cannot be read is set aside, and the figures say so.
        steady: seconds on a clock that never jumps. With it, a clock that is set while machines run changes
            nothing of what they cost.
    """

    def __init__(self, file: Path, design: ClusterDesign, steady: Callable[[], float] | None = None) -> None:
        self._file = file
        self._design = design
        self._steady = steady
        self._offset: float | None = None
        self._least = 0.0 if design.provider == "local" else LEAST_SECONDS
        # Told by the reconciler's thread and those that launch, asked by those of the daemon's callers.
        self._lock = threading.Lock()
        self._closed: dict[str, _Total] = {}
        self._open: dict[str, _Life] = {}
        # Machines that were counted to their end lately -> for how many seconds, and when.
        self._ended: dict[str, tuple[_Life, float, float]] = {}
        self._written: dict[str, Any] = self._content()
        self._read()

    def see(self, machines: Iterable[Machine], now: float) -> None:
        """Take in one listing.

        Args:
            now: seconds since the epoch, as the machines' launch times are.
        """
        with self._lock:
            self._follow(now)
            living = {m.id: m for m in machines if m.state.alive and m.node}
            gone = {m.id for m in machines if not m.state.alive}
            for identity, machine in living.items():
                self._begin(identity, machine.node or "", machine.launched)
                if identity in self._open:
                    self._open[identity].listed = True
            for identity in self._open.keys() - living.keys():
                life = self._open[identity]
                if life.listed or identity in gone or now - life.launched > LISTED_SECONDS:
                    del self._open[identity]
                    seconds = self._ran(life, now)
                    self._closed.setdefault(life.partition, _Total()).add(seconds, life.price)
                    self._ended[identity] = life, seconds, now
            self._ended = {i: one for i, one in self._ended.items() if now - one[2] < AGAIN_SECONDS}
            self._write()

    def launched(self, machines: dict[str, str], now: float) -> None:
        """Count machines from their launch on, and not only from the next listing.

        Args:
            machines: node -> machine id, as a launch returns them.
        """
        with self._lock:
            self._follow(now)
            for node, identity in machines.items():
                self._begin(identity, node, now, listed=False)
            self._write()

    def account(self, now: float) -> Account:
        """What was spent until now."""
        with self._lock:
            self._follow(now)
            totals = {name: _Total(t.seconds, t.usd, t.unpriced) for name, t in self._closed.items()}
            for life in self._open.values():
                totals.setdefault(life.partition, _Total()).add(self._ran(life, now), life.price)
            running = tuple((life.partition, max(0.0, now - life.launched)) for life in self._open.values())
            return Account(
                usd=sum(t.usd for t in totals.values()),
                hours={name: t.seconds / 3600 for name, t in sorted(totals.items())},
                unpriced=tuple(name for name, t in sorted(totals.items()) if t.unpriced > 0),
                running=running,
                damaged=tuple(
                    sorted(p.name for p in self._file.parent.glob(f"{self._file.name}.{DAMAGED}*"))
                ),
            )

    def cost(self, now: float) -> dict[str, Any]:
        """Node-hours and USD so far.

        Returns:
            `usd` is None where a machine that ran had no known price: then the sum is at least
            `at_least_usd`, and `unknown` has the partitions whose nodes it leaves out.
        """
        spent = self.account(now)
        return {
            "node_hours": round(spent.node_hours, 4),
            "usd": None if spent.unpriced else round(spent.usd, 4),
            "at_least_usd": round(spent.usd, 4),
            "unknown": list(spent.unpriced),
            "by_partition": {name: round(hours, 4) for name, hours in spent.hours.items()},
        }

    def _begin(self, identity: str, node: str, launched: float, *, listed: bool = True) -> None:
        partition = self._design.partition_of(node)
        if identity in self._ended and identity not in self._open:
            # The listing that left it out was behind: what was counted for it is counted again at its end.
            life, seconds, _ = self._ended.pop(identity)
            self._closed[life.partition].add(-seconds, life.price)
            self._open[identity] = life
        elif partition is not None and identity not in self._open:
            self._open[identity] = _Life(partition.name, launched, partition.price_hour, listed)

    def _ran(self, life: _Life, now: float) -> float:
        return max(self._least, now - life.launched)

    def _follow(self, now: float) -> None:
        """Where the clock has jumped, the launches jump with it: how long machines have run stays."""
        if self._steady is None:
            return
        offset = now - self._steady()
        jump = 0.0 if self._offset is None else offset - self._offset
        self._offset = offset
        # Less is a clock that is being corrected gently.
        if abs(jump) > JUMP_SECONDS:
            for life in [*self._open.values(), *(life for life, _, _ in self._ended.values())]:
                life.launched += jump

    def _content(self) -> dict[str, Any]:
        return {
            "closed": {name: asdict(total) for name, total in self._closed.items()},
            "open": {identity: asdict(life) for identity, life in self._open.items()},
        }

    def _write(self) -> None:
        content = self._content()
        if content == self._written:
            return
        draft = self._file.with_suffix(".new")
        try:
            with draft.open("w") as file:
                file.write(json.dumps(content))
                file.flush()
                # Else a machine that loses its power may come back with the name and without the content.
                os.fsync(file.fileno())
            draft.replace(self._file)
        except OSError as error:  # a full disk must not end the pass; the next one writes
            log(f"{self._file} cannot be written: {error}")
            return
        self._written = content

    def _read(self) -> None:
        try:
            content = json.loads(self._file.read_text())
            self._closed = {str(name): _total(value) for name, value in content["closed"].items()}
            self._open = {str(identity): _life(value) for identity, value in content["open"].items()}
            self._written = self._content()
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._set_aside(error)

    def _set_aside(self, error: Exception) -> None:
        self._closed, self._open = {}, {}
        aside = self._file.with_name(f"{self._file.name}.{DAMAGED}{time.time_ns()}")
        with contextlib.suppress(OSError):
            self._file.replace(aside)
        log(f"{self._file} cannot be read ({error!r}) and is kept as {aside}: costs count anew from here")


def _total(value: dict[str, Any]) -> _Total:
    return _Total(_number(value["seconds"]), _number(value["usd"]), _number(value["unpriced"]))


def _life(value: dict[str, Any]) -> _Life:
    price = value["price"]
    return _Life(
        str(value["partition"]),
        _number(value["launched"]),
        None if price is None else _number(price),
        bool(value["listed"]),
    )


def _number(value: Any) -> float:
    number = float(value)
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"no amount: {value!r}")
    return number
