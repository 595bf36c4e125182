"""Processes as /proc shows them. Any of them may end while it is being read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def command_line(pid: int) -> list[str]:
    """Return a process's arguments, or none if it has ended."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return []
    return text.rstrip("\0").split("\0") if text else []


def parent(pid: int) -> int:
    """Return the pid of a process's parent, or 0 if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def with_words(pids: Iterable[int], text: str) -> list[int]:
    """Return the processes with this text in their command line, where each argument ends with a zero byte.

    A program that is just starting another one appears twice for a moment. Only the one that stays counts.
    """
    found = [pid for pid in pids if text in "".join(f"{word}\0" for word in command_line(pid))]
    return [pid for pid in found if parent(pid) not in found]
