"""The records of a Batch stack's runs, kept on this machine where they outlive the stack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cli import results
from infra.program import locations


def folder(stack: str) -> Path:
    """The folder of a stack's records; it is not created here."""
    return locations.state_root() / "batch" / stack


def keep(stack: str, record: dict[str, Any]) -> Path:
    """Keep a record by its job's id, and return its file.

    Raises:
        UserError: The folder cannot be written.
    """
    path = folder(stack) / f"{record['job_id']}.json"
    results.write_whole(path, json.dumps(record, indent=1))
    return path


def load(stack: str) -> list[dict[str, Any]]:
    """A stack's records by number of nodes, and of equal ones the oldest first, without unreadable files."""
    found = []
    for path in sorted(folder(stack).glob("[!.]*.json"), key=lambda one: one.stat().st_mtime):
        try:
            record = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(record, dict) and isinstance(record.get("nodes"), int):
            found.append(record)
    return sorted(found, key=lambda record: int(record["nodes"]))


def rate(record: dict[str, Any]) -> float | None:
    """Images a second of a record; `None` where its program reported none."""
    found = record.get("result", {}).get("images_per_second")
    return float(found) if isinstance(found, int | float) else None
