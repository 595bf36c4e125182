"""The zones in which a cluster has machines, each listed by itself: one that is down blinds only itself.

A list of all zones of the world in one call fails, or is half a list, where any of them cannot be reached. It
is asked for now and then all the same: machines may be left in a zone that the stack file no longer names.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from infra.node import words
from infra.node.elastic.driver import Machine
from infra.node.elastic.drivers.gce_client import refusals
from infra.node.elastic.drivers.gce_errors import failure_of
from infra.node.elastic.errors import ErrorClass
from infra.node.elastic.view import log

ELSEWHERE_SECONDS = 600.0
"""Between two looks at all zones."""
AGAIN_SECONDS = 60.0
"""After one that failed."""


class Zones:
    """Remembers the machines of each zone's last list.

    Args:
        own: where nodes may be launched.
        listed: a zone's machines; raises one of the client's refusals.
        everywhere: all zones that have machines of the cluster, likewise.
        clock: never jumps.
    """

    def __init__(
        self,
        own: Iterable[str],
        listed: Callable[[str], list[Machine]],
        everywhere: Callable[[], Iterable[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own = tuple(dict.fromkeys(own))
        self._listed = listed
        self._everywhere = everywhere
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, list[Machine]] = {}
        self._dark: frozenset[str] = frozenset()
        self._look_at: float | None = None

    def machines(self) -> list[Machine]:
        """Those of all zones; of one that does not answer those that were there when it last did.

        A machine that has ended there meanwhile still seems to live, and its node is Slurm's to give up: that
        costs minutes. One that lives and seemed to have ended would cost its jobs.

        Raises:
            one of the client's refusals: no zone answers, or it is no zone's fault.
        """
        self._look_elsewhere()
        with self._lock:
            zones = dict.fromkeys([*self._own, *(zone for zone, there in self._known.items() if there)])
        with ThreadPoolExecutor(len(zones), thread_name_prefix="zones") as threads:
            answers = dict(zip(zones, threads.map(self._ask, zones), strict=True))
        errors = {zone: one for zone, one in answers.items() if isinstance(one, Exception)}
        for error in errors.values():
            if len(errors) == len(zones) or failure_of(error).kind is not ErrorClass.THROTTLED:
                raise error
        with self._lock:
            self._known |= {zone: one for zone, one in answers.items() if not isinstance(one, Exception)}
            found = [machine for zone in zones for machine in self._known.get(zone, [])]
            before, self._dark = self._dark, frozenset(errors)
            counts = {zone: len(self._known.get(zone, [])) for zone in errors}
        for zone in sorted(errors.keys() - before):
            why = failure_of(errors[zone]).sentence()
            log(
                f"no word of zone {zone}, what was there counts as it was, "
                f"{words.count(counts[zone], 'machine')}: {why}"
            )
        for zone in sorted(before - errors.keys()):
            log(f"zone {zone} answers again")
        return found

    def _ask(self, zone: str) -> list[Machine] | Exception:
        try:
            return self._listed(zone)
        except refusals() as error:
            return error

    def _look_elsewhere(self) -> None:
        now = self._clock()
        with self._lock:
            if self._look_at is not None and now < self._look_at:
                return
            self._look_at = now + AGAIN_SECONDS
        try:
            found = set(self._everywhere())
        except refusals() as error:
            log(f"machines in other zones: {failure_of(error).sentence()}")
            return
        with self._lock:
            self._look_at = now + ELSEWHERE_SECONDS
            new = found - self._known.keys() - set(self._own)
        if not new:
            return
        for zone in sorted(new):
            there = self._ask(zone)
            if not isinstance(there, Exception):
                with self._lock:
                    self._known[zone] = there
