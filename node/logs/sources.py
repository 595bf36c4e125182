"""The sources that can be shown and followed: log files, selected lines of them, and boot reports."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from node.bootstrap import report
from node.logs.text import UnreadableError, Wanted, age, decoded, open_log, printable, size, tail

HOLD_SECONDS = 1.0
"""How long an incomplete line is held back until its rest arrives."""
CLOCK_SECONDS = 5.0
"""How far the clock of a file's server, or of a node, may be behind the controller's."""


class Source(Protocol):
    """A log that may grow."""

    @property
    def heading(self) -> str:
        """The log's title, path, size and age."""
        ...

    def last(self, count: int) -> list[str]:
        """Return the last lines, or in brackets why there are none.

        An empty list means that not even the heading is shown. `more` continues from there.
        """
        ...

    def more(self) -> list[str]:
        """Return the lines that were added since the last call."""
        ...


@dataclass(slots=True)
class Note:
    """A text of our own among the logs."""

    heading: str
    lines: list[str]

    def last(self, _count: int) -> list[str]:
        return [printable(line) for line in self.lines]

    def more(self) -> list[str]:
        return []


class LogFile:
    """A log file, which may grow, be rotated, be truncated, or not exist yet.

    Args:
        missing: Why the file may not exist. `None` means that a missing or empty file is not mentioned.
        wanted: A filter for the lines to show. `None` means all lines.
        since: When the job was submitted that writes this file, in seconds since the epoch. A file that was
            last written earlier is not shown until the job writes it. `None` means that any file is shown.
        owner: The number of the user whose file it must be, because others choose the path. `None` means that
            anybody's will do.
    """

    def __init__(
        self,
        title: str,
        path: Path,
        missing: str | None,
        wanted: Wanted | None = None,
        since: float | None = None,
        owner: int | None = None,
    ) -> None:
        self._title = title
        self.path = path
        self._missing = missing
        self._wanted = wanted
        self._since = since
        self._owner = owner
        self._descriptor: int | None = None
        self._position = 0
        self._part = b""
        self._part_since = 0.0

    @property
    def heading(self) -> str:
        title = printable(f"{self._title}: {self.path}")
        try:
            info = self.path.stat()
        except OSError:
            return title
        if is_earlier(info, self._since) or self._owner not in (None, info.st_uid):
            return title
        return f"{title} ({size(info.st_size)}, {age(info.st_mtime)})"

    def last(self, count: int) -> list[str]:
        try:
            self._descriptor = open_log(self.path, self._owner)
        except FileNotFoundError:
            return [f"(not there: {self._missing})"] if self._missing is not None else []
        except UnreadableError as error:
            return [f"(cannot be shown: {error})"]
        if is_earlier(os.fstat(self._descriptor), self._since):
            os.close(self._descriptor)
            self._descriptor = None
            return ["(the job has not written anything yet: this file is older than the job)"]
        lines, self._position = tail(self._descriptor, count, self._wanted)
        if lines or self._missing is None:
            return lines
        return ["(empty)" if self._wanted is None else "(nothing about it)"]

    def more(self) -> list[str]:
        found: list[str] = []
        if self._descriptor is not None:
            if os.fstat(self._descriptor).st_size < self._position:
                # The file was truncated and written again, as some programs rotate logs.
                self._position, self._part = 0, b""
            found += self._read()
        if self._replaced():
            if self._descriptor is not None:
                os.close(self._descriptor)
                found += self._flush()
            with contextlib.suppress(FileNotFoundError, UnreadableError):
                self._descriptor = None
                self._descriptor, self._position = open_log(self.path, self._owner), 0
                found += self._read()
        if self._part and time.monotonic() - self._part_since > HOLD_SECONDS:
            found += self._flush()
        return found if self._wanted is None else [line for line in found if self._wanted(line)]

    def _replaced(self) -> bool:
        """Return whether the path now leads to a different file than the open one."""
        try:
            status = self.path.stat()
        except OSError:
            return False
        if self._descriptor is None:
            return not is_earlier(status, self._since)
        opened = os.fstat(self._descriptor)
        return (status.st_dev, status.st_ino) != (opened.st_dev, opened.st_ino)

    def _read(self) -> list[str]:
        assert self._descriptor is not None
        found: list[str] = []
        while block := os.pread(self._descriptor, 1 << 16, self._position):
            self._position += len(block)
            *lines, self._part = (self._part + block).split(b"\n")
            self._part_since = time.monotonic()
            found += map(decoded, lines)
        return found

    def _flush(self) -> list[str]:
        part, self._part = self._part, b""
        return [decoded(part)] if part else []


def is_earlier(info: os.stat_result, since: float | None) -> bool:
    """Return whether a file was last written before a time. `None` is before all files."""
    return since is not None and info.st_mtime < since - CLOCK_SECONDS


class BootReport:
    """A machine's boot report (`node.bootstrap.report`), with one line per step.

    Args:
        missing: Why there may be none.
        asked_at: When Slurm last asked for the node, in seconds since the epoch; `None` means not known. An
            older report is of an earlier machine.
    """

    def __init__(self, path: Path, missing: str, asked_at: float | None = None) -> None:
        self._path = path
        self._missing = missing
        self._asked = asked_at
        self._shown: list[str] = []

    @property
    def heading(self) -> str:
        try:
            return f"boot report: {self._path} ({age(self._path.stat().st_mtime)})"
        except OSError:
            return f"boot report: {self._path}"

    def last(self, _count: int) -> list[str]:
        self._shown = self._lines()
        return self._shown

    def more(self) -> list[str]:
        lines = self._lines()
        new = [line for line in lines if line not in self._shown]
        self._shown = lines
        return new

    def _lines(self) -> list[str]:
        try:
            with self._path.open("rb") as stream:
                content = report.displayable(stream.read(report.OWN_BYTES + 1))
        except FileNotFoundError:
            return [f"(not there: {self._missing})"]
        except OSError as error:
            return [f"(cannot be shown: {error!r})"]
        if content is None:
            return ["(cannot be shown: it is no boot report)"]
        return [*self._age(content["started"]), *(printable(line) for line in report_lines(content))]

    def _age(self, started: float) -> list[str]:
        if self._asked is None or started >= self._asked - CLOCK_SECONDS:
            return []
        moment = time.strftime("%FT%TZ", time.gmtime(self._asked))
        return [
            f"(an earlier machine's: no machine has written one since Slurm asked for the node at {moment})"
        ]


def report_lines(content: dict[str, Any]) -> list[str]:
    """Return a boot report as lines: its result, then its steps with their times."""
    started = time.strftime("%FT%TZ", time.gmtime(content["started"]))
    ended = content.get("ended")
    seconds = f" after {ended - content['started']:.1f} s" if ended else ""
    lines = [f"{content['host']} ({content['role']}): {content['state']}{seconds}, begun {started}"]
    for step in content["steps"]:
        took = "" if step["seconds"] is None else f"{step['seconds']:.1f} s"
        lines.append(f"  {step['name']:<13}{step['state']:<9}{took:>8}  {step.get('note') or ''}".rstrip())
        lines += [f"    {line}" for line in step.get("tail", [])]
    return lines


# Explains lines in a job's output that say too little: what they mean, and what to do.

MOST_LINES = 400
"""The last lines of an output that are looked through."""
PAGE = 'docs/own_training.md, "Scripts from elsewhere"'
_RECURSION = re.compile(r"RecursionError: maximum recursion depth exceeded")
MEANINGS = (
    (
        re.compile(r": (source|\[\[|declare|shopt|pushd|popd): not found$"),
        "dash, which is /bin/sh on Debian and Ubuntu, has no {0}, and the script went on without what it "
        f"should have done: let it begin with #!/bin/bash ({PAGE})",
    ),
    (
        re.compile(r"conda: (?:command )?not found$|CondaError: Run 'conda init'"),
        "a job's shell does not know conda, because ~/.bashrc ends early where nobody types: write "
        f". ~/miniforge3/etc/profile.d/conda.sh before conda activate ({PAGE})",
    ),
    (
        # TensorFlow's words, those of its gRPC, and the kernel's as C, Python and torch print them.
        re.compile(r"Could not start gRPC server|Address already in use|EADDRINUSE"),
        "another process has the port, and workers that wait for this one wait for ever: cancel the job. "
        "Where a local stack's machines are processes, all nodes share one network, so two workers of a job "
        "that want the same port collide; elsewhere two jobs on a node do. Give each rank a port of its own "
        "(22222 + its number), take TF_CONFIG or MASTER_PORT as the benchmark sets it, or use "
        f"Pulumi.local-machines.yaml, where each node has its own network ({PAGE})",
    ),
    (
        re.compile(r"\.PerReplica'.{0,9} to a Tensor"),
        "Keras 3 cannot fit under MultiWorkerMirroredStrategy, and tf.keras is Keras 3: write export "
        "TF_USE_LEGACY_KERAS=1 before the program starts, and install tf_keras, which our training "
        f"environment has ({PAGE})",
    ),
    (
        _RECURSION,
        "TensorFlow imports keras, and has found a file of yours of that name: give keras.py another name, "
        f"or use our training environment, where tf.keras is another package ({PAGE})",
    ),
)
"""A line -> what it means; {0} is its first group."""
BESIDE = {_RECURSION: re.compile(r"\blazy_loader\.py")}
"""A pattern of these -> what another line must have, where the line alone may mean anything."""
OF_SLURMD = (
    (
        re.compile(r"Could not open (stdout|stderr|stdin) file "),
        "the folder of --output, --error or --input is not on the node, or its user may not write there. "
        "Slurm 22.05 makes no folder, and later releases make it on the node, where it ends with the node: "
        "make it before the job starts, on the shared disk",
    ),
    (
        re.compile(r"couldn't chdir to "),
        "the folder that the job was submitted from, or --chdir, is not on the node, which has a /tmp of its "
        "own, so the job ran there: submit from the shared folder, or name a folder there",
    ),
    (
        re.compile(r"execve\(\): bad interpreter\("),
        "the first line of the job's script names a program that is not on the node",
    ),
    (
        re.compile(r"execve\(\): (?!bad interpreter)"),
        "the program is not on the node, or may not be executed",
    ),
    (
        re.compile(r"(?:\]|JobId=\d+(?: SLUID=\S+)?) prolog failed status="),
        "the prolog of jobs failed on the node, which is then replaced: `logs NODE` has what it printed",
    ),
    (
        re.compile(r"(uid|user) \S+ not found|[Uu]nable to (find|look up) (user|uid)|Invalid user id"),
        "the job's user is not known on the node",
    ),
)
"""A line of slurmd's on a job -> what it means."""


class Explained:
    """What the lines of a job's outputs mean that say too little, also those that come while it runs."""

    heading = "what the output means"

    def __init__(self, outputs: Iterable[LogFile]) -> None:
        self._outputs = tuple(outputs)
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._known = list(MEANINGS)

    def last(self, _count: int) -> list[str]:
        return self._new(line for log in self._outputs for line in log.last(MOST_LINES))

    def more(self) -> list[str]:
        return self._new(line for log in self._outputs for line in log.more())

    def _new(self, lines: Iterable[str]) -> list[str]:
        """Return the explanations that these lines add."""
        if not (added := [line.rstrip() for line in lines]):
            return []
        self._lines.extend(added)
        found = {pair: meanings(self._lines, [pair]) for pair in self._known}
        self._known = [pair for pair in self._known if not found[pair]]
        return [text for texts in found.values() for text in texts]


def started_wrongly(log: LogFile) -> Iterator[Note]:
    """Return a note on what a slurmd's lines on a job mean, if any of them needs one."""
    if found := meanings(log.last(MOST_LINES), OF_SLURMD):
        yield Note("what this means", found)


def meanings(lines: Iterable[str], known: Sequence[tuple[re.Pattern[str], str]] = MEANINGS) -> list[str]:
    """Return an explanation for each kind of line that needs one, behind the first such line."""
    found: list[str] = []
    lines = list(lines)
    for pattern, meaning in known:
        beside = BESIDE.get(pattern)
        if beside is not None and not any(map(beside.search, lines)):
            continue
        matches = ((line, match) for line in lines if (match := pattern.search(line)) is not None)
        found += [f"{line.strip()}: {meaning.format(*match.groups())}" for line, match in matches][:1]
    return found
