"""The space on the controller's disks, and whether Slurm can save its state there.

slurmctld goes on when it cannot save: jobs run, and each change of the queue is lost with its next start. A
reading is one statvfs for each folder and the end of slurmctld's log, each in a thread of its own, because a
disk that hangs must keep nobody waiting.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from node.design.folders import Folders
from node.system import foreign

ANSWER_SECONDS = 1.0
"""How long the disks may take together."""
MIB = 2**20
LOW_SHARE, LOW_MIB, LOW_INODES = 0.1, 1024, 10_000
"""A disk is low below this share of its space or inodes, or below this much of either if that is less."""
FULL_MIB, FULL_INODES = 4, 16
"""Below this a disk is full: Slurm writes its state beside the former one, of which a queue has some MiB."""
LOG_BYTES = 256 * 1024
JOB_STATE = "job_state"
FAILED = re.compile(
    r"^\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\S*\] error: (.*(?:[Ee]rror (?:writing|creating|closing|syncing)|"
    r"Can't save state).*)$",
    re.MULTILINE,
)
"""What slurmctld logs when it could not write a file of its state, with the local time."""


class _Question:
    """One question to a disk, in a thread that nobody waits for at the end of the process."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self.answer: Any = None
        self.over = threading.Event()
        threading.Thread(target=self._run, args=(ask,), daemon=True, name="disk").start()

    def _run(self, ask: Callable[[], Any]) -> None:
        try:
            self.answer = ask()
        except Exception as error:  # whatever it is, it is no answer
            self.answer = error
        self.over.set()


class Disks:
    """The disks of a controller. A disk that hangs is not asked again before it has answered.

    Args:
        folders: The controller's folders.
    """

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        self._lock = threading.Lock()
        self._questions: dict[str, _Question] = {}

    def status(self) -> dict[str, Any]:
        """Return the fields `disks` and `unsaved` of `./cluster status --json`."""
        places = _places(self._folders)
        asks: dict[str, Callable[[], Any]] = {n: partial(os.statvfs, path) for n, path in places.items()}
        asks["failed write"] = partial(failed_write, self._folders)
        answers = self._answers(asks)
        disks: dict[object, dict[str, Any]] = {}
        for name, path in places.items():
            system = answers[name]
            if isinstance(system, FileNotFoundError):  # nothing has needed this folder yet
                continue
            if isinstance(system, Exception):
                system = None
            key = path if system is None else (system.f_fsid, system.f_blocks, system.f_files)
            disk = disks.setdefault(
                key, {"holds": [], **reading(path, system), "setting": self._setting(name)}
            )
            disk["holds"].append(name)
        state = next((disk for disk in disks.values() if "state" in disk["holds"]), None)
        why = None if state is None else _UNSAVED.get(state["condition"])
        if why is None and isinstance(answers["failed write"], str):
            why = answers["failed write"]
        return {"disks": list(disks.values()), "unsaved": why}

    def _answers(self, asks: dict[str, Callable[[], Any]]) -> dict[str, Any]:
        """Return the answers; `None` if there is none in time."""
        until = time.monotonic() + ANSWER_SECONDS
        with self._lock:
            for name, ask in asks.items():
                if name not in self._questions or self._questions[name].over.is_set():
                    self._questions[name] = _Question(ask)
            questions = dict(self._questions)
        for question in questions.values():
            question.over.wait(max(0.0, until - time.monotonic()))
        return {name: question.answer for name, question in questions.items()}

    def _setting(self, name: str) -> str | None:
        """Return the key of the stack file that makes this folder's disk larger; `None` if none does."""
        design = self._folders.settings.design
        if design.provider == "local":
            return None
        kept = design.state() is not None and name in KEPT
        return "storage.state.size_gib" if kept else "controller.disk_gib"


KEPT = ("state", "ledger", "database")
"""What is on the disk that outlives the controller, if there is one."""
_UNSAVED = {
    "full": "its disk is full",
    "read-only": "its disk is read-only, as the kernel makes a disk with errors",
    "silent": "its disk does not answer",
}


def _places(folders: Folders) -> dict[str, str]:
    """Return what the controller writes -> its folder."""
    folder_of = {"state": folders.state, "ledger": folders.elastic, "logs": folders.log}
    if folders.settings.design.slurm.accounting:
        folder_of["database"] = folders.database
    return {name: str(path) for name, path in folder_of.items()}


def reading(path: str, system: os.statvfs_result | None) -> dict[str, Any]:
    """Return what a folder's file system has for programs that are not root's, and its condition.

    Args:
        system: `None` means that the disk does not answer.
    """
    if system is None:
        return {
            "path": path, "condition": "silent", "short_of": None,
            "size_mib": None, "free_mib": None, "free_inodes": None,
        }  # fmt: skip
    size, free = system.f_blocks * system.f_frsize / MIB, system.f_bavail * system.f_frsize / MIB
    # Some file systems, such as btrfs, make inodes as they need them.
    inodes = system.f_favail if system.f_files else None
    space = _level(free, size, LOW_MIB, FULL_MIB)
    names = 0 if inodes is None else _level(inodes, system.f_files, LOW_INODES, FULL_INODES)
    condition = ("ok", "low", "full")[max(space, names)]
    return {
        "path": path,
        "condition": "read-only" if system.f_flag & os.ST_RDONLY else condition,
        "short_of": None if condition == "ok" else "inodes" if names > space else "space",
        "size_mib": int(size),
        "free_mib": int(free),
        "free_inodes": inodes,
    }


def _level(free: float, size: float, low: float, full: float) -> int:
    """Return 0 for enough, 1 for low, 2 for full."""
    return 2 if free < full else 1 if free < min(LOW_SHARE * size, low) else 0


def failed_write(folders: Folders) -> str | None:
    """Return slurmctld's last line on a file that it could not write, if it has saved no jobs since."""
    end = foreign.end(Path(str(folders.log)) / "slurmctld.log", LOG_BYTES).decode(errors="replace")
    failures = list(FAILED.finditer(end))
    if not failures:
        return None
    last = failures[-1]
    at = time.mktime(time.strptime(last[1], "%Y-%m-%dT%H:%M:%S"))
    try:
        # The log has whole seconds.
        if (Path(str(folders.state)) / JOB_STATE).stat().st_mtime >= at + 1.0:
            return None
    except FileNotFoundError:
        pass
    return f"slurmctld says: {last[2][:300]}"
