"""Deletes on Compute Engine: one call an instance, many at once, no faster than the project may.

A call only begins the delete. Each one's operation is looked at by the listings that follow, by pages of what
this user has begun in a zone and not one by one.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from infra.node.elastic.drivers.gce_client import Clients, once, refusals
from infra.node.elastic.drivers.gce_errors import NOT_FOUND, NOT_READY, code_of, failure_of, operation_failure
from infra.node.elastic.drivers.gce_names import Identity
from infra.node.elastic.drivers.gce_operations import Mark, listed, moment
from infra.node.elastic.errors import ErrorClass
from infra.node.elastic.view import log

THREADS = 8
"""As many as the client keeps connections."""
RATE = 20.0
"""Deletes a second. With the burst they are 1,500 in the first minute, which is what a project may."""
BURST = 300
PAUSES = (1.0, 2.0, 4.0)
"""Seconds between tries while the cloud is busy."""
ASK_SECONDS = 5.0
"""Between two looks at the operations, at least."""
KEEP_SECONDS = 900.0
_SPACE = uuid.UUID("6f1c3f0a-54a5-4e0e-9a0a-2b7c6a4f9d11")


@dataclass(frozen=True, slots=True)
class _Delete:
    operation: str
    at: float
    mark: Mark


class Pace:
    """So many a second at most, after a burst."""

    def __init__(
        self, rate: float, burst: int, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._rate, self._burst = rate, burst
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._free, self._at = float(burst), clock()

    def take(self) -> None:
        """Wait for one's turn."""
        with self._lock:
            now = self._clock()
            self._free = min(self._burst, self._free + (now - self._at) * self._rate)
            self._at = now
            self._free -= 1
            pause = max(0.0, -self._free / self._rate)
        if pause:
            self._sleep(pause)


class Ending:
    """Args:
    clock: never jumps.
    """

    def __init__(
        self,
        project: str,
        clients: Callable[[], Clients],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._project = project
        self._clients = clients
        self._sleep = sleep
        self._clock = clock
        self._pace = Pace(RATE, BURST, clock, sleep)
        self._lock = threading.Lock()
        self._under_way: dict[Identity, _Delete] = {}
        self._attempts: dict[Identity, int] = {}
        self._asked: float | None = None

    def end(self, identities: Iterable[Identity]) -> Exception | None:
        """Begin the end of instances. Gone already is fine. Returns the first refusal; all were tried."""
        wanted = list(dict.fromkeys(identities))
        if not wanted:
            return None
        with ThreadPoolExecutor(min(THREADS, len(wanted)), thread_name_prefix="delete") as threads:
            # A list, to the end: an iterator of `map` that is left early cancels what has not begun.
            errors = list(threads.map(self._delete, wanted))
        return next((error for error in errors if error is not None), None)

    def by_us(self, identity: Identity) -> bool:
        """Whether its end was begun here."""
        with self._lock:
            return identity in self._under_way

    def look(self) -> None:
        """See what the deletes came to, so that one that failed can be asked for again.

        Never fails: a listing must not depend on it.
        """
        now = self._clock()
        with self._lock:
            old = [identity for identity, one in self._under_way.items() if now - one.at > KEEP_SECONDS]
            for identity in old:
                del self._under_way[identity]
                self._attempts.pop(identity, None)
            if not self._under_way or (self._asked is not None and now - self._asked < ASK_SECONDS):
                return
            self._asked = now
            left = dict(self._under_way)
        for zone in sorted({identity.zone for identity in left}):
            here = {identity: one for identity, one in left.items() if identity.zone == zone}
            # The one that was begun first: what follows is in one list with it.
            mark = min((one.mark for one in here.values()), key=lambda one: moment(one.since) or 0.0)
            try:
                self._look(zone, {one.operation: identity for identity, one in here.items()}, mark)
            except refusals() as error:
                log(f"deletes in {zone}: {failure_of(error).sentence()}")

    def _look(self, zone: str, left: dict[str, Identity], mark: Mark) -> None:
        for operation in listed(self._clients(), self._project, zone, mark):
            identity = left.pop(operation.name, None)
            if identity is not None:
                self._note(identity, operation)
            if not left:
                return

    def _note(self, identity: Identity, operation: Any) -> None:
        failure = operation_failure(operation)
        if failure is None or failure.code in NOT_FOUND:
            return
        log(f"{identity.name}: not deleted: {failure.sentence()}")
        with self._lock:
            self._under_way.pop(identity, None)
            self._attempts[identity] = self._attempts.get(identity, 0) + 1

    def _delete(self, identity: Identity) -> Exception | None:
        # The id is of this very instance: a late repetition cannot hit the next one of the same name.
        attempt = self._attempts.get(identity, 0)
        request = {
            "project": self._project,
            "zone": identity.zone,
            "instance": identity.name,
            "request_id": str(uuid.uuid5(_SPACE, f"{self._project}/{identity}/{attempt}")),
        }
        pauses = list(PAUSES)
        while True:
            self._pace.take()
            try:
                operation = self._clients().instances.delete_unary(request=request, **once())
            except Exception as error:  # also a surprise: the other instances are not to wait for its cause
                code = code_of(error)
                # Not ready: another delete is under way; if not, the next listing shows it alive.
                if code in NOT_FOUND or code in NOT_READY:
                    return None
                if failure_of(error).kind is not ErrorClass.THROTTLED or not pauses:
                    return error
                self._sleep(pauses.pop(0))
                continue
            with self._lock:
                self._under_way.setdefault(
                    identity, _Delete(operation.name, self._clock(), Mark.of(operation))
                )
            return None
