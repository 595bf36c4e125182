"""The training environment: made once for a lock file, on the disk that all machines share.

It lies in `<apps>/envs/<digest of uv.lock>`, as the benchmark expects it, and counts when its file
`.complete` is there. The controller makes it, also for nodes with GPUs: all machines have the same
distribution, and what is installed does not ask what it will run on.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import sys
from pathlib import Path

from infra.node.bootstrap import files
from infra.node.bootstrap.context import Context, SkipStep

COMPLETE = ".complete"
"""In an environment, once it is whole: on the local stack too."""
PROJECT = "environment"
"""In the node archive: pyproject.toml, uv.lock, and uv.txt with the hashes of uv itself."""
PYTHON = "/usr/bin/python3"
NEEDED_MIB = {"cpu": 3000, "gpu": 9000}
SYNC_SECONDS = 1500.0
MIB = 1 << 20


def prepare(context: Context) -> str:
    """Have the environment.

    Raises:
        OSError: there is no room for it.
        CommandError: uv could not make it; its last lines are with it.
    """
    if not context.settings.design.trains:
        raise SkipStep("the stack has no benchmark that would need one")
    project = context.path(context.folders.code) / PROJECT
    if not (project / "uv.lock").exists():
        raise SkipStep("nothing is published that it could be made of")
    envs = files.folder(Path(context.settings.site.apps) / "envs")
    target = envs / hashlib.sha256((project / "uv.lock").read_bytes()).hexdigest()[:16]
    # A restart of the boot may find the last one still at it.
    with (envs / f".{target.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Its interpreter is a link to the machine's, which may be another distribution's by now.
        if (target / COMPLETE).exists() and (target / "bin" / "python").exists():
            return f"{target} is there"
        _see_room(project, envs, target)
        print(f"making the training environment {target}", file=sys.stderr, flush=True)
        _sync(context, project, target)
        (target / COMPLETE).write_text("\n")
    return f"made {target}"


def _see_room(project: Path, envs: Path, target: Path) -> None:
    kind = "gpu" if "nvidia-" in (project / "uv.lock").read_text() else "cpu"
    there = sum(file.lstat().st_size for file in target.rglob("*")) // MIB
    free, needed = shutil.disk_usage(envs).free // MIB, NEEDED_MIB[kind] - there
    if free < needed:
        raise OSError(
            f"the training environment needs {needed} MiB in {envs}, and {free} MiB are free there: "
            "give storage.apps a larger size_gib"
        )


def _sync(context: Context, project: Path, target: Path) -> None:
    """By the uv of a virtual environment of its own: Ubuntu has no package of it."""
    tools = context.at("opt/slurm-stacks/uv")
    locked = project / "uv.txt"
    mark = tools / "uv.txt"
    if not mark.exists() or mark.read_bytes() != locked.read_bytes():
        context.run(PYTHON, "-m", "venv", "--clear", str(tools), timeout=120.0)
        pip = (str(tools / "bin" / "pip"), "install", "--quiet", "--no-cache-dir", "--require-hashes")
        context.run(*pip, "--requirement", str(locked), timeout=300.0, attempts=3)
        files.place(mark, locked.read_bytes())
    env = {
        "HOME": "/root",
        "UV_PROJECT_ENVIRONMENT": str(target),
        "UV_COMPILE_BYTECODE": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_NO_PROGRESS": "1",
        # A cache would take the environment's space once more, on the root disk.
        "UV_NO_CACHE": "1",
    }
    command = (str(tools / "bin" / "uv"), "sync", "--quiet", "--frozen", "--no-default-groups")
    context.run(
        *command, "--python", PYTHON, "--project", str(project), timeout=SYNC_SECONDS, env=env, attempts=2
    )
