"""Launches that were still unfinished when the driver stopped watching them, and their results.

Compute Engine reports a launch in its operations; where a zone is busy this takes minutes. Each listing
looks for launches that failed after the watch was over, and the next launch of the same nodes returns these
failures.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from node.elastic.driver import Machine, MachineState
from node.elastic.drivers.gce.client import CallError
from node.elastic.drivers.gce.errors import failure_of
from node.elastic.drivers.gce.names import Identity
from node.elastic.drivers.gce.operations import BulkInsert, Operations
from node.elastic.failures import Failure
from node.elastic.view import log
from node.slurm.hostlist import fold

ASK_SECONDS = 5.0
"""The shortest pause between two checks."""
KEEP_SECONDS = 1800.0
"""No launch takes longer than this."""
TELL_SECONDS = 300.0
"""For how long a failure is remembered: if a job waits for the nodes, the reconciler launches them sooner."""


@dataclass(frozen=True, slots=True)
class EarlierLaunches:
    """What is known of nodes from earlier launches.

    Attributes:
        launched: Node -> machine id.
        failures: Failures that nobody was told of yet.
        waiting: Nodes whose launch is still unfinished.
    """

    launched: dict[str, str] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    waiting: frozenset[str] = frozenset()


class UnfinishedLaunches:
    """The unfinished launches. Launch threads add them, and listings check them.

    Args:
        operations: The project's operations.
        clock: Returns seconds on a clock that never jumps.
    """

    def __init__(
        self,
        operations: Operations,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._operations = operations
        self._clock = clock
        self._lock = threading.Lock()
        self._unfinished: dict[str, tuple[float, BulkInsert, dict[str, str]]] = {}
        self._failed: dict[str, tuple[float, Failure, str | None]] = {}
        self._asked: float | None = None

    def add(self, bulk: BulkInsert) -> dict[str, str]:
        """Remember an unfinished launch.

        Returns:
            Node -> machine id of the instances that it has made so far.
        """
        try:
            inserted = self._operations.inserted(bulk)
        except CallError as error:
            log(f"{fold(bulk.nodes.values())}: {failure_of(error).sentence()}")
            inserted = {}
        with self._lock:
            self._unfinished[bulk.operation] = (self._clock(), bulk, inserted)
        return inserted

    def look(self) -> None:
        """Check the unfinished launches. Never raises: a listing must not depend on this."""
        now = self._clock()
        with self._lock:
            if not self._unfinished or (self._asked is not None and now - self._asked < ASK_SECONDS):
                return
            self._asked = now
            left = dict(self._unfinished)
        for at, bulk, identities in left.values():
            try:
                outcome = self._operations.look(bulk)
            except CallError as error:
                log(f"{fold(bulk.nodes.values())}: {failure_of(error).sentence()}")
                outcome = None
            with self._lock:
                if bulk.operation not in self._unfinished:
                    # Another thread's check overlapped with this one and has recorded the result.
                    continue
                if outcome is not None or now - at > KEEP_SECONDS:
                    del self._unfinished[bulk.operation]
                for failure in outcome.failures if outcome is not None else ():
                    for node in failure.nodes:
                        self._failed[node] = (now, failure, identities.get(node))

    def take(self, nodes: Sequence[str]) -> EarlierLaunches:
        """Return what is known of these nodes. Each failure is returned once."""
        self.look()
        with self._lock:
            self._forget()
            failed = {n: self._failed.pop(n)[1] for n in nodes if n in self._failed}
            waiting = {n for _, bulk, _ in self._unfinished.values() for n in bulk.nodes.values()} & set(
                nodes
            )
            identities = {
                n: i for _, _, known in self._unfinished.values() for n, i in known.items() if n in waiting
            }
        nodes_by_cause: dict[tuple[str, str], list[str]] = {}
        for node, failure in failed.items():
            nodes_by_cause.setdefault((failure.code, failure.message), []).append(node)
        failures = tuple(
            Failure(tuple(members), failed[members[0]].kind, code, message)
            for (code, message), members in nodes_by_cause.items()
        )
        return EarlierLaunches(identities, failures, frozenset(waiting))

    def ended(self, listed: Sequence[Machine]) -> list[Machine]:
        """Return machines of failed launches that no listing shows, as machines that have ended.

        Args:
            listed: The machines of a listing.
        """
        shown = {machine.id for machine in listed}
        with self._lock:
            self._forget()
            return [
                Machine(
                    identity,
                    node,
                    MachineState.TERMINATED,
                    0.0,
                    failure.message,
                    Identity.parse(identity).zone,
                )
                for node, (_, failure, identity) in self._failed.items()
                if identity is not None and identity not in shown
            ]

    def _forget(self) -> None:
        now = self._clock()
        self._failed = {n: failure for n, failure in self._failed.items() if now - failure[0] < TELL_SECONDS}
