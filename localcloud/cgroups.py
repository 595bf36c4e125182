"""Cgroups of container machines: one for each machine, beside systemd's own.

It holds all of a machine's processes, so that they can be killed and frozen together.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from localcloud.cores import in_words
from node.system.waiting import wait_at_most

PREFIX = "slurm-stacks-"
UNIFIED, SYSTEMD = "unified", "systemd"
FOR_JOBS = ("freezer", "memory", "cpuacct", "cpuset")
"""Version 1 controllers that Slurm's plugin uses."""
CPUS = "cpuset.cpus"
FILLED_BY_HAND = (CPUS, "cpuset.mems")
"""Files that are empty in a new version 1 cgroup; no process may enter it before they are filled."""
NO_VERSION_2 = (
    "this host has no cgroups of version 2: as root, mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified"
)
REMOVE_SECONDS = 10.0
MOUNTS = Path("/proc/self/mountinfo")


def hierarchies() -> list[Path]:
    """Return the hierarchies with machines' cgroups: version 2's, and systemd's named one of version 1.

    Version 2's comes first; machines see that one. The list is empty if this host has no version 2.
    """
    mounts = _mounts()
    return [mounts[name] for name in (UNIFIED, SYSTEMD) if name in mounts] if UNIFIED in mounts else []


def old_controllers() -> dict[str, Path]:
    """Return controller -> its version 1 hierarchy, for the controllers with which Slurm limits jobs.

    The result is empty if version 2 has them: a machine's systemd delegates them to slurmd then.
    """
    mounts = _mounts()
    with contextlib.suppress(OSError, KeyError):
        if "memory" in (mounts[UNIFIED] / "cgroup.controllers").read_text().split():
            return {}
    return {name: mounts[name] for name in FOR_JOBS if name in mounts}


def _mounts() -> dict[str, Path]:
    """Return the mount points of version 2 (`unified`), of systemd's hierarchy, and of the controllers."""
    mounts: dict[str, Path] = {}
    for line in MOUNTS.read_text().splitlines():
        before, _, after = line.partition(" - ")
        folder = Path(before.split()[4])
        kind, _, options = after.split()[:3]
        if kind == "cgroup2":
            mounts.setdefault(UNIFIED, folder)
        elif kind == "cgroup":
            for option in options.split(","):
                name = SYSTEMD if option == "name=systemd" else option
                if name in (SYSTEMD, *FOR_JOBS):
                    mounts.setdefault(name, folder)
    return mounts


def _everywhere() -> list[Path]:
    return list(dict.fromkeys([*hierarchies(), *old_controllers().values()]))


def make(name: str, cores: Sequence[int] = ()) -> list[Path]:
    """Make a machine's cgroup in each hierarchy that its processes belong to.

    Args:
        cores: Cores of this host that the machine may use, by cgroups of version 2; empty means any.

    Raises:
        OSError: The kernel refuses.
    """
    folders = []
    for folder in hierarchies():
        if (folder / "cgroup.controllers").exists():
            _delegate_controllers(folder)
        (folder / name).mkdir(exist_ok=True)
        if cores and (folder / name / CPUS).exists():
            (folder / name / CPUS).write_text(in_words(cores))
        folders.append(folder / name)
    if not folders:
        raise OSError(NO_VERSION_2)
    return folders


def make_for_jobs(name: str, cores: Sequence[int] = ()) -> dict[str, Path]:
    """Make a machine's version 1 cgroups for its jobs.

    Args:
        cores: Cores of this host that the jobs may use; empty means all.

    Returns:
        Controller -> cgroup; empty if version 2 has the controllers.
    """
    folders = {}
    for controller, folder in old_controllers().items():
        group = folder / name
        group.mkdir(exist_ok=True)
        for file in FILLED_BY_HAND:
            if (group / file).exists():
                cpus = in_words(cores) if file == CPUS else ""
                (group / file).write_text(cpus or (folder / file).read_text())
        folders[controller] = group
    return folders


def set_cores(name: str, cores: Sequence[int]) -> None:
    """Change the cores of a machine's cgroups, wherever the kernel limits cores by them."""
    for group in of(name):
        if not (group / CPUS).exists():
            continue
        if (group / "cgroup.controllers").exists():
            (group / CPUS).write_text(in_words(cores))  # those below have none of their own, or fewer
            continue
        # In version 1 a group's cores are always among those of the group above.
        below = [Path(folder) for folder, _, _ in os.walk(group, topdown=False)]
        already = (group / CPUS).read_text().strip()
        (group / CPUS).write_text(",".join(filter(None, [already, in_words(cores)])))
        for folder in below:
            with contextlib.suppress(OSError):  # a job's group that ends meanwhile
                (folder / CPUS).write_text(in_words(cores))


def _delegate_controllers(folder: Path) -> None:
    """Let the cgroups below use this one's controllers."""
    for controller in (folder / "cgroup.controllers").read_text().split():
        with contextlib.suppress(OSError):  # a controller that cannot be delegated is not needed
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def kill(name: str) -> None:
    """Send SIGKILL to all processes in a cgroup and below it, all at once."""
    for group in of(name):
        with contextlib.suppress(OSError):
            (group / "cgroup.kill").write_text("1")


def freeze(name: str, *, on: bool) -> None:
    """Freeze or thaw all processes in a cgroup.

    Raises:
        OSError: There is no such cgroup.
    """
    (hierarchies()[0] / name / "cgroup.freeze").write_text("1" if on else "0")


def frozen(name: str) -> bool:
    """Return whether a cgroup was frozen with `freeze`."""
    with contextlib.suppress(OSError, IndexError):
        return (hierarchies()[0] / name / "cgroup.freeze").read_text().strip() == "1"
    return False


def of(name: str) -> list[Path]:
    """Return the cgroup of this name in each hierarchy that has it."""
    return [folder / name for folder in _everywhere() if (folder / name).is_dir()]


def beginning(prefix: str) -> list[Path]:
    """Return all cgroups whose names begin with `prefix`, in each hierarchy."""
    return sorted(path for folder in _everywhere() for path in folder.glob(f"{prefix}*") if path.is_dir())


def remove(find: Callable[[], list[Path]]) -> list[Path]:
    """Remove cgroups and everything below them. Their processes have ended.

    Args:
        find: Returns the cgroups that are left; called again until there are none.

    Returns:
        The cgroups that cannot be removed.
    """

    def removed() -> bool:
        groups = find()
        for path in groups:
            _remove(path)
        return not any(path.exists() for path in groups)

    return [] if wait_at_most(removed, REMOVE_SECONDS) else find()


def _remove(top: Path) -> None:
    for folder, _, _ in os.walk(top, topdown=False):
        # The kernel still counts processes that ended a moment ago; `remove` tries again.
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # noqa: PTH106
