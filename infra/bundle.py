"""Node code and workload as content-addressed archives: equal content has an equal digest, everywhere."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from infra.errors import EXIT_USAGE, UserError
from infra.node.bootstrap.vm.client import LOCKED
from infra.node.codec import to_json
from infra.node.model import ClusterDesign, Settings

ROOT = Path(__file__).resolve().parent.parent
CLOUDS = ("aws", "gcp")
"""Folders of infra/node that ask one cloud each."""
CLIENTS = {"gcp": "google-cloud-compute"}
"""Provider -> what its elastic driver imports, where no distribution has it."""
_EPOCH = (1980, 1, 1, 0, 0, 0)
_SKIP = {"__pycache__", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache"}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def tree(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Files below `folder` as (relative name, content), in order, without what Python leaves behind."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and not _SKIP.intersection(parts) and path.suffix != ".pyc":
            yield "/".join(parts), path.read_bytes()


def tree_digest(folder: Path) -> str:
    """Of names and contents: neither times nor the order of the file system count."""
    total = hashlib.sha256()
    for name, content in tree(folder):
        total.update(f"{name}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()


def node_archive(design: ClusterDesign, root: Path = ROOT) -> bytes:
    """The node code and the stack's hooks as a zip that `infra.node.loader` unpacks.

    Stored, not compressed: zlib's releases compress differently, and then equal code would differ.

    Raises:
        UserError: a hook's script is not there.
    """
    files = {"infra/__init__.py": (root / "infra" / "__init__.py").read_bytes()}
    # Of the clouds' clients its own only: what changes in another's is no new code for this cluster.
    others = tuple(f"{cloud}/" for cloud in CLOUDS if cloud != design.provider)
    node = tree(root / "infra" / "node")
    files |= {f"infra/node/{name}": content for name, content in node if not name.startswith(others)}
    for number, hook in enumerate(design.hooks):
        if "://" in hook.source:
            continue  # the machines fetch it themselves
        script = root / hook.source
        if not script.is_file():
            raise UserError(
                f"slurm-stacks:cluster.hooks[{number}].source: {hook.source!r} is no file in the project; "
                "give the path of a script, relative to Pulumi.yaml",
                EXIT_USAGE,
            )
        files[f"hooks/{number}-{script.name}"] = script.read_bytes()
    if design.machines == "vm" and design.scheduler == "slurm":
        if design.trains:
            files |= _training(training_kind(design), root)
        if client := CLIENTS.get(design.provider):
            files[LOCKED] = _locked(client, root).encode()
    return _zip(files)


def training_kind(design: ClusterDesign) -> str:
    """cpu | gpu, a project below workload/envs: the one environment of a cloud's cluster.

    That for GPUs trains on CPUs as well.
    """
    gpus = any(p.accelerator is not None and p.accelerator.gres == "gpu" for p in design.partitions)
    return "gpu" if gpus else "cpu"


def training_digest(design: ClusterDesign, root: Path = ROOT) -> str:
    """Names the training environment of a cloud's cluster."""
    return lock_digest(root, training_kind(design))


def lock_digest(project: Path, kind: str) -> str:
    """Names an environment below workload/envs: equal locks are equal environments."""
    return digest((project / "workload" / "envs" / kind / "uv.lock").read_bytes())[:16]


def _training(kind: str, root: Path) -> dict[str, bytes]:
    """What a cloud's controller makes the training environment of: its lock, and uv by its hashes."""
    folder = root / "workload" / "envs" / kind
    files = {f"environment/{name}": (folder / name).read_bytes() for name in ("pyproject.toml", "uv.lock")}
    uv = _packages((root / "uv.lock").read_text())["uv"]
    return {**files, "environment/uv.txt": _pinned(uv).encode()}


@functools.lru_cache(maxsize=1)
def _packages(lock: str) -> Mapping[str, Mapping[str, Any]]:
    """The packages of a lock file by name, read once: reading takes longer than all else of an archive."""
    return {package["name"]: package for package in tomllib.loads(lock)["package"]}


def _locked(name: str, root: Path) -> str:
    """A package and all that it needs, as pip takes them: by versions and hashes of the project's lock."""
    packages = _packages((root / "uv.lock").read_text())
    found: dict[str, Mapping[str, Any]] = {}
    waiting: list[tuple[str, tuple[str, ...]]] = [(name, ())]
    while waiting:
        one, extras = waiting.pop()
        package = packages[one]
        needs = package.get("dependencies", []) if one not in found else []
        for extra in extras:
            needs = needs + package.get("optional-dependencies", {}).get(extra, [])
        found[one] = package
        waiting += [(need["name"], tuple(need.get("extra", ()))) for need in needs]
    # The package itself first, then by name.
    order = sorted(found.values(), key=lambda package: (package["name"] != name, package["name"]))
    return "".join(_pinned(package) for package in order)


def _pinned(package: Mapping[str, Any]) -> str:
    """A line of pip's with the hashes of all wheels."""
    hashes = [f"    --hash={digest}" for digest in sorted(wheel["hash"] for wheel in package["wheels"])]
    return " \\\n".join([f"{package['name']}=={package['version']}", *hashes]) + "\n"


def loader_archive(provider: str, root: Path = ROOT) -> bytes:
    """`loader.py` for a cloud's bucket: a zip that Python runs, of the loader and the client of its cloud.

    It is the same code as the node archive's, so that there is one client of a cloud's bucket only.

    Args:
        provider: aws | gcp.
    """
    node = root / "infra" / "node"
    files = {"__main__.py": (node / "loader.py").read_bytes()}
    files |= {name: (root / name).read_bytes() for name in ("infra/__init__.py", "infra/node/__init__.py")}
    for folder in ("cloud", provider):
        files |= {f"infra/node/{folder}/{name}": content for name, content in tree(node / folder)}
    return _zip(files)


def _zip(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, files[name])
    return buffer.getvalue()


def settings_object(settings: Settings) -> bytes:
    """The settings as the machines read them."""
    return json.dumps(to_json(settings), indent=1, sort_keys=True).encode()


def current(code: bytes, settings: bytes) -> dict[str, Any]:
    """The content of the bucket's `current.json`: two objects by digest."""
    return {
        "apiVersion": "slurm-stacks/bundle/v1",
        "code": {"key": f"code/{digest(code)[:16]}.zip", "sha256": digest(code)},
        "settings": {"key": f"settings/{digest(settings)[:16]}.json", "sha256": digest(settings)},
    }
