"""Watches the disk with Slurm's state: what writes to it runs only while this machine holds it.

Every few seconds the guard writes a few bytes through to the disk and notes the result in a status file,
which slurmctld, slurmdbd and the elastic daemon ask before each start. When a write fails, the disk is gone,
has become read-only (as MMP makes it when another machine has mounted it), or is not mounted any more. When
a write takes too long, or this machine stood still, another machine may hold the disk by now. In both cases
the guard kills what writes to the disk at once. It starts them again if the disk was only slow.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from node.bootstrap.services import Service
from node.bootstrap.systemd_services import PREFIX
from node.system import files, foreign, subprocesses
from node.system.subprocesses import SEARCH

NAME = "state"
PROGRAM = "holds-state"
"""The program in `<code>/bin` that says by its exit status whether this machine holds the disk."""
INTERVAL_SECONDS = 2.0
LOST_SECONDS = 30.0
"""How long a write may take. A disk of a cloud may stand still for some seconds, and a controller with it."""
UNITS = (f"{PREFIX}slurmctld", f"{PREFIX}elastic", f"{PREFIX}slurmdbd", "mariadb")
"""What writes to the disk, in the order in which it is killed."""
COMMAND_SECONDS = 30.0
MOUNTINFO = Path("/proc/self/mountinfo")


def status_file(run: PurePosixPath) -> Path:
    return Path(str(run)) / "state.json"


def held(status: Path, now: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)) -> bool:
    """Return whether the guard has written to the disk lately."""
    try:
        content = foreign.record(status)
        return bool(content["held"]) and 0 <= now() - float(content["at"]) <= LOST_SECONDS
    except (OSError, ValueError, KeyError, TypeError):
        return False


def lost(status: Path) -> bool:
    """Return whether the guard says that this machine has lost the disk."""
    try:
        return foreign.record(status)["held"] is False
    except (OSError, ValueError, KeyError, TypeError):
        return False


def reason(status: Path) -> str:
    """Return what the guard said last."""
    try:
        return str(foreign.record(status)["why"]) or "nothing was written to it lately"
    except (OSError, ValueError, KeyError, TypeError):
        return "nothing watches it"


def main(status: str) -> int:
    """Return the exit status of `PROGRAM`: 0 if this machine holds the disk."""
    return 0 if held(Path(status)) else 1


def service(python: str, code: PurePosixPath, disk: str, run: PurePosixPath, log: Path) -> Service:
    """Return the guard as a service, which runs as root.

    Args:
        disk: The folder where the disk is mounted.
    """
    start = f"import sys; sys.path.insert(0, {str(code)!r}); from node.bootstrap.vm.state_guard import watch"
    call = f"watch({disk!r}, {str(status_file(run))!r})"
    return Service(NAME, (python, "-I", "-S", "-c", f"{start}; {call}"), log)


class Guard:
    """The guard of one disk.

    Args:
        write: Writes to the disk, and returns when the disk has it.
        stop: Kills what writes to the disk, and returns the names of what ran.
        start: Starts these again.
        status: The status file.
        now: A clock that goes on while this machine stands still, in seconds.
    """

    def __init__(
        self,
        write: Callable[[], None],
        stop: Callable[[], list[str]],
        start: Callable[[list[str]], None],
        status: Path,
        now: Callable[[], float],
    ) -> None:
        self._write = write
        self._stop = stop
        self._start = start
        self._status = status
        self._now = now
        self._writer: threading.Thread | None = None
        self._error = ""
        self._written = now()
        self._lost = False
        self._stopped: list[str] = []

    def look(self, wait: float) -> None:
        """Take one look: write to the disk, and act when it is lost, or back.

        Args:
            wait: How long to wait for the write. One that takes longer goes on beside the next looks.
        """
        # First the clock: after a standstill nothing may run until a new write has succeeded.
        if not self._lost and self._now() - self._written > LOST_SECONDS:
            self._lose(f"it has taken no write for {self._now() - self._written:.0f} s")
        if self._writer is None or not self._writer.is_alive():
            self._writer = threading.Thread(target=self._try, daemon=True)
            self._writer.start()
        self._writer.join(wait)
        if self._writer.is_alive():
            return
        if self._error:
            if not self._lost:
                self._lose(self._error)
            return
        self._note(held=True, why="")
        if self._lost:
            self._lost = False
            _say(f"the disk takes writes again: starting {', '.join(self._stopped) or 'nothing'}")
            self._start(self._stopped)
            self._stopped = []

    def _try(self) -> None:
        try:
            self._write()
        except OSError as error:
            self._error = str(error)
        else:
            self._error = ""
            self._written = self._now()

    def _lose(self, why: str) -> None:
        self._lost = True
        self._note(held=False, why=why)
        self._stopped = self._stop()
        _say(f"this machine does not hold the disk with Slurm's state any more ({why}): "
             f"killed {', '.join(self._stopped) or 'nothing, for nothing ran'}")  # fmt: skip

    def _note(self, *, held: bool, why: str) -> None:
        files.write(self._status, json.dumps({"held": held, "why": why, "at": self._written}).encode(), 0o644)


def write_through(disk: Path, device: str) -> None:
    """Write to the disk, past all caches of the kernel.

    Raises:
        OSError: The disk is gone, read-only, or not mounted there.
    """
    if (mounted := mounted_device(disk)) != device:
        raise OSError(f"{mounted or 'nothing'} is mounted at {disk}, and should be {device}")
    handle = os.open(disk / ".held", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.pwrite(handle, f"{time.time():.0f}\n".encode(), 0)
        os.fsync(handle)
    finally:
        os.close(handle)


def mounted_device(disk: Path) -> str | None:
    """Return the numbers of the device that is mounted in a folder; `None` if none is."""
    device = None
    for line in MOUNTINFO.read_text().splitlines():
        fields = line.split()
        if fields[4] == str(disk):
            device = fields[2]
    return device


def kill_units() -> list[str]:
    """Kill what writes to the disk, and return the units that ran."""
    ran = [unit for unit in UNITS if _systemctl("is-active", "--quiet", unit) == 0]
    for unit in UNITS:
        _systemctl("kill", "--signal=KILL", unit)
    for unit in UNITS:
        _systemctl("stop", "--no-block", unit)
    return ran


def start_units(units: list[str]) -> None:
    for unit in reversed(units):
        _systemctl("start", unit)


def _systemctl(*words: str) -> int:
    with contextlib.suppress(OSError):
        status = subprocesses.run(["systemctl", *words], {"PATH": SEARCH}, COMMAND_SECONDS).status
        return -1 if status is None else status
    return -1


def _say(text: str) -> None:
    print(f"{time.strftime('%FT%TZ', time.gmtime())} {text}", flush=True)


def watch(disk: str, status: str) -> None:
    """Watch the disk for ever."""
    folder = Path(disk)
    device = mounted_device(folder)
    if device is None:
        raise SystemExit(f"nothing is mounted at {disk}")

    def now() -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    guard = Guard(lambda: write_through(folder, device), kill_units, start_units, Path(status), now)
    _say(f"watching {disk}, device {device}")
    while True:
        began = now()
        guard.look(INTERVAL_SECONDS)
        time.sleep(max(0.0, began + INTERVAL_SECONDS - now()))
