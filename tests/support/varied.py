"""A partition with another value of each field in turn, and which of them nodes are to be made anew for."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

from infra.config import changes
from infra.effects import Kind
from node.design.accelerators import Accelerator
from node.design.model import Partition
from node.design.storage import Gp3
from node.slurm.hardware import Hardware

VALUES: dict[str, Any] = {
    "accelerator": Accelerator("t4", 1),
    "launch_template_overrides": '{"ebs_optimized": true}',
    "instance_template_overrides": '{"can_ip_forward": true}',
    "time_limit": "01:00:00",
}
"""Values of fields that take no other one of their type."""
OTHER: dict[Any, Callable[[Any], Any]] = {
    bool: lambda old: not old,
    int: lambda old: (old or 0) + 4,
    float: lambda old: (old or 0.0) + 1.0,
    str: lambda old: f"{old or 'other'}-2",
    Gp3: lambda old: Gp3(6000, 400),
    tuple[str, ...]: lambda old: (*old, "other"),
}
"""Type -> another value of it."""


def partitions(base: Partition, cloud: Literal["aws", "gcp"]) -> Iterator[tuple[str, Partition]]:
    """Yield each field that a key of this cloud shows, and the partition with another value of it.

    Raises:
        LookupError: A field has a type of which no other value is known.
    """
    for name, value in _others(base):
        # A pool of another name is another part of the cluster.
        if name not in ("aws", "gcp", "pool"):
            yield f"partitions.{name}", replace(base, **{name: value})
    own: Any = getattr(base, cloud)
    for name, value in _others(own):
        section: Any = {cloud: replace(own, **{name: value})}
        yield f"partitions.{cloud}.{name}", replace(base, **section)


def _others(part: Any) -> Iterator[tuple[str, Any]]:
    hints = typing.get_type_hints(type(part))
    for field in dataclasses.fields(part):
        old, hint = getattr(part, field.name), hints[field.name]
        kinds = [hint, *typing.get_args(hint)]
        if field.name in VALUES:
            yield field.name, VALUES[field.name]
        elif made := next((OTHER[kind] for kind in kinds if kind in OTHER), None):
            yield field.name, made(old)
        elif not dataclasses.is_dataclass(hint):
            raise LookupError(f"{field.name}: {hint}")


def renewed(base: Partition, cloud: Literal["aws", "gcp"], template: Callable[[Partition], Any]) -> set[str]:
    """Return the fields of which another value makes another template, or another line in slurm.conf.

    The driver compares the versions of templates, and the daemon compares lines. What a key says of a change
    must not contradict them: the result is checked against `infra.config.changes`.

    Args:
        template: Gives the template of a partition's nodes.
    """
    rows = {field: row for row in changes.table(cloud).values() for field in row.fields}
    usual, told, said = template(base), set(), set()
    for field, one in partitions(base, cloud):
        if field in rows:
            told |= {field} if template(one) != usual or Hardware.of(one) != Hardware.of(base) else set()
            said |= {field} if rows[field].kind is Kind.RENEWED else set()
    assert said == told, f"said only: {said - told}; told only: {told - said}"
    return said
