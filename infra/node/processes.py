"""Process trees by /proc: who is alive, who descends from whom, and how to end all of them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process that no later one can be mistaken for: pid and start time (clock ticks since boot)."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """None where there is no such process."""
        stat = _stat(pid)
        return None if stat is None else cls(pid, stat[2])

    def alive(self) -> bool:
        """False for a zombie too: `kill -0` would call it alive."""
        stat = _stat(self.pid)
        return stat is not None and stat[2] == self.started and stat[0] not in ("Z", "X")


def _stat(pid: int) -> tuple[str, int, int] | None:
    """(state, parent, start time)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name may hold spaces and parentheses: the fields follow the last one.
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[1]), int(fields[19])


def children(parent: int) -> list[int]:
    """Pids of all children, ended ones that nobody has collected too."""
    return _families(zombies=True).get(parent, [])


def descendants(root: int) -> list[int]:
    """Pids of living processes below `root`, deepest last."""
    families = _families(zombies=False)
    found: list[int] = []
    front = [root]
    while front:
        front = [child for parent in front for child in families.get(parent, [])]
        found += front
    return found


def _families(*, zombies: bool) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - pathlib doubles the cost of a scan
        if entry.isdigit() and (stat := _stat(int(entry))) is not None and (zombies or stat[0] != "Z"):
            found.setdefault(stat[1], []).append(int(entry))
    return found


def end_tree(root: ProcessId, grace: float) -> bool:
    """End a machine: SIGTERM to its init, which ends its services; after `grace` seconds SIGKILL to all.

    The init is killed last: it is the subreaper, so until then nothing can leave the tree.

    Returns:
        False if something survived SIGKILL for five seconds (a process stuck in the kernel).
    """
    if root.alive():
        with contextlib.suppress(ProcessLookupError):
            os.kill(root.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while root.alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    deadline = time.monotonic() + 5
    while root.alive():
        below = descendants(root.pid)
        for pid in below or [root.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def marked(name: str, value: str) -> list[int]:
    """Pids of what carries a mark in its environment, and of all below it, deepest last."""
    roots = with_environment(name, value)
    return list(dict.fromkeys([*roots, *(below for pid in roots for below in descendants(pid))]))


def end_marked(name: str, value: str, seconds: float = 10.0) -> list[int]:
    """SIGKILL to all of `marked`, until none is left. Returns what is still there after `seconds`."""
    deadline = time.monotonic() + seconds
    while pids := marked(name, value):
        if time.monotonic() > deadline:
            return pids
        for pid in reversed(pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return []


def with_environment(name: str, value: str) -> list[int]:
    """Pids of living processes of this user whose environment holds `name=value`."""
    wanted = f"{name}={value}".encode()
    found = []
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                stat = _stat(int(entry))
                if stat is not None and stat[0] != "Z":
                    found.append(int(entry))
    return sorted(found)
