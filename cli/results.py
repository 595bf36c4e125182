"""Results that are kept on the engineer's machine, where they outlive their cluster.

Each result has a file in the user's state folder: `results/<stack>/<time>-job-<id>-<digest>.json`. It names
the checkout that kept the result, because two checkouts may have a stack of the same name.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cli.hints import hint
from infra import os_errors
from infra.errors import UserError
from infra.program import locations
from infra.program.files import write_atomically
from infra.program.stack import Stack
from workload import result
from workload.files import parse_json

MOST_NAMED = 5
"""The most mistakes of a record that a message has."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A kept result.

    Attributes:
        path: The file.
        record: The valid result record: of the built-in training (`workload.result`), or of a user's program
            (also `workload.result`).
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


class Shown(NamedTuple):
    """A benchmark's result, as the cluster shows it.

    Attributes:
        result: The valid result record.
        owner: The user whose run it is, if that is not who asks. The same request is the same run for all
            users of a cluster, and what another user has written is not one's own result.
        folder: The run's folder on the cluster.
    """

    result: dict[str, Any]
    owner: str | None
    folder: str

    @property
    def own(self) -> dict[str, Any] | None:
        """The result, unless it is another user's."""
        return self.result if self.owner is None else None

    def whose(self) -> str:
        """One sentence on another user's result."""
        return (
            f"this result is {self.owner}'s, whose run {self.folder} is: it is shown as it was found "
            "there, and is neither kept nor compared. Change a value of the benchmark (such as its seed) "
            "for a run of your own"
        )


def shown(seen: Mapping[str, Any]) -> Shown:
    """Return the result in what the cluster says of a run (`node.benchmark.Run.show`).

    Raises:
        UserError: It is not valid. It comes from a job, which may write anything.
    """
    check(seen["result"])
    return Shown(seen["result"], seen.get("owner"), seen["folder"])


def is_program(record: Mapping[str, Any]) -> bool:
    """Return whether a result record is that of a user's program."""
    return record.get("apiVersion") == result.PROGRAM_API_VERSION


def mistakes(record: Any) -> list[str]:
    """Return what is wrong with a record of either kind; empty for a valid one."""
    if isinstance(record, dict) and is_program(record):
        return result.program_mistakes(record)
    return result.mistakes(record)


def check(record: Any) -> None:
    """Refuse a record that is not valid. It comes from a job, which may write anything.

    Raises:
        UserError: The message has the first mistakes.
    """
    if wrong := mistakes(record):
        more = f"; and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
        raise UserError(
            f"the job's result is not valid: {'; '.join(wrong[:MOST_NAMED])}{more}", code="result.not-valid"
        )


def folder(stack: str) -> Path:
    """Return the folder of a stack's results; it is not created here."""
    return locations.state_root() / "results" / stack


def keep(stack: str, record: dict[str, Any], project: Path | None = None) -> Path:
    """Keep a result, and return its file. The same result is kept once, however often it is found.

    Args:
        project: The checkout that the result belongs to.

    Raises:
        UserError: The record is not valid, or the folder cannot be written.
    """
    check(record)
    place = folder(stack)
    text = json.dumps(record, indent=1)
    name = f"job-{record['job_id']}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    pattern = f"[!.]*-{name}.json"
    for earlier in place.glob(pattern):
        return earlier
    path = place / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{name}.json"
    checkout = None if project is None else str(project.resolve())
    write_whole(path, json.dumps({"checkout": checkout, "result": record}, indent=1))
    # Another process may have kept it at the same moment: the first of them stays.
    first, *again = sorted(place.glob(pattern))
    for file in again:
        file.unlink(missing_ok=True)
    return first


def keep_own(stack: Stack, shown: Shown, where: object, say: Callable[[str, str], None]) -> None:
    """Keep one's own result where it outlives the cluster; if that fails, say where it is until then.

    Args:
        where: The result's path on the cluster.
        say: Says a line in a style.
    """
    if shown.own is None:
        return say(shown.whose(), "yellow")
    try:
        say(f"kept as {keep(stack.name, shown.own, stack.project)}", "dim")
    except UserError as error:
        say(
            f"the result is not kept: {error}\nUntil `{hint('down', stack.name)}` it lies in {where}.",
            "yellow",
        )


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all. Its folder is made if it is not there.

    Raises:
        UserError: The file cannot be written; no draft of it is left.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise os_errors.explain(error, path) from error


def load(stack: str) -> tuple[list[Kept], list[str]]:
    """Return a stack's results, oldest first, and one sentence for each invalid file."""
    kept: list[Kept] = []
    wrong: list[str] = []
    # A name that begins with a dot is a draft of `keep`.
    for path in sorted(folder(stack).glob("[!.]*.json")):
        try:
            checkout, record = _parse(path.read_text())
        except (OSError, ValueError) as error:
            wrong.append(f"{path}: {error}")
            continue
        if problems := mistakes(record):
            wrong.append(f"{path}: {'; '.join(problems[:MOST_NAMED])}")
        else:
            kept.append(Kept(path, record, checkout))
    return kept, wrong


def _parse(text: str) -> tuple[Path | None, Any]:
    """Return the checkout and the result record of a kept file.

    Raises:
        ValueError: It is not a kept file.
    """
    content = parse_json(text)
    if not isinstance(content, dict) or set(content) != {"checkout", "result"}:
        raise ValueError("an object with `checkout` and `result` is expected")
    checkout = content["checkout"]
    if not isinstance(checkout, str | None):
        raise ValueError(f"checkout: {checkout!r} is no path")
    return None if checkout is None else Path(checkout), content["result"]


def short_names(checkouts: Iterable[Path | None]) -> dict[Path | None, str | None]:
    """Return for each checkout the shortest end of its path that no other checkout has; None stays None.

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
