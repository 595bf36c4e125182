"""The training environment on this machine: built once a lock file, under a lock, kept between clusters."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

from infra import trouble
from infra.bundle import lock_digest
from infra.errors import EXIT_REFUSED, UserError
from infra.node.bootstrap.vm.training import COMPLETE

HEARTBEAT_SECONDS = 10.0
NEEDED_MIB = 2000
"""What an environment takes, TensorFlow above all."""


def build(project: Path, kind: str, envs: Path, uv: Path, groups: tuple[str, ...] = ()) -> Path:
    """Make `<envs>/<lock digest>` unless it is there, and return it.

    Args:
        kind: cpu | gpu, a project below workload/envs.
        groups: dependency groups beyond the training's own, for the tests.

    Raises:
        UserError: there is no room, or uv failed; its words are on standard error.
    """
    target = envs / lock_digest(project, kind)
    complete = target / COMPLETE
    wanted = {"", *groups}
    try:
        envs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise trouble.explain(error, envs) from error
    if problem := trouble.unwritable(envs):
        raise UserError(problem, EXIT_REFUSED)
    with (envs / f".{target.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another build of the same training environment", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        have = set(complete.read_text().split("\n")) if complete.exists() else set()
        # Its interpreter is a link to the machine's, which an upgrade may have taken away.
        if wanted <= have and (target / "bin" / "python").exists():
            return target
        _check_place(target)
        print(f"building the training environment {target} (TensorFlow, about 1.8 GB; once)", file=sys.stderr)
        _sync(project / "workload" / "envs" / kind, target, uv, sorted((wanted | have) - {""}))
        complete.write_text("\n".join(sorted(wanted | have)))
    return target


def _check_place(target: Path) -> None:
    """Before minutes of downloads, not after them.

    Raises:
        UserError: it would not fit, or not run.
    """
    if trouble.noexec(target):
        raise UserError(
            f"{target.parent} is on a file system that is mounted noexec, and TensorFlow's libraries are "
            "executed. Set XDG_CACHE_HOME to a folder elsewhere and run the command again.",
            EXIT_REFUSED,
        )
    # What an interrupted build has put there needs no more room.
    there = sum(file.lstat().st_size for file in target.rglob("*")) // trouble.MIB
    free, needed = trouble.free_mib(target), NEEDED_MIB - there
    if free < needed:
        raise UserError(
            f"the training environment needs {needed} MiB in {target.parent}, and {free} MiB are free there. "
            "Make room, or set XDG_CACHE_HOME to a folder on a larger disk, and run the command again. "
            "A stack with `slurm-stacks:benchmark: {enabled: false}` comes up without it."
        )


def _sync(folder: Path, target: Path, uv: Path, groups: list[str]) -> None:
    command = [str(uv), "sync", "--quiet", "--frozen", "--no-default-groups", "--project", str(folder)]
    command += [f"--group={group}" for group in groups]
    env = {
        **os.environ,
        "UV_PROJECT_ENVIRONMENT": str(target),
        "UV_COMPILE_BYTECODE": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_NO_PROGRESS": "1",
    }
    env.pop("VIRTUAL_ENV", None)
    done = threading.Event()
    threading.Thread(target=_heartbeat, args=(done, target), daemon=True).start()
    try:
        status = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, check=False).returncode
    finally:
        done.set()
    if status:
        raise UserError(
            f"uv could not build the training environment from {folder}/uv.lock (its words are above). "
            f"Check the connection to the package index and the space in {target.parent} "
            f"({trouble.free_mib(target)} MiB are free), {trouble.AGAIN}."
        )


def _heartbeat(done: threading.Event, target: Path) -> None:
    waited = 0.0
    while not done.wait(HEARTBEAT_SECONDS):
        waited += HEARTBEAT_SECONDS
        print(f"still installing into {target} ({waited:.0f} s)", file=sys.stderr, flush=True)
