"""The training environment on this machine: built once a lock file, under a lock, kept between clusters."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path

from infra.errors import UserError

HEARTBEAT_SECONDS = 10.0
COMPLETE = ".complete"


def lock_digest(project: Path, kind: str) -> str:
    """Names the environment: equal locks are equal environments."""
    return hashlib.sha256((project / "workload" / "envs" / kind / "uv.lock").read_bytes()).hexdigest()[:16]


def build(project: Path, kind: str, envs: Path, uv: Path, groups: tuple[str, ...] = ()) -> Path:
    """Make `<envs>/<lock digest>` unless it is there, and return it.

    Args:
        kind: cpu | gpu, a project below workload/envs.
        groups: dependency groups beyond the training's own, for the tests.

    Raises:
        UserError: uv failed; its words are on standard error.
    """
    target = envs / lock_digest(project, kind)
    complete = target / COMPLETE
    wanted = {"", *groups}
    envs.mkdir(parents=True, exist_ok=True)
    with (envs / f".{target.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another build of the same training environment", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        have = set(complete.read_text().split("\n")) if complete.exists() else set()
        if wanted <= have:
            return target
        print(f"building the training environment {target} (TensorFlow, about 1.8 GB; once)", file=sys.stderr)
        _sync(project / "workload" / "envs" / kind, target, uv, sorted((wanted | have) - {""}))
        complete.write_text("\n".join(sorted(wanted | have)))
    return target


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
            "Check the connection to the package index and the space in "
            f"{target.parent}, then run the command again: it goes on where it stopped."
        )


def _heartbeat(done: threading.Event, target: Path) -> None:
    waited = 0.0
    while not done.wait(HEARTBEAT_SECONDS):
        waited += HEARTBEAT_SECONDS
        print(f"still installing into {target} ({waited:.0f} s)", file=sys.stderr, flush=True)
