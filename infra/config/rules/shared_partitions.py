"""Rules of partitions that have the nodes of another one, and no machines of their own."""

from __future__ import annotations

from infra.config.mistakes import Location
from infra.config.partitions import NO_MACHINES, PartitionConfig
from infra.config.rules.context import Context

OWN_KEYS = frozenset(
    {
        "name",
        "nodes_of",
        "default",
        "time_limit",
        "allow_accounts",
        "allow_qos",
        "qos",
        "exclusive",
        "settings",
    }
)
"""What a partition without machines says of its jobs. All other keys are about nodes."""


def check_shared_partition(c: Context, partition: PartitionConfig, at: Location) -> None:
    """Check a partition with `nodes_of`."""
    owner = c.with_machines(partition)
    if owner is None:
        _unknown(c, partition, at)
    given = [key for key in PartitionConfig.model_fields if key not in OWN_KEYS and _says(partition, key)]
    if given:
        value, whose = getattr(partition, given[0]), partition.nodes_of
        shown = value if isinstance(value, str | int | float) else "a value"
        allowed = f"nothing about nodes beside nodes_of: {whose}"
        advice = f"remove {', '.join(given)}, or write it in {whose}; without nodes_of it has its own nodes"
        c.add("nodes-of.own-keys", (*at, given[0]), shown, allowed, advice)
    for where, group in c.groups():
        if "pools" in where and group.name == partition.name:
            advice = f"the nodes of that pool are {group.name}-0 and so on: rename one of them"
            c.add("nodes-of.name-of-pool", (*at, "name"), partition.name, "a name that no pool has", advice)


def _says(partition: PartitionConfig, key: str) -> bool:
    """Return whether the stack file gives a key another value than its default."""
    value, field = getattr(partition, key), PartitionConfig.model_fields[key]
    usual = NO_MACHINES if key == "instance_type" else field.get_default(call_default_factory=True)
    return bool(value != usual)


def _unknown(c: Context, partition: PartitionConfig, at: Location) -> None:
    names = [p.name for p in c.cluster.partitions if p.by_pool()]
    named = next((p for p in c.cluster.partitions if p.name == partition.nodes_of), None)
    advice = ""
    if named is partition:
        advice = "it needs the name of another partition"
    elif named is not None:
        advice = f"{named.name} has the nodes of {named.nodes_of} itself: name that one"
    allowed = (
        f"a partition with nodes of its own: {', '.join(names)}"
        if names
        else ("a partition with nodes of its own, and there is none")
    )
    c.add("nodes-of.unknown", (*at, "nodes_of"), partition.nodes_of, allowed, advice)
