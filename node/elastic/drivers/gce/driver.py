"""The driver of Google Compute Engine: nodes are instances of a template, named after their nodes.

It runs on the controller, which has google-cloud-compute beside the node code. The library is imported at the
first call, because that takes seconds and much memory. The client itself finds the credentials of the
machine's service account.
"""

from __future__ import annotations

import builtins
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from node.design.model import Settings
from node.design.sites import GcpSite
from node.elastic.driver import AvailableCapacity, LaunchGroup, LaunchResult, Machine, MachineState
from node.elastic.drivers.boot_reports import BootReports, BootStatusReader, with_boots
from node.elastic.drivers.failures import one_line
from node.elastic.drivers.gce import names as gce_names
from node.elastic.drivers.gce.client import Clients, google_clients, once, refusals
from node.elastic.drivers.gce.deletes import Deletes
from node.elastic.drivers.gce.errors import error_of, failure_of
from node.elastic.drivers.gce.launches import GceLaunches
from node.elastic.drivers.gce.names import Identity
from node.elastic.drivers.gce.notices import EndReasons, maintenance
from node.elastic.drivers.gce.operations import Operations, moment
from node.elastic.drivers.gce.quotas import Quotas
from node.elastic.drivers.gce.zones import Zones
from node.elastic.view import log
from node.slurm.topology import Place


def place(instance: Any) -> Place:
    """Return an instance's place: its cluster, block and sub-block, as `physicalHostTopology` says.

    It is empty if Compute Engine does not tell.

    The host itself is left out. A machine of these types has a host of its own, so a switch for each host
    would say nothing.

    Args:
        instance: The client's `Instance`.
    """
    topology = instance.resource_status.physical_host_topology
    parts = (topology.cluster, topology.block, topology.subblock)
    # A part whose wider part is missing cannot be placed.
    known = next((count for count, part in enumerate(parts) if not part), len(parts))
    return parts[:known]


PAGE = 500
"""Instances of one page of a listing."""
_STATES = {
    "PROVISIONING": MachineState.PENDING,
    "STAGING": MachineState.PENDING,
    "RUNNING": MachineState.RUNNING,
    "REPAIRING": MachineState.RUNNING,
    "PENDING_STOP": MachineState.STOPPING,
    "STOPPING": MachineState.STOPPING,
    "SUSPENDING": MachineState.STOPPING,
    "DEPROVISIONING": MachineState.STOPPING,
    # The instance is halted. It keeps its name and its disk until it is deleted.
    "TERMINATED": MachineState.TERMINATED,
    "STOPPED": MachineState.TERMINATED,
    "SUSPENDED": MachineState.TERMINATED,
}


class GceDriver:
    """The driver that launches nodes as Compute Engine instances.

    Args:
        settings: The design, and the site as a `GcpSite`.
        connect: Makes the clients.
        boots: What machines report of their boots; by default what the controller's server has taken.
    """

    launch_threads = 32
    """Parallel launches. Each only waits for its operation, which costs nothing."""

    def __init__(
        self,
        settings: Settings,
        connect: Callable[[], Clients] | None = None,
        boots: BootStatusReader | None = None,
    ) -> None:
        site, self._design = settings.site.of(GcpSite), settings.design
        self._cluster, self._project = site.cluster, site.project
        self._connect = connect or google_clients
        # Compute Engine tells only the machine itself that it will be preempted.
        self._boots = boots or BootReports.of(settings, notices=True)
        self._templates = site.templates
        self._lock = threading.Lock()
        self._cached_clients: Clients | None = None
        self._last_error = ""
        launch_zones = [zone for known in site.zones.values() for zone in known]
        self._zones = Zones(launch_zones, self._in_zone, self._everywhere)
        self._deletes = Deletes(self._project, self._clients)
        self._end_reasons = EndReasons(self._project, self._clients, self._deletes.begun_here)
        self._quotas = Quotas(self._project, site.region, self._clients)
        self._launches = GceLaunches(
            self._design,
            self._cluster,
            self._project,
            self._clients,
            self._templates,
            site.zones,
            self._delete,
            Operations(self._project, self._clients),
        )

    def launch(self, group: LaunchGroup) -> LaunchResult:
        result = self._launches.launch(group)
        self._end_reasons.launched(result.launched)
        return result

    def terminate(self, ids: Sequence[str]) -> None:
        """Begin to delete instances. The listings that follow show when they have ended.

        Raises:
            GceError: Compute Engine refuses, or does not answer. All deletes were tried.
        """
        error = self._deletes.end(Identity.parse(identity) for identity in ids)
        if error is not None:
            raise error_of(error) from error

    def list(self) -> builtins.list[Machine]:
        """List all machines; for a zone that does not answer, those of its last answer.

        Raises:
            GceError: Compute Engine refuses, or does not answer. A partial list is never returned.
        """
        self._launches.unfinished.look()
        try:
            machines = self._zones.machines()
        except refusals() as error:
            raise error_of(error) from error
        self._deletes.look()
        halted = [Identity.parse(m.id) for m in machines if m.state is MachineState.TERMINATED]
        machines = self._end_reasons.explained(machines)
        machines += self._launches.unfinished.ended(machines)
        # Preempted or stopped instances have ended as machines of Slurm, but would cost money forever.
        self._delete(identity for identity in halted if not self._deletes.begun_here(identity))
        return with_boots(machines, self._boots)

    def available_capacity(self, partition: str, zone: str | None, count: int) -> AvailableCapacity | None:
        """Return what the quotas allow; `None` where they cannot be read.

        Compute Engine tells its capacity only by launching.
        """
        try:
            return self._quotas.available_capacity(self._design.partition(partition), count)
        except refusals() as error:
            log(f"quotas: {failure_of(error).sentence()}")
            return None

    def places(self, machines: Sequence[Machine]) -> dict[str, Place]:
        """Return where instances are in the zone's data center.

        Raises:
            GceError: Compute Engine refuses, or does not answer.
        """
        identities = {Identity.parse(machine.id): machine.node for machine in machines}
        place_of: dict[str, Place] = {}
        try:
            for zone in sorted({identity.zone for identity in identities}):
                for instance in self._instances(zone):
                    node = identities.get(Identity(zone, instance.name, int(instance.id)))
                    if node is not None and (at := place(instance)):
                        place_of[node] = at
        except refusals() as error:
            raise error_of(error) from error
        return place_of

    def _in_zone(self, zone: str) -> builtins.list[Machine]:
        now = time.time()
        return [self._machine(zone, instance, now) for instance in self._instances(zone)]

    def _instances(self, zone: str) -> Iterable[Any]:
        """List the cluster's instances of one zone, all pages."""
        request = {**self._list_request(), "zone": zone}
        return self._clients().instances.list(request=request, **once())  # type: ignore[no-any-return]

    def _everywhere(self) -> set[str]:
        """Return all zones of the world that have machines of the cluster, as far as they answer."""
        pages = self._clients().instances.aggregated_list(request=self._list_request(), **once()).pages
        return {
            gce_names.short(scope)
            for page in pages
            for scope, scoped in page.items.items()
            if scoped.instances
        }

    def _list_request(self) -> dict[str, Any]:
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
            one_line(failure) if failure else None,
            zone,
            maintenance(instance, now) if failure is None else None,
            bool(template and made_from) and made_from != gce_names.short(template or ""),
            # Further interfaces are in other networks, whose addresses may be those of other machines here.
            tuple(card.network_i_p for card in instance.network_interfaces[:1] if card.network_i_p),
        )

    def _clients(self) -> Clients:
        with self._lock:
            if self._cached_clients is None:
                self._cached_clients = self._connect()
            return self._cached_clients

    def _delete(self, identities: Iterable[Identity]) -> None:
        error = self._deletes.end(identities)
        text = "" if error is None else failure_of(error).sentence()
        if text and text != self._last_error:  # the next listing shows which instances are left
            log(f"not deleted yet: {text}")
        self._last_error = text
