"""Why machines ended that this daemon did not delete: preempted spot capacity, hosts that failed.

Compute Engine announces the end of a spot machine to the machine alone, 30 seconds ahead. From outside the
end shows in the instance's state while it stops, and afterwards in an operation of the system. Operations are
read only where a machine ended unexpectedly.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from node.elastic.driver import Machine, MachineState
from node.elastic.drivers.failures import one_line
from node.elastic.drivers.gce.client import CallError, Compute, Resource
from node.elastic.drivers.gce.errors import failure_of
from node.elastic.drivers.gce.names import Identity
from node.elastic.drivers.gce.operations import moment, target
from node.elastic.view import log

ASK_SECONDS = 5.0
"""The shortest pause between two queries about the same zone."""
SHOW_SECONDS = 600.0
"""For how long a vanished machine stays in listings, as one that has ended."""
MISS_SECONDS = 120.0
"""For how long the reason of a vanished machine is looked for."""
EVENT_LEAD_SECONDS = 3600.0
"""Only maintenance within this time counts; it is announced up to weeks ahead.

The node then takes no more jobs, as where the machine itself is told. Running jobs continue until shortly
before (`rules.NEAR_SECONDS`).
"""
PREEMPTED = "compute.instances.preempted"
REASONS = {
    PREEMPTED: "Compute Engine has preempted the machine",
    "compute.instances.hostError": "the machine's host has failed",
    "compute.instances.terminateOnHostMaintenance": "its host is in maintenance",
    "compute.instances.guestTerminate": "it was shut down from within",
}
"""Types of the system's operations that end an instance -> the reason for users."""
SLACK_SECONDS = 60.0
"""How much this machine's clock and Compute Engine's may differ, plus the delay of a listing."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """A machine that ended unexpectedly.

    Attributes:
        machine: The machine.
        since: When the end was first seen, on the clock that never jumps.
        after: A time at which the machine was alive, in seconds since the epoch.
        reason: Why it ended; `None` means unknown.
    """

    machine: Machine
    since: float
    after: float
    reason: str | None = None


class EndReasons:
    """The reasons why machines ended, found by comparing each listing with earlier ones.

    Args:
        compute: The API.
        begun_here: Returns whether this daemon began to delete a machine.
        clock: Returns seconds on a clock that never jumps.
    """

    def __init__(
        self,
        compute: Compute,
        begun_here: Callable[[Identity], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._compute = compute
        self._begun_here = begun_here
        self._clock = clock
        self._lock = threading.Lock()
        self._alive: dict[str, Machine] = {}
        self._ended: dict[str, _Ended] = {}
        self._asked: dict[str, float] = {}
        self._read = time.time()

    def launched(self, instances: Mapping[str, str]) -> None:
        """Record machines that were launched just now: they may end before any listing shows them.

        Args:
            made: Node -> machine id.
        """
        with self._lock:
            for node, identity in instances.items():
                machine = Machine(identity, node, MachineState.PENDING, time.time())
                self._alive.setdefault(identity, replace(machine, zone=Identity.parse(identity).zone))

    def explained(self, listed: Sequence[Machine]) -> list[Machine]:
        """Return the machines of a listing with why they ended, and those that vanished and surely ended.

        A vanished machine is left out as long as the cloud does not confirm its end: lists lag.
        """
        with self._lock:
            now, before, self._read = self._clock(), self._read, time.time()
            shown = {machine.id: machine for machine in listed}
            self._ended = {i: ended for i, ended in self._ended.items() if now - ended.since < SHOW_SECONDS}
            for machine in [*listed, *(m for i, m in self._alive.items() if i not in shown)]:
                if machine.id in shown and machine.state.alive:
                    self._ended.pop(machine.id, None)
                elif not self._begun_here(Identity.parse(machine.id)):
                    self._ended.setdefault(machine.id, _Ended(machine, now, before - SLACK_SECONDS))
            self._alive = {i: m for i, m in shown.items() if m.state.alive}
            due = self._due(now)
        # The lock is released here: launches record machines meanwhile, and other listings run.
        self._ask(due)
        with self._lock:
            machines = [self._with_reason(machine) for machine in listed]
            return machines + [
                replace(ended.machine, state=MachineState.TERMINATED, failure=ended.reason, notice=None)
                for identity, ended in self._ended.items()
                if identity not in shown and ended.reason is not None
            ]

    def _with_reason(self, machine: Machine) -> Machine:
        ended = self._ended.get(machine.id)
        return machine if ended is None or ended.reason is None else replace(machine, failure=ended.reason)

    def _due(self, now: float) -> dict[str, dict[int, tuple[str, float]]]:
        """Return the zones to query now.

        Returns:
            Zone -> instance number -> the machine's id, and a time at which it was alive.
        """
        due: dict[str, dict[int, tuple[str, float]]] = {}
        for text, ended in self._ended.items():
            identity = Identity.parse(text)
            recent = ended.reason is None and now - ended.since < MISS_SECONDS
            if recent and now - self._asked.get(identity.zone, -ASK_SECONDS) >= ASK_SECONDS:
                due.setdefault(identity.zone, {})[identity.number] = text, ended.after
        self._asked |= dict.fromkeys(due, now)
        return due

    def _ask(self, due: Mapping[str, Mapping[int, tuple[str, float]]]) -> None:
        for zone, wanted in sorted(due.items()):
            try:
                reasons = self._reasons(zone, wanted)
            except CallError as error:
                log(f"why machines in {zone} ended is unknown: {failure_of(error).sentence()}")
                continue
            with self._lock:
                for number, reason in reasons.items():
                    text, _ = wanted[number]
                    if (ended := self._ended.get(text)) is not None:
                        self._ended[text] = replace(ended, reason=reason)

    def _reasons(self, zone: str, wanted: Mapping[int, tuple[str, float]]) -> dict[int, str]:
        """Return instance number -> why the system ended it.

        All operations of the zone are read page by page, until they are older than the ends in question.
        """
        oldest = min(after for _, after in wanted.values())
        reasons: dict[int, str] = {}
        for operation in self._compute.operations(zone):
            number, at = target(operation), moment(operation.get("insertTime", ""))
            if number in wanted and (kind := operation.get("operationType")) in REASONS:
                reasons.setdefault(number, one_line(REASONS[kind]))
            if len(reasons) == len(wanted) or (at is not None and at < oldest):
                break
        return reasons


def maintenance(instance: Resource, now: float) -> float | None:
    """Return when a machine will be taken for maintenance, in seconds since the epoch; `None` means not soon.

    This concerns machines that end for maintenance. Others are moved to another host while they run.
    """
    if instance.get("scheduling", {}).get("onHostMaintenance") != "TERMINATE":
        return None
    upcoming = instance.get("resourceStatus", {}).get("upcomingMaintenance", {})
    at = moment(upcoming.get("windowStartTime", ""))
    return at if at is not None and at - now < EVENT_LEAD_SECONDS else None
