"""This user's local clusters: their state, what is left of one, and the end of one without a checkout."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cli.engine import interrupt
from cli.hints import left_over
from infra import os_errors
from infra.errors import EXIT_REFUSED, UserError
from infra.program import clusters, locations, owner
from infra.program.clusters import Cluster
from infra.program.stack import Stack
from localcloud import containers
from node.system import locks
from operations.local.agent import end_cluster
from operations.local.run_directory import RunDirectory

if TYPE_CHECKING:
    from cli.changes.jobs import Job
    from cli.console.progress import Console

# Finds what still exists of a local cluster: processes, parts of its machines, and its run directory.


def leftovers(run: RunDirectory) -> list[str]:
    """Return one line for each thing; empty if nothing of the cluster is left."""
    remains = [f"process {pid}: {_command_line(pid)}" for pid in run.pids()]
    remains += containers.leftovers(run.path)
    if run.path.exists():
        remains.append(f"folder {run.path}{_foreign(run.path)}")
    return remains


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


def gone_messages() -> list[str]:
    """Return a message for each of this user's clusters that run without their checkout."""
    return [
        f"a cluster of stack {cluster.stack} runs, and {locations.state_dir(cluster.home)} no longer has "
        f"its state: the checkout was moved or deleted. If it was moved, "
        f"`./cluster down --stack {cluster.stack}` there ends the cluster; else `{cluster.down_command}`"
        for cluster in clusters.recorded()
        # A cluster that a reboot has ended left only a folder.
        if cluster.provider == "local" and cluster.gone and RunDirectory(cluster.run_dir).pids()
    ]


def take_down_gone(cluster: Cluster, console: Console, agree: Callable[[Sequence[Job]], None]) -> None:
    """Do what a plain `down` does, for a cluster whose state is gone. No engine knows it any more.

    Args:
        agree: Is called with the jobs; raises UserError if somebody wants to keep them.

    Raises:
        UserError: Something of it is left; or the one from `agree`.
    """
    from cli.providers.local import running

    run = RunDirectory(cluster.run_dir)
    if background := interrupt.background_hint():
        console.say(background, "dim")
    with _alone(cluster):
        running.drain(run, cluster.home, console.say, agree, gone=True)
        backend = ""
        with contextlib.suppress(OSError):
            backend = (run.path / owner.OWNER).read_text(encoding="utf-8").strip()
        with console.waiting("taking the cluster down"):
            end_cluster(run)
            left = leftovers(run)
    if left:
        raise UserError(left_over(cluster.stack, left, cluster.down_command), code="cluster.left-over")
    clusters.remove(cluster.id)
    with contextlib.suppress(OSError):  # the folder of another cluster is in it
        run.path.parent.rmdir()
    if backend in ("", owner.EMBEDDED, owner.IN_CHECKOUT):
        console.say("nothing is left")
        return
    console.say("nothing else is left")
    console.say(
        f"Pulumi's backend {backend} still has the stack: `pulumi stack rm --force --preserve-config "
        f"{cluster.home.engine_name}` forgets it",
        "yellow",
    )


@contextlib.contextmanager
def _alone(cluster: Cluster) -> Iterator[None]:
    """Be the only `down --cluster` of a cluster. Its checkout, with the lock of its stack, is gone.

    Raises:
        UserError: Exit 3; another one is under way.
    """
    # The agent has the lock of the cluster's folder.
    record = os.open(cluster.file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not locks.acquire(record, wait=False):
            raise UserError(
                f"another `{cluster.down_command}` is ending this cluster. Wait for it to end.",
                EXIT_REFUSED,
                code="cluster.busy",
            )
        yield
    finally:
        os.close(record)


def other_owners(stack: Stack) -> str:
    """Return the words for other users who have this stack up, for example after `sudo ./cluster up`."""
    runs, name = locations.run_root(), locations.cluster_id(stack)
    names: list[str] = []
    for path in runs.parent.glob(f"{locations.APPLICATION}-*/{name}"):
        with contextlib.suppress(FileNotFoundError):  # the cluster is being destroyed just now
            if path.parent != runs and path.is_dir():
                names.append(os_errors.user_name(path.parent.stat().st_uid))
    users = ", ".join(names)
    return f" ({users} has it up from this checkout; clusters belong to one user)" if users else ""


def why_gone(stack: Stack, run: RunDirectory) -> str:
    """Return the message for a cluster whose run directory is missing or incomplete."""
    from cli.engine.state import has_state

    if run.path.exists() or not has_state(stack):
        return f"stack {stack.name} is not up: bring it up with `./cluster up --stack {stack.name}`"
    return (
        f"stack {stack.name} was up, but {run.path} is gone: the machine was restarted, or "
        f"{run.path.parent.parent} was cleaned up. `./cluster up --stack {stack.name}` makes a new cluster, "
        f"`./cluster down --stack {stack.name}` forgets it; kept results stay."
    )
