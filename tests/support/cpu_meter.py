"""CPU seconds and memory of all processes of a test's Slurm, without cgroups.

A process's own seconds and those of its children that have ended are in /proc/PID/stat, to the nanosecond for
ended ones (the kernel adds up what they ran) and to a tick of the clock for those that live. This process
becomes the one that inherits orphans, so nothing is lost when a program leaves a child behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SLURM = ("slurmctld", "slurmscriptd", "munged")
"""Slurm's own daemons, whose seconds are shown apart from those of the programs that they start."""
_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2)."""
_TICK = os.sysconf("SC_CLK_TCK")
_KIB = 1024


@dataclass(frozen=True, slots=True)
class Process:
    """What /proc/PID/stat says of a process; seconds are those of user and kernel together.

    Attributes:
        ended: The seconds of its children that have ended, and of theirs.
    """

    pid: int
    parent: int
    name: str
    own: float
    ended: float
    state: str = "R"

    @classmethod
    def parse(cls, text: str) -> Process:
        """Return the process of a line of /proc/PID/stat. Its name may hold spaces and parentheses."""
        pid, _, rest = text.partition(" (")
        name, _, tail = rest.rpartition(") ")
        fields = tail.split()
        user, kernel, ended_user, ended_kernel = (int(field) / _TICK for field in fields[11:15])
        return cls(int(pid), int(fields[1]), name, user + kernel, ended_user + ended_kernel, fields[0])


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU seconds.

    Attributes:
        slurm: Of Slurm's own daemons.
        programs: Of the programs that Slurm has called, with all of their children.
        daemon: Of the product's daemon and what it has run.
    """

    slurm: float = 0.0
    programs: float = 0.0
    daemon: float = 0.0

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.slurm - other.slurm, self.programs - other.programs, self.daemon - other.daemon)

    @property
    def product(self) -> float:
        """All but Slurm's own daemons."""
        return self.programs + self.daemon


def processes() -> dict[int, Process]:
    """Return all processes of this machine."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                process = Process.parse((folder / "stat").read_text(errors="replace"))
                found[process.pid] = process
    return found


def below(roots: set[int], known: dict[int, Process]) -> set[int]:
    """Return the roots that live, and all processes that come from them."""
    children: dict[int, list[int]] = {}
    for process in known.values():
        children.setdefault(process.parent, []).append(process.pid)
    found, left = set(), [root for root in roots if root in known]
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left.extend(children.get(pid, ()))
    return found


class Meter:
    """Adds up what this process's children spend: Slurm's daemons, and a product's.

    Attributes:
        daemons: The processes of the product's daemon.
        outside: Children that do not count: the stand-in of the cloud.
    """

    def __init__(self) -> None:
        ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)
        self.daemons: set[int] = set()
        self.outside: set[int] = set()
        self._burying = threading.Lock()
        self.owned = _ended()
        """Seconds of the measurement's own commands."""

    def own(self, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command of the measurement's own. Its seconds count nowhere.

        Raises:
            CalledProcessError: It fails. The error's text has what it printed.
        """
        with self._burying:  # an orphan that is buried meanwhile would count as this command's
            before = _ended()
            done = subprocess.run(
                command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, **options
            )
            self.owned += _ended() - before
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, [*command, done.stdout, done.stderr])
        return done

    def read(self) -> Spent:
        """Return the seconds up to now. Only differences of two readings mean anything."""
        self._adopt(processes())
        # A new look: whoever was buried is not counted a second time.
        known = processes()
        daemons, outside = below(self.daemons, known), below(self.outside, known)
        mine = below({os.getpid()}, known) - {os.getpid()} - daemons - outside
        slurm = [known[pid] for pid in mine if known[pid].name in SLURM]
        others = [known[pid] for pid in mine if known[pid].name not in SLURM]
        programs = sum(one.ended for one in slurm) + sum(one.own + one.ended for one in others)
        return Spent(
            sum(one.own for one in slurm),
            programs + _ended() - self.owned,
            sum(known[pid].own + known[pid].ended for pid in daemons),
        )

    def _adopt(self, known: dict[int, Process]) -> None:
        """Bury orphans, which adds their seconds to this process's; not while a command of `own` runs."""
        if not self._burying.acquire(blocking=False):
            return
        try:
            for process in known.values():
                orphan = process.parent == os.getpid() and process.pid not in self.daemons | self.outside
                if orphan and process.state == "Z" and process.name not in SLURM:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(process.pid, os.WNOHANG)
        finally:
            self._burying.release()

    def programs(self) -> list[Process]:
        """Return the programs of Slurm that run now."""
        known = processes()
        self._adopt(known)
        ours = below(self.daemons | self.outside, known) | {os.getpid()}
        mine = below({os.getpid()}, known) - ours
        return [known[pid] for pid in mine if known[pid].name not in SLURM and known[pid].state != "Z"]

    def memory(self) -> float:
        """Return the MiB of the product's processes now, each shared page counted once (PSS)."""
        known = processes()
        pids = [*below(self.daemons, known), *(one.pid for one in self.programs())]
        return sum(map(pss, pids))

    @contextlib.contextmanager
    def peak(self, pause: float = 0.05) -> Iterator[Callable[[], float]]:
        """Look at the memory again and again. Yields a function that returns the most so far."""
        most, over = [0.0], threading.Event()

        def look() -> None:
            while not over.is_set():
                began = time.monotonic()
                most[0] = max(most[0], self.memory())
                over.wait(max(pause, 5 * (time.monotonic() - began)))

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield lambda: most[0]
        finally:
            over.set()
            thread.join()


def pss(pid: int) -> float:
    """Return a process's proportional share of memory in MiB; 0 if it has ended."""
    with contextlib.suppress(OSError, StopIteration, IndexError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("Pss:"))) / _KIB
    return 0.0


def rss(pid: int) -> float:
    """Return a process's resident memory in MiB; 0 if it has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / _KIB**2
    return 0.0


def _ended() -> float:
    """Return the seconds of this process's children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
