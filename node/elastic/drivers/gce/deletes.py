"""Deletes instances on Compute Engine: one call for each, many in parallel, within the project's rate limit.

A call only begins the delete. The listings that follow check the operations, not one by one but by pages of
everything that this user has begun in a zone.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from node.elastic.drivers.gce.client import CallError, Compute, Resource
from node.elastic.drivers.gce.errors import NOT_FOUND, NOT_READY, code_of, failure_of, operation_failure
from node.elastic.drivers.gce.names import Identity
from node.elastic.drivers.gce.operations import OperationOrigin, moment
from node.elastic.failures import API_FAILURES
from node.elastic.view import log
from node.system.waiting import retry

THREADS = 8
"""The number of threads."""
RATE = 20.0
"""Deletes per second. With the burst this allows 1,500 in the first minute, which is the project's limit."""
BURST = 300
"""Deletes that need not wait, after a pause."""
PAUSES = (1.0, 2.0, 4.0)
"""Seconds between tries while the cloud is busy."""
ASK_SECONDS = 5.0
"""The shortest pause between two checks of the operations."""
KEEP_SECONDS = 900.0
"""For how long a delete is remembered."""
_SPACE = uuid.UUID("6f1c3f0a-54a5-4e0e-9a0a-2b7c6a4f9d11")
"""The namespace of the request ids."""


@dataclass(frozen=True, slots=True)
class _Delete:
    """A delete under way.

    Attributes:
        operation: Its operation's name.
        at: When it began, on the clock that never jumps.
        origin: Who asked for it, and when.
    """

    operation: str
    at: float
    origin: OperationOrigin


class RateLimit:
    """A limit that allows a burst of calls, and after that a number per second."""

    def __init__(
        self, rate: float, burst: int, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._rate, self._burst = rate, burst
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._tokens, self._updated = float(burst), clock()

    def take(self) -> None:
        """Wait until the next call is allowed."""
        with self._lock:
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._updated) * self._rate)
            self._updated = now
            self._tokens -= 1
            pause = max(0.0, -self._tokens / self._rate)
        if pause:
            self._sleep(pause)


class Deletes:
    """The deletes of instances, with those that are under way.

    Args:
        compute: The API.
        sleep: Waits for some seconds.
        clock: Returns seconds on a clock that never jumps.
    """

    def __init__(
        self,
        compute: Compute,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._compute = compute
        self._sleep = sleep
        self._clock = clock
        self._rate_limit = RateLimit(RATE, BURST, clock, sleep)
        self._lock = threading.Lock()
        self._under_way: dict[Identity, _Delete] = {}
        self._attempts: dict[Identity, int] = {}
        self._asked: float | None = None

    def end(self, identities: Iterable[Identity]) -> Exception | None:
        """Begin to delete instances. An instance that no longer exists is no error.

        Returns:
            The first refusal. All deletes were tried.
        """
        wanted = list(dict.fromkeys(identities))
        if not wanted:
            return None
        with ThreadPoolExecutor(min(THREADS, len(wanted)), thread_name_prefix="delete") as threads:
            # The list consumes the whole iterator: one that is left early cancels what has not begun.
            errors = list(threads.map(self._delete, wanted))
        return next((error for error in errors if error is not None), None)

    def begun_here(self, identity: Identity) -> bool:
        """Return whether this daemon began to delete the instance."""
        with self._lock:
            return identity in self._under_way

    def look(self) -> None:
        """Check the deletes that are under way, so that a failed one can be repeated.

        Never raises: a listing must not depend on this.
        """
        now = self._clock()
        with self._lock:
            old = [identity for identity, delete in self._under_way.items() if now - delete.at > KEEP_SECONDS]
            for identity in old:
                del self._under_way[identity]
                self._attempts.pop(identity, None)
            if not self._under_way or (self._asked is not None and now - self._asked < ASK_SECONDS):
                return
            self._asked = now
            left = dict(self._under_way)
        for zone in sorted({identity.zone for identity in left}):
            of_zone = {identity: delete for identity, delete in left.items() if identity.zone == zone}
            # The list starts with the delete that was begun first, so it contains all others.
            origin = min(
                (delete.origin for delete in of_zone.values()), key=lambda delete: moment(delete.since) or 0.0
            )
            try:
                self._look(zone, {delete.operation: identity for identity, delete in of_zone.items()}, origin)
            except CallError as error:
                log(f"deletes in {zone}: {failure_of(error).sentence()}")

    def _look(self, zone: str, left: dict[str, Identity], origin: OperationOrigin) -> None:
        for operation in self._compute.operations(zone, origin.filter()):
            identity = left.pop(operation.get("name", ""), None)
            if identity is not None:
                self._note(identity, operation)
            if not left:
                return

    def _note(self, identity: Identity, operation: Resource) -> None:
        failure = operation_failure(operation)
        if failure is None or failure.code in NOT_FOUND:
            return
        log(f"{identity.name}: not deleted: {failure.sentence()}")
        with self._lock:
            self._under_way.pop(identity, None)
            self._attempts[identity] = self._attempts.get(identity, 0) + 1

    def _delete(self, identity: Identity) -> Exception | None:
        # The request id covers the instance's id: a late repetition cannot hit the next instance of the same
        # name.
        attempt = self._attempts.get(identity, 0)
        request_id = str(uuid.uuid5(_SPACE, f"{self._compute.project}/{identity}/{attempt}"))

        def delete() -> Resource:
            self._rate_limit.take()
            return self._compute.delete(identity.zone, identity.name, request_id)

        try:
            operation = retry(delete, Exception, PAUSES, _passes, sleep=self._sleep)
        except Exception as error:  # any error: the other instances must still be deleted
            return None if _is_ending(error) else error
        with self._lock:
            self._under_way.setdefault(
                identity, _Delete(operation.get("name", ""), self._clock(), OperationOrigin.of(operation))
            )
        return None


def _is_ending(error: Exception) -> bool:
    """Return whether Compute Engine refuses a delete because the instance is gone, or is being deleted.

    If it is not, the next listing shows the instance alive.
    """
    return code_of(error) in NOT_FOUND or code_of(error) in NOT_READY


def _passes(error: Exception) -> bool:
    return not _is_ending(error) and failure_of(error).kind in API_FAILURES
