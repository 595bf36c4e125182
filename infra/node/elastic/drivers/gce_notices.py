"""Why machines ended that nobody here has ended: preempted spot capacity, hosts that failed.

Compute Engine announces the end of a spot machine to the machine alone, 30 seconds ahead. From outside it is
seen by the instance's state while it stops, and afterwards by an operation of the system's, which is asked
for only where a machine has ended that should not have.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from infra.node.elastic.driver import Machine, MachineState
from infra.node.elastic.drivers.gce_client import Clients, refusals
from infra.node.elastic.drivers.gce_errors import failure_of, words
from infra.node.elastic.drivers.gce_names import Identity
from infra.node.elastic.drivers.gce_operations import listed, moment
from infra.node.elastic.view import log

ASK_SECONDS = 5.0
"""Between two questions about the same zone, at least."""
SHOW_SECONDS = 600.0
"""For how long a machine that has vanished is still told of, as one that has ended."""
MISS_SECONDS = 120.0
"""For how long the reason of a machine that has vanished is looked for."""
EVENT_LEAD_SECONDS = 3600.0
"""Maintenance is announced up to weeks ahead; from here on the node takes no more jobs, as where the machine
itself is told. What runs goes on until shortly before (`rules.NEAR_SECONDS`)."""
PREEMPTED = "compute.instances.preempted"
REASONS = {
    PREEMPTED: "Compute Engine has preempted the machine",
    "compute.instances.hostError": "the machine's host has failed",
    "compute.instances.terminateOnHostMaintenance": "its host is in maintenance",
    "compute.instances.guestTerminate": "it was shut down from within",
}
SLACK_SECONDS = 60.0
"""By how much this machine's clock and Compute Engine's may differ, and a list lag behind."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """Attributes:
    since: when that was first seen, on the clock that never jumps.
    after: it was alive then, in seconds since the epoch.
    """

    machine: Machine
    since: float
    after: float
    reason: str | None = None


class Ends:
    """Remembers the machines of earlier listings.

    Args:
        by_us: whether a machine's end was begun here.
        clock: never jumps.
    """

    def __init__(
        self,
        project: str,
        clients: Callable[[], Clients],
        by_us: Callable[[Identity], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._project = project
        self._clients = clients
        self._by_us = by_us
        self._clock = clock
        self._lock = threading.Lock()
        self._alive: dict[str, Machine] = {}
        self._ended: dict[str, _Ended] = {}
        self._asked: dict[str, float] = {}
        self._read = time.time()

    def launched(self, made: Mapping[str, str]) -> None:
        """Machines that were launched now: they may end before any listing shows them.

        Args:
            made: node -> machine id.
        """
        with self._lock:
            for node, identity in made.items():
                machine = Machine(identity, node, MachineState.PENDING, time.time())
                self._alive.setdefault(identity, replace(machine, zone=Identity.parse(identity).zone))

    def explained(self, listed: Sequence[Machine]) -> list[Machine]:
        """The machines of a listing, with why they ended; and those that are in it no more and surely ended.

        One that has vanished without the cloud's word is not among them: lists lag.
        """
        with self._lock:
            now, before, self._read = self._clock(), self._read, time.time()
            shown = {machine.id: machine for machine in listed}
            self._ended = {i: one for i, one in self._ended.items() if now - one.since < SHOW_SECONDS}
            for machine in [*listed, *(m for i, m in self._alive.items() if i not in shown)]:
                if machine.id in shown and machine.state.alive:
                    self._ended.pop(machine.id, None)
                elif not self._by_us(Identity.parse(machine.id)):
                    self._ended.setdefault(machine.id, _Ended(machine, now, before - SLACK_SECONDS))
            self._alive = {i: m for i, m in shown.items() if m.state.alive}
            due = self._due(now)
        # Launches tell of their machines meanwhile, and other listings go on.
        self._ask(due)
        with self._lock:
            found = [self._told(machine) for machine in listed]
            return found + [
                replace(one.machine, state=MachineState.TERMINATED, failure=one.reason, notice=None)
                for identity, one in self._ended.items()
                if identity not in shown and one.reason is not None
            ]

    def _told(self, machine: Machine) -> Machine:
        ended = self._ended.get(machine.id)
        return machine if ended is None or ended.reason is None else replace(machine, failure=ended.reason)

    def _due(self, now: float) -> dict[str, dict[int, tuple[str, float]]]:
        """Zones to ask now -> the numbers of the instances in question, their machines' ids, and when they
        were alive."""
        due: dict[str, dict[int, tuple[str, float]]] = {}
        for text, one in self._ended.items():
            identity = Identity.parse(text)
            recent = one.reason is None and now - one.since < MISS_SECONDS
            if recent and now - self._asked.get(identity.zone, -ASK_SECONDS) >= ASK_SECONDS:
                due.setdefault(identity.zone, {})[identity.number] = text, one.after
        self._asked |= dict.fromkeys(due, now)
        return due

    def _ask(self, due: Mapping[str, Mapping[int, tuple[str, float]]]) -> None:
        for zone, wanted in sorted(due.items()):
            try:
                reasons = self._reasons(zone, wanted)
            except refusals() as error:
                log(f"no word of why machines in {zone} ended: {failure_of(error).sentence()}")
                continue
            with self._lock:
                for number, reason in reasons.items():
                    text, _ = wanted[number]
                    if (one := self._ended.get(text)) is not None:
                        self._ended[text] = replace(one, reason=reason)

    def _reasons(self, zone: str, wanted: Mapping[int, tuple[str, float]]) -> dict[int, str]:
        """Instance's number -> why the system ended it.

        Page after page of all of the zone's operations, until they are older than the ends in question.
        """
        oldest = min(after for _, after in wanted.values())
        found: dict[int, str] = {}
        for operation in listed(self._clients(), self._project, zone):
            number, at = int(operation.target_id), moment(operation.insert_time)
            if number in wanted and operation.operation_type in REASONS:
                found.setdefault(number, words(REASONS[operation.operation_type]))
            if len(found) == len(wanted) or (at is not None and at < oldest):
                break
        return found


def maintenance(instance: Any, now: float) -> float | None:
    """When a machine will be taken for maintenance, in seconds since the epoch; None: not soon.

    Only of one that ends with it: others are moved to another host as they run.
    """
    if instance.scheduling.on_host_maintenance != "TERMINATE":
        return None
    begins = instance.resource_status.upcoming_maintenance.window_start_time
    at = moment(begins)
    return at if at is not None and at - now < EVENT_LEAD_SECONDS else None
