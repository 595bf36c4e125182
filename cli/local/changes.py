"""The table of what a change of the stack file does to a running local cluster. It is data only."""

from __future__ import annotations

from dataclasses import fields

from cli.changes import rows
from cli.changes.table import Kind, Row, Rules
from node.local_cloud import LocalCloud

_CLOUDS = "the clouds'"
_HERE = "a local stack uses this machine's hardware as it is"

INSTEAD: dict[str, Row | None] = {
    **rows.without_effect(_CLOUDS, "access.ssh_cidrs", "partitions.reservation", "partitions.image"),
    **rows.without_effect(_CLOUDS, "storage.*.existing", "storage.*.security_group", "storage.*.keep"),
    **rows.without_effect(_CLOUDS, "storage.*.snapshot", "storage.*.restore", "network.cidr"),
    **rows.without_effect(_CLOUDS, "partitions.open_metadata", "login.open_metadata"),
    **rows.without_effect(_HERE, "partitions.disk_gib", "storage.*.kind"),
    "controller.instance_type": Row(Kind.LIVE, ("controller.instance_type",)),
    "login.instance_type": Row(Kind.LIVE, ("login.instance_type",)),
    "partitions.local": Row(Kind.LIVE, ("partitions.price_hour",)),
    "storage.*.path": Row(Kind.NOTHING, (), _HERE),
    **{
        f"slurm.{key}": Row(Kind.DATA, (f"slurm.{key}",), "another image is another cluster")
        for key in ("source", "packages", "repository")
    },
    "containers": Row(Kind.DATA, ("cluster.containers",), "another image is another cluster"),
    "instance_types.price_hour": Row(Kind.LIVE),
    "local": None,
}
"""Rows that differ from the clouds' rows."""
OWN: dict[str, Row] = {
    **rows.without_effect(_CLOUDS, "access.mode", "access.key", "controller.image"),
    **rows.without_effect(_HERE, "controller.disk_gib", "login.disk_gib", "storage.*.size_gib"),
    "login.count": Row(Kind.LIVE),
    "partitions.accelerator": Row(Kind.RENEWED, ("partitions.accelerator",)),
    "partitions.placement": Row(Kind.LIVE, ("partitions.placement",)),
    "partitions.zones": Row(Kind.LIVE, ("partitions.zones",)),
    "partitions.aws": Row(
        Kind.NOTHING,
        ("partitions.efa", "partitions.capacity_block", "partitions.placement_group", "partitions.gp3"),
        _CLOUDS,
    ),
    "aws": Row(Kind.NOTHING, ("cluster.kms_key", "network.nat"), _CLOUDS),
    "partitions.gcp": Row(Kind.NOTHING, rows.OF_GOOGLE, _CLOUDS),
    "storage.*.tier": Row(Kind.NOTHING, ("storage.deployment",), _CLOUDS),
    "storage.*.deployment": Row(Kind.NOTHING, (), _CLOUDS),
    **rows.without_effect(_CLOUDS, *rows.ON_AWS),
    "storage.local_scratch": Row(Kind.NOTHING, ("partitions.local_ssds",), _CLOUDS),
    "image.source": Row(Kind.NOTHING, (), _CLOUDS),
    **rows.without_effect(_CLOUDS, "image.id", "image.bake"),
    **rows.without_effect(_CLOUDS, "network.public_cidr", "network.private_cidr", "network.zones"),
    "network.aws": Row(Kind.NOTHING, ("network.vpc",), _CLOUDS),
    "network.gcp": Row(Kind.NOTHING, ("network.public_subnet", "network.private_subnets"), _CLOUDS),
    "local.isolation": Row(Kind.DATA, ("cluster.isolation",), "another kind of machine is another cluster"),
    "local.suite": Row(Kind.DATA, ("image.source",), "another release is another cluster"),
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
