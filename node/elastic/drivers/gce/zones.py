"""Lists each of the cluster's zones separately, so that a zone that is down hides no other zone.

One list of all zones of the world fails, or is incomplete, if any zone does not answer. It is still read
now and then, because machines may be left in a zone that the stack file no longer names.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from node.elastic.driver import Machine
from node.elastic.drivers.gce.client import CallError
from node.elastic.drivers.gce.errors import failure_of
from node.elastic.failures import API_FAILURES
from node.elastic.view import log
from node.system import plurals

OTHER_ZONE_SECONDS = 600.0
"""Seconds between two lists of all zones of the world."""
RETRY_SECONDS = 60.0
"""Seconds until the next one after a failure."""


class Zones:
    """The machines of each zone's last list.

    Args:
        launch_zones: The zones in which nodes may be launched.
        list_zone: Returns a zone's machines, or raises a `CallError`.
        everywhere: Returns all zones that have machines of the cluster, or raises a `CallError`.
        clock: Returns seconds on a clock that never jumps.
    """

    def __init__(
        self,
        launch_zones: Iterable[str],
        list_zone: Callable[[str], list[Machine]],
        everywhere: Callable[[], Iterable[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._launch_zones = tuple(dict.fromkeys(launch_zones))
        self._list = list_zone
        self._everywhere = everywhere
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, list[Machine]] = {}
        self._unreachable: frozenset[str] = frozenset()
        self._next_look: float | None = None

    def machines(self) -> list[Machine]:
        """List the machines of all zones; for a zone that does not answer, those of its last list.

        A machine that ended in such a zone still seems alive, and Slurm has to give up its node, which costs
        minutes. The opposite error, a living machine that seems to have ended, would cost its jobs.

        Raises:
            CallError: No zone answers, or the zone is not the cause.
        """
        self._look_elsewhere()
        with self._lock:
            zones = dict.fromkeys(
                [*self._launch_zones, *(zone for zone, known in self._known.items() if known)]
            )
        with ThreadPoolExecutor(len(zones), thread_name_prefix="zones") as threads:
            answers = dict(zip(zones, threads.map(self._ask, zones), strict=True))
        errors = {zone: answer for zone, answer in answers.items() if isinstance(answer, CallError)}
        for error in errors.values():
            if len(errors) == len(zones) or failure_of(error).kind not in API_FAILURES:
                raise error
        with self._lock:
            self._known |= {
                zone: answer for zone, answer in answers.items() if not isinstance(answer, CallError)
            }
            machines = [machine for zone in zones for machine in self._known.get(zone, [])]
            before, self._unreachable = self._unreachable, frozenset(errors)
            counts = {zone: len(self._known.get(zone, [])) for zone in errors}
        for zone in sorted(errors.keys() - before):
            why = failure_of(errors[zone]).sentence()
            log(
                f"zone {zone} does not answer; its last list counts, "
                f"with {plurals.count(counts[zone], 'machine')}: {why}"
            )
        for zone in sorted(before - errors.keys()):
            log(f"zone {zone} answers again")
        return machines

    def _ask(self, zone: str) -> list[Machine] | CallError:
        try:
            return self._list(zone)
        except CallError as error:
            return error

    def _look_elsewhere(self) -> None:
        now = self._clock()
        with self._lock:
            if self._next_look is not None and now < self._next_look:
                return
            self._next_look = now + RETRY_SECONDS
        try:
            zones = set(self._everywhere())
        except CallError as error:
            log(f"machines in other zones: {failure_of(error).sentence()}")
            return
        with self._lock:
            self._next_look = now + OTHER_ZONE_SECONDS
            new = zones - self._known.keys() - set(self._launch_zones)
        if not new:
            return
        for zone in sorted(new):
            capacity = self._ask(zone)
            if not isinstance(capacity, CallError):
                with self._lock:
                    self._known[zone] = capacity
