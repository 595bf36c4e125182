"""The training environment, which is made once per lock file on the disk that all machines share.

It is in `<apps>/envs/<digest>`, where the benchmark expects it, and is valid if it has a file `.complete`. It
is made from a lock file, or from the requirements file that the stack file names. The controller makes it,
also for nodes with GPUs: all machines have the same distribution, and the installation does not depend on the
machine's devices.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

from node.bootstrap.context import Context, SkipStep
from node.system import files, foreign
from node.system.locks import locked

COMPLETE = ".complete"
"""The file in a complete environment, on the local stack too."""
PROJECT = "environment"
"""The folder in the node archive with pyproject.toml and uv.lock or the user's requirements, and uv.txt with
the hashes of uv itself."""
REQUIREMENTS = "requirements.txt"
PYTHON = "/usr/bin/python3"
LEGACY_KERAS = "slurm-stacks-legacy-keras.pth"
"""The file by which Python sets a variable whenever it starts in our environment, however it is started."""
NEEDED_MIB = {"cpu": 3000, "gpu": 9000, "own": 500}
"""Kind of environment -> the space that it needs; the least space for a user's own, whose size is unknown."""
SYNC_SECONDS = 1500.0
MIB = 1 << 20


def requirements_digest(content: bytes) -> str:
    """Return the digest that names the environment of a user's requirements file."""
    return hashlib.sha256(b"requirements\0" + content).hexdigest()[:16]


def prepare(context: Context) -> str:
    """Make the environment if it does not exist, and return the step's note.

    Raises:
        SkipStep: The stack has no benchmark, or no environment is published.
        OSError: The disk has too little space.
        CommandError: Uv failed. The error has its last lines.
    """
    if not context.settings.design.trains:
        raise SkipStep("the stack has no benchmark that needs it")
    project = context.path(context.folders.code) / PROJECT
    requirements = project / REQUIREMENTS
    if requirements.exists():
        name = requirements_digest(requirements.read_bytes())
    elif (project / "uv.lock").exists():
        name = hashlib.sha256((project / "uv.lock").read_bytes()).hexdigest()[:16]
    else:
        raise SkipStep("no environment is published")
    envs = files.folder(Path(context.settings.site.apps) / "envs")
    target, lock_file = envs / name, envs / f".{name}.lock"
    for path in (target, lock_file):
        _remove_foreign(path)
    # After a restart of the boot the former process may still be making the environment.
    with locked(lock_file):
        # Its interpreter is a link to the machine's, which is missing after a change of the distribution.
        if (target / COMPLETE).exists() and (target / "bin" / "python").exists():
            if not requirements.exists():
                choose_legacy_keras(target)  # an earlier release has not
            return f"{target} is there"
        _check_space(project, envs, target)
        print(f"making the training environment {target}", file=sys.stderr, flush=True)
        _install(context, project, target)
        (target / COMPLETE).write_text("\n")
    return f"made {target}"


def _remove_foreign(path: Path) -> None:
    """Remove what another user has put in the place of ours, where jobs of all users would run it.

    The disk may be older than this cluster. Its folder is root's by now, so nobody puts anything there again.
    """
    if foreign.is_trusted(foreign.owner(path)) and not path.is_symlink():
        return
    print(f"{path} is {foreign.name(path.lstat().st_uid)}'s, and is removed", file=sys.stderr, flush=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _check_space(project: Path, envs: Path, target: Path) -> None:
    has_requirements = (project / REQUIREMENTS).exists()
    kind = "own" if has_requirements else "gpu" if "nvidia-" in (project / "uv.lock").read_text() else "cpu"
    used = sum(file.lstat().st_size for file in target.rglob("*")) // MIB
    free, needed = shutil.disk_usage(envs).free // MIB, NEEDED_MIB[kind] - used
    if free < needed:
        raise OSError(
            f"the training environment needs {needed} MiB in {envs}, and {free} MiB are free there: "
            "give storage.apps a larger size_gib"
        )


def _install(context: Context, project: Path, target: Path) -> None:
    """Run uv, which is installed in its own virtual environment, because Ubuntu has no package of it."""
    tools = context.at("opt/slurm-stacks/uv")
    locked = project / "uv.txt"
    mark = tools / "uv.txt"
    if not mark.exists() or mark.read_bytes() != locked.read_bytes():
        context.run(PYTHON, "-m", "venv", "--clear", str(tools), timeout=120.0)
        pip = (str(tools / "bin" / "pip"), "install", "--quiet", "--no-cache-dir", "--require-hashes")
        context.run(*pip, "--requirement", str(locked), timeout=300.0, attempts=3)
        files.write(mark, locked.read_bytes())
    uv = str(tools / "bin" / "uv")
    env = {
        "HOME": "/root",
        "UV_PROJECT_ENVIRONMENT": str(target),
        "UV_COMPILE_BYTECODE": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_NO_PROGRESS": "1",
        # A cache would need the environment's space once more, on the root disk.
        "UV_NO_CACHE": "1",
    }
    if (project / REQUIREMENTS).exists():
        make = (uv, "venv", "--quiet", "--allow-existing", "--python", PYTHON, str(target))
        context.run(*make, timeout=120.0, env=env)
        install = (uv, "pip", "install", "--quiet", "--python", str(target / "bin" / "python"))
        requirements = ("--requirement", str(project / REQUIREMENTS))
        context.run(*install, *requirements, timeout=SYNC_SECONDS, env=env, attempts=2)
        return
    command = (uv, "sync", "--quiet", "--frozen", "--no-default-groups")
    context.run(
        *command, "--python", PYTHON, "--project", str(project), timeout=SYNC_SECONDS, env=env, attempts=2
    )
    choose_legacy_keras(target)


def choose_legacy_keras(environment: Path) -> None:
    """Have `tf.keras` be Keras 2 in our environment, unless the user sets TF_USE_LEGACY_KERAS.

    Keras 3 cannot `fit` under MultiWorkerMirroredStrategy, so the programs of the published articles, and
    most that were written for several workers, would fail with it. The environment has tf_keras.
    """
    for packages in environment.glob("lib/python3*/site-packages"):
        line = b'import os; os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")\n'
        files.write(packages / LEGACY_KERAS, line)
