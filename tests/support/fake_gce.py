"""Compute Engine's REST API on loopback, for the driver and for google-cloud-compute's own client.

`fake_gce_wire` reads the requests with the library's messages, and `fake_gce_cloud` is the cloud behind it.
Lists have pages and filters, answers can be partial, a request id works once, every method and every
operation can be made to fail, and every call is recorded.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from google.cloud import compute_v1 as gce

from node.design.model import Settings
from node.design.sites import GcpSite
from node.elastic.drivers.boot_reports import BootStatusReader
from node.elastic.drivers.gce.client import Compute
from node.elastic.drivers.gce.driver import GceDriver
from tests.support import fake_gce_fields
from tests.support.cloud_faults import due
from tests.support.fake_gce_cloud import Cloud, Failing
from tests.support.fake_gce_wire import Call, Fault, RefusalError, Route, as_json, check_page, parse, wanted

__all__ = ["Call", "Cloud", "Failing", "FakeGce", "Fault", "fake_gce"]

WAIT_SECONDS = 110.0
"""The longest time that `wait` waits."""
SYSTEM = ("fields", "prettyPrint", "returnPartialSuccess")
"""Parameters in the API's discovery document that the library's messages lack."""
TOKEN = "nobody"
"""The driver's access token, which nothing checks."""
_OPERATIONS = ("zone_operations", "region_operations", "global_operations")


@dataclass
class FakeGce:
    """A Compute Engine for tests.

    Attributes:
        calls: The calls since the last `forget`.
        page: The largest number of results of one page of any list.
        unreachable: Zones that do not answer.
        wait_seconds: The longest time that `wait` waits.
    """

    cloud: Cloud = field(default_factory=Cloud)
    url: str = ""
    calls: list[Call] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    page: int = 500
    unreachable: set[str] = field(default_factory=set)
    wait_seconds: float = WAIT_SECONDS
    templates: dict[str, str] = field(default_factory=dict)
    _done: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def lock(self) -> threading.RLock:
        return self.cloud.lock

    # --- for tests -----------------------------------------------------------------------------------------

    def site(self, zones: Iterable[str] | None = None) -> dict[str, Any]:
        """Return the fields of the cloud's part of the `Site` of a cluster `t`."""
        project, region = self.cloud.project, self.cloud.region
        where = dict.fromkeys(self.templates, tuple(zones or self.cloud.zones))
        return {
            "bucket": "t-bucket",
            "secret": f"projects/{project}/secrets/t-munge",
            "cloud": GcpSite(project, region, "t", dict(self.templates), where),
        }

    def template(
        self, partition: str, name: str | None = None, machine: str = "n1-standard-8", **properties: Any
    ) -> str:
        """Make a partition's template and enter it in the site. Returns its link."""
        content = gce.InstanceProperties(machine_type=machine, **properties)
        made = gce.InstanceTemplate(name=name or f"t-{partition}-1", properties=content)
        with self.lock:
            self.templates[partition] = self.cloud.put("global", "instanceTemplates", made).self_link
        return self.templates[partition]

    def options(self) -> dict[str, Any]:
        """Return the options for any client of the library: `gce.DisksClient(**fake.options())`."""
        from google.auth.credentials import AnonymousCredentials

        return {
            "credentials": AnonymousCredentials(),  # type: ignore[no-untyped-call]
            "transport": "rest",
            "client_options": {"api_endpoint": self.url},
        }

    def driver(self, settings: Settings, boots: BootStatusReader = lambda running: {}) -> GceDriver:
        """Return the driver with its own clients, which call this server."""
        return GceDriver(settings, self.compute(), boots)

    def compute(self) -> Compute:
        """Return the driver's client of this server."""
        return Compute(self.cloud.project, lambda fresh=False: TOKEN, f"{self.url}/compute/v1")

    def forget(self) -> None:
        self.calls.clear()

    def names(self) -> list[str]:
        return [call.name for call in self.calls]

    def counts(self) -> dict[str, int]:
        return dict(Counter(self.names()))

    def living(self) -> list[Any]:
        with self.lock:
            self.cloud.tick()
            return [i for i in self.cloud.instances() if i.status in ("PROVISIONING", "STAGING", "RUNNING")]

    def status(self, name: str, status: str) -> None:
        """Set the status of an instance."""
        with self.lock:
            (instance,) = [i for i in self.cloud.instances() if i.name == name]
            instance.status = status

    # --- the server ----------------------------------------------------------------------------------------

    def answer(self, verb: str, target: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Return a request's status and content."""
        parts = urlsplit(target)
        call: Call | None = None
        try:
            system, query = _parameters(parts.query)
            route, request = parse(verb, parts.path, query, body)
            fields = _fields(system, route)
            with self.lock:
                call = Call(route.name, request)
                self.calls.append(call)
                fault = due(self.faults, call.name)
            if fault is None or fault.done:
                content = self._wait(request, route) if route.method == "wait" else None
                with self.lock:
                    self.cloud.tick()
                    content = content or self._handle(route, request, "returnPartialSuccess" in system)
            if fault is not None:
                time.sleep(fault.hang)
                raise RefusalError(fault.status, fault.code, fault.message)
            return 200, fake_gce_fields.selected(content or {}, fields)
        except RefusalError as refusal:
            if call is not None:
                call.reason = refusal.reason
            return refusal.status, refusal.body()

    def _wait(self, request: Any, route: Route) -> dict[str, Any]:
        until = time.monotonic() + self.wait_seconds
        while True:
            with self.lock:
                self.cloud.tick()
                found = self.cloud.get(_scope(request, route), "operations", request.operation)
                over = found.status == gce.Operation.Status.DONE or self.cloud.frozen
                if over or time.monotonic() > until:
                    return as_json(found)
            time.sleep(0.005)

    def _handle(self, route: Route, request: Any, partial: bool) -> dict[str, Any]:
        if request.project != self.cloud.project:
            raise RefusalError(403, "forbidden", f"Required permission for 'projects/{request.project}'")
        special = getattr(self, f"_{route.service}_{route.method}", None)
        if special is not None:
            return as_json(self._once(request, lambda: special(request)))
        if route.method == "list":
            return self._list(route, request, [_scope(request, route)])
        if route.method == "aggregated_list":
            return self._aggregated(route, request, partial)
        name = getattr(request, _last(route), "")
        if route.method == "get":
            return as_json(self.cloud.get(_scope(request, route), route.collection, name))
        if route.method == "delete":
            return as_json(self._once(request, lambda: self._delete(route, request, name)))
        if route.method == "insert":
            return as_json(self._once(request, lambda: self._insert(route, request)))
        raise RefusalError(501, "notImplemented", f"the fake has no {route.name}")

    def _once(self, request: Any, act: Any) -> Any:
        """Answer a request with the same id as an earlier one with that one's answer."""
        identity = getattr(request, "request_id", "")
        if not identity:
            return act()
        try:
            valid = uuid.UUID(identity).int != 0
        except ValueError:
            valid = False
        if not valid:
            raise RefusalError(400, "invalid", f"Invalid value for field 'requestId': '{identity}'")
        if identity in self._done:
            before, operation = self._done[identity]
            if before != request:
                raise RefusalError(400, "invalid", "The request id belongs to another request")
            return operation
        operation = act()
        self._done[identity] = (type(request)(request), operation)
        return operation

    def _list(self, route: Route, request: Any, scopes: list[str]) -> dict[str, Any]:
        if down := {scope.rpartition("/")[2] for scope in scopes} & self.unreachable:
            raise RefusalError(503, "backendError", f"{', '.join(down)} cannot be reached")
        found = [one for scope in scopes for one in self._found(route, request, scope)]
        page, token = self._page(found, request)
        return {"items": [as_json(one) for one in page], **({"nextPageToken": token} if token else {})}

    def _found(self, route: Route, request: Any, scope: str) -> list[Any]:
        things = self.cloud.shown(scope, route.collection)
        check_page(request)
        is_wanted = wanted(request.filter, route)
        if request.order_by == "creationTimestamp desc":
            things = sorted(things, key=lambda thing: (thing.creation_timestamp, thing.id), reverse=True)
        return [thing for thing in things if not request.filter or is_wanted(as_json(thing))]

    def _page(self, found: list[Any], request: Any) -> tuple[list[Any], str]:
        size = min(self.page, request.max_results if "max_results" in request else 500)
        first = int(request.page_token or 0)
        return found[first : first + size], str(first + size) if first + size < len(found) else ""

    def _aggregated(self, route: Route, request: Any, partial: bool) -> dict[str, Any]:
        if self.unreachable and not partial:
            # The method's description says that returnPartialSuccess must be true to prevent this failure.
            raise RefusalError(503, "backendError", f"{', '.join(self.unreachable)} cannot be reached")
        scopes = sorted({scope for scope, kind in self.cloud.store if kind == route.collection})
        scopes = sorted({*scopes, *(f"zones/{zone}" for zone in self.cloud.zones)})
        found = [(scope, one) for scope in scopes for one in self._found(route, request, scope)
                 if scope.rpartition("/")[2] not in self.unreachable]  # fmt: skip
        page, token = self._page(found, request)
        items: dict[str, Any] = {}
        for scope in scopes:
            mine = [as_json(one) for of, one in page if of == scope]
            empty = {"code": "NO_RESULTS_ON_PAGE", "message": f"There are no results for scope '{scope}'."}
            items[scope] = {route.collection: mine} if mine else {"warning": empty}
        for zone in self.unreachable:
            items[f"zones/{zone}"] = {
                "warning": {"code": "UNREACHABLE", "message": f"{zone} does not answer"}
            }
        return {
            "items": items,
            "unreachables": [f"zones/{zone}" for zone in sorted(self.unreachable)],
            **({"nextPageToken": token} if token else {}),
        }

    def _insert(self, route: Route, request: Any) -> Any:
        resource = getattr(request, str(route.body))
        scope = _scope(request, route)
        if resource.name in self.cloud.at(scope, route.collection):
            raise RefusalError(409, "alreadyExists", f"The resource '{resource.name}' already exists")
        self.cloud.put(scope, route.collection, resource)
        operation = self.cloud.operation(scope, "insert", resource.self_link, target_id=resource.id)
        self.cloud.later(1, lambda: self.cloud.end(operation))
        return operation

    def _delete(self, route: Route, request: Any, name: str) -> Any:
        scope = _scope(request, route)
        resource = self.cloud.get(scope, route.collection, name)
        operation = self.cloud.operation(scope, "delete", resource.self_link, target_id=resource.id)

        def finish() -> None:
            why = self.cloud.failure("delete", resource.name)
            if why is None:
                self.cloud.at(scope, route.collection).pop(resource.name, None)
            self.cloud.end(operation, *([why] if why else []))

        self.cloud.later(1, finish)
        return operation

    # --- methods of their own ------------------------------------------------------------------------------

    def _instances_bulk_insert(self, request: Any) -> Any:
        if request.zone not in self.cloud.zones:
            raise RefusalError(
                400, "invalid", f"Invalid value for field 'zone': '{request.zone}'. Unknown zone."
            )
        body = request.bulk_insert_instance_resource_resource
        return self.cloud.bulk(f"zones/{request.zone}", body, request.zone)

    def _region_instances_bulk_insert(self, request: Any) -> Any:
        """Launch all instances in the first zone that has capacity for all."""
        body = request.bulk_insert_instance_resource_resource
        room = {zone: self.cloud.capacity.get(zone, 1_000_000) for zone in self.cloud.zones}
        zone = next((zone for zone in room if room[zone] >= body.count), self.cloud.zones[0])
        return self.cloud.bulk(f"regions/{request.region}", body, zone)

    def _instances_insert(self, request: Any) -> Any:
        one = request.instance_resource
        body = gce.BulkInsertInstanceResource(
            count=1, per_instance_properties={one.name: {}},
            source_instance_template=request.source_instance_template,
            instance_properties=gce.InstanceProperties(
                labels=one.labels, machine_type=one.machine_type.rpartition("/")[2],
                disks=one.disks, network_interfaces=one.network_interfaces,
            ),
        )  # fmt: skip
        return self.cloud.bulk(f"zones/{request.zone}", body, request.zone)

    def _instances_delete(self, request: Any) -> Any:
        return self.cloud.delete(f"zones/{request.zone}", request.instance)

    def _instances_stop(self, request: Any) -> Any:
        return self._turn(request, "stop", "TERMINATED")

    def _instances_start(self, request: Any) -> Any:
        return self._turn(request, "start", "RUNNING")

    def _turn(self, request: Any, kind: str, status: str) -> Any:
        scope = f"zones/{request.zone}"
        instance = self.cloud.get(scope, "instances", request.instance)
        operation = self.cloud.operation(scope, kind, instance.self_link, target_id=instance.id)

        def finish() -> None:
            instance.status = status
            self.cloud.end(operation)

        self.cloud.later(1, finish)
        return operation

    def _instances_set_labels(self, request: Any) -> Any:
        scope = f"zones/{request.zone}"
        instance = self.cloud.get(scope, "instances", request.instance)
        instance.labels = request.instances_set_labels_request_resource.labels
        operation = self.cloud.operation(scope, "setLabels", instance.self_link, target_id=instance.id)
        self.cloud.later(1, lambda: self.cloud.end(operation))
        return operation

    def _regions_get(self, request: Any) -> Any:
        return gce.Region(name=self.cloud.region, quotas=_quotas(self.cloud, self.cloud.quotas))

    def _projects_get(self, request: Any) -> Any:
        return gce.Project(name=self.cloud.project, quotas=_quotas(self.cloud, self.cloud.global_quotas))


@contextmanager
def fake_gce(partitions: Iterable[str] = ("compute",), cloud: Cloud | None = None) -> Iterator[FakeGce]:
    """Yield a server with a template for each partition."""
    fake = FakeGce(cloud or Cloud())

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, content = fake.answer(self.command, self.path, body)
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):
                return self._serve
            raise AttributeError(name)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        for partition in partitions:
            fake.template(partition)
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _parameters(query: str) -> tuple[dict[str, str], str]:
    """Return the parameters that any method has, with their values, and the query without them."""
    asked = parse_qsl(query, keep_blank_values=True)
    rest = "&".join(f"{name}={quote(value)}" for name, value in asked if name not in SYSTEM)
    return {name: value for name, value in asked if name in SYSTEM}, rest


def _fields(system: Mapping[str, str], route: Route) -> fake_gce_fields.Tree:
    """Return the fields of the answer that a request wants; empty means all.

    Raises:
        RefusalError: The answer has no such field.
    """
    if "fields" not in system:
        return {}
    try:
        return fake_gce_fields.parse(system["fields"], route.answer.pb(route.answer()).DESCRIPTOR)
    except fake_gce_fields.BadFieldsError as error:
        raise RefusalError(400, "invalidParameter", str(error)) from error


def _scope(request: Any, route: Route) -> str:
    for kind in ("zone", "region"):
        # The collection of zones itself belongs to no service.
        if getattr(request, kind, "") and route.collection != f"{kind}s":
            return f"{kind}s/{getattr(request, kind)}"
    return "global"


def _last(route: Route) -> str:
    """Return the field of the request that holds the resource's name."""
    return list(route.pattern.groupindex)[-1]


def _quotas(cloud: Cloud, quotas: Mapping[str, float]) -> list[Any]:
    return [gce.Quota(metric=m, limit=limit, usage=u) for m, limit, u in cloud.usage(dict(quotas))]
