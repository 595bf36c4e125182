"""The local stack's commands for the benchmark: stage the workload, build the environment, call the tool."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cli.local import machine_access, training
from cli.local.site import RunDirectory
from cli.provider import TOOL
from infra import workload_files
from infra.errors import UserError
from infra.program.stack import Stack
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
    # Users of container machines may make folders there, and jobs run what is staged as their own user.
    if (target.exists() or target.is_symlink()) and target.lstat().st_uid not in (0, os.getuid()):
        raise UserError(f"{target} belongs to another user, whose files would run as you: remove it")
    if not target.exists():
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        for file in workload.files:
            path = draft / "workload" / file.name
            write_file(path, file.content)
            if file.executable:
                path.chmod(0o755)
        draft.rename(target)
    return {"folder": str(target), "digest": workload.digest}


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
