"""Launches on Compute Engine: whole jobs or as many nodes as possible, one zone after another.

This uses `instances.bulkInsert` in one zone: a call for hundreds of instances, each with its node's name, all
or nothing by Compute Engine itself (`minCount`). The call only begins the launch; its operations tell the
result.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from node.design.model import ClusterDesign
from node.elastic.driver import (
    API_FAILURES,
    ErrorClass,
    Failure,
    LaunchGroup,
    LaunchResult,
    Machine,
    MachineState,
)
from node.elastic.drivers.failures import NEXT_ZONE_HELPS, config_failure, of_zones
from node.elastic.drivers.gce import names as gce_names
from node.elastic.drivers.gce.client import Clients, failure_of, once, refusals
from node.elastic.drivers.gce.names import Identity
from node.elastic.drivers.gce.operations import BulkInsert, OperationOrigin, Operations, Outcome
from node.elastic.view import log
from node.slurm.hostlist import fold
from node.system import plurals

# Launches that were still unfinished when the driver stopped watching them, and their results.
#
# Compute Engine reports a launch in its operations; where a zone is busy this takes minutes. Each listing
# looks for launches that failed after the watch was over, and the next launch of the same nodes returns these
# failures.

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
        except refusals() as error:
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
            except refusals() as error:
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


CALL_NODES = 1000
"""The largest number of instances of one call. Compute Engine accepts 5,000; smaller calls finish sooner."""
WATCH_SECONDS = 120.0
"""How long a launch is watched. A full zone answers within seconds.

`UnfinishedLaunches` finds later failures.
"""
_ALIVE = ("PROVISIONING", "STAGING", "RUNNING", "REPAIRING")
"""States of instances that are, or will be, nodes."""
_HALTED = ("TERMINATED", "STOPPED", "SUSPENDED")
"""States of instances that have ended and still keep their names."""
NAME_IN_USE = "NAME_IN_USE"


class GceLaunches:
    """The launches of nodes with `bulkInsert`.

    Args:
        design: The cluster's design.
        cluster: The value of the cluster's label.
        project: The project.
        clients: Returns the clients.
        templates: Partition -> the link of its instance template.
        zones: Partition -> its zones, in the order of the tries.
        end: Begins to delete instances, without waiting for the end.
        operations: The project's operations.
    """

    def __init__(
        self,
        design: ClusterDesign,
        cluster: str,
        project: str,
        clients: Callable[[], Clients],
        templates: Mapping[str, str],
        zones: Mapping[str, Sequence[str]],
        end: Callable[[Iterable[Identity]], None],
        operations: Operations,
    ) -> None:
        self._design = design
        self._cluster = cluster
        self._project = project
        self._clients = clients
        self._templates = templates
        self._zones = zones
        self._end = end
        self._operations = operations
        self._lock = threading.Lock()
        self._attempts: dict[str, int] = {}
        self.unfinished = UnfinishedLaunches(operations)

    def launch(self, group: LaunchGroup) -> LaunchResult:
        """Launch in the group's zone, or without one in the first zone that has capacity.

        Nodes whose earlier launch is unfinished are not launched again. Instead the result of that launch is
        returned.
        """
        if group.partition not in self._templates:
            return config_failure(
                group, "NoTemplate", f"partition {group.partition} has no instance template"
            )
        known = self._zones.get(group.partition, ())
        zones = [zone for zone in known if group.zone in (None, zone)]
        if not zones:
            names = ", ".join(known) or "none"
            return config_failure(
                group, "NoZone", f"partition {group.partition} has no zone {group.zone}; it has: {names}"
            )
        earlier = self.unfinished.take(group.nodes)
        failures = list(earlier.failures)
        launched = dict(earlier.launched)
        reported = {node for failure in failures for node in failure.nodes}
        left = tuple(
            n for n in group.nodes if n not in launched and n not in reported and n not in earlier.waiting
        )
        if group.all_or_nothing and reported:
            # One node is lost, so the others would wait in vain.
            return LaunchResult(launched, (_for_nodes(failures[0], (*sorted(reported), *left)),))
        zone_failures: list[tuple[str | None, list[Failure]]] = []
        for zone in zones if left else []:
            attempt = self._whole if group.all_or_nothing else self._some
            identities, refused = attempt(group, left, zone)
            launched |= identities
            left = tuple(node for node in left if node not in identities)
            if not refused:
                left = ()
                break
            zone_failures.append((zone, refused))
            lost = {node for failure in refused for node in failure.nodes}
            left = tuple(node for node in left if node in lost)
            if any(failure.kind not in NEXT_ZONE_HELPS for failure in refused):
                break
        if left and zone_failures:
            failures += _combined(zone_failures, left)
        return LaunchResult(launched, tuple(failures))

    def _whole(
        self, group: LaunchGroup, nodes: tuple[str, ...], zone: str
    ) -> tuple[dict[str, str], list[Failure]]:
        """Launch all nodes in one zone, or none: if a call fails, earlier calls are undone."""
        launched: dict[str, str] = {}
        for call in _calls(nodes):
            part = self._run(group, call, zone, len(call))
            launched |= part.launched
            if part.failures:
                self._end([Identity.parse(identity) for identity in launched.values()])
                return {}, [_for_nodes(part.failures[0], nodes)]
        return launched, []

    def _some(
        self, group: LaunchGroup, nodes: tuple[str, ...], zone: str
    ) -> tuple[dict[str, str], list[Failure]]:
        """Launch as many nodes as the zone gives."""
        launched: dict[str, str] = {}
        failures: list[Failure] = []
        calls = _calls(nodes)
        for number, call in enumerate(calls):
            part = self._run(group, call, zone, 1)
            launched |= part.launched
            failures += part.failures
            if part.failures:
                rest = tuple(node for later in calls[number + 1 :] for node in later)
                if rest:
                    failures.append(_for_nodes(part.failures[0], rest))
                break
        return launched, failures

    def _run(self, group: LaunchGroup, nodes: tuple[str, ...], zone: str, least: int) -> LaunchResult:
        """Make one bulkInsert, and a second one if instances with these names exist already.

        Args:
            least: The smallest number of instances that is of use.
        """
        launched: dict[str, str] = {}
        for _ in range(2):
            outcome = self._call(group, nodes, zone, min(least, len(nodes)))
            launched |= outcome.launched
            if not outcome.existing:
                return LaunchResult(launched, outcome.failures)
            adopted, other = self._adopt(outcome.existing, zone)
            launched |= adopted
            if other is not None:
                lost = [node for failure in outcome.failures for node in failure.nodes]
                rest = [node for node in outcome.existing if node not in adopted]
                names = nodes if least > 1 else tuple(dict.fromkeys([*lost, *rest]))
                return LaunchResult(
                    {n: i for n, i in launched.items() if n not in names}, (_for_nodes(other, names),)
                )
            if least == 1 or not outcome.failures:
                return LaunchResult(launched, outcome.failures)
            # Compute Engine counted the existing instances as missing. The other nodes alone can still be
            # launched as a whole.
            nodes = tuple(node for node in nodes if node not in launched)
            if not nodes:
                return LaunchResult(launched)
        return LaunchResult(launched, outcome.failures)

    def _call(self, group: LaunchGroup, nodes: tuple[str, ...], zone: str, least: int) -> Outcome:
        try:
            operation = self._clients().instances.bulk_insert_unary(
                request=self._request(group, nodes, zone, least), **once()
            )
        except refusals() as error:
            failure = failure_of(error, nodes)
            if failure.kind not in API_FAILURES:
                # An unanswered call may have lost only its answer, not the launch: then the same id must be
                # used again.
                self._renew_token(group)
            return Outcome({}, (failure,))
        names = {gce_names.instance_of(self._cluster, node): node for node in nodes}
        origin = OperationOrigin.of(operation)
        bulk = BulkInsert(operation.name, operation.operation_group_id, zone, names, least, origin)
        try:
            outcome = self._operations.watch(bulk, WATCH_SECONDS)
        except refusals() as error:
            log(f"{fold(nodes)}: the result of the launch is unknown: {failure_of(error).sentence()}")
            outcome = None
        if outcome is None:
            known = self.unfinished.add(bulk)
            log(
                f"{fold(nodes)}: the launch is still unfinished; "
                f"{len(known)} of {plurals.count(len(nodes), 'machine is', 'machines are')} there"
            )
            return Outcome(known, ())
        if outcome.failures or outcome.existing:
            self._renew_token(group)
        return outcome

    def _request(self, group: LaunchGroup, nodes: Sequence[str], zone: str, least: int) -> dict[str, Any]:
        template = self._templates[group.partition]
        labels = {
            **self._design.tags,
            gce_names.CLUSTER: self._cluster,
            gce_names.STACK: gce_names.value(self._design.stack),
            gce_names.ROLE: gce_names.COMPUTE,
            gce_names.PARTITION: group.partition,
            gce_names.TEMPLATE: gce_names.short(template),
        }
        names = [gce_names.instance_of(self._cluster, node) for node in nodes]
        body = {
            "count": len(nodes),
            "min_count": least,
            "per_instance_properties": {name: {} for name in names},
            "source_instance_template": template,
            "instance_properties": {"labels": labels},
        }
        # The id covers the whole request, so that one id never stands for two different requests.
        content = [group.token, self._attempts.get(group.token, 0), self._project, zone, body]
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()
        return {
            "project": self._project,
            "zone": zone,
            "request_id": str(uuid.UUID(bytes=digest[:16], version=4)),
            "bulk_insert_instance_resource_resource": body,
        }

    def _adopt(self, nodes: Sequence[str], zone: str) -> tuple[dict[str, str], Failure | None]:
        """Find existing instances of these nodes and use them.

        Returns:
            Node -> machine id, and why one of the names cannot be used.
        """
        found: dict[str, str] = {}
        for node in nodes:
            name = gce_names.instance_of(self._cluster, node)
            try:
                instance = self._clients().instances.get(
                    request={"project": self._project, "zone": zone, "instance": name}, **once()
                )
            except refusals() as error:
                failure = failure_of(error, (node,))
                # The instance has just disappeared: the same call works now.
                message = f"{name} is just being deleted"
                gone = Failure((node,), ErrorClass.UNAVAILABLE, NAME_IN_USE, message, own=True)
                return found, gone if failure.code == "notFound" else failure
            labels = dict(instance.labels)
            ours = (self._cluster, gce_names.COMPUTE)
            if (labels.get(gce_names.CLUSTER), labels.get(gce_names.ROLE)) != ours:
                message = f"an instance {name} that is not this cluster's is in zone {zone}"
                return found, Failure((node,), ErrorClass.CONFIG, NAME_IN_USE, message, node, own=True)
            identity = Identity(zone, name, int(instance.id))
            if instance.status in _ALIVE:
                found[node] = str(identity)
                continue
            if instance.status in _HALTED:
                self._end([identity])
            message = f"the node's earlier machine is still {instance.status.lower()} in zone {zone}"
            return found, Failure((node,), ErrorClass.UNAVAILABLE, NAME_IN_USE, message, own=True)
        return found, None

    def _renew_token(self, group: LaunchGroup) -> None:
        """Give the next try of this request another id: Compute Engine would answer with the ended launch."""
        with self._lock:
            self._attempts[group.token] = self._attempts.get(group.token, 0) + 1


def _calls(nodes: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(nodes[first : first + CALL_NODES]) for first in range(0, len(nodes), CALL_NODES)]


def _for_nodes(failure: Failure, nodes: Sequence[str]) -> Failure:
    return replace(failure, nodes=tuple(nodes))


def _combined(
    zone_failures: Sequence[tuple[str | None, Sequence[Failure]]], nodes: tuple[str, ...]
) -> list[Failure]:
    """Return the failures of a single zone as they are, and one failure that names all of several zones."""
    if len(zone_failures) == 1:
        return list(zone_failures[0][1])
    return [of_zones([(zone, failures[0]) for zone, failures in zone_failures], nodes)]
