"""Checks of a local cluster's folders: the run directory, and the cache with the training environment."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from cli.doctor.finding import Finding, Severity, fine, from_message, stops, warns
from cli.local import host_checks, run_directory, training
from infra import environments, os_errors
from infra.program import folders, locations
from infra.program.stack import Stack
from node.bootstrap.vm.training import COMPLETE
from node.model import Settings, Site
from node.slurm.conf import check_paths

if TYPE_CHECKING:
    from node.model import BenchmarkDesign, ClusterDesign

COMFORTABLE_RUN_MIB = 500
"""Space for the logs of some days and the outputs of jobs."""
DOWNLOAD = "about 0.6 GB"


def user() -> Iterable[Finding]:
    """Check the user that the cluster would belong to."""
    if problem := host_checks.unnamed_user():
        yield from_message("user.name", Severity.STOPS, problem)
    else:
        yield fine(
            "user.name", f"the cluster is {run_directory.user()}'s, and only this user can run jobs on it"
        )


def run_folder(stack: Stack, design: ClusterDesign | None) -> Iterable[Finding]:
    """Check the run directory: owner, permissions, free space, and the length of its paths."""
    path = folders.check_run_dir(stack)
    if problem := host_checks.run_folder():
        yield from_message("run.folder", Severity.STOPS, problem)
        return
    if problem := os_errors.unwritable(path):
        yield from_message("run.folder", Severity.STOPS, problem)
        return
    unsafe = list(_unsafe(path))
    yield from unsafe
    if design is not None and (problem := _too_long(path, design)):
        yield stops("run.path", problem, "Give the partition that is named there a shorter name.")
    free = os_errors.free_mib(path)
    if free < COMFORTABLE_RUN_MIB:
        yield warns(
            "run.space",
            f"{path}: {free} MiB are free; logs and the outputs of jobs go there",
            "Make room there.",
        )
    if not unsafe:
        yield fine("run.folder", f"{path}, {free} MiB free")


def _unsafe(path: Path) -> Iterable[Finding]:
    """Check the folders above the run directory, in which others could exchange it."""
    for problem in folders.unsafe_parents(path):
        yield stops("run.parents", problem.cause, problem.cure)


def _too_long(path: Path, design: ClusterDesign) -> str | None:
    place = Site(root=str(path), user="", controller_host="localhost", controller_address="127.0.0.1")
    try:
        check_paths(Settings(design, place))
    except ValueError as error:
        return str(error)
    return None


def training_environment(project: Path, trained: BenchmarkDesign | None) -> Iterable[Finding]:
    """Check the cache, and that the training environment in it is built or can be built."""
    if problem := host_checks.cache_folder():
        yield from_message("training.cache", Severity.STOPS, problem)
        return
    envs = locations.cache_root() / "apps" / "envs"
    if trained is None:
        yield fine("training.environment", "this stack has no training")
        return
    needed = training.NEEDED_MIB if trained.requirements is None else training.OWN_MIB
    target = envs / environments.digest("cpu", trained.requirements, project)
    if problem := training.noexec_problem(target):
        yield from_message("training.noexec", Severity.STOPS, problem)
        return
    if (target / COMPLETE).exists() and (target / "bin" / "python").exists():
        yield fine("training.environment", f"built, in {target}")
        return
    if problem := training.space_problem(target, needed):
        yield from_message("training.space", Severity.STOPS, problem)
        return
    if trained.requirements is not None:
        yield fine("training.environment", f"not built yet: `up` makes it once from {trained.requirements}")
        return
    yield fine(
        "training.environment",
        f"not built yet: `up` downloads {DOWNLOAD} once (TensorFlow); it takes {training.NEEDED_MIB} MiB of "
        f"{os_errors.free_mib(envs)} in {envs}",
    )
