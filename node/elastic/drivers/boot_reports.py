"""What running machines report of their boots: which will not become nodes, or will be taken.

The reports are those that the controller's own server has taken (`node.bootstrap.report_server`), each from
the address of the machine that it is about. The cloud's list says which machine has which address. The copies
in the cluster's bucket are for people: any process of any node can write there, so nothing follows from them.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from node.bootstrap import report_server
from node.design.folders import Folders
from node.design.model import Settings
from node.elastic.driver import Machine, MachineState
from node.elastic.view import log
from node.system import foreign

SILENT_SECONDS = 900.0
"""A running machine without a report after this time will never report.

The first report comes within a minute or two, and Slurm waits for everything that the boot may do after it
(`node.design.time_limits`).
"""
ALIVE_SECONDS = 6 * report_server.ALIVE_SECONDS
"""How old the server's mark may be. While the server does not run, no machine counts as silent."""
SILENCE = (
    f"the machine has reported nothing to the controller in {SILENT_SECONDS / 60:g} minutes: its image "
    "does not start, or it cannot fetch its code (the cluster's bucket, its role, a clock that is 15 minutes "
    f"off), or it does not reach the controller (routes, port {report_server.PORT})"
)


class BootStatus(NamedTuple):
    """What a machine's boot report says.

    Attributes:
        failure: Why the machine will not become a node.
        notice: When the cloud will take the machine back, in seconds since the epoch (UTC).
    """

    failure: str | None = None
    notice: float | None = None


BootStatusReader = Callable[[Sequence[Machine]], Mapping[str, BootStatus]]
"""Running machines -> what their boot reports say, by the machines' ids."""


class Heard(NamedTuple):
    """A report that the server has kept.

    Attributes:
        received: When it came, by this machine's clock, in seconds since the epoch.
    """

    received: float
    failure: str | None = None
    notice: float | None = None


class BootReports:
    """The reports that the controller has taken.

    Args:
        folder: The server's folder.
        notices: Whether notices count. Where the cloud tells the controller of them, its word is enough.
        clock: Returns seconds since the epoch.
        monotonic: Returns seconds of the clock with which the server marks its start.
    """

    def __init__(
        self,
        folder: Path,
        *,
        notices: bool,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._notices = notices
        self._clock = clock
        self._monotonic = monotonic
        self._read: dict[str, tuple[tuple[int, int, int], Heard | None]] = {}

    @classmethod
    def of(cls, settings: Settings, *, notices: bool) -> BootReports:
        """Return those of a cluster's controller."""
        return cls(Path(str(report_server.folder(Folders(settings)))), notices=notices)

    def __call__(self, machines: Sequence[Machine]) -> dict[str, BootStatus]:
        """Return what these machines report, by their ids. Machines without news are left out."""
        now = self._clock()
        served = self._served()
        statuses = {}
        for machine in machines:
            try:
                status = self._status(machine, now, served)
            except Exception as error:  # one machine's report must not hide the others
                log(f"boot report of {machine.id}: {error!r}")
                continue
            if status != BootStatus():
                statuses[machine.id] = status
        return statuses

    def _status(self, machine: Machine, now: float, served: float) -> BootStatus:
        # An earlier report is of a former machine with this address.
        reports = [
            heard
            for address in machine.addresses
            if (heard := self._heard(address)) is not None and heard.received >= machine.launched
        ]
        if not reports:
            silent = min(served, now - machine.launched) >= SILENT_SECONDS
            return BootStatus(SILENCE if silent else None)
        newest = max(reports, key=lambda heard: heard.received)
        notice = newest.notice if self._notices else None
        if notice is not None and notice < machine.launched:
            notice = None
        return BootStatus(newest.failure, notice)

    def _served(self) -> float:
        """Return for how many seconds the server has run; 0 if it does not run now."""
        try:
            file = self._folder / report_server.SERVING
            since = float(foreign.record(file))
            if self._clock() - file.stat().st_mtime > ALIVE_SECONDS:
                return 0.0
        except (OSError, ValueError, TypeError):
            return 0.0
        return self._monotonic() - since

    def _heard(self, address: str) -> Heard | None:
        file = self._folder / f"{address}.json"
        try:
            status = file.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        seen = (status.st_mtime_ns, status.st_ino, status.st_size)
        if address not in self._read or self._read[address][0] != seen:
            self._read[address] = seen, _parsed(file)
        return self._read[address][1]


def _parsed(file: Path) -> Heard | None:
    """Return what the server has written into a file; `None`, with a line in the log, if it is damaged."""
    try:
        content = foreign.record(file)
        heard = Heard(float(content["received"]), content["failure"], content["notice"])
        if not isinstance(heard.failure, str | None) or not math.isfinite(heard.received):
            raise ValueError("a value has the wrong type")
        if heard.notice is not None and not math.isfinite(heard.notice):
            raise ValueError("the notice is not finite")
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        log(f"{file} cannot be read and is left out: {error!r}")
        return None
    return heard


def with_boots(machines: list[Machine], boots: BootStatusReader) -> list[Machine]:
    """Return the machines with what the running ones report."""
    running = [m for m in machines if m.state is MachineState.RUNNING and m.node]
    if not running:
        return machines
    try:
        statuses = boots(running)
    except Exception as error:  # a listing must not depend on the reports
        log(f"boot reports: {error!r}")
        return machines
    known = {m.id: statuses[m.id] for m in running if m.id in statuses}
    return [_with(m, known[m.id]) if m.id in known else m for m in machines]


def _with(machine: Machine, status: BootStatus) -> Machine:
    notices = [at for at in (machine.notice, status.notice) if at is not None]
    return dataclasses.replace(
        machine, failure=machine.failure or status.failure, notice=min(notices, default=None)
    )
