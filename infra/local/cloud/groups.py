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
REMOVE_SECONDS = 10.0
MOUNTS = Path("/proc/self/mountinfo")


def hierarchies() -> list[Path]:
    """Where this host has them: version 2's one hierarchy, and the one that systemd names in version 1.

    The first is version 2's, which machines see; none if this host has none that we may write.
    """
    found: dict[str, Path] = {}
    for line in MOUNTS.read_text().splitlines():
        before, _, after = line.partition(" - ")
        folder = Path(before.split()[4])
        kind, _, options = after.split()[:3]
        if kind == "cgroup2":
            found.setdefault("unified", folder)
        elif kind == "cgroup" and "name=systemd" in options.split(","):
            found.setdefault("systemd", folder)
    if "unified" not in found:
        return []
    return [found[name] for name in ("unified", "systemd") if name in found]


def make(name: str) -> list[Path]:
    """A machine's cgroup, in each hierarchy.

    Raises:
        OSError: the kernel refuses.
    """
    made = []
    for folder in hierarchies():
        if (folder / "cgroup.controllers").exists():
            _hand_on(folder)
        group = folder / name
        group.mkdir(exist_ok=True)
        made.append(group)
    if not made:
        raise OSError("this host has no cgroups of version 2: mount them, or boot it with systemd")
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
    return [folder / name for folder in hierarchies() if (folder / name).is_dir()]


def beginning(prefix: str) -> list[Path]:
    """All cgroups whose names begin so, in each hierarchy."""
    return sorted(path for folder in hierarchies() for path in folder.glob(f"{prefix}*") if path.is_dir())


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
