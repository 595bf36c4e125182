"""Facts of instance types that a cloud has given, kept between commands.

They are in one file in the user's state directory, for all checkouts. So `plan`, which asks no cloud, and
the Pulumi program read the same facts as the `up` that asked. If a later version of the tables has the type,
the tables win; a stack file's own facts win over both. `doctor` asks again and replaces the facts. The file
can be removed at any time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra.program import locations
from infra.program.files import write_atomically
from node.system import foreign

FORMAT = 1
PARTS = ("machines", "unusable")


def path() -> Path:
    """Return the path of the file, which need not exist."""
    return locations.state_root() / "machines.json"


def stamp() -> tuple[str, int]:
    """Return the file and its time of change, which differ when there is something new to read."""
    file = path()
    try:
        return str(file), file.stat().st_mtime_ns
    except OSError:
        return str(file), 0


def read() -> dict[str, dict[str, Any]]:
    """Return the kept facts, by part and by instance type.

    The parts are empty if the file is missing or cannot be read: a cloud is then asked again.
    """
    try:
        content = foreign.record(path())
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        content = {}
    parts = {part: content.get(part) for part in PARTS}
    return {part: dict(facts) if isinstance(facts, dict) else {} for part, facts in parts.items()}


def keep(new: Mapping[str, Mapping[str, Any]]) -> None:
    """Add facts to the file. A type that is in `new` is removed from all other parts.

    Raises:
        OSError: The state directory cannot be written to.
    """
    kept = read()
    names = {name for part in PARTS for name in new.get(part, {})}
    content: dict[str, Any] = {"format": FORMAT}
    for part in PARTS:
        old = {name: facts for name, facts in kept[part].items() if name not in names}
        content[part] = dict(sorted({**old, **new.get(part, {})}.items()))
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps(content, indent=1))
