"""The training environment on this machine: built once for each lock file, and kept between clusters."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from infra import environments, os_errors
from infra.environments import lock_digest
from infra.errors import EXIT_REFUSED, UserError
from infra.program import folders
from localcloud.machines import base_python
from node.bootstrap.vm.training import COMPLETE, choose_legacy_keras, requirements_digest
from node.system.locks import locked
from operations import programs
from operations.local import environment_paths

HEARTBEAT_SECONDS = 10.0
NEEDED_MIB = 2000
"""The size of an environment, most of it TensorFlow."""
OWN_MIB = 300
"""The least space for a user's environment, whose size is not known beforehand."""
UNSOLVABLE = 1
"""uv's exit status when it has reached the index and no choice of packages fits; 2 is anything else."""


def build_environment(project: Path, kind: str, envs: Path, uv: Path, groups: tuple[str, ...] = ()) -> Path:
    """Build the environment `<envs>/<lock digest>` if it is missing, and return its path.

    Args:
        kind: cpu | gpu, a project below workload/envs.
        groups: Further dependency groups, for the tests.

    Raises:
        UserError: There is not enough space, or uv failed; uv's output is on standard error.
    """
    wanted = {"", *groups}

    def make(target: Path, have: set[str]) -> None:
        print(f"building the training environment {target} (TensorFlow, about 1.8 GB; once)", file=sys.stderr)
        _sync(
            environments.code_of(project) / "workload" / "envs" / kind,
            target,
            uv,
            sorted((wanted | have) - {""}),
        )

    environment = _once(envs / lock_digest(project, kind), wanted, NEEDED_MIB, make)
    choose_legacy_keras(environment)
    return environment


def build_own_environment(project: Path, requirements: str, envs: Path, uv: Path) -> Path:
    """Build the environment of a user's requirements file if it is missing, and return its path.

    Args:
        requirements: The file's path, relative to the project.

    Raises:
        UserError: The file cannot be used, or uv failed; uv's output is on standard error.
    """
    content = environments.read(project, requirements)

    def make(target: Path, _have: set[str]) -> None:
        print(f"building the environment {target} from {requirements}", file=sys.stderr)
        # What was checked is installed, whatever is at the path by now.
        with tempfile.TemporaryDirectory(prefix="slurm-stacks-") as folder:
            copy = Path(folder, Path(requirements).name)
            copy.write_bytes(content)
            _install(copy, target, uv, project / requirements)

    return _once(envs / requirements_digest(content), {""}, OWN_MIB, make)


def _once(target: Path, wanted: set[str], needed_mib: int, make: Callable[[Path, set[str]], None]) -> Path:
    """Make an environment unless it is there, while no other process makes it, and return its path.

    Args:
        wanted: What it must have: the names of dependency groups, and "" for itself.
        needed_mib: The space that it needs.
        make: Makes it, from what is wanted and what is there already.

    Raises:
        UserError: It does not fit there, would not run there, or was not made.
    """
    envs, complete = target.parent, target / COMPLETE
    try:
        envs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise os_errors.explain(error, envs) from error
    if problem := os_errors.unwritable(envs):
        raise UserError(problem, EXIT_REFUSED, code="training.folder")
    waiting = "waiting for another build of the same training environment"
    lock = envs / f".{target.name}.lock"
    with locked(lock, busy=lambda: print(waiting, file=sys.stderr, flush=True)):
        have = set(complete.read_text().split("\n")) if complete.exists() else set()
        # The environment links to the machine's interpreter, which an upgrade may have removed.
        if wanted <= have and (target / "bin" / "python").exists():
            environment_paths.adapt(target)  # an earlier release has not
            return target
        _check_folder(target, needed_mib)
        with folders.umask():
            make(target, have)
            environment_paths.adapt(target)
        complete.write_text("\n".join(sorted(wanted | have)))
    return target


def _check_folder(target: Path, needed_mib: int) -> None:
    """Check the folder of an environment before minutes of downloads.

    Raises:
        UserError: The environment would not fit there, or not run.
    """
    if problem := noexec_problem(target):
        raise UserError(problem, EXIT_REFUSED, code="training.noexec")
    if problem := space_problem(target, needed_mib):
        raise UserError(problem, code="training.space")


def noexec_problem(target: Path) -> str | None:
    """Return why programs cannot run in an environment's folder; `None` if they can."""
    if not os_errors.noexec(target):
        return None
    return (
        f"{target.parent} is on a file system that is mounted noexec, and TensorFlow's libraries are "
        "executed. Set XDG_CACHE_HOME to a folder elsewhere and run the command again."
    )


def space_problem(target: Path, needed_mib: int = NEEDED_MIB) -> str | None:
    """Return why an environment does not fit into its folder; `None` if it does."""
    # An interrupted build has left files, which need no further space.
    present_mib = sum(file.lstat().st_size for file in target.rglob("*")) // os_errors.MIB
    free, needed = os_errors.free_mib(target), needed_mib - present_mib
    if free >= needed:
        return None
    return (
        f"the training environment needs {needed} MiB in {target.parent}, and {free} MiB are free there. "
        "Make room, or set XDG_CACHE_HOME to a folder on a larger disk, and run the command again. "
        "A stack with `slurm-stacks:benchmark: {enabled: false}` comes up without it."
    )


def _sync(folder: Path, target: Path, uv: Path, groups: list[str]) -> None:
    command = [str(uv), "sync", "--quiet", "--frozen", "--no-default-groups", "--project", str(folder)]
    command += [f"--group={group}" for group in groups]
    _uv(command, target, folder / "uv.lock")


def _install(requirements: Path, target: Path, uv: Path, source: Path) -> None:
    """Make a virtual environment, and install what a requirements file names.

    Args:
        requirements: A copy of the file.
        source: The user's file, for messages.
    """
    _uv([str(uv), "venv", "--quiet", "--allow-existing", str(target)], target, source)
    command = [str(uv), "pip", "install", "--quiet", "--python", str(target / "bin" / "python")]
    _uv([*command, "--requirement", str(requirements)], target, source)


def _uv(command: list[str], target: Path, source: Path) -> None:
    """Run uv, and say every ten seconds that it goes on.

    Args:
        source: The lock file, or a user's requirements file.

    Raises:
        UserError: It failed; its output is on standard error.
    """
    env = {
        **os.environ,
        "UV_PROJECT_ENVIRONMENT": str(target),
        "UV_COMPILE_BYTECODE": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_NO_PROGRESS": "1",
        # Machines that boot see this interpreter, and perhaps not the first one on PATH.
        "UV_PYTHON": base_python(),
    }
    env.pop("VIRTUAL_ENV", None)
    done = threading.Event()
    threading.Thread(target=_heartbeat, args=(done, target), daemon=True).start()
    try:
        status = programs.show(command, env=env).status
    finally:
        done.set()
    locked = source.name == "uv.lock"
    what = "uv could not build the training environment" if locked else "uv could not build the environment"
    look_at = "" if locked else "what the file names, "
    if not locked and status == UNSOLVABLE:
        raise UserError(
            f"{what} from {source}: its packages are not there, or exclude each other (uv's words are "
            f"above). Correct the file, {os_errors.AGAIN}.",
            code="training.packages",
        )
    if status:
        raise UserError(
            f"{what} from {source} (its output is above). Check {look_at}the connection "
            f"to the package index and the space in {target.parent} ({os_errors.free_mib(target)} MiB are "
            f"free), {os_errors.AGAIN}.",
            code="training.not-built",
        )


def _heartbeat(done: threading.Event, target: Path) -> None:
    waited = 0.0
    while not done.wait(HEARTBEAT_SECONDS):
        waited += HEARTBEAT_SECONDS
        print(f"still installing into {target} ({waited:.0f} s)", file=sys.stderr, flush=True)
