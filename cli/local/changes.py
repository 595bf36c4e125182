"""The table of what a change of the stack file does to a running local cluster. It is data only."""

from __future__ import annotations

from dataclasses import fields

from cli.changes import rows
from cli.changes.table import Kind, Row, Rules
from node.local_cloud import LocalCloud

_CLOUDS = "the clouds'"
_HERE = "this machine has what it has"

INSTEAD: dict[str, Row | None] = {
    "access.ssh_cidrs": Row(Kind.NOTHING, ("access.ssh_cidrs",), _CLOUDS),
    "controller.instance_type": Row(Kind.LIVE, ("controller.instance_type",)),
    "login.instance_type": Row(Kind.LIVE, ("login.instance_type",)),
    "partitions.reservation": Row(Kind.NOTHING, ("partitions.reservation",), _CLOUDS),
    "partitions.disk_gib": Row(Kind.NOTHING, ("partitions.disk_gib",), _HERE),
    "partitions.image": Row(Kind.NOTHING, ("partitions.image",), _CLOUDS),
    "partitions.local": Row(Kind.LIVE, ("partitions.price_hour",)),
    "storage.*.kind": Row(Kind.NOTHING, ("storage.kind",), _HERE),
    "storage.*.path": Row(Kind.NOTHING, (), _HERE),
    "storage.*.existing": Row(Kind.NOTHING, ("storage.existing",), _CLOUDS),
    "storage.*.security_group": Row(Kind.NOTHING, ("storage.security_group",), _CLOUDS),
    "storage.*.keep": Row(Kind.NOTHING, ("storage.keep",), _CLOUDS),
    "storage.*.snapshot": Row(Kind.NOTHING, ("storage.snapshot",), _CLOUDS),
    "storage.*.restore": Row(Kind.NOTHING, ("storage.restore",), _CLOUDS),
    "containers": Row(Kind.DATA, ("cluster.containers",), "machines of another image make another cluster"),
    "network.cidr": Row(Kind.NOTHING, ("network.cidr",), _CLOUDS),
    "machines.price_hour": Row(Kind.LIVE),
    "local": None,
}
"""Rows that differ from the clouds' rows."""
OWN: dict[str, Row] = {
    "access.mode": Row(Kind.NOTHING, ("access.mode",), _CLOUDS),
    "access.key": Row(Kind.NOTHING, ("access.key",), _CLOUDS),
    "controller.disk_gib": Row(Kind.NOTHING, ("controller.disk_gib",), _HERE),
    "controller.image": Row(Kind.NOTHING, ("controller.image",), _CLOUDS),
    "login.count": Row(Kind.LIVE),
    "login.disk_gib": Row(Kind.NOTHING, ("login.disk_gib",), _HERE),
    "partitions.accelerator": Row(Kind.RENEWED, ("partitions.accelerator",)),
    "partitions.placement": Row(Kind.LIVE, ("partitions.placement",)),
    "partitions.zones": Row(Kind.LIVE, ("partitions.zones",)),
    "partitions.aws": Row(
        Kind.NOTHING,
        ("partitions.efa", "partitions.capacity_block", "partitions.placement_group", "partitions.gp3"),
        _CLOUDS,
    ),
    "aws": Row(Kind.NOTHING, ("cluster.kms_key", "network.nat"), _CLOUDS),
    "partitions.gcp": Row(Kind.NOTHING, ("partitions.secure_boot", "partitions.placement_policy"), _CLOUDS),
    "storage.*.size_gib": Row(Kind.NOTHING, ("storage.size_gib",), _HERE),
    "storage.*.tier": Row(Kind.NOTHING, ("storage.deployment",), _CLOUDS),
    "storage.*.deployment": Row(Kind.NOTHING, (), _CLOUDS),
    "storage.*.storage_type": Row(Kind.NOTHING, ("storage.storage_type",), _CLOUDS),
    "storage.*.throughput": Row(Kind.NOTHING, ("storage.throughput",), _CLOUDS),
    "storage.*.s3_import": Row(Kind.NOTHING, ("storage.s3_import",), _CLOUDS),
    "storage.*.s3_export": Row(Kind.NOTHING, ("storage.s3_export",), _CLOUDS),
    "storage.*.gp3.*": Row(Kind.NOTHING, ("storage.gp3",), _CLOUDS),
    "controller.gp3": Row(Kind.NOTHING, ("controller.gp3",), _CLOUDS),
    "login.gp3": Row(Kind.NOTHING, ("login.gp3",), _CLOUDS),
    "storage.local_scratch": Row(Kind.NOTHING, ("partitions.local_ssds",), _CLOUDS),
    "image.source": Row(Kind.NOTHING, (), _CLOUDS),
    "image.id": Row(Kind.NOTHING, ("image.id",), _CLOUDS),
    "image.bake": Row(Kind.NOTHING, ("image.bake",), _CLOUDS),
    "network.public_cidr": Row(Kind.NOTHING, ("network.public_cidr",), _CLOUDS),
    "network.private_cidr": Row(Kind.NOTHING, ("network.private_cidr",), _CLOUDS),
    "network.zones": Row(Kind.NOTHING, ("network.zones",), _CLOUDS),
    "network.aws": Row(Kind.NOTHING, ("network.vpc",), _CLOUDS),
    "network.gcp": Row(Kind.NOTHING, ("network.public_subnet", "network.private_subnets"), _CLOUDS),
    "local.isolation": Row(
        Kind.DATA, ("cluster.isolation",), "machines of another kind make another cluster"
    ),
    "local.suite": Row(Kind.DATA, ("image.source",), "another release makes another cluster"),
    "local.price_hour": Row(Kind.LIVE),
    **{f"local.{f.name}": Row(Kind.LIVE, (f"local.{f.name}",)) for f in fields(LocalCloud)},
    "batch": Row(Kind.NOTHING, (), _CLOUDS),
}
"""Rows that no other provider shares."""
TABLE = rows.table(OWN, INSTEAD)
"""Key of the stack file below `slurm-stacks:cluster` -> what a change does; `*` is home, apps or scratch."""

UNSEEN = (rows.UNSEEN | {"cluster.region", "cluster.zone", "cluster.project"}) - {
    "cluster.isolation",
    "partitions.zones",
    "network.zones",
}
"""Fields of the design that follow from other fields, or exist only on the clouds."""

RULES = Rules(TABLE)
