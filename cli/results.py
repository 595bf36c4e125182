"""Results that are kept on the engineer's machine, where they outlive their cluster.

Each result has a file in the user's state folder: `results/<stack>/<time>-job-<id>-<digest>-<checkout>.json`.
Two checkouts may have a stack of the same name, so the file name ends with a mark of the checkout
(`infra.program.locations.mark`). Results from older versions have no mark; their checkout is unknown.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra import os_errors
from infra.program import locations
from workload import program_record, result

_MARK = re.compile(r"-job-.*-[0-9a-f]{8}-([0-9a-f]{10})$")


@dataclass(frozen=True, slots=True)
class Kept:
    """A kept result.

    Attributes:
        path: The file.
        record: The valid result record: of the built-in training (`workload.result`), or of a user's program
            (`workload.program_record`).
        checkout: The checkout that kept it; `None` if it is unknown.
    """

    path: Path
    record: dict[str, Any]
    checkout: Path | None = None

    @property
    def program(self) -> bool:
        """Whether it is the result of a user's program, which has other keys."""
        return is_program(self.record)

    @property
    def kept_at(self) -> str:
        """When it was kept, in UTC, such as 20261121T141109Z."""
        return self.path.name.partition("-")[0]


def is_program(record: Mapping[str, Any]) -> bool:
    """Whether a result record is that of a user's program."""
    return record.get("apiVersion") == program_record.API_VERSION


def mistakes(record: Any) -> list[str]:
    """What is wrong with a record of either kind; empty for a valid one."""
    if isinstance(record, dict) and is_program(record):
        return program_record.mistakes(record)
    return result.mistakes(record)


def folder(stack: str) -> Path:
    """The folder of a stack's results; it is not created here."""
    return locations.state_root() / "results" / stack


def keep(stack: str, record: dict[str, Any], project: Path | None = None) -> Path:
    """Keep a result, and return its file. The same result is kept once, however often it is found.

    Args:
        project: The checkout that the result belongs to.

    Raises:
        UserError: The folder cannot be written.
    """
    place = folder(stack)
    text = json.dumps(record, indent=1)
    name = f"job-{record['job_id']}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    for earlier in (*place.glob(f"[!.]*-{name}.json"), *place.glob(f"[!.]*-{name}-*.json")):
        return earlier
    path = place / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{name}.json"
    if project is not None:
        try:
            mark = locations.mark(project)
        except OSError as error:
            raise os_errors.explain(error, path) from error
        path = path.with_name(f"{path.stem}-{mark}.json")
    write_whole(path, text)
    return path


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all. Its folder is made if it is not there.

    Raises:
        UserError: The file cannot be written; no draft of it is left.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text)
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise os_errors.explain(error, path) from error


def load(stack: str, project: Path | None = None) -> tuple[list[Kept], list[str]]:
    """A stack's results, oldest first, and one sentence for each invalid file.

    Args:
        project: The checkout that asks; it may have been renamed since it kept some of them.
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
    """The checkout of a kept file, from the mark at the end of its name."""
    found = _MARK.search(path.stem)
    return None if found is None else locations.marked(found[1], project)


def short_names(checkouts: Iterable[Path | None]) -> dict[Path | None, str | None]:
    """For each checkout the shortest end of its path that no other checkout has; None stays None.

    A report may go to other people, who need not see the whole path.
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
