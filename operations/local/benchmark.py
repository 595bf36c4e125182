"""The local stack's commands for the benchmark: stage the workload, build the environment, call the tool."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infra.benchmark import Workload
from infra.errors import UserError
from infra.program.stack import Stack
from node.slurm.environment import without_slurm
from node.system import files, foreign
from operations import programs
from operations.access import TOOL
from operations.local import machine_access
from operations.local.environment_builds import build_environment, build_own_environment
from operations.local.run_directory import RunDirectory

CANCEL_SECONDS = 15.0


def stage(stack: Stack, own: Sequence[str] = ()) -> dict[str, Any]:
    """Copy the workload to the shared folder, under its digest.

    Args:
        own: The paths of a user's program, its script first. Empty means the built-in training.
    """
    run = RunDirectory.of(stack)
    workload = Workload.of(stack.project, own)
    target = run.shared / "bench" / workload.digest[:16]
    bench = files.folder(run.shared / "bench", 0o1777 if run.containers else 0o755)
    if foreign.is_trusted(foreign.owner(target)) and target.is_dir() and not target.is_symlink():
        return {"folder": str(target), "digest": workload.digest}
    # Users of container machines may make folders there, and know the digest. So the draft has a name and a
    # mode by which nobody else can have put anything into it.
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=bench))
    try:
        new = draft / "new"
        for file in workload.files:
            path = new / "workload" / file.name
            write_file(path, file.content)
            if file.executable:
                path.chmod(0o755)
        new.chmod(0o755)
        _put(new, target, draft / "former")
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return {"folder": str(target), "digest": workload.digest}


def _put(new: Path, target: Path, former: Path) -> None:
    """Move a folder to its place. Jobs run what is there as their own user, so another user's is not used.

    Args:
        former: Where root puts what another user has made there.

    Raises:
        UserError: Another user has made something there, and this user may not move it.
    """
    if target.is_symlink() or not foreign.is_trusted(foreign.owner(target)):
        with contextlib.suppress(FileNotFoundError, PermissionError):
            target.rename(former)
    with contextlib.suppress(OSError):
        new.rename(target)
    # Somebody may have made it a moment ago, or another `up` has staged the same.
    if target.is_symlink() or not target.is_dir() or not foreign.is_trusted(foreign.owner(target)):
        raise UserError(
            f"{target} belongs to another user, whose files would run as you: remove it",
            code="training.foreign",
        )


def environment(stack: Stack, requirements: str | None = None) -> dict[str, Any]:
    """Build the training environment if this machine does not have it yet.

    Args:
        requirements: The path of a user's requirements file, relative to the project.
    """
    run = RunDirectory.make(stack)
    uv = Path(sys.executable).with_name("uv")
    envs = (run.apps / "envs").resolve()
    if requirements is None:
        path = build_environment(stack.project, "cpu", envs, uv)
    else:
        path = build_own_environment(stack.project, requirements, envs, uv)
    return {"environment": path.name}


def tool(stack: Stack, arguments: list[str]) -> int:
    """Run the cluster's own command, as the login machine would."""
    run = RunDirectory.of(stack)
    return _run_tool(run, *arguments).status


def cancel(stack: Stack, arguments: list[str]) -> int:
    """Call the tool's `cancel`. A failure must not stop a destroy."""
    run = RunDirectory.of(stack)
    done = _run_tool(run, "cancel", *arguments, seconds=CANCEL_SECONDS)
    if done.err:
        print(f"the job was not cancelled ({done.err}); it ends with the cluster", file=sys.stderr)
    return 0


def _run_tool(run: RunDirectory, *arguments: str, seconds: float | None = None) -> programs.Output:
    """Run the cluster's own command with this program's input and output."""
    env = without_slurm(os.environ)
    if not run.containers:
        return programs.show([str(run.tool), *arguments], env=env, seconds=seconds, reads=True)
    if machine_access.controller(run) is None:
        return programs.Output(programs.CANNOT_RUN, err="the controller does not run")
    command = machine_access.command(run, [TOOL, *arguments])
    return programs.show(command.argv, env=env | command.env, seconds=seconds, reads=True)


def write_file(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, content)
