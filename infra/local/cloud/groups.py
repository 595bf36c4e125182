"""Cgroups of machines: one for each machine where systemd keeps its own, which container machines have.

All of a machine's processes are in it, so that they end, and stand still, together.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

PREFIX = "slurm-stacks-"
UNIFIED, SYSTEMD = "unified", "systemd"
FOR_JOBS = ("freezer", "memory", "cpuacct", "cpuset")
"""Controllers of version 1 that Slurm's plugin uses."""
FILLED_BY_HAND = ("cpuset.cpus", "cpuset.mems")
"""What a new cgroup of version 1 lacks, and without which no process may enter it."""
NO_VERSION_2 = (
    "this host has no cgroups of version 2: as root, mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified"
)
REMOVE_SECONDS = 10.0
MOUNTS = Path("/proc/self/mountinfo")


def hierarchies() -> list[Path]:
    """Where machines' cgroups are: version 2's one hierarchy, and the one that systemd names in version 1.

    The first is version 2's, which machines see; none if this host has none.
    """
    found = _mounts()
    return [found[name] for name in (UNIFIED, SYSTEMD) if name in found] if UNIFIED in found else []


def old_controllers() -> dict[str, Path]:
    """Controller -> its hierarchy of version 1, of those that Slurm limits jobs by.

    Empty where version 2 has them: there a machine's systemd hands them on to slurmd.
    """
    found = _mounts()
    with contextlib.suppress(OSError, KeyError):
        if "memory" in (found[UNIFIED] / "cgroup.controllers").read_text().split():
            return {}
    return {name: found[name] for name in FOR_JOBS if name in found}


def _mounts() -> dict[str, Path]:
    """`unified`, `systemd`, and version 1's controllers -> where they are mounted."""
    found: dict[str, Path] = {}
    for line in MOUNTS.read_text().splitlines():
        before, _, after = line.partition(" - ")
        folder = Path(before.split()[4])
        kind, _, options = after.split()[:3]
        if kind == "cgroup2":
            found.setdefault(UNIFIED, folder)
        elif kind == "cgroup":
            for option in options.split(","):
                name = SYSTEMD if option == "name=systemd" else option
                if name in (SYSTEMD, *FOR_JOBS):
                    found.setdefault(name, folder)
    return found


def _everywhere() -> list[Path]:
    return list(dict.fromkeys([*hierarchies(), *old_controllers().values()]))


def make(name: str) -> list[Path]:
    """A machine's cgroup, in each hierarchy that its processes belong to.

    Raises:
        OSError: the kernel refuses.
    """
    made = []
    for folder in hierarchies():
        if (folder / "cgroup.controllers").exists():
            _hand_on(folder)
        (folder / name).mkdir(exist_ok=True)
        made.append(folder / name)
    if not made:
        raise OSError(NO_VERSION_2)
    return made


def make_for_jobs(name: str) -> dict[str, Path]:
    """Controller of version 1 -> a machine's cgroup in it, for its jobs; empty where version 2 has them."""
    made = {}
    for controller, folder in old_controllers().items():
        group = folder / name
        group.mkdir(exist_ok=True)
        for file in FILLED_BY_HAND:
            if (group / file).exists():
                (group / file).write_text((folder / file).read_text())
        made[controller] = group
    return made


def _hand_on(folder: Path) -> None:
    """Let cgroups below have this one's controllers."""
    for controller in (folder / "cgroup.controllers").read_text().split():
        with contextlib.suppress(OSError):  # one that is not to be had here: the rest will do
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def kill(name: str) -> None:
    """SIGKILL to all that is in a cgroup and below it, at one moment."""
    for group in of(name):
        with contextlib.suppress(OSError):
            (group / "cgroup.kill").write_text("1")


def freeze(name: str, *, on: bool) -> None:
    """Have all in a cgroup stand still, or go on.

    Raises:
        OSError: there is no such cgroup.
    """
    (hierarchies()[0] / name / "cgroup.freeze").write_text("1" if on else "0")


def frozen(name: str) -> bool:
    """Whether all in a cgroup stands still on somebody's wish."""
    with contextlib.suppress(OSError, IndexError):
        return (hierarchies()[0] / name / "cgroup.freeze").read_text().strip() == "1"
    return False


def of(name: str) -> list[Path]:
    """The cgroup of this name, in each hierarchy that has it."""
    return [folder / name for folder in _everywhere() if (folder / name).is_dir()]


def beginning(prefix: str) -> list[Path]:
    """All cgroups whose names begin so, in each hierarchy."""
    return sorted(path for folder in _everywhere() for path in folder.glob(f"{prefix}*") if path.is_dir())


def remove(find: Callable[[], list[Path]]) -> list[Path]:
    """Remove cgroups with all below them; the processes in them have ended.

    Returns:
        Those that cannot be removed.
    """
    deadline = time.monotonic() + REMOVE_SECONDS
    while found := find():
        for path in found:
            _remove(path)
        if time.monotonic() > deadline:
            return find()
        if any(path.exists() for path in found):
            time.sleep(0.02)
    return []


def _remove(top: Path) -> None:
    for folder, _, _ in os.walk(top, topdown=False):
        # Processes that ended a moment ago are still counted.
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # noqa: PTH106
