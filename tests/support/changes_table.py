"""Checks of each provider's table of changes: it has every key of a stack file and every design field.

`python -m tests.support.changes_table` writes the three tables into docs/reference/changes.md as one.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from pydantic import BaseModel

from cli.changes import table as changes
from cli.changes.table import Kind, Row
from cli.providers.aws.changes import TABLE as AWS
from cli.providers.gcp.changes import TABLE as GOOGLE
from cli.providers.local.running import TABLE as LOCAL
from infra.config.cluster import ClusterConfig
from node.design.model import ClusterDesign
from tests.support.checkout import ROOT

PAGE = ROOT / "docs" / "reference" / "changes.md"
TABLE = re.compile(r"^\| key \|.*\n(?:\|.*\n)+", re.MULTILINE)
"""The page's table of keys."""
PROVIDERS = {"AWS": AWS, "Google Cloud": GOOGLE, "local": LOCAL}
SHORT = {
    Kind.LIVE: "live",
    Kind.RENEWED: "retire",
    Kind.NODES: "new nodes",
    Kind.PAUSE: "restart",
    Kind.ENDS: "ends jobs",
    Kind.TAKEOVER: "takeover",
    Kind.MOVED: "**new head**",
    Kind.DATA: "**recreated**",
    Kind.NEVER: "no",
    Kind.NOTHING: "–",
}
"""The page's word for each kind, which a table of its own explains."""
WHOSE = {"AWS's", "Google Cloud's", "the clouds'", "a local stack uses this machine's hardware as it is"}
"""Remarks that only say whose a key is, as the columns do."""


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


def document() -> str:
    """Return the page's table: a line for all keys with the same effect on each provider.

    Keys that change nothing anywhere are left out.
    """
    alike: dict[tuple[str, ...], list[str]] = {}
    for key in dict.fromkeys(key for table in PROVIDERS.values() for key in table):
        found = [table.get(key) for table in PROVIDERS.values()]
        cells = [_effect(row) for row in found]
        if set(cells) != {"–"} or any(row and _remark(row) for row in found):
            alike.setdefault((*cells, _remarks(found)), []).append(f"`{key}`")
    lines = [f"| key | {' | '.join(PROVIDERS)} | |", "|---|---|---|---|---|"]
    lines += [f"| {', '.join(same)} | {' | '.join(cells)} |" for cells, same in alike.items()]
    return "\n".join(lines) + "\n"


def _effect(row: Row | None) -> str:
    if row is None:
        return "–"
    less = f"; less: {SHORT[row.less]}" if row.less is not None else ""
    return SHORT[row.kind] + less


def _remarks(found: Collection[Row | None]) -> str:
    """Return what the rows of a key say besides, with the providers where not all say it."""
    saying: dict[str, list[str]] = {}
    for name, row in zip(PROVIDERS, found, strict=True):
        if row is not None and (_remark(row) or row.kind is not Kind.NOTHING):
            saying.setdefault(_remark(row), []).append(name)
    if len(saying) == 1:
        return next(iter(saying))
    return "; ".join(f"{', '.join(names)}: {remark}" for remark, names in saying.items() if remark)


def _remark(row: Row) -> str:
    return "" if row.note in WHOSE else row.note


def main() -> None:
    """Write the table into the page."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(TABLE.sub(lambda _found: document(), text), encoding="utf-8")


if __name__ == "__main__":
    main()
