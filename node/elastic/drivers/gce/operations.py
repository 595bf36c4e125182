"""The result of a launch: the operation of a bulkInsert, and those of the instances in its group.

Lists of operations are filtered by user and time alone, for which Compute Engine has an index; everything
else is selected here. Any other filter goes through all operations that the project has had, and past 10,000
the project pays for those that do not match until its lists are refused (rateLimitExceeded,
https://cloud.google.com/compute/api-quota). slurm-gcp came to the same conclusion (cluster-toolkit, pull
request 4091).
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from node.elastic.drivers.gce import names as gce_names
from node.elastic.drivers.gce.client import READ_SECONDS, CallError, Compute, Resource
from node.elastic.drivers.gce.errors import EXISTS, classify, failure_of, operation_failure
from node.elastic.drivers.gce.names import Identity
from node.elastic.failures import API_FAILURES, ErrorClass, Failure
from node.system import plurals

DONE = "DONE"
PAUSES = (1.0, 2.0, 4.0)
"""Seconds between tries of a query about an operation that got no answer."""
EARLY_SECONDS = 1.0
"""Seconds between two waits: a busy Compute Engine ends a wait early, perhaps at once."""
SHORT = "BULK_INSERT_SHORT"
"""The code for a machine that is missing without an error of Compute Engine."""


@dataclass(frozen=True, slots=True)
class OperationOrigin:
    """Who asked for an operation, and when. It selects this operation and later ones of the same user.

    Attributes:
        user: Who asked; empty if the operation does not say.
        since: When, as Compute Engine writes it; empty if the operation does not say.
    """

    user: str
    since: str

    @classmethod
    def of(cls, operation: Resource) -> OperationOrigin:
        """Return the origin of an operation."""
        return cls(operation.get("user", ""), operation.get("insertTime", ""))

    def filter(self) -> str:
        """Return the list filter for this operation and all later ones of the same user."""
        # The time is passed back exactly as the API wrote it.
        tests = [f'(user = "{self.user}")'] if self.user else []
        tests += [f'(creationTimestamp >= "{self.since}")'] if self.since else []
        return " AND ".join(tests)


@dataclass(frozen=True, slots=True)
class BulkInsert:
    """A bulkInsert that Compute Engine has accepted.

    Attributes:
        operation: The name of its operation.
        group: The id that the operations of its instances share.
        zone: The zone.
        nodes: The instances' names -> the nodes.
        least: The smallest number of instances that is of use.
        origin: Selects its operations in lists.
    """

    operation: str
    group: str
    zone: str
    nodes: Mapping[str, str]
    least: int
    origin: OperationOrigin


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a launch.

    Attributes:
        launched: Node -> machine id.
        failures: The nodes that were not launched, with the causes.
        existing: Nodes whose instance's name was in use.
    """

    launched: Mapping[str, str]
    failures: tuple[Failure, ...]
    existing: tuple[str, ...] = ()


class Operations:
    """The operations of a project's zones.

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

    def watch(self, bulk: BulkInsert, seconds: float) -> Outcome | None:
        """Wait for the result of a launch.

        Returns:
            The result; `None` if the launch is still unfinished.

        Raises:
            CallError: Compute Engine refuses, or does not answer. The result is then unknown.
        """
        operation = self._wait(bulk.zone, bulk.operation, seconds)
        return self.outcome(bulk, operation) if _done(operation) else None

    def look(self, bulk: BulkInsert) -> Outcome | None:
        """Return the result of a launch without waiting; `None` if the launch is still unfinished.

        Raises:
            CallError: Compute Engine refuses, or does not answer.
        """
        operation = self._compute.operation(bulk.zone, bulk.operation)
        return self.outcome(bulk, operation) if _done(operation) else None

    def inserted(self, bulk: BulkInsert) -> dict[str, str]:
        """Return node -> machine id of the instances that a launch has made so far and that did not fail."""
        return {
            bulk.nodes[name]: str(Identity(bulk.zone, name, target(child)))
            for name, child in self._children(bulk).items()
            if target(child) and operation_failure(child) is None
        }

    def outcome(self, bulk: BulkInsert, parent: Resource) -> Outcome:
        """Return what became of each instance of a finished launch.

        Args:
            bulk: The launch.
            parent: The operation of the call itself.

        Raises:
            CallError: Compute Engine refuses, or does not answer.
        """
        children = self._children(bulk)
        launched: dict[str, str] = {}
        failed: dict[tuple[ErrorClass, str], Failure] = {}
        existing: list[str] = []
        whole = operation_failure(parent)
        for name, node in bulk.nodes.items():
            child = children.get(name)
            failure = None if child is None else operation_failure(child, (node,))
            if failure is not None and failure.code in EXISTS:
                existing.append(node)
            elif failure is not None:
                before = failed.get((failure.kind, failure.code))
                nodes = (*before.nodes, node) if before else (node,)
                failed[failure.kind, failure.code] = Failure(
                    nodes, failure.kind, failure.code, failure.message
                )
            elif child is not None and target(child):
                launched[node] = str(Identity(bulk.zone, name, target(child)))
        why = sorted(failed.values(), key=lambda failure: -len(failure.nodes))
        missing = tuple(
            node for name, node in bulk.nodes.items() if node not in launched and name not in children
        )
        if len(launched) < bulk.least:
            # Compute Engine has deleted what it had made.
            first = why[0] if why else whole or _short(bulk, len(launched))
            nodes = tuple(node for node in bulk.nodes.values() if node not in existing)
            lost = (Failure(nodes, first.kind, first.code, first.message),) if nodes else ()
            return Outcome({}, lost, tuple(existing))
        if missing:
            first = why[0] if why else whole or _short(bulk, len(launched))
            why.append(Failure(missing, first.kind, first.code, first.message))
        return Outcome(launched, tuple(why), tuple(existing))

    def _children(self, bulk: BulkInsert) -> dict[str, Resource]:
        operations: dict[str, Resource] = {}
        for operation in self._compute.operations(bulk.zone, bulk.origin.filter()):
            name = gce_names.short(operation.get("targetLink", ""))
            is_of_bulk = operation.get("operationGroupId") == bulk.group and name in bulk.nodes
            # A group also contains the deletes of instances that are undone.
            if is_of_bulk and operation.get("operationType") == "insert":
                operations.setdefault(name, operation)
        return operations

    def _wait(self, zone: str, name: str, seconds: float) -> Resource:
        """Return an operation when it is finished or the time is up."""
        until = self._clock() + seconds
        pauses = list(PAUSES)
        while True:
            left = until - self._clock()
            if left <= 0:
                return self._compute.operation(zone, name)
            try:
                operation = self._compute.wait(zone, name, left + READ_SECONDS)
            except CallError as error:
                if failure_of(error).kind not in API_FAILURES or not pauses:
                    raise
                self._sleep(min(pauses.pop(0), max(0.0, left)))
                continue
            if _done(operation):
                return operation
            self._sleep(max(0.0, min(EARLY_SECONDS, until - self._clock())))


def target(operation: Resource) -> int:
    """Return the number of what an operation is about; 0 means nothing that there is."""
    return int(operation.get("targetId", 0))


def _done(operation: Resource) -> bool:
    return operation.get("status") == DONE


def _short(bulk: BulkInsert, count: int) -> Failure:
    message = (
        f"Compute Engine gave {count} of {plurals.count(len(bulk.nodes), 'machine')} in zone {bulk.zone}"
    )
    return Failure((), classify("VM_MIN_COUNT_NOT_REACHED", None), SHORT, message)


def moment(stamp: str) -> float | None:
    """Convert RFC 3339 to seconds since the epoch; `None` if the text is no such time."""
    try:
        return datetime.datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
