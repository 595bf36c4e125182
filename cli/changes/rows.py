"""The rows of the change tables that all providers share. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from cli.changes.table import Kind, Row
from node.model import LocalCloud

OTHER = "another cluster; the one that is up is destroyed"

SHARED: dict[str, Row] = {
    "name": Row(Kind.DATA, ("cluster.name",), OTHER),
    "provider": Row(Kind.DATA, ("cluster.provider",), OTHER),
    "scheduler": Row(Kind.DATA, ("cluster.scheduler",), OTHER),
    "access.ssh_cidrs": Row(Kind.LIVE, ("access.ssh_cidrs",)),
    "access.allow_ssh_from_anywhere": Row(Kind.NOTHING),
    "controller.instance_type": Row(Kind.PAUSE, ("controller.instance_type",)),
    "login.instance_type": Row(Kind.PAUSE, ("login.instance_type",)),
    "partitions.name": Row(Kind.LIVE, (), "removing one ends the jobs on its nodes"),
    "partitions.instance_type": Row(Kind.RENEWED, ("partitions.instance_type",)),
    "partitions.nodes.min": Row(Kind.LIVE, ("partitions.min",)),
    "partitions.nodes.max": Row(Kind.LIVE, ("partitions.max",), "", Kind.ENDS),
    "partitions.default": Row(Kind.LIVE, ("partitions.default",)),
    "partitions.spot": Row(Kind.RENEWED, ("partitions.spot",)),
    "partitions.reservation": Row(Kind.RENEWED, ("partitions.reservation",)),
    "partitions.time_limit": Row(Kind.LIVE, ("partitions.time_limit",), "jobs keep the limit they have"),
    "partitions.exclusive": Row(Kind.LIVE, ("partitions.exclusive",)),
    "partitions.topology": Row(Kind.LIVE, ("partitions.topology",)),
    "partitions.disk_gib": Row(Kind.RENEWED, ("partitions.disk_gib",)),
    "partitions.image": Row(Kind.RENEWED, ("partitions.image",)),
    "partitions.open_metadata": Row(Kind.RENEWED, ("partitions.open_metadata",)),
    "login.open_metadata": Row(Kind.LIVE, ("login.open_metadata",)),
    "partitions.local": Row(Kind.NOTHING),
    "storage.*.kind": Row(Kind.DATA, ("storage.kind",)),
    "storage.*.path": Row(Kind.DATA, (), "another path is another file system"),
    "storage.*.existing": Row(Kind.DATA, ("storage.existing",), "another one, with other files"),
    "storage.*.security_group": Row(Kind.LIVE, ("storage.security_group",)),
    "storage.*.keep": Row(Kind.LIVE, ("storage.keep",)),
    "storage.*.snapshot": Row(Kind.LIVE, ("storage.snapshot",)),
    "storage.*.restore": Row(Kind.NOTHING, ("storage.restore",), "files are there already"),
    "storage.buckets": Row(Kind.NODES, (), "it and its objects stay; the controller has it at once"),
    "hooks": Row(Kind.NODES, ("cluster.hooks",), "controller and login machines run theirs again at once"),
    "containers": Row(
        Kind.NODES, ("cluster.containers",), "controller and login machines get theirs at once"
    ),
    "health": Row(Kind.NODES, ("cluster.health",), "the interval changes at once"),
    "budget": Row(Kind.LIVE, ("budget.max_usd", "budget.max_hours", "budget.running_jobs")),
    "network.cidr": Row(Kind.HEAD, ("network.cidr",), "it is a new network"),
    "network.peers": Row(Kind.NOTHING),
    "slurm": Row(
        Kind.LIVE,
        (
            "slurm.suspend_time",
            "slurm.suspend_timeout",
            "slurm.resume_timeout",
            "slurm.slurmd_timeout",
            "slurm.reconcile_interval",
            "slurm.accounting",
        ),
    ),
    **{
        f"slurm.{key}": Row(Kind.NEVER, (f"slurm.{key}",), "heads and nodes have one Slurm: down, then up")
        for key in ("source", "packages", "repository")
    },
    "slurm.prolog": Row(Kind.NODES, ("slurm.prolog",)),
    "slurm.epilog": Row(Kind.NODES, ("slurm.epilog",)),
    "local": Row(Kind.NOTHING, tuple(f"local.{field.name}" for field in fields(LocalCloud))),
    "instance_types.vcpus": Row(Kind.RENEWED, ("partitions.cpus",)),
    "instance_types.memory_mib": Row(Kind.RENEWED, ("partitions.memory_mib",)),
    "instance_types.price_hour": Row(Kind.LIVE, ("partitions.price_hour",)),
    "instance_types.*": Row(Kind.LIVE, (), "as the key that follows from it says"),
    "benchmark": Row(
        Kind.LIVE,
        ("cluster.trains", "cluster.requirements"),
        "a run that is not over is cancelled, with `up --replace` only",
    ),
}
"""The rows by key of the stack file."""

UNSEEN = frozenset(
    {
        "cluster.stack", "cluster.isolation",
        "controller.name", "controller.role", "controller.tags", "controller.price_hour",
        "controller.open_metadata",
        "login.name", "login.role", "login.tags", "login.price_hour", "login.image",
        "partitions.name", "partitions.zones", "partitions.reservations",
        "storage.name", "storage.path", "storage.roles", "storage.served_by", "storage.options",
        "network.zones",
    }
)  # fmt: skip
"""Fields of the design that follow from others, or for which each provider has its own rule."""


ON_AWS = (
    *("storage.*.storage_type", "storage.*.throughput", "storage.*.s3_import", "storage.*.s3_export"),
    *("storage.*.gp3.*", "controller.gp3", "login.gp3"),
)
"""Keys that only AWS has."""


OF_GOOGLE = tuple(
    f"partitions.{key}" for key in ("secure_boot", "placement_policy", "disk_type", "min_cpu_platform")
)
"""Fields of the design that follow from `partitions.gcp`."""


def without_effect(note: str, *keys: str) -> dict[str, Row]:
    """Rows of keys that a provider does not use. A key's field of the design has the key's name."""
    return {key: Row(Kind.NOTHING, (key.replace(".*", ""),), note) for key in keys}


def table(own: Mapping[str, Row], instead: Mapping[str, Row | None] | None = None) -> dict[str, Row]:
    """A provider's whole table: first the keys of the cluster's location, then section by section.

    Args:
        own: The provider's own rows, none of which is shared.
        instead: The provider's replacements for shared rows; `None` removes a row.

    Raises:
        ValueError: `own` has a shared key, or `instead` has a key that is not shared.
    """
    instead = instead or {}
    if twice := SHARED.keys() & own.keys():
        raise ValueError(f"rows of every provider: {sorted(twice)}")
    if strange := instead.keys() - SHARED.keys():
        raise ValueError(f"no rows of every provider: {sorted(strange)}")
    where = {key: row for key, row in own.items() if ":" in key}
    shared = {key: instead.get(key, row) for key, row in SHARED.items()}
    rows = {**where, **{key: row for key, row in shared.items() if row is not None}, **own}
    sections = list(dict.fromkeys(key.partition(".")[0] for key in rows))
    return {key: rows[key] for key in sorted(rows, key=lambda key: sections.index(key.partition(".")[0]))}
