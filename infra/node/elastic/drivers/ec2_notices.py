"""What EC2 announces from outside of the machines: spot interruptions, and events that end a machine.

Both calls answer with what is announced and nothing else, so they cost the same for ten nodes and a thousand.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from infra.node.elastic.drivers.ec2_errors import failure_of
from infra.node.elastic.view import log

ASK_SECONDS = 20.0
"""Between two questions: a spot interruption is announced two minutes ahead."""
PAGE = 1000
"""Results of one answer: the most that EC2 gives."""
SPOT_SECONDS = 120.0
EVENT_LEAD_SECONDS = 900.0
"""Events are announced days ahead; a job that ends before its machine does is left alone."""
EVENTS = ("instance-stop", "instance-retirement", "instance-reboot", "system-reboot")
"""Those that end what runs on the machine."""
SPOT = ("marked-for-termination", "marked-for-stop")
_OVER = ("[Completed]", "[Canceled]")


class Ec2Notices:
    """Args:
    spot: some partition runs on spot capacity.
    clock: seconds since the epoch.
    """

    def __init__(
        self,
        client: Callable[[], Any],
        refusals: Callable[[], tuple[type[Exception], ...]],
        *,
        spot: bool,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._refusals = refusals
        self._spot = spot
        self._clock = clock
        self._looking = threading.Lock()
        self._asked: float | None = None
        self._events: Mapping[str, float] = {}
        self._interruptions: Mapping[str, float] = {}
        self._trouble = ""

    def all(self) -> Mapping[str, float]:
        """Instance -> when it will be taken, in seconds since the epoch; of strangers too.

        Never fails: without an answer the last one counts, for a listing must not depend on notices.
        """
        # One asks; the others do not wait for a cloud that may take a minute not to answer.
        if self._looking.acquire(blocking=False):
            try:
                now = self._clock()
                if self._asked is None or not 0 <= now - self._asked < ASK_SECONDS:
                    self._asked = now
                    self._ask(now)
            finally:
                self._looking.release()
        found = dict(self._events)
        for identity, at in self._interruptions.items():
            _note(found, identity, at)
        return found

    def _ask(self, now: float) -> None:
        """Of each kind by itself: where one cannot be had, the other still can."""
        troubles = []
        try:
            self._events = self._ask_events(now)
        except self._refusals() as error:
            troubles.append(failure_of(error).sentence())
        if self._spot:
            try:
                self._interruptions = self._ask_interruptions()
            except self._refusals() as error:
                troubles.append(failure_of(error).sentence())
        trouble = ", ".join(dict.fromkeys(troubles))
        if trouble and trouble != self._trouble:
            log(f"no word of interruptions and events: {trouble}")
        self._trouble = trouble

    def _ask_events(self, now: float) -> dict[str, float]:
        found: dict[str, float] = {}
        filters = [{"Name": "event.code", "Values": list(EVENTS)}]
        for page in self._pages("describe_instance_status", filters):
            for status in page["InstanceStatuses"]:
                for event in status.get("Events", []):
                    if event["Code"] in EVENTS and not event.get("Description", "").startswith(_OVER):
                        _note(found, status["InstanceId"], event["NotBefore"].timestamp())
        return {identity: at for identity, at in found.items() if at - now < EVENT_LEAD_SECONDS}

    def _ask_interruptions(self) -> dict[str, float]:
        found: dict[str, float] = {}
        filters = [{"Name": "status-code", "Values": list(SPOT)}]
        for page in self._pages("describe_spot_instance_requests", filters):
            for request in page["SpotInstanceRequests"]:
                status = request.get("Status", {})
                if status.get("Code") in SPOT and "InstanceId" in request:
                    told = status["UpdateTime"].timestamp()
                    _note(found, request["InstanceId"], told + SPOT_SECONDS)
        return found

    def _pages(self, call: str, filters: list[dict[str, Any]]) -> Any:
        """Every page: without a size EC2 decides how many answers one has, and may time out."""
        paginator = self._client().get_paginator(call)
        return paginator.paginate(Filters=filters, PaginationConfig={"PageSize": PAGE})


def _note(found: dict[str, float], identity: str, at: float) -> None:
    found[identity] = min(at, found.get(identity, at))
