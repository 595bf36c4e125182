"""Reads and makes files where other users can write, too: no link is followed, and nothing is endless.

Whoever may write in a folder may put anything there: a link to another file, a pipe that keeps a reader
waiting, a text of gigabytes, JSON that is nested without end. The owner is that of the open file, which
nobody can exchange for another one.
"""

from __future__ import annotations

import errno
import json
import math
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeGuard

MOST_RECORD = 16 * 1024 * 1024
"""The most bytes of a record that a program of ours has written."""
LONGEST_NUMBER = 40
"""The most digits of a whole number."""
LAST_TIME = 253402300799.0
"""The end of the year 9999, in seconds since the epoch. A time behind it cannot be written."""
DEEPEST = 20
"""The most levels of JSON that are read."""
_TOO_DEEP = f"it is nested deeper than {DEEPEST} levels"


class UnusableError(Exception):
    """What is there is no file or folder of the kind that is read, or is too large. The text says what."""


class Content(NamedTuple):
    """A file's bytes, and the number of the user who owns it."""

    data: bytes
    owner: int


@contextmanager
def opened(path: Path, folder: int | None = None) -> Iterator[int]:
    """Open a regular file for reading, without waiting and without following a link at its end.

    Args:
        folder: An open folder to which the path is relative.

    Raises:
        FileNotFoundError: Nothing is there.
        UnusableError: It is a link, a pipe, or something else that is no regular file.
        OSError: It cannot be read.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise UnusableError(f"{path} is a link or a socket, and no file") from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise UnusableError(f"{path} is no regular file")
        yield file
    finally:
        os.close(file)


def log(path: Path, *, anew: bool = False) -> BinaryIO:
    """Open a log for writing at its end, without following a link in its place.

    Args:
        anew: Whether the log begins empty.

    Raises:
        OSError: A link is there, or the log cannot be written.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags | (os.O_TRUNC if anew else 0), 0o666), "ab")


def read(path: Path, most: int, folder: int | None = None) -> Content:
    """Read a whole file, if it is not larger than `most` bytes.

    Raises:
        FileNotFoundError, UnusableError, OSError: As for `opened`; a larger file is an `UnusableError`.
    """
    with opened(path, folder) as file:
        data = b""
        while len(data) <= most and (more := os.read(file, most + 1 - len(data))):
            data += more
        if len(data) > most:
            raise UnusableError(f"{path} is larger than {most} bytes")
        return Content(data, os.fstat(file).st_uid)


def end(path: Path, most: int, folder: int | None = None) -> bytes:
    """Read at most the last `most` bytes of a file.

    Raises:
        FileNotFoundError, UnusableError, OSError: As for `opened`.
    """
    with opened(path, folder) as file:
        return os.pread(file, most, max(0, os.fstat(file).st_size - most))


def parse(text: str | bytes, **hooks: Any) -> Any:
    """Read JSON that anybody may have written.

    Args:
        hooks: Further arguments of `json.loads`.

    Raises:
        ValueError: It is no JSON, or has more than DEEPEST levels.
    """
    try:
        value = json.loads(text, **hooks)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, (list, dict))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return value
    raise ValueError(_TOO_DEEP)


def parse_strictly(text: str | bytes) -> Any:
    """Read JSON as `parse`, and refuse what has more than one meaning, or none, as a number or an object.

    Raises:
        ValueError: As for `parse`; or a number is not finite or has no end, or an object has a key twice.
    """
    return parse(
        text, parse_int=_whole, parse_float=_finite, parse_constant=_no_constant, object_pairs_hook=_unique
    )


def record(path: Path, most: int = MOST_RECORD) -> Any:
    """Read a record that a program of ours has written as JSON, and that may have been damaged since.

    Raises:
        FileNotFoundError: Nothing is there.
        OSError: It cannot be read.
        ValueError: It is no JSON that `parse_strictly` reads, is larger, or is no regular file.
    """
    try:
        return parse_strictly(read(path, most).data)
    except UnusableError as error:
        raise ValueError(str(error)) from None


def is_time(value: object) -> TypeGuard[float]:
    """Return whether a value is a time of the years 1970 to 9999, in seconds since the epoch."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LAST_TIME


def _whole(text: str) -> int:
    if len(text) > LONGEST_NUMBER:
        raise ValueError(f"{text[:20]}… has too many digits")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is no number that can be used")
    return number


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("an object has a key twice")
    return members


@contextmanager
def folder(path: Path, parent: int | None = None) -> Iterator[int]:
    """Open a folder, without following a link at the path's end.

    Args:
        parent: An open folder to which the path is relative.

    Raises:
        FileNotFoundError: Nothing is there.
        UnusableError: It is a link, or no folder.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise UnusableError(f"{path} is a link or a file, and no folder") from None
        raise
    try:
        yield handle
    finally:
        os.close(handle)


def owner(path: Path) -> int | None:
    """Return the user who owns a path, or the link itself if it is one; `None` if nothing is there."""
    try:
        return path.lstat().st_uid
    except FileNotFoundError:
        return None


def is_trusted(user: int | None) -> bool:
    """Return whether this user's files are used as one's own: root's, one's own, or not there yet."""
    return user in (None, 0, os.geteuid())


def name(user: int) -> str:
    """Return a user's name, or `user N` for one without a name."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
