"""The Python environments of trainings, each named by a digest of what it is made from.

One is made from a lock file of this project, `workload/envs/<kind>/uv.lock`, the others from requirements
files of the user's. On the cluster they are `<apps>/envs/<digest>`.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path, PurePosixPath

from infra.errors import EXIT_USAGE, UnusableFileError, UserError
from infra.program import mode, project_files
from infra.program.project_files import ProjectFileError, Wrong
from node.bootstrap.vm.training import requirements_digest

ROOT = Path(__file__).resolve().parent.parent
CHECKOUT = ("node/loader.py", "workload/launcher.py")
"""Files of ours that a checkout has, and a program that has clusters as components does not."""
MOST_BYTES = 1 << 20
ELSEWHERE = re.compile(
    r"(-r|-c|-e|-f|--requirement|--constraint|--editable|--find-links)\b|[./~]|file:|\S+\s*@\s*(file:|[./~])"
)
"""Lines of a requirements file that lead to other files, which the cluster does not have."""


def code_of(project: Path) -> Path:
    """Return the folder with our code: a checkout itself, else that of this process."""
    if project == mode.FOLDER.get() and not all((project / file).is_file() for file in CHECKOUT):
        return ROOT
    return project


def lock_digest(project: Path, kind: str) -> str:
    """Return the digest that names an environment below workload/envs.

    Equal lock files are equal environments.
    """
    return hashlib.sha256(
        (code_of(project) / "workload" / "envs" / kind / "uv.lock").read_bytes()
    ).hexdigest()[:16]


def digest(kind: str, requirements: str | None, root: Path = ROOT) -> str:
    """Return the digest that names a stack's training environment.

    Args:
        kind: cpu | gpu, the locked environment.
        requirements: The path of a user's requirements file, relative to the project. It wins.

    Raises:
        UserError: The file is missing, or names what the cluster cannot install.
    """
    if requirements is None:
        return lock_digest(root, kind)
    return requirements_digest(read(root, requirements))


def read(root: Path, requirements: str) -> bytes:
    """Return the content of a user's requirements file.

    Raises:
        UserError: The file is missing, or names what the cluster cannot install.
    """
    try:
        return read_requirements(root, requirements)
    except UnusableFileError as error:
        raise UserError(
            f"slurm-stacks:benchmark.requirements: {requirements!r} cannot be used: {error}",
            EXIT_USAGE,
            code="requirements.unusable",
        ) from None


def read_requirements(root: Path, requirements: str) -> bytes:
    """Return the content of a user's requirements file.

    Raises:
        UnusableFileError: The file is missing, or names what the cluster cannot install.
    """
    path = PurePosixPath(requirements)
    try:
        content = project_files.read(root, requirements, MOST_BYTES).content
    except ProjectFileError as error:
        if error.wrong is Wrong.LARGE:
            raise UnusableFileError(0, f"a requirements file of at most {MOST_BYTES} bytes", "") from None
        if error.wrong is Wrong.MISSING:
            raise UnusableFileError(0, f"a requirements file in {root}") from None
        raise UnusableFileError(0, f"a requirements file in {root}", str(error)) from None
    if path.suffix == ".toml" or path.name == "uv.lock":
        raise UnusableFileError(
            0, "a requirements file", f"`uv export --no-hashes` or `pip freeze` makes one from {path.name}"
        )
    if path.suffix in (".yml", ".yaml"):
        raise UnusableFileError(
            0,
            "a requirements file",
            f"{path.name} is conda's, and environments here are pip's: write its packages with their names "
            "in PyPI, one a line",
        )
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise UnusableFileError(0, "a requirements file in UTF-8", "save it as UTF-8") from None
    packages = 0
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if ELSEWHERE.match(text):
            raise UnusableFileError(
                0,
                "packages of an index or an address, one a line",
                f"line {number} leads to other files, which the cluster does not have: {text[:60]}",
            )
        packages += bool(text) and not text.startswith(("#", "-"))
    if not packages:
        raise UnusableFileError(0, "a requirements file with at least one package", "it names none")
    return content
