"""Checks of this machine before `./cluster up` makes anything. The doctor uses them, too.

Each check returns a sentence with the problem and its cure, or `None`.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from infra import bundle, os_errors
from infra.errors import EXIT_REFUSED, UserError
from infra.program import clusters, locations
from infra.program.stack import Stack
from localcloud.cores import RUN_CHARACTERS, Use, in_words, uses
from node.bootstrap.steps import MIN_FREE_MIB
from operations.local import run_directory
from operations.local.run_directory import RunDirectory

if TYPE_CHECKING:
    pass

# Who shares this host's CPU cores with a local cluster, in words.
#
# A local node has its type's number of cores (`localcloud/cores.py`). Where no core is free, nodes share
# some: nodes of one cluster, of other checkouts, or of other users.


def neighbours(stack: Stack, seen: Sequence[Use] | None = None) -> list[str]:
    """Return a phrase for each other cluster that has nodes on this host's cores.

    Args:
        seen: Who uses the cores; `None` means to look.
    """
    cores_of: dict[tuple[int, str, str], set[int]] = {}
    for use in uses() if seen is None else seen:
        if not _own(stack, use):
            cores_of.setdefault((use.owner, use.run, use.cluster), set()).add(use.core)
    mine = {record.id[:RUN_CHARACTERS]: record for record in clusters.recorded()} if cores_of else {}
    return [
        f"cluster {cluster} of {_whose(owner)}{_from(mine.get(run), owner)} has nodes on {_cores(cores)}"
        for (owner, run, cluster), cores in sorted(cores_of.items())
    ]


def _from(record: clusters.Cluster | None, owner: int) -> str:
    """Return which stack a cluster of this user's is, because several may have its name."""
    return f" (stack {record.stack} in {record.checkout})" if record and owner == os.getuid() else ""


def _own(stack: Stack, use: Use) -> bool:
    try:
        name = RunDirectory.of(stack).path.name
    except (UserError, OSError):  # no folder, no nodes
        return False
    return (use.owner, use.run) == (os.getuid(), name[:RUN_CHARACTERS])


def _whose(owner: int) -> str:
    if owner == os.getuid():
        return "yours"
    try:
        return f"user {pwd.getpwuid(owner).pw_name}"
    except KeyError:
        return f"user {owner}"


def _cores(cores: Iterable[int]) -> str:
    numbers = sorted(cores)
    return f"core{'s' if len(numbers) > 1 else ''} {in_words(numbers)}"


def problems() -> list[str]:
    """Return all problems; the list is empty if a cluster can come up."""
    texts = [check() for check in (unnamed_user, run_folder, checkout_folder, state_folder, cache_folder)]
    return [text for text in texts if text]


def check() -> None:
    """Refuse to go on if there is a problem.

    Raises:
        UserError: Exit 3; the message has all problems.
    """
    if texts := problems():
        raise UserError("\n".join(texts), EXIT_REFUSED, code="host.not-ready")


def unnamed_user() -> str | None:
    """Check that this user has a name: Slurm looks it up in the user database."""
    try:
        run_directory.user()
        locations.home()
    except UserError as error:
        return str(error)
    return None


def run_folder() -> str | None:
    """Check the folder of running clusters: Slurm's programs and jobs' scripts are executed there."""
    root = locations.run_root()
    if os_errors.noexec(root):
        mount = next(path for path in (root, *root.parents) if path.is_mount())
        return (
            f"{root} is on a file system that is mounted noexec, and a running cluster executes programs "
            f"there. Have it mounted with exec (as root: mount -o remount,exec {mount})."
        )
    return _too_small(root, MIN_FREE_MIB, "a running cluster")


def checkout_folder() -> str | None:
    """Check the folder of the stacks' state, which lies in the checkout."""
    root = bundle.ROOT / locations.STATE_FOLDER
    problem = _of_another(root) or os_errors.unwritable(root)
    return problem or _too_small(root, locations.STATE_MIB, "the state of the stacks")


def state_folder() -> str | None:
    """Check the folder of results and of the records of clusters."""
    try:
        root = locations.state_root()
    except UserError:  # without a home; `unnamed_user` says so
        return None
    problem = _of_another(root) or os_errors.unwritable(root)
    return problem or _too_small(root, locations.STATE_MIB, "the record of clusters")


def cache_folder() -> str | None:
    """Check the folder of training environments. The space for one is checked before it is built."""
    try:
        root = locations.cache_root()
    except UserError:
        return None
    return _of_another(root) or os_errors.unwritable(root)


def _of_another(root: Path) -> str | None:
    """Why root must not write to a folder: another user has it, whose links root would follow.

    An ordinary user may share a cache with colleagues.
    """
    if os.getuid() != 0 or not root.exists() or (owner := root.stat().st_uid) == 0:
        return None
    return os_errors.foreign(root, owner)


def _too_small(folder: Path, needed: int, what: str) -> str | None:
    free = os_errors.free_mib(folder)
    if free >= needed:
        return None
    return f"{folder}: {free} MiB are free, and {what} needs {needed} MiB. Make room there."
