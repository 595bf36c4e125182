"""The driver of Google Compute Engine: nodes are instances of a template, named after their nodes.

Runs on the controller, which has google-cloud-compute beside the node code; it is imported at the first call,
for it costs seconds and much memory. Credentials are the machine's service account; the client finds them.
"""

from __future__ import annotations

import builtins
import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from infra.node.elastic.driver import LaunchGroup, LaunchResult, Machine, MachineState, Room
from infra.node.elastic.drivers import gce_names
from infra.node.elastic.drivers.boot_reports import Boots, with_boots
from infra.node.elastic.drivers.gce_boots import GceBoots
from infra.node.elastic.drivers.gce_client import Clients, google_clients, once, refusals
from infra.node.elastic.drivers.gce_ending import Ending
from infra.node.elastic.drivers.gce_errors import error_of, failure_of, words
from infra.node.elastic.drivers.gce_launch import GceLaunches
from infra.node.elastic.drivers.gce_names import Identity
from infra.node.elastic.drivers.gce_notices import Ends, maintenance
from infra.node.elastic.drivers.gce_operations import Operations, moment
from infra.node.elastic.drivers.gce_room import Quotas
from infra.node.elastic.drivers.gce_zones import Zones
from infra.node.elastic.view import log
from infra.node.model import Settings

PAGE = 500
_STATES = {
    "PROVISIONING": MachineState.PENDING,
    "STAGING": MachineState.PENDING,
    "RUNNING": MachineState.RUNNING,
    "REPAIRING": MachineState.RUNNING,
    "PENDING_STOP": MachineState.STOPPING,
    "STOPPING": MachineState.STOPPING,
    "SUSPENDING": MachineState.STOPPING,
    "DEPROVISIONING": MachineState.STOPPING,
    # It runs no more, and keeps its name and its disk until it is deleted.
    "TERMINATED": MachineState.TERMINATED,
    "STOPPED": MachineState.TERMINATED,
    "SUSPENDED": MachineState.TERMINATED,
}


class GceDriver:
    """Settings of the site: `project`, `region`, `cluster` (the label's value), `templates` (JSON: partition
    -> link of its instance template), `zones` (JSON: partition -> zones, best first), `bucket` (its name).

    Args:
        connect: makes the clients.
        boots: what machines tell of themselves; by default from the reports in the cluster's bucket.
    """

    launch_threads = 32
    """Launches that wait at once: each waits for its operation, which costs nobody anything."""

    def __init__(
        self,
        settings: Settings,
        connect: Callable[[], Clients] | None = None,
        boots: Boots | None = None,
    ) -> None:
        site, self._design = settings.site.driver, settings.design
        self._cluster, self._project = site["cluster"], site["project"]
        self._connect = connect or google_clients
        self._boots = boots or GceBoots(site["bucket"])
        self._templates: dict[str, str] = json.loads(site["templates"])
        self._lock = threading.Lock()
        self._made: Clients | None = None
        self._trouble = ""
        zones = json.loads(site["zones"])
        own = [zone for known in zones.values() for zone in known]
        self._zones = Zones(own, self._in_zone, self._everywhere)
        self._ending = Ending(self._project, self._clients)
        self._ends = Ends(self._project, self._clients, self._ending.by_us)
        self._quotas = Quotas(self._project, site["region"], self._clients)
        self._launches = GceLaunches(
            self._design,
            self._cluster,
            self._project,
            self._clients,
            self._templates,
            zones,
            self._undo,
            Operations(self._project, self._clients),
        )

    def launch(self, group: LaunchGroup) -> LaunchResult:
        result = self._launches.launch(group)
        self._ends.launched(result.launched)
        return result

    def terminate(self, ids: Sequence[str]) -> None:
        """Begins the deletes; that they end is seen by the listings that follow.

        Raises:
            GceError: Compute Engine refuses, or does not answer; all were tried.
        """
        error = self._ending.end(Identity.parse(identity) for identity in ids)
        if error is not None:
            raise error_of(error) from error

    def list(self) -> builtins.list[Machine]:
        """All machines; of a zone that does not answer those that were there when it last did.

        Raises:
            GceError: Compute Engine refuses, or does not answer: half a list is none.
        """
        self._launches.late.look()
        try:
            machines = self._zones.machines()
        except refusals() as error:
            raise error_of(error) from error
        self._ending.look()
        halted = [Identity.parse(m.id) for m in machines if m.state is MachineState.TERMINATED]
        machines = self._ends.explained(machines)
        machines += self._launches.late.ended(machines)
        # Preempted, or stopped by hand: as a machine of Slurm's it has ended, and it would be paid for ever.
        self._undo(identity for identity in halted if not self._ending.by_us(identity))
        return with_boots(machines, self._boots)

    def room(self, partition: str, zone: str | None, count: int) -> Room | None:
        """What the quotas allow; None where they cannot be read. Capacity is told only by launching."""
        try:
            return self._quotas.room(self._design.partition(partition), count)
        except refusals() as error:
            log(f"quotas: {failure_of(error).sentence()}")
            return None

    def _in_zone(self, zone: str) -> builtins.list[Machine]:
        """All pages of one zone in the cluster's labels."""
        request = {**self._filtered(), "zone": zone}
        now = time.time()
        instances = self._clients().instances.list(request=request, **once())
        return [self._machine(zone, instance, now) for instance in instances]

    def _everywhere(self) -> set[str]:
        """The zones of the world that have machines of the cluster, as far as they can be reached."""
        pages = self._clients().instances.aggregated_list(request=self._filtered(), **once()).pages
        return {
            gce_names.short(scope)
            for page in pages
            for scope, scoped in page.items.items()
            if scoped.instances
        }

    def _filtered(self) -> dict[str, Any]:
        filters = {gce_names.CLUSTER: self._cluster, gce_names.ROLE: gce_names.COMPUTE}
        return {
            "project": self._project,
            "filter": " AND ".join(f"(labels.{key}={value})" for key, value in filters.items()),
            "max_results": PAGE,
        }

    def _machine(self, zone: str, instance: Any, now: float) -> Machine:
        try:
            node = gce_names.node_of(self._cluster, instance.name)
        except ValueError:
            node = None
        partition = self._design.partition_of(node) if node else None
        template = self._templates.get(partition.name) if partition else None
        made_from = instance.labels.get(gce_names.TEMPLATE)
        state, failure = _STATES.get(instance.status, MachineState.PENDING), None
        if not state.alive:
            failure = (
                f"the instance is {instance.status.lower()}: {instance.status_message or 'no reason given'}"
            )
        return Machine(
            str(Identity(zone, instance.name, int(instance.id))),
            node,
            state,
            moment(instance.creation_timestamp) or now,
            words(failure) if failure else None,
            zone,
            maintenance(instance, now) if failure is None else None,
            bool(template and made_from) and made_from != gce_names.short(template or ""),
        )

    def _clients(self) -> Clients:
        with self._lock:
            if self._made is None:
                self._made = self._connect()
            return self._made

    def _undo(self, identities: Iterable[Identity]) -> None:
        error = self._ending.end(identities)
        trouble = "" if error is None else failure_of(error).sentence()
        if trouble and trouble != self._trouble:  # the next listing shows what is left
            log(f"not deleted yet: {trouble}")
        self._trouble = trouble
