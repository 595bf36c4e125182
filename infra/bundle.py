"""Node code and workload as content-addressed archives: equal content has an equal digest, everywhere."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from infra.errors import EXIT_USAGE, UserError
from infra.node.codec import to_json
from infra.node.model import ClusterDesign, Settings

ROOT = Path(__file__).resolve().parent.parent
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
    files |= {f"infra/node/{name}": content for name, content in tree(root / "infra" / "node")}
    for number, hook in enumerate(design.hooks):
        script = root / hook.source
        if not script.is_file():
            raise UserError(
                f"slurm-stacks:cluster.hooks[{number}].source: {hook.source!r} is no file in the project; "
                "give the path of a script, relative to Pulumi.yaml",
                EXIT_USAGE,
            )
        files[f"hooks/{number}-{script.name}"] = script.read_bytes()
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
