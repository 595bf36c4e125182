"""The benchmark's part of the local stack's commands: workload staged, environment built, tool called."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from infra import bundle
from infra.local import training, way_in
from infra.local.site import RunDirectory
from infra.node.bootstrap import files
from infra.provider import TOOL

CANCEL_SECONDS = 15.0


def stage(project: Path, stack: str) -> dict[str, Any]:
    """Copy the workload to the shared folder, under its digest."""
    run = RunDirectory.of(project, stack)
    digest = bundle.tree_digest(project / "workload")
    target = run.shared / "bench" / digest[:16]
    if not target.exists():
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        for name, content in bundle.tree(project / "workload"):
            place(draft / "workload" / name, content)
        draft.rename(target)
    return {"folder": str(target), "digest": digest}


def environment(project: Path, stack: str) -> dict[str, Any]:
    """Build the training environment, where this machine has not got it yet."""
    run = RunDirectory.make(project, stack)
    uv = Path(sys.executable).with_name("uv")
    path = training.build(project, "cpu", (run.apps / "envs").resolve(), uv)
    return {"environment": path.name}


def tool(project: Path, stack: str, arguments: list[str]) -> int:
    """Run the cluster's own command, as the login machine would."""
    run = RunDirectory.of(project, stack)
    return _run_tool(run, *arguments)


def cancel(project: Path, stack: str, arguments: list[str]) -> int:
    """The tool's cancel, which must not keep a destroy from going on."""
    run = RunDirectory.of(project, stack)
    try:
        _run_tool(run, "cancel", *arguments, seconds=CANCEL_SECONDS)
    except (subprocess.TimeoutExpired, OSError) as error:
        print(f"the job was not cancelled ({error}); it ends with the cluster", file=sys.stderr)
    return 0


def _run_tool(run: RunDirectory, *arguments: str, seconds: float | None = None) -> int:
    if not run.containers:
        return subprocess.run([str(run.tool), *arguments], check=False, timeout=seconds).returncode
    if way_in.controller(run) is None:
        raise FileNotFoundError("the controller does not run")
    command = way_in.command(run, [TOOL, *arguments])
    return subprocess.run(
        command.argv, env={**os.environ, **command.env}, check=False, timeout=seconds
    ).returncode


def place(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    files.place(path, content)
