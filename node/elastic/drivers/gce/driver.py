"""The driver of Google Compute Engine: nodes are instances of a template, named after their nodes.

It runs on the controller, which has google-cloud-compute beside the node code. The library is imported at the
first call, because that takes seconds and much memory. The client itself finds the credentials of the
machine's service account.
"""

from __future__ import annotations

import builtins
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from node.design.model import Partition, Settings
from node.design.sites import GcpSite
from node.elastic.driver import (
    API_FAILURES,
    AvailableCapacity,
    ErrorClass,
    Failure,
    LaunchGroup,
    LaunchResult,
    Machine,
    MachineState,
)
from node.elastic.drivers.boot_reports import BootReports, BootStatusReader, with_boots
from node.elastic.drivers.failures import one_line
from node.elastic.drivers.gce import names as gce_names
from node.elastic.drivers.gce.client import Clients, error_of, failure_of, google_clients, once, refusals
from node.elastic.drivers.gce.deletes import Deletes
from node.elastic.drivers.gce.launches import GceLaunches
from node.elastic.drivers.gce.names import Identity
from node.elastic.drivers.gce.notices import EndReasons, maintenance
from node.elastic.drivers.gce.operations import Operations, moment
from node.elastic.view import log
from node.slurm.topology import Place
from node.system import plurals

# Where Compute Engine says that instances are: cluster, block and sub-block (`physicalHostTopology`).


def place(instance: Any) -> Place:
    """Return an instance's place, the widest part first; it is empty if Compute Engine does not tell.

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


# Lists each of the cluster's zones separately, so that a zone that is down hides no other zone.
#
# One list of all zones of the world fails, or is incomplete, if any zone does not answer. It is still read
# now and then, because machines may be left in a zone that the stack file no longer names.

OTHER_ZONE_SECONDS = 600.0
"""Seconds between two lists of all zones of the world."""
RETRY_SECONDS = 60.0
"""Seconds until the next one after a failure."""


class Zones:
    """The machines of each zone's last list.

    Args:
        launch_zones: The zones in which nodes may be launched.
        list_zone: Returns a zone's machines, or raises one of the client's refusals.
        everywhere: Returns all zones that have machines of the cluster, or raises one of the client's
            refusals.
        clock: Returns seconds on a clock that never jumps.
    """

    def __init__(
        self,
        launch_zones: Iterable[str],
        list_zone: Callable[[str], list[Machine]],
        everywhere: Callable[[], Iterable[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._launch_zones = tuple(dict.fromkeys(launch_zones))
        self._list = list_zone
        self._everywhere = everywhere
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, list[Machine]] = {}
        self._unreachable: frozenset[str] = frozenset()
        self._next_look: float | None = None

    def machines(self) -> list[Machine]:
        """List the machines of all zones; for a zone that does not answer, those of its last list.

        A machine that ended in such a zone still seems alive, and Slurm has to give up its node, which costs
        minutes. The opposite error, a living machine that seems to have ended, would cost its jobs.

        Raises:
            Exception: One of the client's refusals: no zone answers, or the zone is not the cause.
        """
        self._look_elsewhere()
        with self._lock:
            zones = dict.fromkeys(
                [*self._launch_zones, *(zone for zone, known in self._known.items() if known)]
            )
        with ThreadPoolExecutor(len(zones), thread_name_prefix="zones") as threads:
            answers = dict(zip(zones, threads.map(self._ask, zones), strict=True))
        errors = {zone: answer for zone, answer in answers.items() if isinstance(answer, Exception)}
        for error in errors.values():
            if len(errors) == len(zones) or failure_of(error).kind not in API_FAILURES:
                raise error
        with self._lock:
            self._known |= {
                zone: answer for zone, answer in answers.items() if not isinstance(answer, Exception)
            }
            found = [machine for zone in zones for machine in self._known.get(zone, [])]
            before, self._unreachable = self._unreachable, frozenset(errors)
            counts = {zone: len(self._known.get(zone, [])) for zone in errors}
        for zone in sorted(errors.keys() - before):
            why = failure_of(errors[zone]).sentence()
            log(
                f"zone {zone} does not answer; its last list counts, "
                f"with {plurals.count(counts[zone], 'machine')}: {why}"
            )
        for zone in sorted(before - errors.keys()):
            log(f"zone {zone} answers again")
        return found

    def _ask(self, zone: str) -> list[Machine] | Exception:
        try:
            return self._list(zone)
        except refusals() as error:
            return error

    def _look_elsewhere(self) -> None:
        now = self._clock()
        with self._lock:
            if self._next_look is not None and now < self._next_look:
                return
            self._next_look = now + RETRY_SECONDS
        try:
            found = set(self._everywhere())
        except refusals() as error:
            log(f"machines in other zones: {failure_of(error).sentence()}")
            return
        with self._lock:
            self._next_look = now + OTHER_ZONE_SECONDS
            new = found - self._known.keys() - set(self._launch_zones)
        if not new:
            return
        for zone in sorted(new):
            capacity = self._ask(zone)
            if not isinstance(capacity, Exception):
                with self._lock:
                    self._known[zone] = capacity


# How many more machines the project's quotas allow.
#
# Compute Engine tells its capacity only by launching.

QUOTA_SECONDS = 10.0
"""The shortest pause between two queries."""
MODELS = {
    "v100": "NVIDIA_V100", "t4": "NVIDIA_T4", "p100": "NVIDIA_P100", "p4": "NVIDIA_P4", "k80": "NVIDIA_K80",
    "l4": "NVIDIA_L4", "a100": "NVIDIA_A100", "a100_80gb": "NVIDIA_A100_80GB",
}  # fmt: skip
"""Slurm's GRES type -> the beginning of the quota's name."""
_OWN_CPUS = ("n2", "n2d", "t2d", "t2a", "c2", "c2d", "c3", "c3d", "m1", "m2", "m3", "a2", "g2")
"""Machine families with their own quota of vCPUs. The others share `CPUS`."""

_Quotas = Mapping[str, tuple[float, float]]
"""Metric -> its limit and its usage."""


class Quotas:
    """The quotas of the region and of the project, read now and then."""

    def __init__(
        self,
        project: str,
        region: str,
        clients: Callable[[], Clients],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._project = project
        self._region = region
        self._clients = clients
        self._clock = clock
        self._lock = threading.Lock()
        self._asked: float | None = None
        self._known: list[tuple[str, _Quotas]] = []

    def available_capacity(self, partition: Partition, count: int) -> AvailableCapacity:
        """Return how many of `count` more machines every quota allows.

        Raises:
            Exception: One of the client's refusals.
        """
        best, failure = count, None
        for where, quotas in self._read():
            for metrics, need in _quota_needs(partition):
                metric = next((name for name in metrics if quotas.get(name, (0.0, 0.0))[0] > 0), None)
                metric = metric or next((name for name in metrics if name in quotas), None)
                if metric is None:
                    continue
                limit, usage = quotas[metric]
                fits = max(0, int((limit - usage) // need))
                if fits < best:
                    best = fits
                    message = (
                        f"quota {metric} {where}: {usage:g} of {limit:g} are in use, a node takes {need:g}"
                    )
                    failure = Failure((), ErrorClass.QUOTA, "QUOTA_EXCEEDED", message)
        return AvailableCapacity(best, failure)

    def _read(self) -> list[tuple[str, _Quotas]]:
        with self._lock:
            now = self._clock()
            if self._asked is None or now - self._asked >= QUOTA_SECONDS:
                clients = self._clients()
                project = {"project": self._project}
                region = clients.regions.get(request={**project, "region": self._region}, **once())
                whole = clients.projects.get(request=project, **once())
                self._known = [
                    (f"in region {self._region}", _quota_limits(region)),
                    ("of the project", _quota_limits(whole)),
                ]
                self._asked = now
            return self._known


def _quota_limits(owner: Any) -> _Quotas:
    return {
        getattr(quota.metric, "name", str(quota.metric)): (quota.limit, quota.usage) for quota in owner.quotas
    }


def _quota_needs(partition: Partition) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield what one node takes of each kind of quota.

    Each item has the names of the quota, of which the first with a limit counts, and the amount.
    """
    family, size = partition.instance_type.partition("-")[0], partition.instance_type.rpartition("-")[2]
    cpus = float(size) if size.isdigit() else 0.0
    if cpus:
        metrics = (f"{family.upper()}_CPUS",) if family in _OWN_CPUS else ("CPUS",)
        yield (("PREEMPTIBLE_CPUS", *metrics) if partition.spot else metrics), cpus
        yield ("CPUS_ALL_REGIONS",), cpus
    gpu = partition.accelerator
    if gpu is not None and gpu.type in MODELS:
        name = f"{MODELS[gpu.type]}_GPUS"
        yield ((f"PREEMPTIBLE_{name}", name) if partition.spot else (name,)), float(gpu.count)
        yield ("GPUS_ALL_REGIONS",), float(gpu.count)
    yield ("INSTANCES",), 1.0


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
        found: dict[str, Place] = {}
        try:
            for zone in sorted({identity.zone for identity in identities}):
                for instance in self._instances(zone):
                    node = identities.get(Identity(zone, instance.name, int(instance.id)))
                    if node is not None and (at := place(instance)):
                        found[node] = at
        except refusals() as error:
            raise error_of(error) from error
        return found

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
