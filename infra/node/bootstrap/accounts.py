"""Whose a process or a file is, also where a machine has one user only.

Such a machine is a user namespace that an ordinary user made: that user is root in it, and nobody else can be
had. The kernel refuses it setgroups, without which slurmd as root starts no job. So Slurm runs there as the
user under the own name again, in one more namespace.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

UID_MAP = Path("/proc/self/uid_map")


def one_user() -> bool:
    """Whether this process lives in a user namespace of one user."""
    return UID_MAP.read_text().split()[2] == "1"


def own(path: Path, user: str) -> None:
    """Make a file or folder a user's; where there is one user only it is already."""
    if not one_user():
        entry = pwd.getpwnam(user)
        os.chown(path, entry.pw_uid, entry.pw_gid)


def start_as(user: str | None) -> tuple[list[str], dict[str, Any]]:
    """What has a program started as a user: a prefix of its command, and arguments for Popen.

    Args:
        user: None for whoever starts it.
    """
    if user is None:
        return [], {}
    entry = pwd.getpwnam(user)
    if one_user():
        numbers = (f"--map-user={entry.pw_uid}", f"--map-group={entry.pw_gid}")
        return ["/usr/bin/unshare", "--user", *numbers, "--"], {}
    groups = os.getgrouplist(user, entry.pw_gid)
    return [], {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": groups}
