"""Results that are kept on the engineer's machine, where they outlive their cluster.

One file a result, below the user's state folder: `results/<stack>/<time>-job-<id>-<digest>.json`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra import trouble
from infra.runner import locations
from workload.result import mistakes


@dataclass(frozen=True, slots=True)
class Kept:
    """A kept result.

    Attributes:
        path: its file.
        record: the result record (`workload.result`), valid.
    """

    path: Path
    record: dict[str, Any]

    @property
    def kept_at(self) -> str:
        """When it was kept, UTC: 20261121T141109Z."""
        return self.path.name.partition("-")[0]


def folder(stack: str) -> Path:
    """Where a stack's results are kept; not created here."""
    return locations.state_root() / "results" / stack


def keep(stack: str, result: dict[str, Any]) -> Path:
    """Copy a result there. The same one is kept once, however often it is found.

    Raises:
        UserError: that folder cannot be written.
    """
    place = folder(stack)
    text = json.dumps(result, indent=1)
    mark = f"job-{result['job_id']}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"
    for earlier in place.glob(f"*-{mark}"):
        return earlier
    path = place / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{mark}"
    draft = path.with_name(f".{path.name}")
    try:
        place.mkdir(parents=True, exist_ok=True)
        draft.write_text(text)
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise trouble.explain(error, path) from error
    return path


def load(stack: str) -> tuple[list[Kept], list[str]]:
    """A stack's results, oldest first, and what is wrong with files that are none."""
    kept: list[Kept] = []
    wrong: list[str] = []
    # A name that begins with a dot is a draft of `keep`.
    for path in sorted(folder(stack).glob("[!.]*.json")):
        try:
            record = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            wrong.append(f"{path}: {error}")
            continue
        if found := mistakes(record):
            wrong.append(f"{path}: {'; '.join(found)}")
        else:
            kept.append(Kept(path, record))
    return kept, wrong
