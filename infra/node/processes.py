"""Process trees by /proc: who is alive, who descends from whom, and how to end all of them."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

BECOMING_SECONDS = 0.5
"""How long at most a process is waited for that is just becoming another program."""
FILLING_SECONDS = 0.01
LEAST_LOOKS = 10
"""So often it is looked at in any case: on a busy machine it is we who come late."""
STOPPING_SECONDS = 3.0
"""How long at most processes are waited for that were told to stand still."""
PR_SET_PDEATHSIG = 1
CALLER_VARIABLE = "SLURM_STACKS_CALLER"
"""Environment variable of a command: `caller` of the program that runs it."""
_KERNEL_THREAD = 0x00200000
_GONE = ("Z", "X")
_STOPPED = ("T", "t")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process that no later one can be mistaken for: pid and start time (clock ticks since boot)."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """None where there is no such process."""
        stat = _stat(pid)
        return None if stat is None else cls(pid, stat.started)

    def alive(self) -> bool:
        """False for a zombie too: `kill -0` would call it alive."""
        stat = _stat(self.pid)
        return stat is not None and stat.started == self.started and stat.state not in _GONE


class _Stat(NamedTuple):
    state: str
    parent: int
    flags: int
    started: int
    environment: int
    """Where its environment begins; 0 where it has none yet."""


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name may hold spaces and parentheses: the fields follow the last one.
    fields = text[text.rindex(")") + 2 :].split()
    return _Stat(fields[0], int(fields[1]), int(fields[6]), int(fields[19]), int(fields[47]))


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


def ancestors(pid: int) -> list[int]:
    """Pids of a process's parent, its parent, and so on, without PID 1."""
    found: list[int] = []
    while (stat := _stat(pid)) is not None and stat.parent > 1:
        pid = stat.parent
        found.append(pid)
    return found


def _families(*, zombies: bool) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for pid in _pids():
        if (stat := _stat(pid)) is not None and (zombies or stat.state != "Z"):
            found.setdefault(stat.parent, []).append(pid)
    return found


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208 - half the cost


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
    return kill_tree(root)


def kill_tree(root: ProcessId) -> bool:
    """End a machine at once, as a power cut does; its init last, as in `end_tree`.

    Returns:
        False if something survived SIGKILL for five seconds (a process stuck in the kernel).
    """
    deadline = time.monotonic() + 5
    while root.alive():
        # An init that sees its services die would start them again.
        _signal([root.pid], signal.SIGSTOP)
        _signal(descendants(root.pid) or [root.pid], signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def freeze_tree(root: ProcessId) -> None:
    """Stop a process and all below it, those too that they start meanwhile."""
    stopped: set[int] = set()
    while running := [pid for pid in (root.pid, *descendants(root.pid)) if pid not in stopped]:
        _signal(running, signal.SIGSTOP)
        stopped.update(running)


def thaw_tree(root: ProcessId) -> None:
    """The opposite of `freeze_tree`; parents last, so that none sees its children stand still."""
    _signal([*reversed(descendants(root.pid)), root.pid], signal.SIGCONT)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def marked(name: str, value: str) -> list[int]:
    """Pids of what carries a mark in its environment, and of all below it, deepest last."""
    return with_descendants(with_environment(name, value))


def with_descendants(roots: list[int]) -> list[int]:
    """These pids and those of all living processes below them, but never our own."""
    found = dict.fromkeys([*roots, *(below for pid in roots for below in descendants(pid))])
    return [pid for pid in found if pid != os.getpid()]


def end_all(find: Callable[[], list[int]], seconds: float = 10.0) -> list[int]:
    """SIGKILL to all that `find` finds, until two looks in a row find nothing.

    Args:
        find: pids, parents before their children.

    Returns:
        What is still there after `seconds`.
    """
    deadline = time.monotonic() + seconds
    empty = 0
    while empty < 2:
        pids = find()
        empty = 0 if pids else empty + 1
        if pids and time.monotonic() > deadline:
            return pids
        kill_together(pids)
        time.sleep(0.02)
    return []


def kill_together(pids: list[int]) -> None:
    """End processes as if at one moment: none sees another's end, and tells somebody of it.

    A slurmstepd that lives a moment longer than its job would report a job that failed, where a machine died.

    Args:
        pids: parents before their children.
    """
    _signal(pids, signal.SIGSTOP)
    # The signal is one thread's to take; until that has a processor, the others run on.
    deadline = time.monotonic() + STOPPING_SECONDS
    while not all(map(_stands_still, pids)) and time.monotonic() < deadline:
        time.sleep(0.001)
    _signal(list(reversed(pids)), signal.SIGKILL)


def _stands_still(pid: int) -> bool:
    """Whether all threads of a process are stopped, or gone."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return True
    for thread in threads:
        with contextlib.suppress(OSError):  # it has just ended
            if (thread / "stat").read_text().rpartition(")")[2].split()[0] not in (*_STOPPED, *_GONE):
                return False
    return True


def with_environment(name: str, value: str) -> list[int]:
    """Pids of living processes of this user whose environment holds `name=value`."""
    wanted = f"{name}={value}".encode()
    return having(lambda _pid, environment: wanted in environment)


def having(wanted: Callable[[int, list[bytes]], bool]) -> list[int]:
    """Pids of living processes of this user, but not our own, that are `wanted`.

    Args:
        wanted: asked with each process's pid and environment (`NAME=value`).
    """
    found = []
    for pid in _pids():
        with contextlib.suppress(OSError):
            if pid != os.getpid() and wanted(pid, _environment(pid)):
                stat = _stat(pid)
                if stat is not None and stat.state not in _GONE:
                    found.append(pid)
    return sorted(found)


def _environment(pid: int) -> list[bytes]:
    """What a process was started with.

    While a process becomes another program (execve) the kernel shows an empty one for a moment: it is waited
    for, or the process would be overlooked.

    Raises:
        OSError: it is gone, or another user's.
    """
    began = time.monotonic()
    for looks in itertools.count(1):
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        stat = _stat(pid)
        if environment or stat is None or stat.state in _GONE or stat.flags & _KERNEL_THREAD:
            return environment.split(b"\0")
        # Once it has a place it is filled at once, unless it is an empty one.
        limit = FILLING_SECONDS if stat.environment else BECOMING_SECONDS
        if looks >= LEAST_LOOKS and time.monotonic() - began > limit:
            break
        time.sleep(0.001)
    return []


def caller(pid: int) -> str:
    """What `end_with_parent` takes: a process's identity as text for the environment."""
    process = ProcessId.of(pid)
    return f"{pid}-{process.started}" if process else ""


def end_with_parent(identity: str | None, number: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel send us a signal when the process that started us ends, however it ends.

    Args:
        identity: `caller` of a process without which we have nothing to do either: it may be dead by now.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if identity:
        pid, _, started = identity.partition("-")
        if not ProcessId(int(pid), int(started)).alive():
            os.kill(os.getpid(), number)
