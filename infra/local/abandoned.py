"""Clusters that run without their checkout: it was moved to another disk, or deleted while they were up."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from infra import trouble
from infra.errors import EXIT_REFUSED, UserError
from infra.local.operations import processes
from infra.local.site import RunDirectory
from infra.local.upkeep import end_cluster
from infra.runner import locations, owner


def sentences(project: Path) -> list[str]:
    """Each of this user's abandoned clusters, and how to end it.

    Args:
        project: the checkout that asks; a cluster that follows it is not abandoned.
    """
    return [
        f"a cluster of stack {note.stack} runs without its checkout: {note.checkout} was moved or deleted. "
        f"Where it was moved, `./cluster down --stack {note.stack}` there ends it; else "
        f"`./cluster down --stack {note.stack} --checkout '{note.checkout}'`"
        for run, note in locations.notes()
        if note.gone
        and locations.key(project, note.stack) != run.name
        # Of one that a reboot has ended there is only a folder left.
        and processes(RunDirectory(run))
    ]


def end(checkout: Path, stack: str) -> str:
    """End the cluster of a checkout that is gone, and forget its state.

    Returns:
        What is left to do elsewhere; empty: nothing.

    Raises:
        UserError: there is no such cluster, or its checkout is there.
    """
    path = Path(os.path.abspath(checkout))  # noqa: PTH100 - what is gone cannot be resolved
    known = [(run, note) for run, note in locations.notes() if note.stack == stack]
    run = next((run for run, note in known if note.checkout == path), None)
    if run is None:
        others = "; ".join(str(note.checkout) for _, note in known if note.gone) or "none"
        raise UserError(
            f"no cluster of stack {stack} was brought up from {path}. Gone checkouts that have one: {others}"
        )
    if (path / "Pulumi.yaml").exists():
        raise UserError(f"{path} is there: run `./cluster down --stack {stack}` in it", EXIT_REFUSED)
    holder = (run / "owner").read_text().strip() if (run / "owner").exists() else owner.EMBEDDED
    state = locations.state_root() / run.name
    end_cluster(RunDirectory(run))
    shutil.rmtree(state, ignore_errors=True)
    with contextlib.suppress(OSError):  # another cluster's is left in it
        run.parent.rmdir()
    if holder == owner.EMBEDDED or str(state) in holder:
        return ""
    return f"Pulumi's backend {holder} still has the stack: `pulumi stack rm --force {stack}` forgets it"


def others(project: Path, stack: str) -> str:
    """Who else has this very stack up, after `sudo ./cluster up` for one; empty: nobody."""
    mine, name = locations.run_root(), locations.key(project, stack)
    found: list[str] = []
    for path in mine.parent.glob(f"{locations.APPLICATION}-*/{name}"):
        with contextlib.suppress(FileNotFoundError):  # it is just being taken down
            if path.parent != mine and path.is_dir():
                found.append(trouble.user_name(path.parent.stat().st_uid))
    users = ", ".join(found)
    return f" ({users} has it up from this checkout; clusters belong to one user)" if users else ""
