"""How the local cloud behaves now: its settings and rules, as pure functions, so tests need no machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from random import Random
from typing import Any

from localcloud.machines import CloudError
from node.design.local_cloud import CloudBehaviour
from node.system import plurals
from node.system.codec import from_json, to_json

CAPACITY = "capacity."

ERRORS = {
    "quota": ("QuotaExceeded", "quota exceeded"),
    "capacity": ("InsufficientCapacity", "there is no capacity for these machines"),
    "placement": ("PlacementImpossible", "the machines cannot be placed together"),
    "permission": ("AccessDenied", "the controller is not allowed to make this call"),
    "throttled": ("RequestLimitExceeded", "too many calls"),
    "config": ("InvalidRequest", "the request is not valid"),
}
"""Error class -> the cloud's code, which `node.elastic.drivers.local` classifies, and the message."""
OF_EVERY_CALL = ("permission", "throttled")
"""Error classes that apply to every call; the others apply only to `LAUNCHES`."""
LAUNCHES = ("launch", "available_capacity")


@dataclass(frozen=True, slots=True)
class RunningMachine:
    """A pending or running compute machine, as far as the rules need it."""

    partition: str | None
    zone: str | None
    gpus: int


@dataclass(frozen=True, slots=True)
class LaunchAllowance:
    """How many machines may be launched; `code` and `message` say why not all that were asked for."""

    count: int
    code: str | None = None
    message: str | None = None


def allowed(
    behaviour: CloudBehaviour,
    living: Iterable[RunningMachine],
    wanted: int,
    gpus: int,
    partition: str | None,
    zone: str | None,
) -> LaunchAllowance:
    """Return how many of `wanted` machines the quotas and the capacity allow.

    Args:
        gpus: GPUs of one machine.
    """
    running = list(living)
    devices = sum(m.gpus for m in running)
    granted = LaunchAllowance(wanted)
    if behaviour.quota_nodes is not None and behaviour.quota_nodes - len(running) < granted.count:
        granted = LaunchAllowance(
            max(0, behaviour.quota_nodes - len(running)),
            "QuotaExceeded",
            _exceeded(behaviour.quota_nodes, "machine", "run", len(running)),
        )
    if behaviour.quota_gpus is not None and gpus and (behaviour.quota_gpus - devices) // gpus < granted.count:
        granted = LaunchAllowance(
            max(0, (behaviour.quota_gpus - devices) // gpus),
            "QuotaExceeded",
            _exceeded(behaviour.quota_gpus, "GPU", "used", devices),
        )
    for pool, most in pools(behaviour, partition, zone).items():
        used = sum(_in_pool(machine, pool) for machine in running)
        if most - used < granted.count:
            granted = LaunchAllowance(
                max(0, most - used),
                "InsufficientCapacity",
                f"pool {pool} has {plurals.count(most, 'machine')}: {_rest(most, 'run', used)}",
            )
    return granted


def _exceeded(quota: int, what: str, verb: str, used: int) -> str:
    return f"quota of {plurals.count(quota, what)} would be exceeded: {_rest(quota, verb, used)}"


def _rest(most: int, verb: str, used: int) -> str:
    # How many were asked for is left out: the jobs and the nodes that have one cause would differ in it.
    return f"{used} {verb}, {max(0, most - used)} left"


def pools(behaviour: CloudBehaviour, partition: str | None, zone: str | None) -> dict[str, int]:
    """Return the capacity of each pool to which a machine of this partition and zone belongs."""
    return {
        pool: behaviour.capacity[pool]
        for pool in (partition, f"{partition}/{zone}")
        if pool in behaviour.capacity
    }


def _in_pool(machine: RunningMachine, pool: str) -> bool:
    return pool in (machine.partition, f"{machine.partition}/{machine.zone}")


def refusal(behaviour: CloudBehaviour, method: str) -> CloudError | None:
    """Return the error that the setting `api_error` injects into a call; `None` if there is none.

    Args:
        method: launch | available_capacity | list | terminate.
    """
    if behaviour.api_error is None or (behaviour.api_error not in OF_EVERY_CALL and method not in LAUNCHES):
        return None
    code, message = ERRORS[behaviour.api_error]
    return CloudError(code, f"{message} (api_error: {behaviour.api_error})")


def boot_seconds(behaviour: CloudBehaviour, machine: str) -> float:
    """Return for how many seconds a machine stays pending; the same for every call with the same machine.

    Args:
        machine: Identifies the machine; known before it has an id.
    """
    return behaviour.boot_delay + Random(f"boot {machine}").random() * behaviour.boot_spread


def registers(behaviour: CloudBehaviour, machine: str) -> bool:
    """Return whether a machine becomes a node: never if `never_register` is 1, always if it is 0."""
    return Random(f"register {machine}").random() >= behaviour.never_register


def changed(behaviour: CloudBehaviour, changes: Mapping[str, Any]) -> CloudBehaviour:
    """Return the settings with changes applied. If one change is wrong, none is applied.

    Args:
        changes: Setting -> value; `None` restores the default. `capacity.<pool>` sets one pool, `capacity`
            all pools.

    Raises:
        CloudError: A setting does not exist, or a value is not allowed.
    """
    defaults, values = to_json(CloudBehaviour()), to_json(behaviour)
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
        result = from_json(CloudBehaviour, values)
    except ValueError as error:
        raise CloudError("InvalidRequest", str(error)) from None
    _check(result)
    return result


def _check(behaviour: CloudBehaviour) -> None:
    numbers = {f.name: getattr(behaviour, f.name) for f in fields(behaviour)}
    numbers |= {CAPACITY + pool: count for pool, count in behaviour.capacity.items()}
    for key, value in numbers.items():
        # NaN fails this comparison, too.
        if isinstance(value, int | float) and not 0 <= value < float("inf"):
            raise CloudError("InvalidRequest", f"{key}: {value} is not 0 or more")
    if behaviour.never_register > 1:
        raise CloudError("InvalidRequest", f"never_register: {behaviour.never_register} is more than 1")
    if behaviour.api_error is not None and behaviour.api_error not in ERRORS:
        known = ", ".join(ERRORS)
        raise CloudError("InvalidRequest", f"api_error: {behaviour.api_error!r} is none of {known}")
