"""Process trees, read from /proc: which processes live, which are descendants, and how to end a tree."""

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

from node.system.waiting import wait_at_most

BECOMING_SECONDS = 0.5
"""The longest wait for the environment of a process that is just starting another program (execve)."""
FILLING_SECONDS = 0.01
"""The longest wait for an environment whose place in memory is known already."""
LEAST_LOOKS = 10
"""How often the environment is read in any case, because on a busy machine we may be the slow ones."""
STOPPING_SECONDS = 3.0
"""The longest wait until processes have stopped after SIGSTOP."""
PR_SET_PDEATHSIG = 1
CALLER_VARIABLE = "SLURM_STACKS_CALLER"
"""The environment variable of a command that holds the `caller` identity of the program that runs it."""
_KERNEL_THREAD = 0x00200000
_GONE = ("Z", "X")
_STOPPED = ("T", "t")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process by its pid and start time (clock ticks since boot), so that a reused pid is not mistaken."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """Return the process of a pid. `None` means that there is none."""
        stat = _stat(pid)
        return None if stat is None else cls(pid, stat.started)

    def alive(self) -> bool:
        """Return whether the process lives. A zombie does not, although `kill -0` succeeds for it."""
        stat = _stat(self.pid)
        return stat is not None and stat.started == self.started and stat.state not in _GONE


def boot_id() -> str:
    """Return the kernel's id of the current boot; empty if there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


class _Stat(NamedTuple):
    state: str
    parent: int
    flags: int
    started: int
    environment: int
    """The address at which the environment begins. 0 means that there is none yet."""


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name may hold spaces and parentheses. The other fields follow the last parenthesis.
    fields = text[text.rindex(")") + 2 :].split()
    return _Stat(fields[0], int(fields[1]), int(fields[6]), int(fields[19]), int(fields[47]))


def children(parent: int) -> list[int]:
    """Return the pids of all children, with zombies."""
    return _families(zombies=True).get(parent, [])


def descendants(root: int) -> list[int]:
    """Return the pids of living processes below `root`. The deepest are last."""
    families = _families(zombies=False)
    below: list[int] = []
    front = [root]
    while front:
        front = [child for parent in front for child in families.get(parent, [])]
        below += front
    return below


def ancestors(pid: int) -> list[int]:
    """Return the pids of a process's parent, the parent's parent, and so on, without PID 1."""
    above: list[int] = []
    while (stat := _stat(pid)) is not None and stat.parent > 1:
        pid = stat.parent
        above.append(pid)
    return above


def _families(*, zombies: bool) -> dict[int, list[int]]:
    by_parent: dict[int, list[int]] = {}
    for pid in _pids():
        if (stat := _stat(pid)) is not None and (zombies or stat.state != "Z"):
            by_parent.setdefault(stat.parent, []).append(pid)
    return by_parent


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208 - half the cost


def end_tree(root: ProcessId, grace: float) -> bool:
    """End a machine: SIGTERM to its init, which ends the services; after `grace` seconds SIGKILL to all.

    The init is killed last. It is the subreaper, so nothing can leave the tree until then.

    Returns:
        False if a process survived SIGKILL for five seconds (it is stuck in the kernel).
    """
    if root.alive():
        with contextlib.suppress(ProcessLookupError):
            os.kill(root.pid, signal.SIGTERM)
    wait_at_most(lambda: not root.alive(), grace)
    return kill_tree(root)


def kill_tree(root: ProcessId) -> bool:
    """End a machine at once, as a power cut does. The init is killed last, as in `end_tree`.

    Returns:
        False if a process survived SIGKILL for five seconds (it is stuck in the kernel).
    """

    def killed() -> bool:
        if not root.alive():
            return True
        # A running init would restart the services that die.
        _signal([root.pid], signal.SIGSTOP)
        _signal(descendants(root.pid) or [root.pid], signal.SIGKILL)
        return False

    return wait_at_most(killed, 5)


def freeze_tree(root: ProcessId) -> None:
    """Stop a process and all of its descendants, with those that start meanwhile."""
    stopped: set[int] = set()
    while running := [pid for pid in (root.pid, *descendants(root.pid)) if pid not in stopped]:
        _signal(running, signal.SIGSTOP)
        stopped.update(running)


def thaw_tree(root: ProcessId) -> None:
    """Continue what `freeze_tree` stopped. Parents are last, so that none sees stopped children."""
    _signal([*reversed(descendants(root.pid)), root.pid], signal.SIGCONT)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def with_descendants(roots: list[int]) -> list[int]:
    """Return these pids and those of all living descendants, without our own."""
    pids = dict.fromkeys([*roots, *(below for pid in roots for below in descendants(pid))])
    return [pid for pid in pids if pid != os.getpid()]


def end_all(find: Callable[[], list[int]], seconds: float = 10.0) -> list[int]:
    """Send SIGKILL to all processes that `find` returns, until it returns none twice in a row.

    Args:
        find: Returns pids, parents before their children.

    Returns:
        The pids that are left after `seconds`.
    """
    empty = 0

    def ended() -> bool:
        nonlocal empty
        pids = find()
        kill_together(pids)
        empty = 0 if pids else empty + 1
        return empty == 2

    return [] if wait_at_most(ended, seconds) else find()


def kill_together(pids: list[int]) -> None:
    """Kill processes as if at one moment, so that none can see and report the end of another.

    A slurmstepd that lives a moment longer than its job would report a failed job instead of a dead machine.

    Args:
        pids: The processes, parents before their children.
    """
    _signal(pids, signal.SIGSTOP)
    # One thread takes the signal. Until that thread gets a processor, the other threads go on.
    wait_at_most(lambda: all(map(_stands_still, pids)), STOPPING_SECONDS, 0.001)
    _signal(list(reversed(pids)), signal.SIGKILL)


def _stands_still(pid: int) -> bool:
    """Return whether all threads of a process have stopped or ended."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return True
    for thread in threads:
        with contextlib.suppress(OSError):  # the thread has just ended
            if (thread / "stat").read_text().rpartition(")")[2].split()[0] not in (*_STOPPED, *_GONE):
                return False
    return True


def with_environment(name: str, value: str) -> list[int]:
    """Return the pids of this user's living processes whose environment holds `name=value`."""
    wanted = f"{name}={value}".encode()
    return having(lambda _pid, environment: wanted in environment)


def having(wanted: Callable[[int, list[bytes]], bool]) -> list[int]:
    """Return the pids of this user's living processes, without our own, for which `wanted` is true.

    Args:
        wanted: Called with each process's pid and environment (`NAME=value`).
    """
    pids = []
    for pid in _pids():
        with contextlib.suppress(OSError):
            if pid != os.getpid() and wanted(pid, _environment(pid)):
                stat = _stat(pid)
                if stat is not None and stat.state not in _GONE:
                    pids.append(pid)
    return sorted(pids)


def _environment(pid: int) -> list[bytes]:
    """Return the environment with which a process was started.

    While a process starts another program (execve), the kernel shows an empty environment for a moment. This
    function waits for the moment to pass, or the process would be overlooked.

    Raises:
        OSError: The process has ended, or it belongs to another user.
    """
    began = time.monotonic()
    for looks in itertools.count(1):
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        stat = _stat(pid)
        if environment or stat is None or stat.state in _GONE or stat.flags & _KERNEL_THREAD:
            return environment.split(b"\0")
        # An environment whose address is known is filled at once, unless it is empty.
        limit = FILLING_SECONDS if stat.environment else BECOMING_SECONDS
        if looks >= LEAST_LOOKS and time.monotonic() - began > limit:
            break
        time.sleep(0.001)
    return []


def caller(pid: int) -> str:
    """Return a process's identity as text for the environment, for `end_with_parent`."""
    process = ProcessId.of(pid)
    return f"{pid}-{process.started}" if process else ""


def end_with_parent(identity: str | None, number: signal.Signals = signal.SIGTERM) -> None:
    """Make the kernel send this process a signal when its parent ends, however the parent ends.

    Args:
        identity: The `caller` of another process. If it has ended already, the signal is sent at once.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if identity:
        pid, _, started = identity.partition("-")
        if not ProcessId(int(pid), int(started)).alive():
            os.kill(os.getpid(), number)
