"""Which Slurm this is, and what differs between the releases that the images carry.

Debian 12 has 22.05, Ubuntu 24.04 has 23.11, Debian 13 has 24.11. Every difference that matters here is a
field of `Traits`: other code asks for a trait, never for a version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infra.node.slurm.hostlist import expand

Version = tuple[int, int]
"""A release as (year, month): 22.05 is (22, 5)."""

_VERSION = re.compile(r"(?<![\d.])(\d{2})\.(\d{2})(?![\d])")


def parse(text: str) -> Version:
    """`slurm-wlm 22.05.8`, `slurm 23.11.4` or `24.11.5` -> (22, 5), (23, 11), (24, 11).

    Raises:
        ValueError: no version in the text.
    """
    match = _VERSION.search(text)
    if match is None:
        raise ValueError(f"no Slurm version in {text.strip()!r}")
    return int(match[1]), int(match[2])


def spell(version: Version) -> str:
    """(22, 5) -> `22.05`."""
    return f"{version[0]}.{version[1]:02d}"


@dataclass(frozen=True, slots=True)
class Traits:
    """How a release differs, as far as configuration goes.

    Attributes:
        private_data_cloud: cloud nodes that are off are hidden, unless `PrivateData=cloud` (22.05).
        cloud_reg_addrs: a node's address is learned at registration only with
            `SlurmctldParameters=cloud_reg_addrs`; from 23.02 always, and the option is logged as defunct.
        cgroup_off: the value of `CgroupPlugin` with which slurmd touches no cgroup at all. `autodetect`
            makes slurmd fail at start where the unified hierarchy is not its own to write (an ordinary user,
            a container without systemd), even if no other plugin uses cgroups. Before 24.05 there is no
            `disabled`, but `cgroup/v1` does nothing until somebody uses it.
        boot_time_in_uptime: `slurmd -b` counts since its start in whole seconds of the kernel's uptime, and
            may be one off (see `slurmd.start_delay`); from 23.02 by the clock.
    """

    private_data_cloud: bool
    cloud_reg_addrs: bool
    cgroup_off: str
    boot_time_in_uptime: bool


TRAITS: Mapping[Version, Traits] = {
    (22, 5): Traits(
        private_data_cloud=True, cloud_reg_addrs=True, cgroup_off="cgroup/v1", boot_time_in_uptime=True
    ),
    (23, 11): Traits(
        private_data_cloud=False, cloud_reg_addrs=False, cgroup_off="cgroup/v1", boot_time_in_uptime=False
    ),
    (24, 11): Traits(
        private_data_cloud=False, cloud_reg_addrs=False, cgroup_off="disabled", boot_time_in_uptime=False
    ),
}
"""Each row holds from its release until the next row's. Sources: Slurm's RELEASE_NOTES and sources."""


def traits(version: Version) -> Traits:
    """The traits of a release; a newer one than the table knows has those of the newest row.

    Raises:
        ValueError: the release is older than 22.05, which lacks what power saving needs here.
    """
    rows = [row for row in sorted(TRAITS) if row <= version]
    if not rows:
        oldest = spell(min(TRAITS))
        raise ValueError(f"Slurm {spell(version)} is too old: {oldest} is the first with SLURM_RESUME_FILE")
    return TRAITS[rows[-1]]


@dataclass(frozen=True, slots=True)
class ResumeJob:
    """A job that waits for nodes of one ResumeProgram call.

    Attributes:
        nodes: the job's nodes that this call shall bring up.
        nodes_alloc: all of the job's nodes, those already up too; 22.05 does not say.
    """

    job_id: int
    nodes: tuple[str, ...]
    nodes_alloc: tuple[str, ...] | None = None
    partition: str | None = None
    features: str | None = None
    oversubscribe: str | None = None
    reservation: str | None = None
    extra: str | None = None


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """What `SLURM_RESUME_FILE` says: that call's nodes, and the jobs which wait for them.

    A node without a job is one that somebody asked for by `scontrol update … state=power_up`.
    """

    all_nodes: tuple[str, ...]
    jobs: tuple[ResumeJob, ...] = ()


def parse_resume(text: str) -> ResumeRequest:
    """The resume file of any release: 23.02 renamed `all_nodes` and a job's `nodes` to `…_resume`.

    Raises:
        ValueError: it is not JSON, or not of this shape.
    """
    try:
        value = json.loads(text)
        return ResumeRequest(
            tuple(expand(_either(value, "all_nodes_resume", "all_nodes"))),
            tuple(_job(job) for job in value.get("jobs", [])),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"resume file {text[:200]!r}: {error}") from error


def _either(value: Mapping[str, Any], new: str, old: str) -> str:
    text = value[new] if new in value else value[old]
    if not isinstance(text, str):
        raise TypeError(f"{new}: a host list is expected, not {text!r}")
    return text


def _job(value: Mapping[str, Any]) -> ResumeJob:
    alloc = value.get("nodes_alloc")
    return ResumeJob(
        job_id=int(value["job_id"]),
        nodes=tuple(expand(_either(value, "nodes_resume", "nodes"))),
        nodes_alloc=None if alloc is None else tuple(expand(alloc)),
        # Slurm writes what is not set as null or as an empty text.
        **{
            key: value.get(key) or None
            for key in ("partition", "features", "oversubscribe", "reservation", "extra")
        },
    )
