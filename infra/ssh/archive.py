"""The workload as one tar archive: equal files are equal bytes, whoever packs them and whenever.

A folder would not do: Pulumi's hash of one takes in the byte code that Python leaves in it, so that every run
would be a change.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from pathlib import Path

from infra import bundle
from infra.runner.locations import cache_root


def workload(root: Path) -> bytes:
    """The files of `<root>/workload`, with `workload/` in their names.

    Not compressed: zlib's releases compress differently, and then equal files would differ.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in bundle.tree(root / "workload"):
            entry = tarfile.TarInfo(f"workload/{name}")
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def digest(archive: bytes) -> str:
    return hashlib.sha256(archive).hexdigest()


def place(archive: bytes) -> Path:
    """Where an archive lies on this machine for those who take files only; named by its content."""
    return cache_root() / "workload" / f"{digest(archive)[:16]}.tar"


def keep(archive: bytes) -> Path:
    """Have the archive at its place."""
    path = place(archive)
    if not (path.exists() and path.stat().st_size == len(archive)):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_bytes(archive)
        draft.replace(path)
    return path
