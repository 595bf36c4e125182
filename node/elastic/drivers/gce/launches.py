"""Launches on Compute Engine: whole jobs or as many nodes as possible, one zone after another.

This uses `instances.bulkInsert` in one zone: a call for hundreds of instances, each with its node's name, all
or nothing by Compute Engine itself (`minCount`). The call only begins the launch; its operations tell the
result.
"""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from node.design.model import ClusterDesign
from node.elastic.driver import LaunchGroup, LaunchResult
from node.elastic.drivers.failures import NEXT_ZONE_HELPS, config_failure, of_zones
from node.elastic.drivers.gce import names as gce_names
from node.elastic.drivers.gce.client import CallError, Compute
from node.elastic.drivers.gce.errors import failure_of
from node.elastic.drivers.gce.names import Identity
from node.elastic.drivers.gce.operations import BulkInsert, OperationOrigin, Operations, Outcome
from node.elastic.drivers.gce.unfinished import UnfinishedLaunches
from node.elastic.failures import API_FAILURES, ErrorClass, Failure
from node.elastic.view import log
from node.slurm.hostlist import fold
from node.system import plurals

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
        compute: The API.
        templates: Partition -> the link of its instance template.
        zones: Partition -> its zones, in the order of the tries.
        end: Begins to delete instances, without waiting for the end.
        operations: The project's operations.
    """

    def __init__(
        self,
        design: ClusterDesign,
        cluster: str,
        compute: Compute,
        templates: Mapping[str, str],
        zones: Mapping[str, Sequence[str]],
        end: Callable[[Iterable[Identity]], None],
        operations: Operations,
    ) -> None:
        self._design = design
        self._cluster = cluster
        self._compute = compute
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
        failed = {node for failure in earlier.failures for node in failure.nodes}
        known_of = {*earlier.launched, *failed, *earlier.waiting}
        nodes = tuple(node for node in group.nodes if node not in known_of)
        if group.all_or_nothing and failed:
            # One node is lost, so the others would wait in vain.
            failure = _for_nodes(earlier.failures[0], (*sorted(failed), *nodes))
            return LaunchResult(dict(earlier.launched), (failure,))
        now = self._in_zones(group, nodes, zones)
        return LaunchResult(earlier.launched | now.launched, earlier.failures + now.failures)

    def _in_zones(self, group: LaunchGroup, nodes: tuple[str, ...], zones: Sequence[str]) -> LaunchResult:
        """Launch in one zone after the other what the zones before have not given."""
        attempt = self._whole if group.all_or_nothing else self._some
        launched: dict[str, str] = {}
        zone_failures: list[tuple[str | None, list[Failure]]] = []
        for zone in zones:
            if not nodes:
                break
            identities, refused = attempt(group, nodes, zone)
            launched |= identities
            lost = {node for failure in refused for node in failure.nodes} - identities.keys()
            nodes = tuple(node for node in nodes if node in lost)
            zone_failures.append((zone, refused))
            if any(failure.kind not in NEXT_ZONE_HELPS for failure in refused):
                break
        return LaunchResult(launched, tuple(_combined(zone_failures, nodes)) if nodes else ())

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
            body = self._body(group, nodes, least)
            operation = self._compute.bulk_insert(zone, body, self._request_id(group, zone, body))
        except CallError as error:
            failure = failure_of(error, nodes)
            if failure.kind not in API_FAILURES:
                # An unanswered call may have lost only its answer, not the launch: then the same id must be
                # used again.
                self._renew_token(group)
            return Outcome({}, (failure,))
        names = {gce_names.instance_of(self._cluster, node): node for node in nodes}
        origin = OperationOrigin.of(operation)
        bulk = BulkInsert(
            operation.get("name", ""), operation.get("operationGroupId", ""), zone, names, least, origin
        )
        try:
            outcome = self._operations.watch(bulk, WATCH_SECONDS)
        except CallError as error:
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

    def _body(self, group: LaunchGroup, nodes: Sequence[str], least: int) -> dict[str, Any]:
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
        return {
            "count": len(nodes),
            "minCount": least,
            "perInstanceProperties": {name: {} for name in names},
            "sourceInstanceTemplate": template,
            "instanceProperties": {"labels": labels},
        }

    def _request_id(self, group: LaunchGroup, zone: str, body: Mapping[str, Any]) -> str:
        """Return an id that covers the whole request, so that it never stands for two different requests."""
        attempt = self._attempts.get(group.token, 0)
        content = [group.token, attempt, self._compute.project, zone, body]
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()
        return str(uuid.UUID(bytes=digest[:16], version=4))

    def _adopt(self, nodes: Sequence[str], zone: str) -> tuple[dict[str, str], Failure | None]:
        """Find existing instances of these nodes and use them.

        Returns:
            Node -> machine id, and why one of the names cannot be used.
        """
        adopted: dict[str, str] = {}
        for node in nodes:
            name = gce_names.instance_of(self._cluster, node)
            try:
                instance = self._compute.instance(zone, name)
            except CallError as error:
                failure = failure_of(error, (node,))
                # The instance has just disappeared: the same call works now.
                message = f"{name} is just being deleted"
                gone = Failure((node,), ErrorClass.UNAVAILABLE, NAME_IN_USE, message, own=True)
                return adopted, gone if failure.code == "notFound" else failure
            labels = instance.get("labels", {})
            ours = (self._cluster, gce_names.COMPUTE)
            if (labels.get(gce_names.CLUSTER), labels.get(gce_names.ROLE)) != ours:
                message = f"an instance {name} that is not this cluster's is in zone {zone}"
                return adopted, Failure((node,), ErrorClass.CONFIG, NAME_IN_USE, message, node, own=True)
            identity = Identity(zone, name, int(instance["id"]))
            status = instance.get("status", "")
            if status in _ALIVE:
                adopted[node] = str(identity)
                continue
            if status in _HALTED:
                self._end([identity])
            message = f"the node's earlier machine is still {status.lower()} in zone {zone}"
            return adopted, Failure((node,), ErrorClass.UNAVAILABLE, NAME_IN_USE, message, own=True)
        return adopted, None

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
