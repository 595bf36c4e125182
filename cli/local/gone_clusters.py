"""Local clusters that run while their checkout, or its state, was deleted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cli.hints import left_over
from cli.local import leftovers
from cli.local.agent_lifecycle import end_cluster
from cli.local.run_directory import RunDirectory
from cli.runner import interrupt
from infra import os_errors
from infra.errors import UserError
from infra.program import clusters, locations, owner
from infra.program.clusters import Cluster
from infra.program.stack import Stack

if TYPE_CHECKING:
    from cli.changes.jobs import Job
    from cli.console.progress import Console


def messages() -> list[str]:
    """Return a message for each of this user's clusters that run without their checkout."""
    return [
        f"a cluster of stack {cluster.stack} runs, and {locations.state_dir(cluster.home)} no longer has "
        f"its state: the checkout was moved or deleted. If it was moved, "
        f"`./cluster down --stack {cluster.stack}` there ends the cluster; else `{cluster.down_command}`"
        for cluster in clusters.recorded()
        # A cluster that a reboot has ended left only a folder.
        if cluster.provider == "local" and cluster.gone and RunDirectory(cluster.run_dir).pids()
    ]


def take_down(cluster: Cluster, console: Console, agree: Callable[[Sequence[Job]], None]) -> None:
    """Do what a plain `down` does, for a cluster whose state is gone. No engine knows it any more.

    Args:
        agree: Is called with the jobs; raises UserError if somebody wants to keep them.

    Raises:
        UserError: Something of it is left; or the one from `agree`.
    """
    from cli.local import running

    run = RunDirectory(cluster.run_dir)
    if background := interrupt.background_hint():
        console.say(background, "dim")
    running.drain(run, cluster.stack, console.say, agree, gone=True)
    backend = ""
    with contextlib.suppress(OSError):
        backend = (run.path / owner.OWNER).read_text(encoding="utf-8").strip()
    with console.waiting("taking the cluster down"):
        end_cluster(run)
        left = leftovers.find(run)
    if left:
        raise UserError(left_over(cluster.stack, left, cluster.down_command))
    clusters.remove(cluster.id)
    with contextlib.suppress(OSError):  # the folder of another cluster is in it
        run.path.parent.rmdir()
    if backend in ("", owner.EMBEDDED, owner.IN_CHECKOUT):
        console.say("nothing is left")
        return
    console.say("nothing else is left")
    console.say(
        f"Pulumi's backend {backend} still has the stack: `pulumi stack rm --force {cluster.stack}` "
        "forgets it",
        "yellow",
    )


def other_owners(stack: Stack) -> str:
    """Return the words for other users who have this stack up, for example after `sudo ./cluster up`."""
    mine, name = locations.run_root(), locations.cluster_id(stack)
    found: list[str] = []
    for path in mine.parent.glob(f"{locations.APPLICATION}-*/{name}"):
        with contextlib.suppress(FileNotFoundError):  # the cluster is being destroyed just now
            if path.parent != mine and path.is_dir():
                found.append(os_errors.user_name(path.parent.stat().st_uid))
    users = ", ".join(found)
    return f" ({users} has it up from this checkout; clusters belong to one user)" if users else ""
