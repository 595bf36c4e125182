"""The users of processes and files."""

from __future__ import annotations

import os
import pwd
from typing import Any

IDS = {"slurm": 64030}
"""User -> Debian's number for it. It must be the same on all machines, because messages carry the number."""


def ids(user: str) -> tuple[int, int]:
    """Return the numbers of a user and of the user's group."""
    entry = pwd.getpwnam(user)
    return entry.pw_uid, entry.pw_gid


def start_as(user: str | None) -> dict[str, Any]:
    """Return arguments with which Popen starts a program as a user.

    Args:
        user: The user. `None` means the user of this process.
    """
    if user is None:
        return {}
    entry = pwd.getpwnam(user)
    groups = os.getgrouplist(user, entry.pw_gid)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": groups}
