"""Cgroups of machines: one for each machine in each of the kernel's hierarchies."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

REMOVE_SECONDS = 5.0
FILLED_BY_HAND = ("cpuset.cpus", "cpuset.mems")
"""What a new cgroup of version 1 lacks, and without which no process may enter it."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Attributes:
    kind: cgroup (version 1) | cgroup2.
    folder: where this host has it.
    name: its folder's name in a machine's /sys/fs/cgroup; empty for a unified one, which is all there is.
    options: what mounts it again.
    """

    kind: str
    folder: Path
    name: str
    options: str


def hierarchies(mounts: Path = Path("/proc/self/mountinfo")) -> list[Hierarchy]:
    """Those that this host has, and in which we may make cgroups."""
    found = []
    for line in mounts.read_text().splitlines():
        before, _, after = line.partition(" - ")
        folder = Path(before.split()[4])
        kind, _, options = after.split()[:3]
        if kind == "cgroup":
            own = [o for o in options.split(",") if o not in ("rw", "ro", "xattr", "nsdelegate")]
            wanted = [o for o in own if not o.startswith("release_agent=") and o != "clone_children"]
            found.append(Hierarchy(kind, folder, folder.name, ",".join(wanted)))
        elif kind == "cgroup2":
            found.append(Hierarchy(kind, folder, "" if folder == Path("/sys/fs/cgroup") else folder.name, ""))
    return [h for h in found if os.access(h.folder, os.W_OK)]


def make(name: str, of: list[Hierarchy]) -> list[Path]:
    """A cgroup with this name in each hierarchy.

    Raises:
        OSError: the kernel refuses.
    """
    made = []
    for hierarchy in of:
        folder = hierarchy.folder / name
        if hierarchy.kind == "cgroup2":
            _hand_on(hierarchy.folder)
        folder.mkdir(exist_ok=True)
        for file in FILLED_BY_HAND:
            if (folder / file).exists() and hierarchy.kind == "cgroup":
                (folder / file).write_text((hierarchy.folder / file).read_text())
        made.append(folder)
    return made


def _hand_on(folder: Path) -> None:
    """Let cgroups below one of version 2 have its controllers."""
    for controller in (folder / "cgroup.controllers").read_text().split():
        with contextlib.suppress(OSError):  # one that is not to be had here: the rest will do
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def there(prefix: str) -> list[Path]:
    """All cgroups whose names begin so, in whatever hierarchy."""
    found: list[Path] = []
    for hierarchy in hierarchies():
        with contextlib.suppress(OSError):
            found += sorted(path for path in hierarchy.folder.iterdir() if path.name.startswith(prefix))
    return found


def remove(prefix: str) -> list[Path]:
    """Remove cgroups whose names begin so, with all below them; the processes in them have ended.

    Returns:
        Those that cannot be removed.
    """
    deadline = time.monotonic() + REMOVE_SECONDS
    while found := there(prefix):
        for path in found:
            _remove(path)
        if time.monotonic() > deadline:
            return there(prefix)
        if any(path.exists() for path in found):
            time.sleep(0.02)
    return []


def _remove(top: Path) -> None:
    for folder, _, _ in os.walk(top, topdown=False):
        # Processes that ended a moment ago are still counted.
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # noqa: PTH106
