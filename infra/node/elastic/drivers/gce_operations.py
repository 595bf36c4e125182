"""What became of a launch: the operation of a bulkInsert, and the one of each instance in its group.

Lists of operations are asked for by user and time alone, which Compute Engine has indexed, and what else is
wanted of them is looked for here: a filter by anything else goes through all operations that the project
has had, and past 10,000 the project pays for those that do not fit until its lists are refused
(rateLimitExceeded, https://cloud.google.com/compute/api-quota). slurm-gcp came to the same (cluster-toolkit,
pull request 4091).
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from infra.node import words
from infra.node.elastic.drivers import gce_names
from infra.node.elastic.drivers.gce_client import READ_SECONDS, Clients, once, refusals
from infra.node.elastic.drivers.gce_errors import EXISTS, classify, failure_of, operation_failure
from infra.node.elastic.drivers.gce_names import Identity
from infra.node.elastic.errors import ErrorClass, Failure

PAGE = 500
"""Operations of one page, at most."""
DONE = "DONE"
PAUSES = (1.0, 2.0, 4.0)
"""Seconds between questions after an operation that got no answer."""
EARLY_SECONDS = 1.0
"""Between two waits: a busy Compute Engine ends a wait early, at once if it must."""
SHORT = "BULK_INSERT_SHORT"
"""The code of a machine that is missing without an error: Compute Engine has said nothing of it."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Attributes:
    user: who asked for an operation; empty: it does not say.
    since: when, as Compute Engine writes it; empty likewise.
    """

    user: str
    since: str

    @classmethod
    def of(cls, operation: Any) -> Mark:
        return cls(operation.user, operation.insert_time)

    def filter(self) -> str:
        """What a list of this operation and all later ones of the same user is filtered by."""
        # The time is the API's own: it is given back as it was written.
        tests = [f'(user = "{self.user}")'] if self.user else []
        tests += [f'(creationTimestamp >= "{self.since}")'] if self.since else []
        return " AND ".join(tests)


def listed(clients: Clients, project: str, zone: str, mark: Mark | None = None) -> Iterator[Any]:
    """A zone's operations, the newest first, page after page as they are taken.

    Args:
        mark: those of this user from this time on; None: all.

    Raises:
        one of the client's refusals.
    """
    request = {"project": project, "zone": zone, "order_by": "creationTimestamp desc", "max_results": PAGE}
    if mark is not None and (wanted := mark.filter()):
        request["filter"] = wanted
    yield from clients.operations.list(request=request, **once())


@dataclass(frozen=True, slots=True)
class Bulk:
    """A bulkInsert that Compute Engine has taken.

    Attributes:
        group: the id that it shares with the operations of its instances.
        nodes: instance's name -> node.
        least: with fewer machines none is kept.
        mark: from which on its operations are, and whose.
    """

    operation: str
    group: str
    zone: str
    nodes: Mapping[str, str]
    least: int
    mark: Mark


@dataclass(frozen=True, slots=True)
class Outcome:
    """Attributes:
    launched: node -> machine id.
    existing: nodes whose instance's name was in use.
    """

    launched: Mapping[str, str]
    failures: tuple[Failure, ...]
    existing: tuple[str, ...] = ()


class Operations:
    """The operations of a project's zones."""

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

    def watch(self, bulk: Bulk, seconds: float) -> Outcome | None:
        """Wait for a launch. None: it still goes on.

        Raises:
            one of the client's refusals: it cannot be told.
        """
        operation = self._wait(bulk.zone, bulk.operation, seconds)
        return self.outcome(bulk, operation) if _done(operation) else None

    def look(self, bulk: Bulk) -> Outcome | None:
        """The same without waiting.

        Raises:
            one of the client's refusals.
        """
        operation = self.get(bulk.zone, bulk.operation)
        return self.outcome(bulk, operation) if _done(operation) else None

    def get(self, zone: str, name: str) -> Any:
        request = {"project": self._project, "zone": zone, "operation": name}
        return self._clients().operations.get(request=request, **once())

    def inserted(self, bulk: Bulk) -> dict[str, str]:
        """Node -> machine id of the instances that a launch has made so far, and that have not failed."""
        return {
            bulk.nodes[name]: str(Identity(bulk.zone, name, int(child.target_id)))
            for name, child in self._children(bulk).items()
            if child.target_id and operation_failure(child) is None
        }

    def outcome(self, bulk: Bulk, parent: Any) -> Outcome:
        """What became of each instance of a launch that is over.

        Args:
            parent: the operation of the call itself.

        Raises:
            one of the client's refusals.
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
            elif child is not None and child.target_id:
                launched[node] = str(Identity(bulk.zone, name, int(child.target_id)))
        why = sorted(failed.values(), key=lambda one: -len(one.nodes))
        missing = tuple(
            node for name, node in bulk.nodes.items() if node not in launched and name not in children
        )
        if len(launched) < bulk.least:
            # Compute Engine has taken back what it had made.
            first = why[0] if why else whole or _short(bulk, len(launched))
            nodes = tuple(node for node in bulk.nodes.values() if node not in existing)
            lost = (Failure(nodes, first.kind, first.code, first.message),) if nodes else ()
            return Outcome({}, lost, tuple(existing))
        if missing:
            first = why[0] if why else whole or _short(bulk, len(launched))
            why.append(Failure(missing, first.kind, first.code, first.message))
        return Outcome(launched, tuple(why), tuple(existing))

    def _children(self, bulk: Bulk) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for operation in listed(self._clients(), self._project, bulk.zone, bulk.mark):
            name = gce_names.short(operation.target_link)
            ours = operation.operation_group_id == bulk.group and name in bulk.nodes
            # A group has the deletes of what is taken back, too.
            if ours and operation.operation_type == "insert":
                found.setdefault(name, operation)
        return found

    def _wait(self, zone: str, name: str, seconds: float) -> Any:
        """An operation, when it is over or the time is up."""
        until = self._clock() + seconds
        request = {"project": self._project, "zone": zone, "operation": name}
        pauses = list(PAUSES)
        while True:
            left = until - self._clock()
            if left <= 0:
                return self.get(zone, name)
            try:
                operation = self._clients().operations.wait(request=request, **once(left + READ_SECONDS))
            except refusals() as error:
                if failure_of(error).kind is not ErrorClass.THROTTLED or not pauses:
                    raise
                self._sleep(min(pauses.pop(0), max(0.0, left)))
                continue
            if _done(operation):
                return operation
            self._sleep(max(0.0, min(EARLY_SECONDS, until - self._clock())))


def _done(operation: Any) -> bool:
    return str(getattr(operation.status, "name", operation.status)) == DONE


def _short(bulk: Bulk, count: int) -> Failure:
    message = f"Compute Engine gave {count} of {words.count(len(bulk.nodes), 'machine')} in zone {bulk.zone}"
    return Failure((), classify("VM_MIN_COUNT_NOT_REACHED", None), SHORT, message)


def moment(stamp: str) -> float | None:
    """RFC 3339 as seconds since the epoch; None: it is none."""
    try:
        return datetime.datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
