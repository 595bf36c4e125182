"""Reads the end of a log as lines for a terminal, without control characters and without endless lines."""

from __future__ import annotations

import os
import pwd
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path

CHUNK = 1 << 18
TAIL_BYTES = 4 << 20
"""How far back in a file lines are searched."""
SCAN_BYTES = 16 << 20
"""How far back in a file lines that match a filter are searched."""
LONGEST_LINE = 2000

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

Wanted = Callable[[str], bool]


class UnreadableError(Exception):
    """The file cannot be read. The text says why."""


def open_log(path: Path, owner: int | None = None) -> int:
    """Open a regular file for reading and returns its descriptor.

    Args:
        owner: The number of the user whose file it must be. `None` means that anybody's will do.

    Raises:
        FileNotFoundError: The file does not exist.
        UnreadableError: It is not a regular file, not the owner's, or this user may not read it.
    """
    try:
        # A job's output may be a named pipe, on which an ordinary `open` would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnreadableError(error.strerror or str(error)) from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise UnreadableError("not a file that keeps anything")
    if owner is not None and status.st_uid != owner:
        os.close(descriptor)
        raise UnreadableError(
            f"it belongs to {_user(status.st_uid)}, and the job is {_user(owner)}'s, who may name any path: "
            "read it yourself if the job writes there"
        )
    return descriptor


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def tail(descriptor: int, count: int, wanted: Wanted | None = None) -> tuple[list[str], int]:
    """Return the last lines of an open file, which is read from its end.

    Args:
        count: The greatest number of lines.
        wanted: A filter for the lines to count and to return. `None` means all lines.

    Returns:
        The printable lines, and the position up to which the file was read.
    """
    end = os.fstat(descriptor).st_size
    limit = max(0, end - (TAIL_BYTES if wanted is None else SCAN_BYTES))
    # A line break at the very end ends the last line and begins none.
    position = end - 1 if end and os.pread(descriptor, 1, end - 1) == b"\n" else end
    texts: list[str] = [""] if end and not position and (wanted is None or wanted("")) else []
    rest = b""
    while position > limit and len(texts) < count:
        start = max(limit, position - CHUNK)
        lines = (os.pread(descriptor, position - start, start) + rest).split(b"\n")
        # The first line may begin before this block.
        rest = lines.pop(0) if start > limit else b""
        position = start
        # Lines are read from the end, so that no more lines are decoded than are shown.
        for line in reversed(lines):
            text = decoded(line)
            if wanted is None or wanted(text):
                texts.append(text)
            if len(texts) == count:
                break
    return texts[::-1], end


def decoded(line: bytes) -> str:
    """Return a line of a log as text that cannot control the terminal."""
    text = line.decode("utf-8", errors="backslashreplace").rstrip("\r")
    # A progress bar overwrites itself. Only what a terminal would show in the end is kept.
    text = _COLOUR.sub("", text.rpartition("\r")[2])
    return printable(text if len(text) <= LONGEST_LINE else cut(text))


def cut(text: str) -> str:
    return f"{text[:LONGEST_LINE]} … ({len(text) - LONGEST_LINE} more characters)"


def printable(text: str) -> str:
    r"""Return the text, with escapes such as \x1b for characters that are not printable."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def age(then: float, now: float | None = None) -> str:
    """Return a phrase for how long ago a time was, such as "5 min ago".

    Args:
        then: The time, in seconds since the epoch.
        now: The present time, in seconds since the epoch. `None` means the machine's clock.
    """
    seconds = (time.time() if now is None else now) - then
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= 2 * size or (size == 1 and seconds >= 1):
            return f"{seconds / size:.0f} {unit} ago"
    return "just now"


def size(count: int) -> str:
    """Return a number of bytes with its unit."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count} {unit}"
        count //= 1024
    return f"{count} GiB"
