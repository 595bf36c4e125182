"""What EC2 announces to the account: spot interruptions, and scheduled events that end a machine.

Both calls return announcements only, so they cost the same for ten nodes and for a thousand.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from node.elastic.drivers.ec2.client import CallError, Ec2Client
from node.elastic.drivers.ec2.errors import failure_of
from node.elastic.view import log

NOTICES_SECONDS = 20.0
"""The shortest pause between two queries. A spot interruption is announced two minutes ahead."""
SPOT_SECONDS = 120.0
"""How long after its announcement a spot interruption happens."""
EVENT_LEAD_SECONDS = 900.0
"""Only events within this time count. They are announced days ahead, and many jobs end before that."""
EVENTS = ("instance-stop", "instance-retirement", "instance-reboot", "system-reboot")
"""Events that end what runs on the machine."""
SPOT = ("marked-for-termination", "marked-for-stop")
"""Status codes of spot requests whose instance will be interrupted."""
_OVER = ("[Completed]", "[Canceled]")
"""Prefixes of the descriptions of events that are over."""


class Ec2Notices:
    """EC2's announcements, which are asked for now and then.

    Args:
        client: Returns the EC2 client.
        spot: Whether some partition uses spot capacity.
        clock: Returns seconds since the epoch.
    """

    def __init__(
        self,
        client: Callable[[], Ec2Client],
        *,
        spot: bool,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._spot = spot
        self._clock = clock
        self._query_lock = threading.Lock()
        self._asked: float | None = None
        self._events: Mapping[str, float] = {}
        self._interruptions: Mapping[str, float] = {}
        self._last_error = ""

    def all(self) -> Mapping[str, float]:
        """Return instance -> when it will be taken, in seconds since the epoch.

        Other clusters' instances may be included. Never raises: without an answer the last one counts,
        because a listing must not depend on notices.
        """
        # Only one thread asks. The others do not wait for a cloud that may take a minute to fail.
        if self._query_lock.acquire(blocking=False):
            try:
                now = self._clock()
                if self._asked is None or not 0 <= now - self._asked < NOTICES_SECONDS:
                    self._asked = now
                    self._ask(now)
            finally:
                self._query_lock.release()
        notices = dict(self._events)
        for identity, at in self._interruptions.items():
            _note(notices, identity, at)
        return notices

    def _ask(self, now: float) -> None:
        """Ask for events and interruptions separately: if one query fails, the other may still succeed."""
        errors = []
        try:
            self._events = self._ask_events(now)
        except CallError as error:
            errors.append(failure_of(error).sentence())
        if self._spot:
            try:
                self._interruptions = self._ask_interruptions()
            except CallError as error:
                errors.append(failure_of(error).sentence())
        text = ", ".join(dict.fromkeys(errors))
        if text and text != self._last_error:
            log(f"interruptions and events are unknown: {text}")
        self._last_error = text

    def _ask_events(self, now: float) -> dict[str, float]:
        notices: dict[str, float] = {}
        for event in self._client().events(EVENTS):
            if event.code in EVENTS and not event.description.startswith(_OVER):
                _note(notices, event.instance, event.at)
        return {identity: at for identity, at in notices.items() if at - now < EVENT_LEAD_SECONDS}

    def _ask_interruptions(self) -> dict[str, float]:
        notices: dict[str, float] = {}
        for request in self._client().spot_requests(SPOT):
            if request.code in SPOT:
                _note(notices, request.instance, request.updated + SPOT_SECONDS)
        return notices


def _note(found: dict[str, float], identity: str, at: float) -> None:
    found[identity] = min(at, found.get(identity, at))
