"""Rules of the local stack: its ports, isolation, and the local cloud's quotas and pools."""

from __future__ import annotations

from collections.abc import Iterable

from infra.config.mistakes import near
from infra.config.partitions import PartitionConfig
from infra.config.rules.context import CLUSTER, Context
from node.slurm.port_blocks import BLOCK

# The most ports of slurmds on this machine, in blocks for each partition (operations.local.run_directory).
MOST_LOCAL_PORTS = 15_700


def check_local(c: Context) -> None:
    cluster = c.cluster
    if c.provider != "local":
        if cluster.local is not None:
            c.add(
                "provider.other-settings",
                (*CLUSTER, "local"),
                "nothing that applies",
                f"settings of {c.provider}",
                "remove local:",
            )
        return
    if cluster.local is not None and cluster.local.suite is not None and cluster.local.isolation == "process":
        c.add(
            "local.suite-needs-container",
            (*CLUSTER, "local", "suite"),
            cluster.local.suite,
            "a release only for machines that boot: processes run this machine's",
            "remove suite:, or write isolation: container",
        )
    if cluster.local is not None and cluster.local.isolation == "container":
        # Each container machine has all ports of its own, and login machines are containers, too.
        return
    if cluster.login.count:
        c.add(
            "local.login-needs-container",
            (*CLUSTER, "login", "count"),
            cluster.login.count,
            "0: where machines are processes, the login machine is this machine",
            "remove login:, or write local: {isolation: container}",
        )
    wanted = sum(-(-p.nodes.max // BLOCK) * BLOCK for _, p in c.groups())
    if wanted > MOST_LOCAL_PORTS:
        c.add(
            "local.too-many-ports",
            (*CLUSTER, "partitions"),
            wanted,
            f"{MOST_LOCAL_PORTS} ports for nodes on a machine; a partition takes a multiple of {BLOCK}",
            "lower nodes.max",
        )


LOCAL = (*CLUSTER, "local")


def check_local_cloud(c: Context) -> None:
    local, partitions = c.cluster.local, [group for _, group in c.groups()]
    if local is None or c.provider != "local":
        return
    static = sum(p.nodes.min for p in partitions)
    if local.quota_nodes is not None and static > local.quota_nodes:
        allowed = f"{static} or more: that many nodes are static (nodes.min)"
        c.add("local.quota-nodes", (*LOCAL, "quota_nodes"), local.quota_nodes, allowed)
    devices = sum(p.nodes.min * _devices(c, p) for p in partitions)
    if local.quota_gpus is not None and devices > local.quota_gpus:
        allowed = f"{devices} or more: the static nodes have that many devices (nodes.min)"
        c.add("local.quota-gpus", (*LOCAL, "quota_gpus"), local.quota_gpus, allowed)
    known = pools((c.label(at, p), p.zones or ()) for at, p in c.groups())
    named = all(c.sound((*CLUSTER, "partitions", i, "name")) for i in range(len(c.cluster.partitions)))
    for pool, count in local.capacity.items():
        if named and pool not in known:
            meant = near(pool, known)
            advice = f"did you mean {meant}?" if meant else ""
            c.add(
                "local.pool-unknown",
                (*LOCAL, "capacity", pool),
                count,
                f"the pools {', '.join(known)}",
                advice,
            )
    for at, partition in c.groups():
        _capacity_for_static_nodes(c, partition, c.label(at, partition), local.capacity)


def _capacity_for_static_nodes(
    c: Context, partition: PartitionConfig, name: str, capacity: dict[str, int]
) -> None:
    static = partition.nodes.min
    if name in capacity and capacity[name] < static:
        allowed = f"{static} or more: so many nodes of {name} are static (nodes.min)"
        c.add("local.pool-capacity", (*LOCAL, "capacity", name), capacity[name], allowed)
    zones = [f"{name}/{zone}" for zone in partition.zones or ()]
    available = sum(capacity.get(zone, static) for zone in zones)
    if zones and available < static:
        allowed = f"{static} or more in its zones together: that many nodes are static (nodes.min)"
        c.add("local.zones-capacity", (*LOCAL, "capacity"), {zone: capacity[zone] for zone in zones}, allowed)


def pools(partitions: Iterable[tuple[str, Iterable[str]]]) -> list[str]:
    """Return the names of pools that `capacity` may have.

    Args:
        partitions: The name and the zones of each partition.
    """
    names = []
    for name, zones in partitions:
        names += [name, *(f"{name}/{zone}" for zone in zones)]
    return names


def _devices(c: Context, partition: PartitionConfig) -> int:
    machine = c.instance_type(partition.instance_type)
    accelerator = partition.accelerator or (machine.accelerator if machine else None)
    return accelerator.count if accelerator else 0
