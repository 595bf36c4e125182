"""The driver of Google Compute Engine: nodes are instances of a template, named after their nodes.

It runs on the controller, with the token of the machine's service account.
"""

from __future__ import annotations

import builtins
import time
from collections.abc import Iterable, Sequence

from node.design.model import Settings
from node.design.sites import GcpSite
from node.elastic.driver import AvailableCapacity, LaunchGroup, LaunchResult, Machine, MachineState
from node.elastic.drivers.boot_reports import BootReports, BootStatusReader, with_boots
from node.elastic.drivers.failures import one_line
from node.elastic.drivers.gce import names as gce_names
from node.elastic.drivers.gce.client import INSTANCE, PLACE, CallError, Compute, Resource
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


def place(instance: Resource) -> Place:
    """Return an instance's place: its cluster, block and sub-block, as `physicalHostTopology` says.

    It is empty if Compute Engine does not tell.

    The host itself is left out. A machine of these types has a host of its own, so a switch for each host
    would say nothing.

    Args:
        instance: An instance with the fields of `PLACE`.
    """
    topology = instance.get("resourceStatus", {}).get("physicalHostTopology", {})
    parts = tuple(topology.get(part, "") for part in ("cluster", "block", "subblock"))
    # A part whose wider part is missing cannot be placed.
    known = next((count for count, part in enumerate(parts) if not part), len(parts))
    return parts[:known]


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
        compute: The API; by default that of the site's project, with the machine's own credentials.
        boots: What machines report of their boots; by default what the controller's server has taken.
    """

    launch_threads = 32
    """Parallel launches. Each only waits for its operation, which costs nothing."""

    def __init__(
        self,
        settings: Settings,
        compute: Compute | None = None,
        boots: BootStatusReader | None = None,
    ) -> None:
        site, self._design = settings.site.of(GcpSite), settings.design
        self._cluster = site.cluster
        self._compute = compute or Compute(site.project)
        # Compute Engine tells only the machine itself that it will be preempted.
        self._boots = boots or BootReports.of(settings, notices=True)
        self._templates = site.templates
        self._last_error = ""
        launch_zones = [zone for known in site.zones.values() for zone in known]
        self._zones = Zones(launch_zones, self._in_zone, self._everywhere)
        self._deletes = Deletes(self._compute)
        self._end_reasons = EndReasons(self._compute, self._deletes.begun_here)
        self._quotas = Quotas(self._compute, site.region)
        self._launches = GceLaunches(
            self._design,
            self._cluster,
            self._compute,
            self._templates,
            site.zones,
            self._delete,
            Operations(self._compute),
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
        except CallError as error:
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
        except CallError as error:
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
                for instance in self._compute.instances(zone, self._filter(), PLACE):
                    node = identities.get(Identity(zone, instance["name"], int(instance["id"])))
                    if node is not None and (at := place(instance)):
                        place_of[node] = at
        except CallError as error:
            raise error_of(error) from error
        return place_of

    def _in_zone(self, zone: str) -> builtins.list[Machine]:
        now = time.time()
        found = self._compute.instances(zone, self._filter(), INSTANCE)
        return [self._machine(zone, instance, now) for instance in found]

    def _everywhere(self) -> set[str]:
        """Return all zones of the world that have machines of the cluster, if all zones answer."""
        return self._compute.zones_with(self._filter())

    def _filter(self) -> str:
        labels = {gce_names.CLUSTER: self._cluster, gce_names.ROLE: gce_names.COMPUTE}
        return " AND ".join(f"(labels.{key}={value})" for key, value in labels.items())

    def _machine(self, zone: str, instance: Resource, now: float) -> Machine:
        name, status = instance["name"], instance.get("status", "")
        try:
            node = gce_names.node_of(self._cluster, name)
        except ValueError:
            node = None
        partition = self._design.partition_of(node) if node else None
        template = self._templates.get(partition.name) if partition else None
        made_from = instance.get("labels", {}).get(gce_names.TEMPLATE)
        state, failure = _STATES.get(status, MachineState.PENDING), None
        if not state.alive:
            why = instance.get("statusMessage") or "no reason given"
            failure = f"the instance is {status.lower()}: {why}"
        cards = instance.get("networkInterfaces", ())
        return Machine(
            str(Identity(zone, name, int(instance["id"]))),
            node,
            state,
            moment(instance.get("creationTimestamp", "")) or now,
            one_line(failure) if failure else None,
            zone,
            maintenance(instance, now) if failure is None else None,
            bool(template and made_from) and made_from != gce_names.short(template or ""),
            # Further interfaces are in other networks, whose addresses may be those of other machines here.
            tuple(card["networkIP"] for card in cards[:1] if card.get("networkIP")),
        )

    def _delete(self, identities: Iterable[Identity]) -> None:
        error = self._deletes.end(identities)
        text = "" if error is None else failure_of(error).sentence()
        if text and text != self._last_error:  # the next listing shows which instances are left
            log(f"not deleted yet: {text}")
        self._last_error = text
