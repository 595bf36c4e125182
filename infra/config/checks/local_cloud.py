"""Checks of the local cloud's limits: pools must exist and be large enough for the static nodes."""

from __future__ import annotations

from collections.abc import Iterable

from infra.config.checks.context import CLUSTER, Context
from infra.config.cluster import PartitionConfig
from infra.config.mistakes import near

LOCAL = (*CLUSTER, "local")


def check_local_cloud(c: Context) -> None:
    local, partitions = c.cluster.local, c.cluster.partitions
    if local is None or c.provider != "local":
        return
    static = sum(p.nodes.min for p in partitions)
    if local.quota_nodes is not None and static > local.quota_nodes:
        allowed = f"{static} or more: that many nodes are static (nodes.min)"
        c.add((*LOCAL, "quota_nodes"), local.quota_nodes, allowed)
    devices = sum(p.nodes.min * _devices(c, p) for p in partitions)
    if local.quota_gpus is not None and devices > local.quota_gpus:
        allowed = f"{devices} or more: the static nodes have that many devices (nodes.min)"
        c.add((*LOCAL, "quota_gpus"), local.quota_gpus, allowed)
    known = pools((p.name, p.zones or ()) for p in partitions)
    named = all(c.sound((*CLUSTER, "partitions", i, "name")) for i in range(len(partitions)))
    for pool, count in local.capacity.items():
        if named and pool not in known:
            meant = near(pool, known)
            advice = f"did you mean {meant}?" if meant else ""
            c.add((*LOCAL, "capacity", pool), count, f"the pools {', '.join(known)}", advice)
    for partition in partitions:
        _capacity_for_static_nodes(c, partition, local.capacity)


def _capacity_for_static_nodes(c: Context, partition: PartitionConfig, capacity: dict[str, int]) -> None:
    static, name = partition.nodes.min, partition.name
    if name in capacity and capacity[name] < static:
        allowed = f"{static} or more: so many nodes of {name} are static (nodes.min)"
        c.add((*LOCAL, "capacity", name), capacity[name], allowed)
    zones = [f"{name}/{zone}" for zone in partition.zones or ()]
    available = sum(capacity.get(zone, static) for zone in zones)
    if zones and available < static:
        allowed = f"{static} or more in its zones together: that many nodes are static (nodes.min)"
        c.add((*LOCAL, "capacity"), {zone: capacity[zone] for zone in zones}, allowed)


def pools(partitions: Iterable[tuple[str, Iterable[str]]]) -> list[str]:
    """The names of pools that `capacity` may have.

    Args:
        partitions: The name and the zones of each partition.
    """
    found = []
    for name, zones in partitions:
        found += [name, *(f"{name}/{zone}" for zone in zones)]
    return found


def _devices(c: Context, partition: PartitionConfig) -> int:
    machine = c.instance_type(partition.instance_type)
    accelerator = partition.accelerator or (machine.accelerator if machine else None)
    return accelerator.count if accelerator else 0
