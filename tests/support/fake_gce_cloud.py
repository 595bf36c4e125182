"""The content of a fake Compute Engine: instances, operations that take time, quotas, resources.

Its clock is the real one with an offset, or stands still until a test moves it on.
"""

from __future__ import annotations

import copy
import datetime
import heapq
import itertools
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.cloud import compute_v1 as gce

from tests.support.fake_gce_wire import RefusalError

SITE = "https://www.googleapis.com/compute/v1/"
ALIVE = ("PROVISIONING", "STAGING", "RUNNING", "STOPPING")
_PACIFIC = datetime.timezone(datetime.timedelta(hours=-8))


@dataclass
class Failing:
    """An error that operations end with.

    Attributes:
        kind: The operation's type: insert, bulkInsert, delete, …
        names: The instances that it happens to; empty means all.
        times: How often it happens.
        skip: How many operations succeed before it.
    """

    kind: str
    code: str
    message: str = "the cloud's own words"
    names: Sequence[str] = ()
    times: int = 1_000_000
    skip: int = 0


@dataclass
class Cloud:
    """The cloud.

    Attributes:
        seconds: Duration of each step of an operation: PENDING -> RUNNING -> DONE.
        lag: Seconds for which a new instance is in no list.
        capacity: Zone -> instances that may live in it at once; a zone that is not named has no limit.
        quotas: Regional quotas, metric -> limit.
        global_quotas: Quotas of the project.
        silent: Names of instances that a bulkInsert leaves out without an error.
        store: (scope, collection) -> name -> resource; a scope is `zones/<zone>`, `regions/<region>` or
            `global`.
    """

    project: str = "p-1"
    region: str = "europe-west4"
    zones: tuple[str, ...] = ("europe-west4-a", "europe-west4-b")
    seconds: float = 0.01
    lag: float = 0.0
    capacity: dict[str, int] = field(default_factory=dict)
    quotas: dict[str, float] = field(default_factory=dict)
    global_quotas: dict[str, float] = field(default_factory=dict)
    failing: list[Failing] = field(default_factory=list)
    silent: set[str] = field(default_factory=set)
    store: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held by whoever reads or changes the cloud: a test may do so while the server is still busy."""
    _offset: float = 0.0
    _frozen: float | None = None
    _due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _count: Any = field(default_factory=lambda: itertools.count(1001))
    _shown_at: dict[int, float] = field(default_factory=dict)
    _addresses: int = 0

    # --- time ----------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return seconds since the epoch."""
        return self._frozen if self._frozen is not None else time.time() + self._offset

    def freeze(self) -> None:
        self._frozen = self.now()

    def advance(self, seconds: float) -> None:
        with self.lock:
            if self._frozen is not None:
                self._frozen += seconds
            else:
                self._offset += seconds
            self.tick()

    @property
    def frozen(self) -> bool:
        return self._frozen is not None

    def tick(self) -> None:
        """Do everything that is due."""
        with self.lock:
            while self._due and self._due[0][0] <= self.now():
                heapq.heappop(self._due)[2]()

    def later(self, steps: float, act: Callable[[], None]) -> None:
        with self.lock:
            heapq.heappush(self._due, (self.now() + steps * self.seconds, next(self._count), act))

    def stamp(self) -> str:
        return datetime.datetime.fromtimestamp(self.now(), _PACIFIC).isoformat(timespec="milliseconds")

    # --- resources -----------------------------------------------------------------------------------------

    def at(self, scope: str, collection: str) -> dict[str, Any]:
        return self.store.setdefault((scope, collection), {})

    def link(self, scope: str, collection: str, name: str) -> str:
        return f"{SITE}projects/{self.project}/{scope}/{collection}/{name}"

    def put(self, scope: str, collection: str, resource: Any) -> Any:
        """Store a resource, with what the API adds to it."""
        resource.id = next(self._count)
        resource.self_link = self.link(scope, collection, resource.name)
        resource.creation_timestamp = self.stamp()
        kind = scope.partition("/")[0]
        fields = type(resource).meta.fields
        if kind == "zones" and "zone" in fields:
            resource.zone = f"{SITE}projects/{self.project}/{scope}"
        if kind == "regions" and "region" in fields:
            resource.region = f"{SITE}projects/{self.project}/{scope}"
        self.at(scope, collection)[resource.name] = resource
        return resource

    def get(self, scope: str, collection: str, name: str) -> Any:
        """Return a resource by name or by number.

        Raises:
            RefusalError: 404.
        """
        found = self.at(scope, collection)
        if name in found:
            return found[name]
        for resource in found.values():
            if str(getattr(resource, "id", "")) == name:
                return resource
        path = f"projects/{self.project}/{scope}/{collection}/{name}"
        raise RefusalError(404, "notFound", f"The resource '{path}' was not found")

    def shown(self, scope: str, collection: str) -> list[Any]:
        """Return what a list shows now."""
        return [
            thing
            for _, thing in sorted(self.at(scope, collection).items())
            if self._shown_at.get(int(thing.id), 0.0) <= self.now()
        ]

    def instances(self) -> list[Any]:
        with self.lock:
            return self._instances()

    def _instances(self) -> list[Any]:
        return [i for (_, kind), all_ in self.store.items() if kind == "instances" for i in all_.values()]

    # --- operations ----------------------------------------------------------------------------------------

    def operation(
        self, scope: str, kind: str, target: str, *, target_id: int = 0, group: str = "", user: str = "me"
    ) -> Any:
        """Make a pending operation, which `later` starts and ends."""
        made = gce.Operation(
            name=f"operation-{next(self._count)}", operation_type=kind, status="PENDING", progress=0,
            target_link=target, target_id=target_id, user=user, insert_time=self.stamp(),
            operation_group_id=group,
        )  # fmt: skip
        self.put(scope, "operations", made)
        return made

    def begin(self, operation: Any) -> None:
        operation.status, operation.start_time, operation.progress = "RUNNING", self.stamp(), 10

    def end(self, operation: Any, *errors: tuple[str, str]) -> None:
        operation.status, operation.end_time, operation.progress = "DONE", self.stamp(), 100
        if errors:
            operation.error = gce.Error(errors=[gce.Errors(code=c, message=m) for c, m in errors])
            operation.http_error_status_code, operation.http_error_message = 409, "CONFLICT"

    def failure(self, kind: str, name: str) -> tuple[str, str] | None:
        """Return the error that a test wants an operation to end with."""
        for one in self.failing:
            if one.kind != kind or not one.times or (one.names and name not in one.names):
                continue
            if one.skip:
                one.skip -= 1
                continue
            one.times -= 1
            return one.code, one.message
        return None

    # --- launches ------------------------------------------------------------------------------------------

    def bulk(self, scope: str, body: Any, zone: str) -> Any:
        """Run `bulkInsert`: a parent operation, and once it runs a child for each instance."""
        names = sorted(body.per_instance_properties, key=lambda name: (len(name), name))
        if bool(names) == bool(body.name_pattern):
            raise RefusalError(
                400, "invalid", "Exactly one of namePattern, perInstanceProperties must be given"
            )
        if not names:
            names = [body.name_pattern.replace("#", str(n)) for n in range(body.count)]
        least = body.min_count if "min_count" in body else body.count
        if not 1 <= body.count <= 5000 or least > body.count or len(names) != body.count:
            raise RefusalError(400, "invalid", f"Invalid value for field 'resource.count': '{body.count}'")
        for name in names:
            if not re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name):
                raise RefusalError(400, "invalid", f"Invalid value for field 'resource.name': '{name}'")
        properties = self.properties(body)
        group = f"group-{next(self._count)}"
        parent = self.operation(scope, "bulkInsert", f"{SITE}projects/{self.project}/{scope}", group=group)
        made: list[tuple[Any, Any, tuple[str, str] | None]] = []

        def run() -> None:
            self.begin(parent)
            if (why := self.failure("bulkInsert", names[0])) is not None:
                self.end(parent, why)
                return
            for name in names:
                if name not in self.silent:
                    made.append(self._insert(zone, name, properties, group))
            self.later(1, finish)

        def finish() -> None:
            good = [one for one in made if one[2] is None]
            bad = [one for one in made if one[2] is not None]
            for child, _, why in made:
                self.end(child, *([why] if why else []))
            if len(good) < least:
                for _, instance, _ in good:
                    self.at(f"zones/{zone}", "instances").pop(instance.name, None)
                short = ("VM_MIN_COUNT_NOT_REACHED", f"{least} machines cannot be had")
                self.end(parent, next((why for _, _, why in bad if why), short))
                return
            for _, instance, _ in good:
                if instance.status == "PROVISIONING":
                    instance.status, instance.last_start_timestamp = "RUNNING", self.stamp()
            self.end(parent)

        self.later(1, run)
        return parent

    def properties(self, body: Any) -> Any:
        """Return an instance's properties, from the template and the request."""
        found = gce.InstanceProperties()
        if link := body.source_instance_template:
            words = link.split("/")
            if "global" not in words:
                # The reference of instances.bulkInsert shows global templates alone, and gcloud's own command
                # (instances/bulk/flags.py) takes no others.
                text = f"Invalid value for field 'sourceInstanceTemplate': '{link}'."
                raise RefusalError(400, "invalid", text)
            template = self.get("global", "instanceTemplates", words[-1])
            found = copy.deepcopy(template.properties)
        own = body.instance_properties
        labels = {**found.labels, **own.labels}
        gce.InstanceProperties.pb(found).MergeFrom(gce.InstanceProperties.pb(own))
        found.labels = labels
        return found

    def _insert(
        self, zone: str, name: str, properties: Any, group: str
    ) -> tuple[Any, Any, tuple[str, str] | None]:
        scope = f"zones/{zone}"
        link = self.link(scope, "instances", name)
        why = self._obstacle(zone, name, properties)
        if why is not None:
            child = self.operation(scope, "insert", link, group=group)
            self.begin(child)
            return child, None, why
        address = _own_address(properties) or self._next_address()
        instance = gce.Instance(
            name=name, status="PROVISIONING", labels=properties.labels, scheduling=properties.scheduling,
            machine_type=f"{SITE}projects/{self.project}/{scope}/machineTypes/{properties.machine_type}",
            metadata=properties.metadata, guest_accelerators=properties.guest_accelerators,
            network_interfaces=[gce.NetworkInterface(network_i_p=address)],
            disks=[disk for disk in properties.disks if disk.source],
        )  # fmt: skip
        self.put(scope, "instances", instance)
        self._shown_at[int(instance.id)] = self.now() + self.lag
        self.tell_users()
        child = self.operation(scope, "insert", link, target_id=instance.id, group=group)
        self.begin(child)
        return child, instance, None

    def disk(self, link: str) -> Any:
        """Return the disk with an address.

        Raises:
            RefusalError: 404.
        """
        *_, kind, zone, collection, name = link.split("/")
        return self.get(f"{kind}/{zone}", collection, name)

    def _holder(self, instance: Any, link: str) -> bool:
        return any(disk.source.endswith(link.partition("/projects/")[2]) for disk in instance.disks)

    def tell_users(self) -> None:
        """Let each disk name the instances that have it."""
        for (_, kind), disks in self.store.items():
            for disk in disks.values() if kind == "disks" else ():
                disk.users = [
                    instance.self_link
                    for instance in self._instances()
                    if self._holder(instance, disk.self_link)
                ]

    def _next_address(self) -> str:
        """Return a private address that no other instance has had."""
        self._addresses += 1
        return f"10.99.{2 + self._addresses // 250}.{1 + self._addresses % 250}"

    def _obstacle(self, zone: str, name: str, properties: Any) -> tuple[str, str] | None:
        path = f"projects/{self.project}/zones/{zone}/instances/{name}"
        here = self.at(f"zones/{zone}", "instances")
        if name in here:
            return "RESOURCE_ALREADY_EXISTS", f"The resource '{path}' already exists"
        if (why := self.failure("insert", name)) is not None:
            return why
        for one in properties.disks:
            if one.source and (users := self.disk(one.source).users):
                text = f"The disk resource '{one.source}' is already being used by '{users[0]}'"
                return "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", text
        wanted = _own_address(properties)
        for other in self._instances() if wanted else ():
            if other.network_interfaces[0].network_i_p == wanted:
                return (
                    "IP_IN_USE_BY_ANOTHER_RESOURCE",
                    f"IP '{wanted}' is already being used by another resource.",
                )
        for metric, limit, used in (*self.usage(self.quotas), *self.usage(self.global_quotas)):
            if used + _need(metric, properties.machine_type, properties.guest_accelerators) > limit:
                where = "globally" if metric in self.global_quotas else f"in region {self.region}"
                return "QUOTA_EXCEEDED", f"Quota '{metric}' exceeded.  Limit: {limit:.1f} {where}."
        room = self.capacity.get(zone)
        if room is not None and sum(1 for one in here.values() if one.status in ALIVE) >= room:
            return "ZONE_RESOURCE_POOL_EXHAUSTED", (
                f"The zone 'projects/{self.project}/zones/{zone}' does not have enough resources available "
                "to fulfill the request.  Try a different zone, or try again later."
            )
        return None

    def usage(self, quotas: dict[str, float]) -> list[tuple[str, float, float]]:
        """Return metric, limit and usage of each quota."""
        if not quotas:
            return []
        living = [i for i in self.instances() if i.status in ALIVE]
        return [
            (metric, limit, sum(_need(metric, i.machine_type, i.guest_accelerators) for i in living))
            for metric, limit in quotas.items()
        ]

    # --- an instance's end ---------------------------------------------------------------------------------

    def delete(self, scope: str, name: str) -> Any:
        instance: Any = self.get(scope, "instances", name)
        if self._shown_at.get(-int(instance.id)):
            raise RefusalError(400, "resourceNotReady", f"The resource '{instance.self_link}' is not ready")
        operation = self.operation(scope, "delete", instance.self_link, target_id=instance.id)
        self._shown_at[-int(instance.id)] = 1.0

        def begin() -> None:
            self.begin(operation)
            instance.status = "STOPPING"

        def finish() -> None:
            if (why := self.failure("delete", instance.name)) is not None:
                instance.status = "RUNNING"
                self._shown_at.pop(-int(instance.id))
                self.end(operation, why)
                return
            here, called = self.at(scope, "instances"), str(instance.name)
            if here.get(called) is instance:
                del here[called]
            self.tell_users()
            self.end(operation)

        self.later(1, begin)
        self.later(2, finish)
        return operation

    def system_end(self, name: str, kind: str = "compute.instances.preempted", *, notice: float = 0) -> None:
        """Let the cloud take a machine: spot capacity, or a host that failed (`compute.instances.hostError`).

        Args:
            notice: Steps of an operation between the first sign of it (STOPPING) and the end.
        """
        (instance,) = [i for i in self.instances() if i.name == name]
        scope = f"zones/{instance.zone.rpartition('/')[2]}"
        operation = self.operation(
            scope, kind, instance.self_link, target_id=instance.id, user="system"
        )  # fmt: skip
        self.begin(operation)
        operation.status_message = "Instance was preempted." if "preempted" in kind else "Host error."
        instance.status = "STOPPING"

        def finish() -> None:
            self.end(operation)
            if instance.scheduling.instance_termination_action == "DELETE" and "preempted" in kind:
                self.at(scope, "instances").pop(name, None)
            else:
                instance.status = "TERMINATED"
                instance.last_stop_timestamp = self.stamp()

        self.later(notice, finish)
        self.tick()


def _own_address(properties: Any) -> str:
    """Return the reserved address that an instance is to have; empty if any will do."""
    return next(
        (str(network_interface.network_i_p) for network_interface in properties.network_interfaces), ""
    )


def _need(metric: str, machine: str, accelerators: Sequence[Any]) -> float:
    """Return how much of a quota one instance takes."""
    if metric.endswith("_GPUS") or metric == "GPUS_ALL_REGIONS":
        model = metric.removeprefix("PREEMPTIBLE_").removesuffix("_GPUS").removeprefix("NVIDIA_").lower()
        return float(
            sum(
                accelerator.accelerator_count
                for accelerator in accelerators
                if metric == "GPUS_ALL_REGIONS" or accelerator.accelerator_type.endswith(model)
            )
        )
    if metric == "INSTANCES":
        return 1.0
    return float(machine.rpartition("-")[2]) if machine.rpartition("-")[2].isdigit() else 1.0
