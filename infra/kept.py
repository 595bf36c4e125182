"""Facts of machine types that a cloud was asked about, kept between commands.

One file in the user's state directory, for all checkouts: `plan`, which asks nobody, and the program that the
engine runs read the same facts as the `up` that asked. A type that a later version of the tables knows is
read from them again, and a stack file's own facts win over both. `doctor` asks anew and replaces what is
kept; to remove the file is always safe.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra.runner import locations

FORMAT = 1
PARTS = ("machines", "unusable")


def path() -> Path:
    """Where they are; nothing needs to be there."""
    return locations.state_root() / "machines.json"


def stamp() -> tuple[str, int]:
    """The file and its age: another one where there is something new to read."""
    file = path()
    try:
        return str(file), file.stat().st_mtime_ns
    except OSError:
        return str(file), 0


def read() -> dict[str, dict[str, Any]]:
    """What is kept, by part and by type; empty parts where the file is missing or cannot be read: a lost
    file costs a question.
    """
    try:
        content = json.loads(path().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        content = {}
    parts = {part: content.get(part) for part in PARTS}
    return {part: dict(found) if isinstance(found, dict) else {} for part, found in parts.items()}


def keep(new: Mapping[str, Mapping[str, Any]]) -> None:
    """Add to what is kept; a type that is in `new` is in no other part any more.

    Raises:
        OSError: the state directory cannot be written.
    """
    there = read()
    names = {name for part in PARTS for name in new.get(part, {})}
    content: dict[str, Any] = {"format": FORMAT}
    for part in PARTS:
        old = {name: facts for name, facts in there[part].items() if name not in names}
        content[part] = dict(sorted({**old, **new.get(part, {})}.items()))
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all: another command may read it at this moment.
    with tempfile.NamedTemporaryFile("w", dir=file.parent, encoding="utf-8", delete=False) as whole:
        json.dump(content, whole, indent=1)
    os.replace(whole.name, file)  # noqa: PTH105
