"""The local cloud's settings and rules: pure, so that each of them can be tested without a machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from random import Random
from typing import Any

from infra.local.cloud.errors import CloudError
from infra.node import words
from infra.node.codec import from_json, to_json
from infra.node.local_cloud import LocalCloud

Limits = LocalCloud
"""What the stack file says and what holds at the moment are the same settings."""

COMPUTE = "compute"
CAPACITY = "capacity."

ERRORS = {
    "quota": ("QuotaExceeded", "quota exceeded"),
    "capacity": ("InsufficientCapacity", "there is no capacity for these machines"),
    "placement": ("PlacementImpossible", "the machines cannot be placed together"),
    "permission": ("AccessDenied", "the controller is not allowed to make this call"),
    "throttled": ("RequestLimitExceeded", "too many calls"),
    "config": ("InvalidRequest", "the request is not valid"),
}
"""Error class -> the cloud's code, which infra.node.elastic.drivers.local classifies, and its words."""
OF_EVERY_CALL = ("permission", "throttled")
"""Classes that hit every call; the others hit launches, and the question whether one would succeed."""
LAUNCHES = ("launch", "room")


@dataclass(frozen=True, slots=True)
class Living:
    """What the rules need to know of a compute machine that is pending or running."""

    partition: str | None
    zone: str | None
    gpus: int


@dataclass(frozen=True, slots=True)
class Allowed:
    """How many of the machines that were asked for may be launched; `code` and `message` say why no more."""

    count: int
    code: str | None = None
    message: str | None = None


def allowed(
    limits: Limits, living: Iterable[Living], wanted: int, gpus: int, partition: str | None, zone: str | None
) -> Allowed:
    """How many of `wanted` machines the quota and the pool's capacity leave.

    Args:
        gpus: devices of one machine.
    """
    there = list(living)
    devices = sum(m.gpus for m in there)
    found = Allowed(wanted)
    if limits.quota_nodes is not None and limits.quota_nodes - len(there) < found.count:
        found = Allowed(
            max(0, limits.quota_nodes - len(there)),
            "QuotaExceeded",
            _exceeded(limits.quota_nodes, "machine", f"{len(there)} run, {wanted} asked"),
        )
    if limits.quota_gpus is not None and gpus and (limits.quota_gpus - devices) // gpus < found.count:
        found = Allowed(
            max(0, (limits.quota_gpus - devices) // gpus),
            "QuotaExceeded",
            _exceeded(limits.quota_gpus, "GPU", f"{devices} used, {wanted * gpus} asked"),
        )
    for pool, most in pools(limits, partition, zone).items():
        used = sum(_in_pool(machine, pool) for machine in there)
        if most - used < found.count:
            found = Allowed(
                max(0, most - used),
                "InsufficientCapacity",
                f"pool {pool} has {words.count(most, 'machine')}: {used} run, {wanted} asked",
            )
    return found


def _exceeded(quota: int, what: str, because: str) -> str:
    return f"quota of {words.count(quota, what)} exceeded: {because}"


def pools(limits: Limits, partition: str | None, zone: str | None) -> dict[str, int]:
    """The capacities that a machine of this partition and zone counts for."""
    return {
        pool: limits.capacity[pool] for pool in (partition, f"{partition}/{zone}") if pool in limits.capacity
    }


def _in_pool(machine: Living, pool: str) -> bool:
    return pool in (machine.partition, f"{machine.partition}/{machine.zone}")


def refusal(limits: Limits, method: str) -> CloudError | None:
    """What `api_error` makes of a call.

    Args:
        method: launch | room | list | terminate.
    """
    if limits.api_error is None or (limits.api_error not in OF_EVERY_CALL and method not in LAUNCHES):
        return None
    code, message = ERRORS[limits.api_error]
    return CloudError(code, f"{message} (api_error: {limits.api_error})")


def boot_seconds(limits: Limits, machine: str) -> float:
    """How long a machine stays pending: the same machine always as long.

    Args:
        machine: what tells it from others, and is known before it has an id.
    """
    return limits.boot_delay + Random(f"boot {machine}").random() * limits.boot_spread


def registers(limits: Limits, machine: str) -> bool:
    """Whether a machine becomes a node: never at a share of 1, always at 0."""
    return Random(f"register {machine}").random() >= limits.never_register


def changed(limits: Limits, changes: Mapping[str, Any]) -> Limits:
    """The settings with some of them set anew; all of the changes are good, or none is made.

    Args:
        changes: setting -> value, None for no limit and for what holds without a setting; `capacity.<pool>`
            is one pool's, `capacity` all pools'.

    Raises:
        CloudError: a setting or a value makes no sense.
    """
    defaults, values = to_json(Limits()), to_json(limits)
    for key, value in changes.items():
        if key in defaults:
            values[key] = defaults[key] if value is None else value
        elif key.startswith(CAPACITY) and key != CAPACITY:
            pools_now = dict(values["capacity"])
            pools_now[key.removeprefix(CAPACITY)] = value
            values["capacity"] = {pool: count for pool, count in pools_now.items() if count is not None}
        else:
            raise CloudError("InvalidRequest", f"no limit is called {key!r}")
    try:
        made = from_json(Limits, values)
    except ValueError as error:
        raise CloudError("InvalidRequest", str(error)) from None
    _check(made)
    return made


def _check(limits: Limits) -> None:
    numbers = {f.name: getattr(limits, f.name) for f in fields(limits)}
    numbers |= {CAPACITY + pool: count for pool, count in limits.capacity.items()}
    for key, value in numbers.items():
        # Not a number is not at least 0 either.
        if isinstance(value, int | float) and not 0 <= value < float("inf"):
            raise CloudError("InvalidRequest", f"{key}: {value} is not 0 or more")
    if limits.never_register > 1:
        raise CloudError("InvalidRequest", f"never_register: {limits.never_register} is more than 1")
    if limits.api_error is not None and limits.api_error not in ERRORS:
        known = ", ".join(ERRORS)
        raise CloudError("InvalidRequest", f"api_error: {limits.api_error!r} is none of {known}")
