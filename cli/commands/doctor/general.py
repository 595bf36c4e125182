"""The checks for every provider: the stack file, Python, the runner, the state, and costly changes."""

from __future__ import annotations

import dataclasses
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cli import slurm_release
from cli.changes import table
from cli.commands import runs
from cli.engine.state import has_state
from cli.findings import Finding, Severity, failed_check, fine, from_error, from_message, stops, warns
from cli.hints import HOW_TO_INSTALL, hint
from cli.providers.interface import PlansChanges
from infra import os_errors
from infra.config import ConfigError, load_file, placeholders
from infra.config.stack_file import provider as named_provider
from infra.design import benchmark_design
from infra.errors import UserError
from infra.program import clusters, locations, owner
from infra.program.stack import Stack
from node.slurm.environment import defaults
from node.system import locks, plurals
from operations import pages
from operations.access import StackUp

if TYPE_CHECKING:
    from cli.providers.interface import Provider
    from node.design.model import BenchmarkDesign, ClusterDesign


PYTHONS = ((3, 11), (3, 13))


def stack_file(stack: Stack) -> tuple[Finding, StackUp | None, BenchmarkDesign | None]:
    """Check the stack file.

    Returns:
        The finding; the stack, `None` if the file names no provider, without a configuration if it has
        mistakes; the benchmark's design, `None` if it has mistakes or no benchmark.
    """

    def with_mistakes() -> StackUp | None:
        named = named_provider(path, stack.project)
        return StackUp(stack, named) if named is not None else None

    path = stack.file
    check = "stack.file"
    try:
        config = load_file(path, stack.project, scripts=True)
        up = StackUp.of(stack, config)
        cluster = up.design
        training = benchmark_design(config, cluster)
    except ConfigError as error:
        do = f"Edit {path.name}" if path.exists() else f"Name another stack, or write {path.name}"
        cure = f"{do}; infra/schema/stack.json says what it may hold."
        return Finding(check, Severity.STOPS, str(error), cure, error.code), with_mistakes(), None
    except UserError as error:
        return from_error(check, error), with_mistakes(), None
    nodes = sum(partition.max for partition in cluster.partitions)
    text = f"{path.name}: {cluster.name} on {cluster.provider}, up to {plurals.count(nodes, 'node')}"
    text += f" in {plurals.count(len(cluster.slurm_partitions()), 'partition')}"
    if training is not None:
        text += f"; a training on {training.nodes} of them"
    if config.placeholders:
        page = "docs/gcp.md" if cluster.provider == "gcp" else "docs/architectures.md"
        cure = f"Edit {path.name}; {page} says what else each key takes."
        unfinished = stops(check, f"{text}. {placeholders.listed(config.placeholders)}", cure)
        return unfinished, up, training
    return fine(check, text), up, training


def slurm(design: ClusterDesign) -> Iterator[Finding]:
    """Check the release of Slurm that the stack gets: who maintains it, and what is open in it."""
    name, lines = slurm_release.planned(design)
    if name:
        yield fine("slurm.release", name)
    for line in lines:
        advisory, _, cure = line.rpartition("; ")
        yield warns("slurm.advisory", advisory, cure)


def machine_types(stack: Stack) -> Iterable[Finding]:
    """Ask the cloud about instance types that are in no table, and cache the answers for `plan` and `up`."""
    from cli.providers import instance_type_lookup

    check = "machines.types"
    try:
        answer = instance_type_lookup.look_up_missing(stack, again=True)
    except Exception as error:
        yield failed_check(check, error)
        return
    yield from (fine(check, line) for line in answer.known)
    cure = "Take another machine, or give its facts under slurm-stacks:cluster.instance_types."
    yield from (warns(check, line, cure) for line in answer.unknown)


def planned(stack: Stack) -> Iterable[Finding]:
    """Check for what `plan` refuses although each key of the stack file is valid."""
    from cli.engine.plan import plan

    try:
        plan(stack)
    except UserError as error:
        yield from_error("stack.plan", error)
    except Exception as error:
        yield failed_check("stack.plan", error)


def changes(up: StackUp, training: BenchmarkDesign | None, provider: Provider) -> Iterable[Finding]:
    """Check whether `up` would refuse to change a running cluster, because that would cost jobs or files."""
    compared = provider.changes(up.stack, up.design) if isinstance(provider, PlansChanges) else None
    if compared is None:
        return
    if (reason := table.refusal(*compared, hint("up", up.stack.name, "--replace"))) is not None:
        finding = from_message("cluster.changes", Severity.STOPS, reason.text)
        yield dataclasses.replace(finding, code=reason.code)
    if (former := runs.planned(provider, up, training)) is not None:
        yield from_message("cluster.benchmark", Severity.STOPS, former.refusal(up.stack.name))


def python(project: Path) -> Iterable[Finding]:
    """Check the interpreter and its environment: the stack's commands run `.venv/bin/python`."""
    version = ".".join(map(str, sys.version_info[:3]))
    venv = project / ".venv"
    if not PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        yield stops(
            "python.version",
            f"Python {version}; 3.11, 3.12 or 3.13 is needed",
            f"Install one ({pages.PYTHON}), remove {venv} and run ./cluster again: it makes a new "
            "environment.",
        )
    missing = [str(venv / "bin" / name) for name in ("python", "uv") if not (venv / "bin" / name).exists()]
    if missing:
        yield stops(
            "python.environment",
            f"{', '.join(missing)}: not there, and the stack's commands run it",
            f"rm -r '{venv}', and run ./cluster again: it makes a new environment.",
        )
    else:
        yield fine("python.environment", f"Python {version} in {venv}")


def environment() -> Iterable[Finding]:
    """Check for options of Slurm's programs in variables, which a command after `exec --` takes."""
    if names := defaults(os.environ):
        yield warns(
            "environment.slurm",
            f"this shell sets {', '.join(names)}: after `exec --` Slurm's programs take them as options, so "
            "that they may hide jobs or ask for what this cluster does not have",
            f"If they are for another cluster: unset {' '.join(names)}",
        )


def chosen_runner(stack: Stack, provider: str) -> Iterable[Finding]:
    """Check which runner would bring the stack up (`cli.engine.select`), and who owns its cluster."""
    check = "runner.owner"
    cli = shutil.which("pulumi")
    if provider != "local":
        if cli is None:
            yield stops("runner.cli", "no `pulumi` on PATH, and this provider needs it", HOW_TO_INSTALL)
        else:
            yield fine("runner.cli", f"the Pulumi CLI, {cli}")
        return
    holder = owner.read(stack)
    if holder is None and has_state(stack):
        holder = owner.EMBEDDED
    if holder == owner.EMBEDDED:
        yield fine(check, "the embedded runner, which has brought this stack up")
    elif cli is None and holder is None:
        yield fine(check, "the embedded runner: the local stack needs no Pulumi CLI")
    elif cli is None:
        yield from_message(check, Severity.STOPS, owner.refusal(stack, str(holder)))
    elif holder is None:
        yield fine(check, f"the Pulumi CLI, {cli}")
    else:
        from cli.engine.automation import PulumiRunner

        if holder == owner.holder(stack, PulumiRunner(stack, local=True).backend):
            yield fine(check, f"the Pulumi CLI, {cli}, which has brought this stack up")
        else:
            yield from_message(check, Severity.STOPS, owner.refusal(stack, holder))


def state(stack: Stack) -> Iterable[Finding]:
    """Check the folders of the stack's state and of results."""
    for root in (locations.state_dir(stack), locations.state_root()):
        if problem := os_errors.unwritable(root):
            yield from_message("state.folder", Severity.STOPS, problem)
            return
    if problem := clusters.copied(stack):
        yield from_message("state.copy", Severity.STOPS, problem)
        return
    free = os_errors.free_mib(root)
    if free < locations.STATE_MIB:
        needed = f"{root}: {free} MiB are free, {locations.STATE_MIB} is needed"
        yield stops("state.space", needed, "Make room there.")
    else:
        yield fine("state.folder", f"{root} can be written, {free} MiB are free")
    given = os.environ.get("XDG_STATE_HOME", "")
    if given and not Path(given).is_absolute():
        yield warns(
            "state.variable",
            f"XDG_STATE_HOME is {given!r}, a relative path, and is ignored",
            "Write a full path, or unset it.",
        )
    if (holder := _busy(locations.state_dir(stack) / "lock")) is not None:
        yield stops(
            "state.lock",
            f"{holder} is working on stack {stack.name} of this checkout",
            "Wait for it to end, or interrupt it.",
        )


def _busy(lock: Path) -> str | None:
    """Return who holds the stack's lock (`cli.engine.lock`); `None` if nobody does."""
    try:
        with lock.open(errors="replace") as file:
            # The lock is released at once, and shared with other processes that only check it.
            if locks.acquire(file.fileno(), wait=False, shared=True):
                return None
            words = file.read().split()
    except FileNotFoundError:
        return None
    return f"`{words[1]}` (pid {words[0]})" if len(words) == 2 else "another command"


MOUNTS = Path("/proc/self/mounts")
PAGE = "docs/local.md"
WINDOWS_DISKS = ("9p", "drvfs")
"""The file systems by which WSL shows Windows' disks, version 2 and 1."""


def windows(project: Path, release: str | None = None, mounts: str | None = None) -> Iterable[Finding]:
    """Check this machine, if it is WSL.

    Args:
        release: The kernel's release instead of this machine's: `4.4.0-19041-Microsoft` in WSL 1,
            `5.15.90.1-microsoft-standard-WSL2` in WSL 2 (microsoft/WSL#4555, #423).
        mounts: The content of /proc/self/mounts instead of this machine's.
    """
    release = release or platform.release()
    if "microsoft" not in release.lower():
        return
    if "Microsoft" in release:
        yield stops(
            "windows.wsl",
            f"this is WSL 1 (kernel {release}), which has no Linux kernel: no namespaces, no control groups",
            f"In PowerShell: wsl --set-version <distribution> 2. {PAGE} has all steps.",
        )
    kind = _file_system(project, mounts)
    if kind in WINDOWS_DISKS:
        yield warns(
            "windows.disk",
            f"{project} is on a Windows disk ({kind}), where files have no modes and each access is slow",
            f"Clone into Linux's own file system: git clone … ~/slurm-stacks. {PAGE} says why.",
        )


def _file_system(path: Path, mounts: str | None) -> str:
    """Return the kind of the file system that a path is on; empty if the system does not say."""
    if mounts is None:
        try:
            mounts = MOUNTS.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
    nearest = (Path("/"), "")
    for line in mounts.splitlines():
        _, _, rest = line.partition(" ")
        point, _, rest = rest.partition(" ")
        # A blank in a path is \\040 there.
        folder = Path(point.replace("\\040", " "))
        # The last of several mounts on a folder is the one that is seen.
        if path.resolve().is_relative_to(folder) and len(folder.parts) >= len(nearest[0].parts):
            nearest = (folder, rest.partition(" ")[0])
    return nearest[1]
