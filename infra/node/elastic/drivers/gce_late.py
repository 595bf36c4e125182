"""Launches that were left while they went on, and what they came to.

Compute Engine tells of a launch in its operations, for minutes where a zone is busy. What fails after the
watch is over is looked for at each listing, and told by the next launch of the same nodes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from infra.node.elastic.driver import Machine, MachineState
from infra.node.elastic.drivers.gce_client import refusals
from infra.node.elastic.drivers.gce_errors import failure_of
from infra.node.elastic.drivers.gce_names import Identity
from infra.node.elastic.drivers.gce_operations import Bulk, Operations
from infra.node.elastic.errors import Failure
from infra.node.elastic.view import log
from infra.node.slurm.hostlist import fold

ASK_SECONDS = 5.0
"""Between two looks, at least."""
KEEP_SECONDS = 1800.0
"""Longer no launch takes."""
TELL_SECONDS = 300.0
"""For how long a failure is told: if anybody waits for the nodes, the reconciler asks sooner."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """What is known of nodes from launches before.

    Attributes:
        waiting: nodes whose launch still goes on.
    """

    launched: dict[str, str] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    waiting: frozenset[str] = frozenset()


class Late:
    """Launches of several threads leave them, listings look after them."""

    def __init__(
        self,
        operations: Operations,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._operations = operations
        self._clock = clock
        self._lock = threading.Lock()
        self._left: dict[str, tuple[float, Bulk, dict[str, str]]] = {}
        self._failed: dict[str, tuple[float, Failure, str | None]] = {}
        self._asked: float | None = None

    def leave(self, bulk: Bulk) -> dict[str, str]:
        """Keep a launch in mind. Returns node -> machine id of what it has made so far."""
        try:
            made = self._operations.inserted(bulk)
        except refusals() as error:
            log(f"{fold(bulk.nodes.values())}: {failure_of(error).sentence()}")
            made = {}
        with self._lock:
            self._left[bulk.operation] = (self._clock(), bulk, made)
        return made

    def look(self) -> None:
        """Ask after the launches that go on. Never fails: a listing must not depend on it."""
        now = self._clock()
        with self._lock:
            if not self._left or (self._asked is not None and now - self._asked < ASK_SECONDS):
                return
            self._asked = now
            left = dict(self._left)
        for at, bulk, made in left.values():
            try:
                outcome = self._operations.look(bulk)
            except refusals() as error:
                log(f"{fold(bulk.nodes.values())}: {failure_of(error).sentence()}")
                outcome = None
            with self._lock:
                if bulk.operation not in self._left:
                    # A look that took longer than the pause between two: the other has told of it.
                    continue
                if outcome is not None or now - at > KEEP_SECONDS:
                    del self._left[bulk.operation]
                for failure in outcome.failures if outcome is not None else ():
                    for node in failure.nodes:
                        self._failed[node] = (now, failure, made.get(node))

    def take(self, nodes: Sequence[str]) -> Earlier:
        """What is known of these nodes; each failure is told once."""
        self.look()
        with self._lock:
            self._forget()
            told = {node: self._failed.pop(node)[1] for node in nodes if node in self._failed}
            waiting = {n for _, bulk, _ in self._left.values() for n in bulk.nodes.values()} & set(nodes)
            made = {n: i for _, _, known in self._left.values() for n, i in known.items() if n in waiting}
        by_cause: dict[tuple[str, str], list[str]] = {}
        for node, failure in told.items():
            by_cause.setdefault((failure.code, failure.message), []).append(node)
        failures = tuple(
            Failure(tuple(members), told[members[0]].kind, code, message)
            for (code, message), members in by_cause.items()
        )
        return Earlier(made, failures, frozenset(waiting))

    def ended(self, listed: Sequence[Machine]) -> list[Machine]:
        """Machines that launches have told of and that came to nothing, as ones that have ended."""
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
        self._failed = {n: one for n, one in self._failed.items() if now - one[0] < TELL_SECONDS}
