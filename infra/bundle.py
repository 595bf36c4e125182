"""The node code as an archive named by its content. Equal content has an equal digest."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from infra import environments
from infra.errors import EXIT_USAGE, UserError
from infra.program import mode, project_files
from infra.program.files import write_atomically
from infra.program.locations import cache_root
from infra.program.project_files import ProjectFileError
from node.bootstrap.vm.training import REQUIREMENTS
from node.design.containers import Package
from node.design.directory import CA_ARCHIVED
from node.design.health import EPILOG, PROLOG
from node.design.model import ClusterDesign, Settings
from node.system.codec import to_json

ROOT = Path(__file__).resolve().parent.parent
CLOUDS = ("aws", "gcp")
"""The folders of `node` with the client of one cloud each."""
_EPOCH = (1980, 1, 1, 0, 0, 0)
SKIPPED = frozenset({"__pycache__", ".venv", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache"})
"""Folders that never belong to a tree."""


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def tree(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files below a folder as (relative name, content), in order.

    The byte code and caches of Python are left out.
    """
    paths = []
    for place, folders, names in os.walk(folder):
        folders[:] = set(folders) - SKIPPED
        paths += [Path(place, name) for name in names if name not in SKIPPED and not name.endswith(".pyc")]
    for path in sorted(paths):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path.read_bytes()


def node_archive(design: ClusterDesign, project: Path | None = None) -> bytes:
    """Return the node code and the stack's hooks as a zip that `node.loader` unpacks.

    The zip is stored and not compressed: releases of zlib compress differently, and equal code would then
    differ.

    Args:
        project: The folder with the user's files; `None` means the program's.

    Raises:
        UserError: The script of a hook, a package or the user's requirements file does not exist, or a
            package has another hash.
    """
    # Only the client of the stack's own cloud goes in, so that a change of another one is not new code for
    # this cluster.
    others = tuple(f"{cloud}/" for cloud in CLOUDS if cloud != design.provider)
    project = project or mode.folder()
    root = environments.code_of(project)
    node = tree(root / "node")
    files = {f"node/{name}": content for name, content in node if not name.startswith(others)}
    for number, hook in enumerate(design.hooks):
        if "://" in hook.source or hook.text is not None:
            continue  # the machines fetch this hook themselves, or have it in their settings
        content = _script(project, f"hooks[{number}].source", hook.source)
        files[f"hooks/{number}-{Path(hook.source).name}"] = content
    for key, package in _debian_packages(design):
        if "://" not in package.source and not _to_be_filled_in(package):
            files[package.archived()] = _package(project, key, package)
    for program, script in ((PROLOG, design.slurm.prolog), (EPILOG, design.slurm.epilog)):
        if script is not None:
            files[script.archived(program)] = _script(project, f"slurm.{program}.source", script.source)
    directory = design.access.directory
    if directory is not None and directory.ca_certificate is not None:
        key = "access.directory.ca_certificate"
        files[CA_ARCHIVED] = _script(project, key, directory.ca_certificate)
    if design.isolation == "vm" and design.scheduler == "slurm" and design.trains:
        files |= _training(design, root, project)
    return _zip(files)


def _script(project: Path, key: str, source: str) -> bytes:
    """Return the content of a user's script.

    Raises:
        UserError: There is none in the project.
    """
    try:
        return project_files.read(project, source).content
    except ProjectFileError as error:
        raise UserError(
            f"slurm-stacks:cluster.{key}: {source!r} is no file in the project: {error}; "
            "give the path of a script, relative to Pulumi.yaml",
            EXIT_USAGE,
            code="bundle.no-file",
        ) from None


def _debian_packages(design: ClusterDesign) -> Iterator[tuple[str, Package]]:
    """Yield the packages that are known by their hashes, each with its key of the stack file."""
    for number, package in enumerate(design.containers.packages if design.containers else ()):
        yield f"containers.packages[{number}].source", package
    for number, package in enumerate(design.slurm.packages):
        yield f"slurm.packages[{number}].source", package


def _to_be_filled_in(package: Package) -> bool:
    """Return whether the stack file leaves the package to its user: such a stack is planned only."""
    from infra.config.placeholders import is_placeholder  # whose package imports this module

    return is_placeholder(package.source) or is_placeholder(package.sha256)


def _package(root: Path, key: str, package: Package) -> bytes:
    """Return the content of a package that lies in the project.

    Raises:
        UserError: There is none, or it has another hash.
    """
    content = _script(root, key, package.source)
    if digest(content) != package.sha256:
        raise UserError(
            f"slurm-stacks:cluster.{key}: the SHA-256 of {package.source!r} is {digest(content)}; "
            "the stack file has another: see that it is the package that you mean, and write this hash",
            EXIT_USAGE,
            code="bundle.hash",
        )
    return content


def training_kind(design: ClusterDesign) -> str:
    """Return the training environment of a cloud's cluster: `cpu` or `gpu`, a project below workload/envs.

    The environment for GPUs trains on CPUs as well.
    """
    gpus = any(p.accelerator is not None and p.accelerator.gres == "gpu" for p in design.partitions)
    return "gpu" if gpus else "cpu"


def training_digest(design: ClusterDesign, project: Path | None = None) -> str:
    """Return the digest that names the training environment of a cloud's cluster.

    Raises:
        UserError: The user's requirements file is missing or cannot be used.
    """
    return environments.digest(training_kind(design), design.requirements, project or mode.folder())


def _training(design: ClusterDesign, root: Path, project: Path) -> dict[str, bytes]:
    """Return the files from which a controller makes the training environment.

    They are a lock file or the user's requirements, and the hashes of uv.
    """
    uv = _pinned(_locked_package((root / "uv.lock").read_text(), "uv")).encode()
    if design.requirements is not None:
        content = environments.read(project, design.requirements)
        return {f"environment/{REQUIREMENTS}": content, "environment/uv.txt": uv}
    folder = root / "workload" / "envs" / training_kind(design)
    files = {f"environment/{name}": (folder / name).read_bytes() for name in ("pyproject.toml", "uv.lock")}
    return {**files, "environment/uv.txt": uv}


@functools.lru_cache(maxsize=1)
def _sections(lock: str) -> Mapping[str, str]:
    """Return the sections of a lock file by their packages' names."""
    _, *sections = lock.split("\n[[package]]\n")
    return {section.partition('"')[2].partition('"')[0]: section for section in sections}


@functools.lru_cache
def _locked_package(lock: str, name: str) -> Mapping[str, Any]:
    """Return a package of a lock file.

    No other is parsed, and none twice: all of the file takes longer than the rest of an archive.
    """
    (package,) = tomllib.loads(f"[[package]]\n{_sections(lock)[name]}")["package"]
    return cast(Mapping[str, Any], package)


def _pinned(package: Mapping[str, Any]) -> str:
    """Return a requirement for pip with the hashes of all wheels."""
    hashes = [f"    --hash={digest}" for digest in sorted(wheel["hash"] for wheel in package["wheels"])]
    return " \\\n".join([f"{package['name']}=={package['version']}", *hashes]) + "\n"


def loader_archive(provider: str, root: Path = ROOT) -> bytes:
    """Return `loader.py` for a cloud's bucket.

    It is a zip that Python runs, with the loader and the client of its cloud.

    The code is that of the node archive, so that there is only one client of a cloud's bucket.

    Args:
        provider: aws | gcp.
    """
    node = root / "node"
    files = {"__main__.py": (node / "loader.py").read_bytes()}
    system = (f"system/{name}.py" for name in ("__init__", "waiting", "http_client", "cloud_api"))
    files |= {f"node/{name}": (node / name).read_bytes() for name in ("__init__.py", *system)}
    files |= {f"node/{provider}/{name}": content for name, content in tree(node / provider)}
    return _zip(files)


def cached_file(folder: str, suffix: str, content: bytes, *, write: bool = True) -> Path:
    """Return the file of the user's cache that holds an archive, for tools that take files only.

    Args:
        folder: The folder of the cache.
        write: Whether to write the file if it is missing or cut short.
    """
    path = cache_root() / folder / f"{digest(content)[:16]}{suffix}"
    if write and not (path.exists() and path.stat().st_size == len(content)):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    return path


def _zip(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, files[name])
    return buffer.getvalue()


def settings_object(settings: Settings) -> bytes:
    """Return the settings in the form that the machines read."""
    # Machines have identities of their own.
    own = replace(settings, design=replace(settings.design, provider_settings=None))
    return json.dumps(to_json(own), indent=1, sort_keys=True).encode()


def current(code: bytes, settings: bytes) -> dict[str, Any]:
    """Return the content of the bucket's `current.json`.

    It names the code and the settings by their digests.
    """
    return {
        "apiVersion": "slurm-stacks/bundle/v1",
        "code": {"key": f"code/{digest(code)[:16]}.zip", "sha256": digest(code)},
        "settings": {"key": f"settings/{digest(settings)[:16]}.json", "sha256": digest(settings)},
    }
