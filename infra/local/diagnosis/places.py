"""The folders of a local cluster: the run directory below /tmp, the cache with the training environment."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from infra import trouble
from infra.bundle import lock_digest
from infra.doctor.finding import Finding, Severity, fine, said, stops, warns
from infra.local import machine, site, training
from infra.node.bootstrap.vm.training import COMPLETE
from infra.node.model import Settings, Site
from infra.node.slurm.conf import check_paths
from infra.runner import folders, locations

if TYPE_CHECKING:
    from infra.node.model import BenchmarkDesign, ClusterDesign

COMFORTABLE_RUN_MIB = 500
"""Logs of some days, and the outputs of jobs."""
RUN_INODES, NODE_INODES = 1000, 12
ENVIRONMENT_INODES = 33_000
DOWNLOAD = "about 0.6 GB"


def user() -> Iterable[Finding]:
    """Who the cluster would belong to."""
    if problem := machine.unnamed_user():
        yield said("user.name", Severity.STOPS, problem)
    else:
        yield fine("user.name", f"the cluster is {site.user()}'s, and only this user can run jobs on it")


def run_folder(project: Path, stack: str, design: ClusterDesign | None) -> Iterable[Finding]:
    """Where the running cluster lies: its owner, what may be done there, its room, its paths' length."""
    path = folders.check_run_dir(project, stack)
    if problem := machine.run_folder():
        yield said("run.folder", Severity.STOPS, problem)
        return
    if problem := trouble.unwritable(path):
        yield said("run.folder", Severity.STOPS, problem)
        return
    refused = list(_refused_by_munge(path))
    yield from refused
    if design is not None and (problem := _too_long(path, design)):
        yield stops("run.path", problem, "Give the partition that is named there a shorter name.")
    free = trouble.free_mib(path)
    if free < COMFORTABLE_RUN_MIB:
        yield warns(
            "run.space",
            f"{path}: {free} MiB are free; logs and the outputs of jobs go there",
            "Make room there.",
        )
    nodes = sum(partition.max for partition in design.partitions) if design else 0
    yield from _inodes("run.inodes", path, RUN_INODES + nodes * NODE_INODES, "a running cluster")
    if not refused:
        yield fine("run.folder", f"{path}, {free} MiB free")


def _refused_by_munge(path: Path) -> Iterable[Finding]:
    """munge puts its socket only below folders that others may enter, and that nobody else may change."""
    for folder in path.parents:
        try:
            info = folder.stat()
        except FileNotFoundError:
            continue
        mode = stat.S_IMODE(info.st_mode)
        if info.st_uid not in (0, os.geteuid()):
            owner = trouble.user_name(info.st_uid)
            yield stops(
                "run.munge",
                f"{folder} belongs to {owner}, and munge refuses that",
                f"As root: chown root {folder}",
            )
        elif mode & 0o022 and not mode & stat.S_ISVTX:
            yield stops(
                "run.munge",
                f"{folder} has mode {mode:o}: others may change it, and munge refuses that",
                f"As root: chmod +t {folder}",
            )
        elif not mode & stat.S_IXOTH:
            yield stops(
                "run.munge",
                f"{folder} has mode {mode:o}: others may not enter it, and munge refuses that",
                f"As root: chmod o+x {folder}",
            )


def _too_long(path: Path, design: ClusterDesign) -> str | None:
    place = Site(root=str(path), user="", controller_host="localhost", controller_address="127.0.0.1")
    try:
        check_paths(Settings(design, place))
    except ValueError as error:
        return str(error)
    return None


def _inodes(check: str, path: Path, needed: int, what: str) -> Iterable[Finding]:
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    facts = os.statvfs(there)
    # File systems without a fixed number of files say 0 of 0.
    if facts.f_files and facts.f_favail < needed:
        yield stops(
            check,
            f"{there}: {facts.f_favail} more files can be made, and {what} makes up to {needed}",
            "Remove files there (`df -i` shows the numbers).",
        )


def training_environment(project: Path, trained: BenchmarkDesign | None) -> Iterable[Finding]:
    """The cache, and in it the environment of the training: built, or whether it can be."""
    if problem := machine.cache_folder():
        yield said("training.cache", Severity.STOPS, problem)
        return
    envs = locations.cache_root() / "apps" / "envs"
    if trained is None:
        yield fine("training.environment", "this stack has no training")
        return
    target = envs / lock_digest(project, "cpu")
    if trouble.noexec(envs):
        yield stops(
            "training.noexec",
            f"{envs} is on a file system that is mounted noexec, and TensorFlow's libraries are executed",
            "Set XDG_CACHE_HOME to a folder elsewhere.",
        )
        return
    if (target / COMPLETE).exists() and (target / "bin" / "python").exists():
        yield fine("training.environment", f"built, in {target}")
        return
    free = trouble.free_mib(envs)
    if free < training.NEEDED_MIB:
        yield stops(
            "training.space",
            f"{envs}: {free} MiB are free, and the training environment needs {training.NEEDED_MIB} MiB",
            "Make room, or set XDG_CACHE_HOME to a folder on a larger disk; or bring the stack up without a "
            "training: `slurm-stacks:benchmark: {enabled: false}`.",
        )
        return
    yield from _inodes("training.inodes", envs, ENVIRONMENT_INODES, "the training environment")
    yield fine(
        "training.environment",
        f"not built yet: `up` downloads {DOWNLOAD} once (TensorFlow); it takes {training.NEEDED_MIB} MiB of "
        f"{free} in {envs}",
    )
