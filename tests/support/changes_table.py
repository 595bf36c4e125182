"""Checks of each provider's table of changes: it has every key of a stack file and every design field."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from pydantic import BaseModel

from cli.changes import table as changes
from cli.changes.table import Kind, Row
from infra.config.cluster import ClusterConfig
from node.model import ClusterDesign


def check_keys(table: Mapping[str, Row], outside: Collection[str]) -> None:
    """Check that every key of a stack file has one row, and that no row is about a key that does not exist.

    Args:
        outside: rows about keys that are not below slurm-stacks:cluster.
    """
    found = list(keys(ClusterConfig))
    assert len(found) > 80, "the walk goes into the sections"
    assert {key: rows(table, key) for key in found if len(rows(table, key)) != 1} == {}
    used = {row for key in found for row in rows(table, key)}
    assert set(table) - used == set(outside)


def check_fields(table: Mapping[str, Row], unseen: Collection[str], design: ClusterDesign) -> None:
    """Check that every field of the design has a row, so that a new field cannot change silently.

    Args:
        unseen: fields that follow from others, or have a rule of their own.
        design: a design with a host of each role, a partition and a mount.
    """
    there = {
        f"{section}.{field.name}"
        for section, _, value in changes.parts(design).values()
        for field in dataclasses.fields(value)
    }
    whole = {"hosts", "partitions", "mounts", "local", "batch", *changes.SECTIONS}
    there -= {f"cluster.{name}" for name in whole}
    named = [field for row in table.values() for field in row.fields]
    assert len(named) == len(set(named))
    assert set(named) & set(unseen) == set()
    assert set(named) | set(unseen) == there


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Return every key that a stack file may have, at any depth."""
    for name, field in model.model_fields.items():
        deeper = inner_model(field.annotation)
        yield from keys(deeper, f"{prefix}{name}.") if deeper else [f"{prefix}{name}"]


def rows(table: Mapping[str, Row], key: str) -> list[str]:
    exact = [row for row in table if "*" not in row and (key == row or key.startswith(f"{row}."))]
    if exact:
        # A key may have a row of its own besides that of its section.
        return [row for row in exact if row == max(exact, key=len)]
    return [row for row in table if "*" in row and fnmatchcase(key, row)]


def inner_model(annotation: Any) -> type[BaseModel] | None:
    """Return the model within an annotation, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in typing.get_args(annotation):
        if not isinstance(part, types.EllipsisType) and (found := inner_model(part)) is not None:
            return found
    return None


def document(table: Mapping[str, Row]) -> list[str]:
    """Return the table as a page of the documentation has it: one line for all keys with the same effect."""
    order = [Kind.LIVE, Kind.RENEWED, Kind.NODES, Kind.PAUSE, Kind.ENDS, Kind.HEAD, Kind.DATA, Kind.NOTHING]
    alike: dict[Row, list[str]] = {}
    for key, row in sorted(table.items(), key=lambda item: order.index(item[1].kind)):
        alike.setdefault(dataclasses.replace(row, fields=()), []).append(key)
    lines = ["| key | what `up` does |", "|---|---|"]
    for row, same in alike.items():
        said = [row.kind.value, *([row.note] if row.note else [])]
        if row.less is not None and "less" not in row.note:
            said.append(f"less: {row.less.value}")
        lines.append(f"| {', '.join(f'`{key}`' for key in same)} | {'; '.join(said)} |")
    return lines
