"""Errors of the operating system as messages: which folder, its owner or free space, and what to do."""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import stat
from pathlib import Path

from infra.errors import EXIT_REFUSED, UserError
from infra.program import locations

MIB = 2**20
UNUSABLE = (errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG)
AGAIN = "and run the command again: it goes on where it stopped"


def explain(error: OSError, path: Path | None = None) -> UserError:
    """Return the error as one message.

    Args:
        path: What was being written or read, if the error does not say it.
    """
    place = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else path
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UserError(_full(place), code="system.no-space")
    if place is None:
        return UserError(f"the operating system refused: {error.strerror or error}", code="system.refused")
    if error.errno in (errno.EACCES, errno.EPERM):
        return UserError(denied(place), EXIT_REFUSED, code="system.denied")
    if error.errno in UNUSABLE:
        return UserError(
            f"{place}: {error.strerror}. {_another(place)}.", EXIT_REFUSED, code="system.unusable"
        )
    return UserError(f"{place}: {error.strerror}", code="system.error")


def denied(path: Path) -> str:
    """Return why this user cannot make, write or read `path`, and what to do."""
    blocker, info = nearest(path)
    if info.st_uid == os.getuid():
        why = f"{blocker} has the mode {info.st_mode & 0o7777:o}."
    else:
        why = foreign(blocker, info.st_uid)
    return f"{path}: permission denied; {why} {_another(path)}."


def unwritable(folder: Path) -> str | None:
    """Return why a folder, which need not exist yet, cannot be written to; `None` if it can."""
    place, info = nearest(folder)
    if not stat.S_ISDIR(info.st_mode):
        return f"{folder} cannot be made: {place} is not a folder. {_another(folder)}."
    if os.access(place, os.W_OK | os.X_OK):
        return None
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        return f"{folder}: read-only file system. {_another(folder)}."
    return denied(folder)


def foreign(folder: Path, owner: int) -> str:
    """Say that a folder is another user's, and how to get it back if `sudo ./cluster` may have made it."""
    me = user_name(os.getuid())
    text = f"{folder} belongs to {user_name(owner)}, and you are {me}."
    if os.getuid() == 0:
        cure = "" if locations.STATE_FOLDER in folder.parts else ", or with `sudo -H`"
        return f"{text} Run ./cluster without sudo{cure}."
    if any("slurm-stacks" in part for part in folder.parts) or _in_home(folder):
        account = me.rpartition(" ")[2]  # the number, for a user without a name
        return f"{text} Take it back (sudo chown -R {account} '{folder}')."
    return text


def _in_home(folder: Path) -> bool:
    try:
        home = locations.home()
    except UserError:
        return False
    return folder.is_relative_to(home) and folder != home and home.stat().st_uid == os.getuid()


def _another(path: Path) -> str:
    """Return how the user makes the program use a folder other than that of `path`."""
    if locations.STATE_FOLDER in path.parts:
        return "Clone or copy the checkout to a folder that you can write, and work there"
    for root, variable in (
        (locations.state_root(), "XDG_STATE_HOME"),
        (locations.cache_root(), "XDG_CACHE_HOME"),
    ):
        if path.is_relative_to(root):
            return f"Set {variable} to a folder that you can write"
    return "Use a folder that you can write"


def _full(path: Path | None) -> str:
    if path is None:
        places = ", ".join(f"{folder} ({free_mib(folder)} MiB free)" for folder in _ours())
        return f"no space left on one of: {places}. Make room there {AGAIN}."
    return f"no space left for {path}: {free_mib(path)} MiB are free there. Make room {AGAIN}."


def _ours() -> list[Path]:
    """Return the folders that the program writes to."""
    return [locations.run_root(), locations.state_root(), locations.cache_root()]


def free_mib(path: Path) -> int:
    """Return the free space for this user on the file system where `path` is, or would be."""
    return shutil.disk_usage(nearest(path)[0]).free // MIB


def noexec(path: Path) -> bool:
    """Return whether nothing can be executed where `path` is, or would be."""
    return bool(os.statvfs(nearest(path)[0]).f_flag & os.ST_NOEXEC)


def nearest(path: Path) -> tuple[Path, os.stat_result]:
    """Return the path itself, or the first folder above it that exists."""
    for candidate in (path, *path.parents):
        try:
            return candidate, candidate.stat()
        except OSError:
            continue
    return Path("/"), Path("/").stat()


def user_name(uid: int) -> str:
    """Return a user for messages: `alice`, or `user 1234` without a line in the user database."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
