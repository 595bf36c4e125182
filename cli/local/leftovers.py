"""Finds what still exists of a local cluster: processes, parts of its machines, and its run directory."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from cli.local.run_directory import RunDirectory
from infra import os_errors
from localcloud import containers


def find(run: RunDirectory) -> list[str]:
    """Return one line for each thing; empty if nothing of the cluster is left."""
    found = [f"process {pid}: {_command_line(pid)}" for pid in run.pids()]
    found += containers.leftovers(run.path)
    if run.path.exists():
        found.append(f"folder {run.path}{_foreign(run.path)}")
    return found


def _foreign(folder: Path) -> str:
    """Return the words for a file of another user in a folder, which only that user or root can remove."""
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if (owner := path.lstat().st_uid) != os.getuid():
                name = os_errors.user_name(owner)
                return f" ({path} belongs to {name}; have it removed, as root: rm -r {folder})"
    return ""


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "(ended meanwhile)"
