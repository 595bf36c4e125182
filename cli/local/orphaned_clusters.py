"""Clusters whose checkout was moved to another disk or deleted while they were up."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cli.hints import left_over
from cli.local import leftovers
from cli.local.agent_lifecycle import end_cluster
from cli.local.run_directory import RunDirectory
from cli.runner import interrupt, lock
from infra import os_errors
from infra.errors import EXIT_REFUSED, UserError
from infra.program import locations, owner
from infra.program.stack import Stack

if TYPE_CHECKING:
    from cli.changes.jobs import Job
    from cli.console.progress import Console


def messages(project: Path) -> list[str]:
    """Return a message for each of this user's orphaned clusters, with the command that ends it.

    Args:
        project: the checkout of the caller; a cluster that belongs to it is not orphaned.
    """
    return [
        f"a cluster of stack {note.stack} runs without its checkout: {note.checkout} was moved or deleted. "
        f"If it was moved, `./cluster down --stack {note.stack}` there ends the cluster; else "
        f"`{command(Stack(note.checkout, note.stack))}`"
        for run, note in locations.notes()
        if note.gone
        and locations.key(Stack(project, note.stack)) != run.name
        # A cluster that a reboot has ended left only a folder.
        and RunDirectory(run).pids()
    ]


def command(stack: Stack) -> str:
    """Return the command that ends the cluster of a checkout that is gone, for a shell."""
    return f"./cluster down --stack {stack.name} --checkout {shlex.quote(str(stack.project))}"


def find(stack: Stack) -> RunDirectory:
    """Return the run directory of a cluster whose checkout is gone.

    Raises:
        UserError: there is no such cluster, or its checkout still exists.
    """
    path = Path(os.path.abspath(stack.project))  # noqa: PTH100 - what is gone cannot be resolved
    known = [(run, note) for run, note in locations.notes() if note.stack == stack.name]
    run = next((run for run, note in known if note.checkout == path), None)
    if run is None:
        others = "; ".join(str(note.checkout) for _, note in known if note.gone) or "none"
        raise UserError(
            f"no cluster of stack {stack.name} was brought up from {path}. Gone checkouts "
            f"that have one: {others}"
        )
    if (path / "Pulumi.yaml").exists():
        raise UserError(f"{path} is there: run `./cluster down --stack {stack.name}` in it", EXIT_REFUSED)
    return RunDirectory(run)


def take_down(stack: Stack, console: Console, agree: Callable[[Sequence[Job]], None]) -> None:
    """Do what a plain `down` does, for a cluster whose checkout is gone. No engine knows it any more.

    Args:
        stack: the stack, with the path of the checkout that is gone.
        agree: is called with the jobs; raises UserError if somebody wants to keep them.

    Raises:
        UserError: there is no such cluster, another command works on it (an `up` whose checkout was deleted
            meanwhile), or something of it is left; or the one from `agree`.
    """
    from cli.local import running

    run = find(stack)
    if background := interrupt.background_hint():
        console.say(background, "dim")
    with lock.held(stack, "down"):
        running.drain(run, stack.name, console.say, agree, orphaned=True)
        whose = holder(run)
        with console.waiting("taking the cluster down"):
            left = end(run)
        if left:
            raise UserError(left_over(stack.name, left, command(stack)))
        elsewhere = forget(stack, run, whose)
    console.say("nothing else is left" if elsewhere else "nothing is left")
    if elsewhere:
        console.say(elsewhere, "yellow")


def end(run: RunDirectory) -> list[str]:
    """End such a cluster. Returns one line for each thing that is left of it.

    Raises:
        UserError: a process or a part of a machine cannot be removed.
    """
    notes = {}
    for name in (locations.NOTE, owner.OWNER):
        with contextlib.suppress(OSError):
            notes[name] = (run.path / name).read_bytes()
    end_cluster(run)
    left = leftovers.find(run)
    if left:
        # Another call finds what is left by these files.
        for name, content in notes.items():
            with contextlib.suppress(OSError):
                (run.path / name).write_bytes(content)
    return left


def holder(run: RunDirectory) -> str:
    """Return the owner of a cluster (see `infra.program.owner`)."""
    with contextlib.suppress(FileNotFoundError):
        return (run.path / owner.OWNER).read_text(encoding="utf-8").strip()
    return owner.EMBEDDED


def forget(stack: Stack, run: RunDirectory, holder: str) -> str:
    """Forget the state of a cluster that has ended.

    Args:
        holder: its owner, as long as it was up.

    Returns:
        What the user must still do elsewhere; empty if that is nothing.
    """
    state = locations.state_root() / run.path.name
    shutil.rmtree(state, ignore_errors=True)
    with contextlib.suppress(OSError):  # the folder of another cluster is in it
        run.path.parent.rmdir()
    if holder == owner.EMBEDDED or str(state) in holder:
        return ""
    return f"Pulumi's backend {holder} still has the stack: `pulumi stack rm --force {stack.name}` forgets it"


def other_owners(stack: Stack) -> str:
    """Return the words for other users who have this stack up, for example after `sudo ./cluster up`."""
    mine, name = locations.run_root(), locations.key(stack)
    found: list[str] = []
    for path in mine.parent.glob(f"{locations.APPLICATION}-*/{name}"):
        with contextlib.suppress(FileNotFoundError):  # the cluster is being destroyed just now
            if path.parent != mine and path.is_dir():
                found.append(os_errors.user_name(path.parent.stat().st_uid))
    users = ", ".join(found)
    return f" ({users} has it up from this checkout; clusters belong to one user)" if users else ""
