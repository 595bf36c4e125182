"""What of this machine keeps a cluster from coming up: a sentence each, with its cure.

Looked at before anything is made (`./cluster up`), and by whoever asks what would stop it.
"""

from __future__ import annotations

from pathlib import Path

from infra import trouble
from infra.errors import EXIT_REFUSED, UserError
from infra.local import site
from infra.node.bootstrap.steps import MIN_FREE_MIB
from infra.runner import locations

STATE_MIB = 1


def problems() -> list[str]:
    """All of them; empty where a cluster can come up."""
    found = [check() for check in (unnamed_user, run_folder, state_folder, cache_folder)]
    return [text for text in found if text]


def check() -> None:
    """Refuse where there is a problem.

    Raises:
        UserError: exit 3, with all of them.
    """
    if found := problems():
        raise UserError("\n".join(found), EXIT_REFUSED)


def unnamed_user() -> str | None:
    """Slurm looks its user up in the user database."""
    try:
        site.user()
        locations.home()
    except UserError as error:
        return str(error)
    return None


def run_folder() -> str | None:
    """Where the running cluster lies: Slurm's programs and jobs' scripts are executed there."""
    root = locations.run_root()
    if trouble.noexec(root):
        mount = next(path for path in (root, *root.parents) if path.is_mount())
        return (
            f"{root} is on a file system that is mounted noexec, and a running cluster executes programs "
            f"there. Have it mounted with exec (as root: mount -o remount,exec {mount})."
        )
    return _too_small(root, MIN_FREE_MIB, "a running cluster")


def state_folder() -> str | None:
    """Where what is up is remembered, and results are kept."""
    try:
        root = locations.state_root()
    except UserError:  # without a home; `unnamed_user` says so
        return None
    return trouble.unwritable(root) or _too_small(root, STATE_MIB, "the state of the stacks")


def cache_folder() -> str | None:
    """Where training environments lie; what one needs is asked when one is built."""
    try:
        root = locations.cache_root()
    except UserError:
        return None
    return trouble.unwritable(root)


def _too_small(folder: Path, needed: int, what: str) -> str | None:
    free = trouble.free_mib(folder)
    if free >= needed:
        return None
    return f"{folder}: {free} MiB are free, and {what} needs {needed} MiB. Make room there."
