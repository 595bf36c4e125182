"""The sources that can be shown and followed: log files, selected lines of them, and boot reports."""

from __future__ import annotations

import contextlib
import os
import time
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
        lines: list[str] = []
        if self._descriptor is not None:
            if os.fstat(self._descriptor).st_size < self._position:
                # The file was truncated and written again, as some programs rotate logs.
                self._position, self._part = 0, b""
            lines += self._read()
        if self._replaced():
            if self._descriptor is not None:
                os.close(self._descriptor)
                lines += self._flush()
            with contextlib.suppress(FileNotFoundError, UnreadableError):
                self._descriptor = None
                self._descriptor, self._position = open_log(self.path, self._owner), 0
                lines += self._read()
        if self._part and time.monotonic() - self._part_since > HOLD_SECONDS:
            lines += self._flush()
        return lines if self._wanted is None else [line for line in lines if self._wanted(line)]

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
        texts: list[str] = []
        while block := os.pread(self._descriptor, 1 << 16, self._position):
            self._position += len(block)
            *lines, self._part = (self._part + block).split(b"\n")
            self._part_since = time.monotonic()
            texts += map(decoded, lines)
        return texts

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
