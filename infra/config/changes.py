"""What a change of each key of a stack file does, as a table for each provider.

The fields of the models say it themselves (`infra.effects`).
"""

from __future__ import annotations

import functools
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import BaseModel

from infra.config.cluster import ClusterConfig
from infra.config.common_effects import OTHER_CLUSTER
from infra.effects import Effect, Kind, Outcome, effect

Provider = Literal["aws", "gcp", "local"]
LOCATION: dict[str, Effect] = {
    "aws:region": effect(aws=Outcome(Kind.DATA, OTHER_CLUSTER), design=("cluster.region",)),
    "gcp:project": effect(gcp=Outcome(Kind.DATA, OTHER_CLUSTER), design=("cluster.project",)),
    "gcp:region": effect(gcp=Outcome(Kind.DATA, OTHER_CLUSTER), design=("cluster.region",)),
    "gcp:zone": effect(
        gcp=Outcome(Kind.DATA, "head, disks and zonal Filestore are recreated empty"),
        design=("cluster.zone",),
    ),
}
"""The keys of the cluster's location."""
BENCHMARK: dict[str, Effect] = {
    "benchmark": effect(
        Outcome(Kind.LIVE, "a run that is not over is cancelled, with `up --replace` only"),
        design=("cluster.trains", "cluster.requirements"),
    ),
}
"""The section beside the cluster's."""
WHOSE: Mapping[Provider, str] = {"aws": "Google Cloud's", "gcp": "AWS's", "local": "the clouds'"}
"""Provider -> whose a key is that it does not use."""
_DIRECTORY = re.compile(r"^storage\.(home|apps|scratch|state)\.")
_POOL = re.compile(r"^partitions\.pools\.")
POOL_KEYS = {"partitions.pools": "partitions.name", "partitions.pools.max": "partitions.nodes.max"}
"""Keys of pools that have another name in a partition."""


@dataclass(frozen=True, slots=True)
class Row:
    """What happens when the value of a key of the stack file changes.

    Attributes:
        fields: The fields of the design that show the change (`<section>.<field>`); empty if no field does.
        note: A remark for the user's text.
        less: The kind if a number decreases; `None` means `kind`.
        used: Whether the provider uses the key.
    """

    kind: Kind
    fields: tuple[str, ...] = ()
    note: str = ""
    less: Kind | None = None
    used: bool = True


@functools.cache
def table(provider: Provider) -> Mapping[str, Row]:
    """Return what a change does on a provider, by key of the stack file below `slurm-stacks:cluster`.

    The order is that of the stack file: first the keys of the cluster's location, last the benchmark. `*` in
    a key stands for home, apps, scratch and state.
    """
    rows = {key: _row(key, said, provider) for key, said in effects().items()}
    taken = {name for row in rows.values() if row.used for name in row.fields}
    for key, row in rows.items():
        if not row.used:
            # What another key says with effect is not said again.
            left = tuple(name for name in row.fields if name not in taken)
            taken.update(left)
            rows[key] = replace(row, fields=left)
    return rows


def effects() -> dict[str, Effect]:
    """Return the effect of each key that has one of its own."""
    by_key = dict(LOCATION)
    for key, own in keys(ClusterConfig):
        if own is not None:
            by_key.setdefault(of_table(key), own)
    return by_key | BENCHMARK


def of_table(key: str) -> str:
    """Return a key as the tables name it.

    One name stands for all directories, and a pool's key for the partition's of the same name.
    """
    return POOL_KEYS.get(key) or _POOL.sub("partitions.", _DIRECTORY.sub("storage.*.", key))


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Effect | None]]:
    """Yield each key of a section at any depth, sections included, and the effect that its field says."""
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        yield key, next((item for item in field.metadata if isinstance(item, Effect)), None)
        if (inner := section_of(field.annotation)) is not None:
            yield from keys(inner, f"{key}.")


def section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the section within the type of a key, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in typing.get_args(annotation):
        if not isinstance(part, types.EllipsisType) and (inner := section_of(part)) is not None:
            return inner
    return None


def _row(key: str, said: Effect, provider: Provider) -> Row:
    outcome: Outcome | None = getattr(said, provider)
    fields = said.design
    if outcome is not None and outcome.design is not None:
        fields = outcome.design
    if fields is None:
        fields = (key.replace(".*", "") if "." in key else f"cluster.{key}",)
    if outcome is not None:
        return Row(outcome.kind, fields, outcome.note, outcome.less)
    elsewhere = provider == "local" or said.aws is not None or said.gcp is not None
    return Row(Kind.NOTHING, fields, WHOSE[provider] if elsewhere else "", used=False)
