"""How the last backups of a cluster went, for `./cluster status` and `./cluster doctor`.

It imports next to nothing: each status reads it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.design.folders import Folders
from node.design.model import Settings
from node.system import files, foreign

if TYPE_CHECKING:
    from node.backup.archive import Manifest

RECORD = "backup.json"
"""The file in `Folders.lib`. It has no secrets."""
LATE = 2
"""After how many intervals without a backup something is wrong."""
HOUR = 3600.0
_BACKUP: Mapping[str, type] = {"at": float, "name": str, "place": str, "bytes": float, "seconds": float}
FIELDS: Mapping[str, Mapping[str, type]] = {
    "last": _BACKUP, "scheduled": _BACKUP, "failure": {"at": float, "message": str},
}  # fmt: skip
"""The entries of the record, with their fields. An entry of another form counts as none."""


def _file(settings: Settings) -> Path:
    return Path(str(Folders(settings).lib)) / RECORD


def read(settings: Settings) -> dict[str, Any]:
    try:
        recorded = foreign.record(_file(settings))
    except (OSError, ValueError):
        return {}
    if not isinstance(recorded, dict):
        return {}
    return {key: recorded[key] for key, fields in FIELDS.items() if _fits(recorded.get(key), fields)}


def _fits(entry: object, fields: Mapping[str, type]) -> bool:
    """Return whether an entry has its fields, and its time is one."""
    if not isinstance(entry, dict) or entry.keys() != fields.keys():
        return False
    numbers = (entry[name] for name, kind in fields.items() if kind is float)
    texts = (entry[name] for name, kind in fields.items() if kind is str)
    return (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(n, int | float) and not isinstance(n, bool) and n >= 0 for n in numbers)
        and foreign.is_time(entry["at"])
    )


def note_success(settings: Settings, manifest: Manifest, place: str, seconds: float) -> None:
    """Note a backup that was written.

    Args:
        place: The bucket, or `a file`.
        seconds: How long it took.
    """
    wanted = settings.design.backup
    entry = {
        "at": manifest.created, "name": manifest.name, "place": place, "bytes": manifest.size,
        "seconds": round(seconds, 1),
    }  # fmt: skip
    record = {**read(settings), "last": entry}
    if wanted is not None and place == wanted.bucket:
        record |= {"scheduled": entry, "failure": None}
    files.write(_file(settings), json.dumps(record, indent=1).encode())


def note_failure(settings: Settings, message: str) -> None:
    failure = {"at": round(time.time(), 3), "message": " ".join(message.split())[:500]}
    files.write(_file(settings), json.dumps({**read(settings), "failure": failure}, indent=1).encode())


def status(settings: Settings, now: Callable[[], float] = time.time) -> dict[str, Any] | None:
    """Return what `./cluster status --json` says of backups; `None` if there are none and none are wanted."""
    wanted, record = settings.design.backup, read(settings)
    if wanted is None and "last" not in record:
        return None
    since = (record.get("scheduled") or {}).get("at")
    late = wanted is not None and since is not None and now() - since > LATE * wanted.every_hours * HOUR
    return {
        "bucket": None if wanted is None else wanted.bucket,
        "every_hours": None if wanted is None else wanted.every_hours,
        "keep": None if wanted is None else wanted.keep,
        "last": record.get("last"),
        "failure": None if wanted is None else record.get("failure"),
        "late": late,
    }
