"""The table of docs/reference/changes.md: what a change of each key does on each provider."""

from __future__ import annotations

import re
from collections.abc import Collection

from infra.config import changes
from infra.config.changes import Provider, Row
from infra.effects import HERE, Kind

TABLE = re.compile(r"^\| key \|.*\n(?:\|.*\n)+", re.MULTILINE)
"""The page's table of keys."""
PROVIDERS: dict[str, Provider] = {"AWS": "aws", "Google Cloud": "gcp", "local": "local"}
"""The page's columns."""
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


def page(text: str) -> str:
    """Return the page with the table of the keys as they are now."""
    return TABLE.sub(lambda _old: table(), text)


def table() -> str:
    """Return a line for all keys with the same effect on each provider; none for those without any."""
    tables = [changes.table(provider) for provider in PROVIDERS.values()]
    alike: dict[tuple[str, ...], list[str]] = {}
    for key in tables[0]:
        rows = [table[key] for table in tables]
        cells = [_effect(row) for row in rows]
        if set(cells) != {"–"} or any(_remark(row) for row in rows):
            alike.setdefault((*cells, _remarks(rows)), []).append(f"`{key}`")
    lines = [f"| key | {' | '.join(PROVIDERS)} | |", "|---|---|---|---|---|"]
    lines += [f"| {', '.join(same)} | {' | '.join(cells)} |" for cells, same in alike.items()]
    return "\n".join(lines) + "\n"


def _effect(row: Row) -> str:
    less = f"; less: {SHORT[row.less]}" if row.less is not None else ""
    return SHORT[row.kind] + less


def _remarks(rows: Collection[Row]) -> str:
    """Return what the rows of a key say besides, with the providers where not all say it."""
    saying: dict[str, list[str]] = {}
    for name, row in zip(PROVIDERS, rows, strict=True):
        if _remark(row) or row.kind is not Kind.NOTHING:
            saying.setdefault(_remark(row), []).append(name)
    if len(saying) == 1:
        return next(iter(saying))
    return "; ".join(f"{', '.join(names)}: {remark}" for remark, names in saying.items() if remark)


def _remark(row: Row) -> str:
    """Return a row's remark; none where it only says whose a key is, as the columns do."""
    return "" if not row.used or row.note == HERE else row.note
