"""Checks of a local cluster's folders: the run directory, and the cache with the training environment."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from cli.findings import Finding, Severity, fine, from_message, stops
from cli.providers.local import host_checks
from infra import environments, os_errors
from infra.program import folders, locations
from infra.program.stack import Stack
from node.bootstrap.vm.training import COMPLETE
from node.design.model import ClusterDesign, Settings, Site
from node.slurm.conf import check_paths
from operations.local import container_images, environment_builds, run_directory
from operations.local import containers as container_machines

if TYPE_CHECKING:
    from node.design.model import BenchmarkDesign, ClusterDesign


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
    """Check the run directory: owner, permissions, and the length of its paths."""
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
    if not unsafe:
        yield fine("run.folder", f"{path}, {os_errors.free_mib(path)} MiB free")


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
    needed = environment_builds.NEEDED_MIB if trained.requirements is None else environment_builds.OWN_MIB
    target = envs / environments.digest("cpu", trained.requirements, project)
    if problem := environment_builds.noexec_problem(target):
        yield from_message("training.noexec", Severity.STOPS, problem)
        return
    if (target / COMPLETE).exists() and (target / "bin" / "python").exists():
        yield fine("training.environment", f"built, in {target}")
        return
    if problem := environment_builds.space_problem(target, needed):
        yield from_message("training.space", Severity.STOPS, problem)
        return
    if trained.requirements is not None:
        yield fine("training.environment", f"not built yet: `up` makes it once from {trained.requirements}")
        return
    yield fine(
        "training.environment",
        f"not built yet: `up` downloads {DOWNLOAD} once (TensorFlow); it takes "
        f"{environment_builds.NEEDED_MIB} MiB of {os_errors.free_mib(envs)} in {envs}",
    )


def containers(
    design: ClusterDesign,
    unsupported_reason: Callable[[ClusterDesign | None], str | None] = container_machines.unsupported_reason,
) -> Iterable[Finding]:
    """Check whether `isolation: container` is possible.

    Args:
        design: The stack's design.
        unsupported_reason: Finds it out.
    """
    if (reason := unsupported_reason(design)) is not None:
        yield from_message("machines.containers", Severity.STOPS, f"{reason} {container_machines.INSTEAD}")
        return
    image = (
        "its image is there"
        if container_images.image_exists(design)
        else "`up` makes its image first, some minutes once"
    )
    yield fine("machines.containers", f"each is a container that boots; {image}")
