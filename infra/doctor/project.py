"""What is looked at for every stack, whatever its provider: the stack file, Python, the runner, the state."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from infra import pages, runner, trouble
from infra.config import ConfigError, load_file
from infra.config.stack_file import read
from infra.design import benchmark_design, design
from infra.doctor.finding import Finding, Severity, broken, fine, said, stops, warns
from infra.errors import UserError
from infra.machines import catalog
from infra.node import words
from infra.runner import embedded, locations, owner
from infra.runner.refusal import HOW_TO_INSTALL

if TYPE_CHECKING:
    from infra.node.model import BenchmarkDesign, ClusterDesign

PYTHONS = ((3, 11), (3, 13))
STATE_MIB = 20
"""State, lock, results of some runs."""


def stack_file(
    project: Path, stack: str
) -> tuple[Finding, ClusterDesign | None, BenchmarkDesign | None, str | None]:
    """The stack file's finding; the designs, None where it has mistakes; the provider where it is said."""
    path = project / f"Pulumi.{stack}.yaml"
    check = "stack.file"
    try:
        config = load_file(path, scripts=True)
        cluster = design(config, catalog())
        training = benchmark_design(config, cluster)
    except ConfigError as error:
        do = f"Edit {path.name}" if path.exists() else f"Name another stack, or write {path.name}"
        cure = f"{do}; infra/schema/stack.json says what it may hold."
        return stops(check, str(error), cure), None, None, _provider(path)
    except UserError as error:
        return said(check, Severity.STOPS, str(error)), None, None, _provider(path)
    nodes = sum(partition.max for partition in cluster.partitions)
    text = f"{path.name}: {cluster.name} on {cluster.provider}, up to {words.count(nodes, 'node')}"
    text += f" in {words.count(len(cluster.partitions), 'partition')}"
    if training is not None:
        text += f"; a training on {training.nodes} of them"
    return fine(check, text), cluster, training, cluster.provider


def machine_types(project: Path, stack: str) -> Iterable[Finding]:
    """Types that no table has: their cloud is asked, and what it says is kept for `plan` and `up`."""
    from infra import asking

    check = "machines.types"
    try:
        answer = asking.learn(project, stack, again=True)
    except Exception as error:
        yield broken(check, error)
        return
    yield from (fine(check, line) for line in answer.known)
    cure = "Take another machine, or give its facts under slurm-stacks:cluster.machines."
    yield from (warns(check, line, cure) for line in answer.unknown)


def planned(project: Path, stack: str) -> Iterable[Finding]:
    """What `plan` refuses although each key of the stack file is in order."""
    from infra.runner.plan import plan

    try:
        plan(project, stack)
    except UserError as error:
        yield said("stack.plan", Severity.STOPS, str(error))
    except Exception as error:
        yield broken("stack.plan", error)


def _provider(path: Path) -> str | None:
    """What a file with mistakes says about its provider."""
    try:
        content, _ = read(path)
        provider = content["config"]["slurm-stacks:cluster"]["provider"]
    except (ConfigError, KeyError, TypeError):
        return None
    return provider if isinstance(provider, str) else None


def python(project: Path) -> Iterable[Finding]:
    """The interpreter and its packages: the stack's commands run `.venv/bin/python` in the checkout."""
    version = ".".join(map(str, sys.version_info[:3]))
    venv = project / ".venv"
    if not PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        yield stops(
            "python.version",
            f"Python {version}; 3.11, 3.12 or 3.13 is needed",
            f"Install one ({pages.PYTHON}), remove {venv} and run ./cluster again: it makes the environment "
            "anew.",
        )
    missing = [str(venv / "bin" / name) for name in ("python", "uv") if not (venv / "bin" / name).exists()]
    if missing:
        yield stops(
            "python.environment",
            f"{', '.join(missing)}: not there, and the stack's commands run it",
            f"rm -r '{venv}', and run ./cluster again: it makes the environment anew.",
        )
    else:
        yield fine("python.environment", f"Python {version} in {venv}")


def environment() -> Iterable[Finding]:
    """Variables of another Slurm: jobs of this one are submitted from the caller's environment."""
    if job := os.environ.get("SLURM_JOB_ID"):
        yield warns(
            "environment.slurm",
            f"this shell is inside job {job} of another Slurm: `exec -- srun …` would take that "
            "job's allocation for its own",
            "Use a shell outside of the job, or unset the variables: unset ${!SLURM_*}",
        )


def chosen_runner(project: Path, stack: str, provider: str) -> Iterable[Finding]:
    """Who would bring the stack up, and whose its cluster is; as `runner.select` decides."""
    check = "runner.owner"
    wish = os.environ.get(runner.OVERRIDE, "")
    if wish not in ("", "embedded", "pulumi"):
        yield stops(
            "runner.choice", f"${runner.OVERRIDE} is {wish!r}", "Set it to embedded or pulumi, or unset it."
        )
        return
    cli = shutil.which("pulumi")
    if provider != "local" or wish == "pulumi":
        if cli is None:
            needs = "this provider" if provider != "local" else f"${runner.OVERRIDE}=pulumi"
            yield stops("runner.cli", f"no `pulumi` on PATH, and {needs} needs it", HOW_TO_INSTALL)
        else:
            yield fine("runner.cli", f"the Pulumi CLI, {cli}")
        return
    holder = owner.read(project, stack)
    if holder is None and embedded.outputs(project, stack) is not None:
        holder = owner.EMBEDDED
    if wish == "embedded":
        cli = None
    if holder == owner.EMBEDDED:
        yield fine(check, "the embedded runner, which has brought this stack up")
    elif cli is None and holder is None:
        yield fine(check, "the embedded runner: the local stack needs no Pulumi CLI")
    elif cli is None:
        yield said(check, Severity.STOPS, owner.refusal(project, stack, str(holder)))
    elif holder is None:
        yield fine(check, f"the Pulumi CLI, {cli}")
    else:
        from infra.runner.automation import PulumiRunner

        if holder == PulumiRunner(project, stack, local=True).backend:
            yield fine(check, f"the Pulumi CLI, {cli}, which has brought this stack up")
        else:
            yield said(check, Severity.STOPS, owner.refusal(project, stack, holder))


def state(project: Path, stack: str) -> Iterable[Finding]:
    """The folder in which a stack's state and results are kept."""
    root = locations.state_root()
    if problem := trouble.unwritable(root):
        yield said("state.folder", Severity.STOPS, problem)
        return
    free = trouble.free_mib(root)
    if free < STATE_MIB:
        yield stops("state.space", f"{root}: {free} MiB are free, {STATE_MIB} are needed", "Make room there.")
    else:
        yield fine("state.folder", f"{root} can be written, {free} MiB are free")
    given = os.environ.get("XDG_STATE_HOME", "")
    if given and not Path(given).is_absolute():
        yield warns(
            "state.variable",
            f"XDG_STATE_HOME is {given!r}, a relative path, and is not followed",
            "Write a full path, or unset it.",
        )
    if (holder := _busy(locations.state_dir(project, stack) / "lock")) is not None:
        yield stops(
            "state.lock",
            f"{holder} is working on stack {stack} of this checkout",
            "Wait for it to end, or interrupt it.",
        )


def _busy(lock: Path) -> str | None:
    """Who holds the stack's lock (`infra.runner.lock`); None: nobody."""
    try:
        with lock.open() as file:
            # Held for no longer than this line, and shared with whoever else only looks.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
    except FileNotFoundError:
        return None
    except BlockingIOError:
        words = lock.read_text(errors="replace").split()
        return f"`{words[1]}` (pid {words[0]})" if len(words) == 2 else "another command"
