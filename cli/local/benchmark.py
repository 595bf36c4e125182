"""The local stack's commands for the benchmark: stage the workload, build the environment, call the tool."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cli.local import machine_access, training
from cli.local.run_directory import RunDirectory
from cli.access import TOOL
from infra import workload_files
from infra.errors import UserError
from infra.program.stack import Stack
from node import foreign
from node.bootstrap import files
from node.slurm.environment import without_slurm

CANCEL_SECONDS = 15.0


def stage(stack: Stack, own: Sequence[str] = ()) -> dict[str, Any]:
    """Copy the workload to the shared folder, under its digest.

    Args:
        own: The paths of a user's program, its script first. Empty means the built-in training.
    """
    run = RunDirectory.of(stack)
    workload = workload_files.read(stack.project, own)
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
        raise UserError(f"{target} belongs to another user, whose files would run as you: remove it")


def environment(stack: Stack, requirements: str | None = None) -> dict[str, Any]:
    """Build the training environment if this machine does not have it yet.

    Args:
        requirements: The path of a user's requirements file, relative to the project.
    """
    run = RunDirectory.make(stack)
    uv = Path(sys.executable).with_name("uv")
    envs = (run.apps / "envs").resolve()
    if requirements is None:
        path = training.build(stack.project, "cpu", envs, uv)
    else:
        path = training.build_own(stack.project, requirements, envs, uv)
    return {"environment": path.name}


def tool(stack: Stack, arguments: list[str]) -> int:
    """Run the cluster's own command, as the login machine would."""
    run = RunDirectory.of(stack)
    return _run_tool(run, *arguments)


def cancel(stack: Stack, arguments: list[str]) -> int:
    """Call the tool's `cancel`. A failure must not stop a destroy."""
    run = RunDirectory.of(stack)
    try:
        _run_tool(run, "cancel", *arguments, seconds=CANCEL_SECONDS)
    except (subprocess.TimeoutExpired, OSError) as error:
        print(f"the job was not cancelled ({error}); it ends with the cluster", file=sys.stderr)
    return 0


def _run_tool(run: RunDirectory, *arguments: str, seconds: float | None = None) -> int:
    if not run.containers:
        env = without_slurm(os.environ)
        return subprocess.run([str(run.tool), *arguments], env=env, check=False, timeout=seconds).returncode
    if machine_access.controller(run) is None:
        raise FileNotFoundError("the controller does not run")
    command = machine_access.command(run, [TOOL, *arguments])
    env = without_slurm(os.environ) | command.env
    return subprocess.run(command.argv, env=env, check=False, timeout=seconds).returncode


def write_file(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, content)
