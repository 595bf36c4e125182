"""Slurm's release, and the differences between the releases of the supported distributions.

Debian 12 has 22.05, Ubuntu 24.04 has 23.11, Debian 13 has 24.11, and Debian testing has 26.05. Every
difference that matters here is a field of `Traits`. Other code checks a trait, never a version.

Slurm's traps (docs/internals/slurm_traps.md): boot-second, reconfigure-kills-scripts, requeued-gpus,
changed-defaults.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

Version = tuple[int, int]
"""A release as (year, month): 22.05 is (22, 5)."""

_VERSION = re.compile(r"(?<![\d.])(\d{2})\.(\d{2})(?![\d])")
_PATCH = re.compile(rf"{_VERSION.pattern}(?:\.(\d+))?")


def parse(text: str) -> Version:
    """Return the release in a text: `slurm-wlm 22.05.8` -> (22, 5), `24.11.5` -> (24, 11).

    Raises:
        ValueError: The text has no version.
    """
    match = _VERSION.search(text)
    if match is None:
        raise ValueError(f"no Slurm version in {text.strip()!r}")
    return int(match[1]), int(match[2])


def short(text: str) -> str:
    """Return the release in a text with its patch, as Slurm writes it: `slurm-wlm 23.11.4` -> `23.11.4`."""
    match = _PATCH.search(text)
    return match[0] if match else text.strip()


_SCRIPTS_KILLED: Version = (23, 11)
_SCRIPTS_AWAITED: Mapping[Version, int] = {(25, 5): 7, (25, 11): 4}
"""Release -> its first patch with SchedMD's commit 34776eeb61. Later releases have it from the start."""


def reconfigure_survives_scripts(text: str) -> bool:
    """Return whether `scontrol reconfigure` does no harm while slurmctld's prolog or epilog runs.

    From 23.11 on a reconfigure kills these scripts. Before the patches of `_SCRIPTS_AWAITED` slurmctld
    handles their ends too late. Earlier releases reconfigure in place and kill no script.

    Args:
        text: The release, as Slurm's programs print it. If it names none, the answer is no.
    """
    match = _PATCH.search(text)
    if match is None:
        return False
    release, patch = (int(match[1]), int(match[2])), int(match[3] or 0)
    if release < _SCRIPTS_KILLED or release > max(_SCRIPTS_AWAITED):
        return True
    return release in _SCRIPTS_AWAITED and patch >= _SCRIPTS_AWAITED[release]


_REQUEUES_CLEANED: Mapping[Version, int] = {(23, 11): 11, (24, 5): 6, (24, 11): 1}
"""Release -> its first patch with SchedMD's commit 3d5a7e06d2. Later releases have it from the start."""


def cleans_up_requeued_jobs(text: str) -> bool:
    """Return whether slurmctld cleans up a requeued job whose node is given up before it has ended.

    Args:
        text: The release, as Slurm's programs print it. If it names none, the answer is no.
    """
    match = _PATCH.search(text)
    if match is None:
        return False
    release, patch = (int(match[1]), int(match[2])), int(match[3] or 0)
    return release > max(_REQUEUES_CLEANED) or patch >= _REQUEUES_CLEANED.get(release, patch + 1)


def knows_last_digit(text: str) -> bool:
    """Return whether `sbatch --output` may have %b, the last digit of a task's index (24.11, fname.c).

    Args:
        text: The release, as Slurm's programs print it. If it names none, the answer is yes.
    """
    match = _VERSION.search(text)
    return match is None or (int(match[1]), int(match[2])) >= (24, 11)


def check_takeover(before: str, now: str) -> None:
    """Refuse a release that cannot read the state that another one has written.

    Args:
        before: The release that has written the state, as Slurm's programs print it.
        now: The release that is to read it.

    Raises:
        ValueError: The release is older.
    """
    if parse(now) < parse(before):
        raise ValueError(
            f"Slurm {short(now)} is older than Slurm {short(before)}, which has written the queue, and "
            "cannot read it: nothing was changed. Give the controller an image with Slurm "
            f"{spell(parse(before))} or newer (controller.image, image), and run `up` again"
        )


RELEASES: tuple[Version, ...] = (
    (20, 11), (21, 8), (22, 5), (23, 2), (23, 11), (24, 5), (24, 11), (25, 5), (25, 11), (26, 5)
)  # fmt: skip
"""Slurm's releases. Each reads the state of the two before it, and from `_READS_THREE` on of three."""
_READS_THREE: Version = (24, 11)


def reads_state_of(release: Version) -> tuple[Version, ...]:
    """Return the releases whose state a release reads: its own and, newest first, those before it."""
    known = [*RELEASES, *([release] if release > RELEASES[-1] else [])]
    place = known.index(release)
    return tuple(reversed(known[max(0, place - (3 if release >= _READS_THREE else 2)) : place + 1]))


def check_readable(before: str, now: str) -> None:
    """Refuse a saved state that a release cannot read.

    Args:
        before: The release that has written the state, as Slurm's programs print it.
        now: The release that is to read it.

    Raises:
        ValueError: It is newer, or too old.
    """
    readable = reads_state_of(parse(now))
    if parse(before) not in readable:
        raise ValueError(
            f"Slurm {short(now)} cannot read the state of Slurm {short(before)}: it reads that of "
            f"{', '.join(spell(release) for release in readable)}. Give the controller an image with a "
            "release that can (controller.image, image), and run `up` again"
        )


def spell(version: Version) -> str:
    """Return a release as text: (22, 5) -> `22.05`."""
    return f"{version[0]}.{version[1]:02d}"


@dataclass(frozen=True, slots=True)
class Traits:
    """The differences of a release that matter for the configuration.

    Attributes:
        private_data_cloud: Whether cloud nodes that are off are hidden unless `PrivateData=cloud` is set
            (22.05).
        cloud_reg_addrs: Whether a node's address is learned at registration only with
            `SlurmctldParameters=cloud_reg_addrs`. From 23.11 on it is always learned, and the option is
            logged as defunct.
        cgroup_off: The value of `CgroupPlugin` with which slurmd touches no cgroup at all. With `autodetect`
            slurmd fails at its start if it may not write to the unified hierarchy (as an ordinary user, or in
            a container without systemd), even if no other plugin uses cgroups. Before 24.05 there is no
            `disabled`, but `cgroup/v1` does nothing until it is used.
        boot_time_in_uptime: Whether `slurmd -b` counts the time since its start in whole seconds of the
            kernel's uptime, which may be one second off (see `registration.start_delay`). From 23.11 on it
            uses the clock.
        http: Whether slurmctld answers HTTP on its port, and has a plugin for metrics (25.11).
        lines_rank: Whether nodes that are off rank by their line of slurm.conf: those of a line with a node
            that is up behind those of lines that are wholly off, whatever their weights (until 23.02).
    """

    private_data_cloud: bool
    cloud_reg_addrs: bool
    cgroup_off: str
    boot_time_in_uptime: bool
    http: bool
    lines_rank: bool = False


TRAITS: Mapping[Version, Traits] = {
    (22, 5): Traits(
        private_data_cloud=True,
        cloud_reg_addrs=True,
        cgroup_off="cgroup/v1",
        boot_time_in_uptime=True,
        http=False,
        lines_rank=True,
    ),
    (23, 2): Traits(
        private_data_cloud=True,
        cloud_reg_addrs=True,
        cgroup_off="cgroup/v1",
        boot_time_in_uptime=True,
        http=False,
    ),
    (23, 11): Traits(
        private_data_cloud=False,
        cloud_reg_addrs=False,
        cgroup_off="cgroup/v1",
        boot_time_in_uptime=False,
        http=False,
    ),
    (24, 11): Traits(
        private_data_cloud=False,
        cloud_reg_addrs=False,
        cgroup_off="disabled",
        boot_time_in_uptime=False,
        http=False,
    ),
    (25, 11): Traits(
        private_data_cloud=False,
        cloud_reg_addrs=False,
        cgroup_off="disabled",
        boot_time_in_uptime=False,
        http=True,
    ),
}
"""The traits of each release, valid until the next row's. Sources: Slurm's RELEASE_NOTES and source code."""
NEWEST_TESTED: Version = (26, 5)
"""The newest release that tests/cluster/test_releases.py runs."""


def traits(version: Version) -> Traits:
    """Return the traits of a release. A release that is newer than the table has those of the last row.

    Raises:
        ValueError: The release is older than 22.05 and lacks SLURM_RESUME_FILE, which power saving needs.
    """
    rows = [row for row in sorted(TRAITS) if row <= version]
    if not rows:
        oldest = spell(min(TRAITS))
        raise ValueError(f"Slurm {spell(version)} is too old: {oldest} is the first with SLURM_RESUME_FILE")
    return TRAITS[rows[-1]]
