"""Whose a process or a file is."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

IDS = {"slurm": 64030}
"""Debian's number for it. Messages between machines carry the number, so it must be the same on all."""


def own(path: Path, user: str) -> None:
    """Make a file or folder a user's."""
    entry = pwd.getpwnam(user)
    os.chown(path, entry.pw_uid, entry.pw_gid)


def start_as(user: str | None) -> dict[str, Any]:
    """Arguments for Popen that have a program started as a user.

    Args:
        user: None for whoever starts it.
    """
    if user is None:
        return {}
    entry = pwd.getpwnam(user)
    groups = os.getgrouplist(user, entry.pw_gid)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": groups}
