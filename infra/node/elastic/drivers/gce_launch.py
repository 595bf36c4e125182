"""Launches on Compute Engine: whole groups, best-effort ones, one zone after another.

`instances.bulkInsert` in one zone: a call for hundreds of instances, each with its node's name, all or
nothing by Compute Engine itself (`minCount`). The call only begins the launch; what becomes of it, its
operations say.
"""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from infra.node import words
from infra.node.elastic.driver import LaunchGroup, LaunchResult
from infra.node.elastic.drivers import gce_names
from infra.node.elastic.drivers.gce_client import Clients, once, refusals
from infra.node.elastic.drivers.gce_errors import failure_of
from infra.node.elastic.drivers.gce_late import Late
from infra.node.elastic.drivers.gce_names import Identity
from infra.node.elastic.drivers.gce_operations import Bulk, Mark, Operations, Outcome
from infra.node.elastic.errors import ErrorClass, Failure
from infra.node.elastic.pools import together
from infra.node.elastic.view import log
from infra.node.model import ClusterDesign
from infra.node.slurm.hostlist import fold

CALL_NODES = 1000
"""Instances of one call: Compute Engine takes 5,000, and a smaller call is told of sooner."""
WATCH_SECONDS = 120.0
"""How long a launch is watched. A full zone says so within seconds; what fails later is found by `Late`."""
ELSEWHERE = (ErrorClass.CAPACITY, ErrorClass.PLACEMENT)
"""Classes that another zone may help against."""
_WEAK = (ErrorClass.CONFIG, ErrorClass.PLACEMENT)
"""Classes that say less of a partition than any other zone's, the weakest first."""
_ALIVE = ("PROVISIONING", "STAGING", "RUNNING", "REPAIRING")
_HALTED = ("TERMINATED", "STOPPED", "SUSPENDED")
NAME_IN_USE = "NAME_IN_USE"


class GceLaunches:
    """Args:
    templates: partition -> the link of its instance template.
    zones: partition -> its zones, in the order of the tries.
    end: begins the end of instances, without waiting for it.
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
        self.late = Late(operations)

    def launch(self, group: LaunchGroup) -> LaunchResult:
        """In the group's zone, or without one in the first zone that has room.

        Nodes of an earlier launch that was left while it went on are not launched again: its outcome is told.
        """
        if group.partition not in self._templates:
            return _misfit(group, "NoTemplate", f"partition {group.partition} has no instance template")
        known = self._zones.get(group.partition, ())
        zones = [zone for zone in known if group.zone in (None, zone)]
        if not zones:
            names = ", ".join(known) or "none"
            return _misfit(
                group, "NoZone", f"partition {group.partition} has no zone {group.zone}; it has: {names}"
            )
        earlier = self.late.take(group.nodes)
        failures = list(earlier.failures)
        launched = dict(earlier.launched)
        told = {node for failure in failures for node in failure.nodes}
        left = tuple(
            n for n in group.nodes if n not in launched and n not in told and n not in earlier.waiting
        )
        if group.all_or_nothing and told:
            # One of them is lost, so the others would wait in vain.
            return LaunchResult(launched, (_of_all(failures[0], (*sorted(told), *left)),))
        causes: list[tuple[str | None, list[Failure]]] = []
        for zone in zones if left else []:
            attempt = self._whole if group.all_or_nothing else self._some
            made, bad = attempt(group, left, zone)
            launched |= made
            left = tuple(node for node in left if node not in made)
            if not bad:
                left = ()
                break
            causes.append((zone, bad))
            lost = {node for failure in bad for node in failure.nodes}
            left = tuple(node for node in left if node in lost)
            if any(failure.kind not in ELSEWHERE for failure in bad):
                break
        if left and causes:
            failures += _together(causes, left)
        return LaunchResult(launched, tuple(failures))

    def _whole(
        self, group: LaunchGroup, nodes: tuple[str, ...], zone: str
    ) -> tuple[dict[str, str], list[Failure]]:
        """All of them in one zone, or none: what came before a call that fails is undone."""
        made: dict[str, str] = {}
        for call in _calls(nodes):
            part = self._run(group, call, zone, len(call))
            made |= part.launched
            if part.failures:
                self._end([Identity.parse(identity) for identity in made.values()])
                return {}, [_of_all(part.failures[0], nodes)]
        return made, []

    def _some(
        self, group: LaunchGroup, nodes: tuple[str, ...], zone: str
    ) -> tuple[dict[str, str], list[Failure]]:
        """As many as the zone gives."""
        made: dict[str, str] = {}
        failures: list[Failure] = []
        calls = _calls(nodes)
        for number, call in enumerate(calls):
            part = self._run(group, call, zone, 1)
            made |= part.launched
            failures += part.failures
            if part.failures:
                rest = tuple(node for later in calls[number + 1 :] for node in later)
                if rest:
                    failures.append(_of_all(part.failures[0], rest))
                break
        return made, failures

    def _run(self, group: LaunchGroup, nodes: tuple[str, ...], zone: str, least: int) -> LaunchResult:
        """One bulkInsert and what became of it. Where machines of these names are there, also a second.

        Args:
            least: fewer are of no use.
        """
        launched: dict[str, str] = {}
        for _ in range(2):
            outcome = self._call(group, nodes, zone, min(least, len(nodes)))
            launched |= outcome.launched
            if not outcome.existing:
                return LaunchResult(launched, outcome.failures)
            there, other = self._adopt(outcome.existing, zone)
            launched |= there
            if other is not None:
                lost = [node for failure in outcome.failures for node in failure.nodes]
                rest = [node for node in outcome.existing if node not in there]
                names = nodes if least > 1 else tuple(dict.fromkeys([*lost, *rest]))
                return LaunchResult(
                    {n: i for n, i in launched.items() if n not in names}, (_of_all(other, names),)
                )
            if least == 1 or not outcome.failures:
                return LaunchResult(launched, outcome.failures)
            # Those that are there already were counted as missing: the others alone can still be whole.
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
            if failure.kind is not ErrorClass.THROTTLED:
                # Else the answer may be lost and not the launch: the same id again tells.
                self._use_up(group)
            return Outcome({}, (failure,))
        names = {gce_names.instance_of(self._cluster, node): node for node in nodes}
        mark = Mark.of(operation)
        bulk = Bulk(operation.name, operation.operation_group_id, zone, names, least, mark)
        try:
            outcome = self._operations.watch(bulk, WATCH_SECONDS)
        except refusals() as error:
            log(f"{fold(nodes)}: launched, and not known how it went: {failure_of(error).sentence()}")
            outcome = None
        if outcome is None:
            known = self.late.leave(bulk)
            log(
                f"{fold(nodes)}: the launch goes on; "
                f"{len(known)} of {words.count(len(nodes), 'machine is', 'machines are')} there"
            )
            return Outcome(known, ())
        if outcome.failures or outcome.existing:
            self._use_up(group)
        return outcome

    def _request(self, group: LaunchGroup, nodes: Sequence[str], zone: str, least: int) -> dict[str, Any]:
        template = self._templates[group.partition]
        labels = {
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
        # All that is asked for is in the id, so that one id can never stand for two different requests.
        wish = [group.token, self._attempts.get(group.token, 0), self._project, zone, body]
        digest = hashlib.sha256(json.dumps(wish, sort_keys=True).encode()).digest()
        return {
            "project": self._project,
            "zone": zone,
            "request_id": str(uuid.UUID(bytes=digest[:16], version=4)),
            "bulk_insert_instance_resource_resource": body,
        }

    def _adopt(self, nodes: Sequence[str], zone: str) -> tuple[dict[str, str], Failure | None]:
        """Those of the machines that are there already and are these nodes'.

        Returns:
            node -> machine id, and why one of the names cannot be used.
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
                # It was there, and is not any more: the same call works now.
                gone = Failure((node,), ErrorClass.THROTTLED, NAME_IN_USE, f"{name} is just being deleted")
                return found, gone if failure.code == "notFound" else failure
            labels = dict(instance.labels)
            ours = (self._cluster, gce_names.COMPUTE)
            if (labels.get(gce_names.CLUSTER), labels.get(gce_names.ROLE)) != ours:
                message = f"an instance {name} that is not this cluster's is in zone {zone}"
                return found, Failure((node,), ErrorClass.CONFIG, NAME_IN_USE, message)
            identity = Identity(zone, name, int(instance.id))
            if instance.status in _ALIVE:
                found[node] = str(identity)
                continue
            if instance.status in _HALTED:
                self._end([identity])
            message = f"the node's earlier machine is still {instance.status.lower()} in zone {zone}"
            return found, Failure((node,), ErrorClass.THROTTLED, NAME_IN_USE, message)
        return found, None

    def _use_up(self, group: LaunchGroup) -> None:
        """The same wish again must be another launch: the cloud would answer with the one that is over."""
        with self._lock:
            self._attempts[group.token] = self._attempts.get(group.token, 0) + 1


def _calls(nodes: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(nodes[first : first + CALL_NODES]) for first in range(0, len(nodes), CALL_NODES)]


def _of_all(failure: Failure, nodes: Sequence[str]) -> Failure:
    return Failure(tuple(nodes), failure.kind, failure.code, failure.message)


def _together(
    causes: Sequence[tuple[str | None, Sequence[Failure]]], nodes: tuple[str, ...]
) -> list[Failure]:
    """The last zone's failures as they are; of several zones one failure that names them all."""
    if len(causes) == 1:
        return list(causes[0][1])
    firsts = [(zone, failures[0]) for zone, failures in causes]
    # The last cause gives the class: a zone that cannot be used must not hide that others are full.
    firsts.sort(key=lambda one: _WEAK.index(one[1].kind) if one[1].kind in _WEAK else len(_WEAK))
    return [together(firsts, nodes)]


def _misfit(group: LaunchGroup, code: str, message: str) -> LaunchResult:
    return LaunchResult({}, (Failure(group.nodes, ErrorClass.CONFIG, code, message),))
