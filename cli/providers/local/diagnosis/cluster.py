"""Checks of this stack's cluster: what is up or left of it, its folders, and its kind of machines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from cli.engine import state
from cli.findings import Finding, Severity, fine, from_message, stops, warns
from cli.providers import condition
from cli.providers.local import host_checks
from cli.providers.local.clusters import other_owners
from infra import environments, os_errors
from infra.program import folders, locations, owner
from infra.program.stack import Stack
from node.bootstrap.vm.training import COMPLETE
from node.design.model import ClusterDesign, Settings, Site
from node.slurm.conf import check_paths
from node.system import rpc
from operations.local import container_images, environment_builds, machine_access, run_directory
from operations.local import containers as container_machines
from operations.local.run_directory import RunDirectory

if TYPE_CHECKING:
    from node.design.model import BenchmarkDesign, ClusterDesign

ANSWER_SECONDS = 6.0
"""Seconds to wait for an answer: not long for the user, but enough for a daemon on a busy machine."""
NAMED = 3


def present(stack: Stack, design: ClusterDesign | None = None) -> Iterable[Finding]:
    """Check this stack's cluster: it may be up, partly up, or have left something.

    Args:
        design: The stack file's design; `None` if the file has mistakes.
    """
    run = RunDirectory.of(stack)
    if design is not None and (name := run.cluster) not in (None, design.name):
        yield stops(
            "cluster.name",
            f"cluster {name} is up, and the stack file says {design.name}: that is another cluster",
            f"Put the old name back; or `./cluster up --stack {stack.name} --replace` destroys {name}, its "
            "files and its jobs first.",
        )
    up, down = (f"`./cluster {verb} --stack {stack.name}`" for verb in ("up", "down"))
    if not run.path.exists():
        if left := run.pids():
            yield warns(
                "cluster.leftovers",
                f"{run.path} is gone, and processes of the cluster in it are left: {_listed(left)}",
                f"{down} ends them.",
            )
        elif state.outputs(stack):
            yield warns(
                "cluster.state",
                f"was up, and {run.path} is gone: the machine was restarted, or the folder was removed",
                f"{up} makes a new cluster, {down} forgets it; the former jobs are lost.",
            )
        else:
            yield fine("cluster.state", f"not up yet{other_owners(stack)}")
    elif owner.read(stack) is None:
        left = run.pids()
        yield warns(
            "cluster.leftovers",
            f"{run.path} is there and nobody owns it"
            + (f"; processes in it: {_listed(left)}" if left else ""),
            f"{down} removes it.",
        )
    else:
        yield from _condition(run, up, stack.name)


def _listed(pids: list[int]) -> str:
    return ", ".join(map(str, pids[:NAMED])) + (f" and {len(pids) - NAMED} more" if len(pids) > NAMED else "")


def _condition(run: RunDirectory, up: str, stack: str) -> Iterable[Finding]:
    """Check a cluster that is up, or was up."""
    look = f"`./cluster logs --stack {stack}` shows its last messages."
    try:
        found = run.call("list", ANSWER_SECONDS, tags={})["machines"]
    except (rpc.RpcUnavailableError, rpc.RpcError):
        yield warns(
            "cluster.agent",
            f"{run.path} is there, and the agent of its local cloud does not answer: no node can start",
            f"{up} starts it again. {look}",
        )
        return
    machines = [machine for machine in found if machine["state"] in ("pending", "running")]
    head = [machine for machine in machines if machine["tags"]["role"] == "controller"]
    if not head:
        text = f"half up: its local cloud runs in {run.path}, its controller does not"
        yield warns("cluster.controller", text, f"{up} goes on where it stopped. {look}")
        return
    try:
        rpc.call(machine_access.daemon_socket(run), "ping", ANSWER_SECONDS)
    except (rpc.RpcUnavailableError, rpc.RpcError):
        text = "up, and its elastic daemon does not answer"
        yield warns("cluster.daemon", text, f"It is started again by itself when it dies. {look}")
        return
    with contextlib.suppress(rpc.RpcUnavailableError, rpc.RpcError):  # slurmctld may be slow to answer
        status = rpc.call(machine_access.daemon_socket(run), "status", ANSWER_SECONDS)
        yield from condition.disks(status, stack)
        yield from condition.budget(status["cost"], stack)
        yield from condition.health(status["nodes"], stack)
        yield from condition.service(status, stack)
        yield from condition.backups(status, stack)
    nodes = sum(machine["tags"]["role"] == "compute" for machine in machines)
    yield fine("cluster.state", f"is up, {nodes} {'node' if nodes == 1 else 'nodes'} running")


# Checks of a local cluster's folders: the run directory, and the cache with the training environment.

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
