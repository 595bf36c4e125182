"""Compute Engine's wire format as google-cloud-compute has it: its paths, its messages, its errors.

The routes and the messages are the client library's own, so a request with an unknown field or parameter is
refused as the API would refuse it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote

import proto
from google.protobuf import json_format

from tests.support import cloud_faults, fake_gce_filter

SERVICES = (
    "accelerator_types", "addresses", "disks", "firewalls", "global_addresses", "global_operations", "images",
    "instance_templates", "instances", "machine_types", "networks", "projects", "region_instance_templates",
    "region_instances", "region_operations", "regions", "reservations", "resource_policies", "routers",
    "snapshots", "subnetworks", "zone_operations", "zones",
)  # fmt: skip


class RefusalError(Exception):
    """An error answer.

    Attributes:
        reason: The value of `error.errors[0].reason`.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason

    def body(self) -> dict[str, Any]:
        one = {"message": str(self), "domain": "global", "reason": self.reason}
        return {"error": {"code": self.status, "message": str(self), "errors": [one]}}


@dataclass
class Call:
    """A request: the client's names of service and method (`instances.bulk_insert`), the library's message,
    and the reason of a refusal."""

    name: str
    request: Any
    reason: str | None = None


@dataclass
class Fault(cloud_faults.Fault):
    """An error that a test orders. `code` is Google's reason; most refusals have one status."""

    status: int = 403


@dataclass(frozen=True)
class Route:
    """A method of the API.

    Attributes:
        service: The client's service, such as `instances`.
        method: The client's method, such as `bulk_insert`.
        collection: The last word of the path that is no name, such as `instances`.
        body: The request's field that is sent as the body.
    """

    verb: str
    pattern: re.Pattern[str]
    service: str
    method: str
    collection: str
    request: Any
    answer: Any
    body: str | None

    @property
    def name(self) -> str:
        return f"{self.service}.{self.method}"


@functools.cache
def routes() -> tuple[Route, ...]:
    """Return all methods of `SERVICES`, the paths with the most words first."""
    found = []
    for service in SERVICES:
        base = f"google.cloud.compute_v1.services.{service}.transports"
        rest, rest_base = (importlib.import_module(f"{base}.{name}") for name in ("rest", "rest_base"))
        (stubs,) = _transports(rest, "RestTransport", "_Base")
        (options,) = _transports(rest_base, "RestTransport", None)
        for name, stub in vars(stubs).items():
            if not (inspect.isclass(stub) and name.startswith("_")):
                continue
            signature = inspect.signature(stub.__call__)
            for http in getattr(options, f"_Base{name[1:]}")._get_http_options():
                words = [word for word in http["uri"].split("/") if not word.startswith("{")]
                own = re.sub(r"(?<!^)(?=[A-Z])", "_", name[1:]).lower()
                pattern = re.sub(r"\{(\w+)(=[^}]*)?\}", r"(?P<\1>[^/]+)", http["uri"])
                route = Route(
                    http["method"].upper(), re.compile(f"{pattern}$"), service, own,
                    words[-1] if own in ("get", "list", "insert", "delete", "aggregated_list") else words[-2],
                    signature.parameters["request"].annotation, signature.return_annotation, http.get("body"),
                )  # fmt: skip
                found.append((http["uri"].count("{"), route))
    return tuple(route for _, route in sorted(found, key=lambda one: one[0]))


def _transports(module: Any, ending: str, without: str | None) -> list[Any]:
    return [
        thing
        for name, thing in vars(module).items()
        if inspect.isclass(thing)
        and name.endswith(ending)
        and thing.__module__ == module.__name__
        and not (without and name.startswith(f"_{without[1:]}"))
    ]


def parse(verb: str, path: str, query: str, body: bytes) -> tuple[Route, Any]:
    """Return a request as the library's own message.

    Raises:
        RefusalError: There is no such method, or the request has an unknown field.
    """
    for route in routes():
        match = route.pattern.match(path) if route.verb == verb else None
        if match is None:
            continue
        message = route.request()
        raw = route.request.pb(message)
        names = {field.json_name: field for field in raw.DESCRIPTOR.fields}
        content: dict[str, Any] = {raw.DESCRIPTOR.fields_by_name[k].json_name: unquote(v)
                                   for k, v in match.groupdict().items()}  # fmt: skip
        for key, values in parse_qs(query, keep_blank_values=True, strict_parsing=bool(query)).items():
            if key not in names:
                raise RefusalError(400, "badRequest", f"Invalid value. Unknown parameter: {key}")
            content[key] = _typed(names[key], values)
        if body and route.body is None:
            raise RefusalError(400, "parseError", "This API does not take a body here")
        if route.body is not None:
            content[raw.DESCRIPTOR.fields_by_name[route.body].json_name] = json.loads(body or b"{}")
        try:
            json_format.ParseDict(content, raw, ignore_unknown_fields=False)
        except json_format.ParseError as error:
            raise RefusalError(400, "badRequest", f"Invalid JSON payload received: {error}") from error
        return route, message
    raise RefusalError(404, "notFound", f"no method {verb} {path}")


def _typed(field: Any, values: Sequence[str]) -> Any:
    boolean = field.type == field.TYPE_BOOL
    typed = [value == "true" if boolean else value for value in values]
    return typed if field.is_repeated else typed[-1]


def as_json(message: Any) -> dict[str, Any]:
    """Return a message as the API writes it: camel case, names of enums, numbers of 64 bits as strings."""
    return dict(
        json_format.MessageToDict(
            type(message).pb(message) if isinstance(message, proto.Message) else message,
            use_integers_for_enums=False,
        )
    )


def wanted(expression: str, route: Route) -> Callable[[dict[str, Any]], bool]:
    """Return whether a list's filter selects a resource.

    Raises:
        RefusalError: The filter is invalid, or the listed things lack a field.
    """
    kind = _listed(route)
    try:
        test = fake_gce_filter.parse(expression, kind)
        free = fake_gce_filter.INDEXED.get(kind.name)
        if free is not None and (costly := fake_gce_filter.fields(expression) - free):
            # The real API refuses only after 750,000 of them in a minute, which no test has.
            text = f"Quota exceeded for 'filtered_list_cost_overhead': {', '.join(sorted(costly))}"
            raise RefusalError(403, "rateLimitExceeded", text)
        return test
    except fake_gce_filter.BadFilterError as error:
        text = f"Invalid value for field 'filter': '{expression}'. {error}"
        raise RefusalError(400, "invalid", text) from error


def check_page(request: Any) -> None:
    """Check what every list allows: up to 500 results a page, and two orders.

    Raises:
        RefusalError: The request asks for anything else.
    """
    if not 0 <= request.max_results <= 500:
        raise RefusalError(400, "invalid", f"Invalid value for field 'maxResults': '{request.max_results}'")
    if request.order_by not in ("", "name", "creationTimestamp desc"):
        raise RefusalError(400, "invalid", f"Invalid value for field 'orderBy': '{request.order_by}'")


@functools.cache
def _listed(route: Route) -> Any:
    """Return the descriptor of what a list contains."""
    items = route.answer.pb(route.answer()).DESCRIPTOR.fields_by_name["items"].message_type
    if route.method == "aggregated_list":
        scoped = items.fields_by_name["value"].message_type
        items = next(f.message_type for f in scoped.fields if f.is_repeated and f.message_type)
    return items
