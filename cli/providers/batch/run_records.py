"""The records of a Batch stack's runs, kept on this machine where they outlive the stack."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from cli import results
from infra.errors import UserError
from infra.program import locations
from node.system.foreign import parse

LARGEST = 1e15
_JOB_ID = re.compile(r"[A-Za-z0-9-]{1,128}")


def records_folder(stack: str) -> Path:
    """Return the folder of a stack's records; it is not created here."""
    return locations.state_root() / "batch" / stack


def keep_record(stack: str, record: dict[str, Any]) -> Path:
    """Keep a record by its job's id, and return its file.

    Raises:
        UserError: The folder cannot be written, or the id is none: a file is named after it.
    """
    if not _JOB_ID.fullmatch(str(record["job_id"])):
        raise UserError(
            f"{record['job_id']!r} is no id of a Batch job, so its result is not kept", code="batch.job-id"
        )
    path = records_folder(stack) / f"{record['job_id']}.json"
    results.write_whole(path, json.dumps(record, indent=1))
    return path


def load_records(stack: str) -> list[dict[str, Any]]:
    """Return a stack's readable records by number of nodes, and of equal ones the oldest first."""
    loaded = []
    for path in sorted(records_folder(stack).glob("[!.]*.json"), key=lambda file: file.stat().st_mtime):
        try:
            record = parse(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(record, dict) and isinstance(record.get("nodes"), int):
            loaded.append(record)
    return sorted(loaded, key=lambda record: int(record["nodes"]))


def rate(record: dict[str, Any]) -> float | None:
    """Images a second of a record; `None` where its program reported none."""
    result = record.get("result")
    per_second = result.get("images_per_second") if isinstance(result, dict) else None
    # A job's log has said it, and may say anything.
    if (
        isinstance(per_second, bool)
        or not isinstance(per_second, int | float)
        or not 0 <= per_second <= LARGEST
    ):
        return None
    return float(per_second)
