"""Results that are kept on the engineer's machine, where they outlive their cluster.

One file a result, below the user's state folder: `results/<stack>/<time>-job-<id>-<digest>-<checkout>.json`.
Two checkouts may have a stack of one name, so the name ends in a mark of the checkout
(`infra.runner.locations.mark`). Results that older versions have kept have none: their checkout is unknown.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra import trouble
from infra.runner import locations
from workload.result import mistakes

_MARK = re.compile(r"-job-.*-[0-9a-f]{8}-([0-9a-f]{10})$")


@dataclass(frozen=True, slots=True)
class Kept:
    """A kept result.

    Attributes:
        path: its file.
        record: the result record (`workload.result`), valid.
        checkout: from which it was kept; None: nobody knows.
    """

    path: Path
    record: dict[str, Any]
    checkout: Path | None = None

    @property
    def kept_at(self) -> str:
        """When it was kept, UTC: 20261121T141109Z."""
        return self.path.name.partition("-")[0]


def folder(stack: str) -> Path:
    """Where a stack's results are kept; not created here."""
    return locations.state_root() / "results" / stack


def keep(stack: str, result: dict[str, Any], project: Path | None = None) -> Path:
    """Copy a result there. The same one is kept once, however often it is found.

    Args:
        project: the checkout whose result it is.

    Raises:
        UserError: that folder cannot be written.
    """
    place = folder(stack)
    text = json.dumps(result, indent=1)
    name = f"job-{result['job_id']}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    for earlier in (*place.glob(f"[!.]*-{name}.json"), *place.glob(f"[!.]*-{name}-*.json")):
        return earlier
    path = place / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{name}.json"
    draft = path.with_name(f".{path.name}")
    try:
        place.mkdir(parents=True, exist_ok=True)
        draft.write_text(text)
        if project is not None:
            path = path.with_name(f"{path.stem}-{locations.mark(project)}.json")
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise trouble.explain(error, path) from error
    return path


def load(stack: str, project: Path | None = None) -> tuple[list[Kept], list[str]]:
    """A stack's results, oldest first, and what is wrong with files that are none.

    Args:
        project: the checkout that asks, which may have been renamed since it kept some of them.
    """
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
            kept.append(Kept(path, record, _checkout(path, project)))
    return kept, wrong


def _checkout(path: Path, project: Path | None) -> Path | None:
    """Whose a kept file is, by the mark at the end of its name."""
    found = _MARK.search(path.stem)
    return None if found is None else locations.marked(found[1], project)


def short_names(checkouts: Iterable[Path | None]) -> dict[Path | None, str | None]:
    """Each checkout by as many of its last folders as tell it from the others; None stays None.

    A report may go to others, whom the rest of the path does not concern.
    """
    paths = {path for path in checkouts if path is not None}
    longest = max((len(path.parts) for path in paths), default=1)
    names: dict[Path | None, str | None] = {None: None}
    for path in paths:
        for length in range(1, longest + 1):
            tail = path.parts[-length:]
            if sum(other.parts[-length:] == tail for other in paths) == 1:
                break
        names[path] = "/".join(tail).replace("//", "/")
    return names
