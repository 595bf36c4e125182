"""A running local cluster: its published design, what a change would do to it, and the end of its jobs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
from collections.abc import Callable, Sequence

from cli.changes import decision, table
from cli.changes.decision import CheckedChanges, ClusterControl
from cli.changes.jobs import Job
from cli.hints import hint
from cli.local import agent_lifecycle, machine_access
from cli.local.changes import RULES
from cli.local.run_directory import RunDirectory
from infra import bundle
from infra.errors import NotUpError, UserError
from node.model import ClusterDesign
from node.published import parse_settings
from node.slurm.environment import without_slurm

SHORT = 8
"""The number of characters of a digest that messages show."""


def published(run: RunDirectory) -> ClusterDesign | None:
    """Return the published design of a cluster; `None` if there is none yet.

    Raises:
        UserError: the design cannot be read, because another release of this program published it.
    """
    try:
        text = (run.bucket / run.current()["settings"]["key"]).read_text()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    try:
        return parse_settings(text).design
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"what was published of the cluster in {run.path} cannot be read: {error}") from error


def _differences(run: RunDirectory, there: ClusterDesign, design: ClusterDesign) -> list[table.Change]:
    """The differences of a running cluster to the stack file, and of its code to that of this checkout."""
    found = table.compare(there, design, RULES)
    was = _published_code(run)
    will = bundle.digest(bundle.node_archive(design))
    if was is not None and was != will:
        note = "daemons restart, jobs go on"
        found.append(table.Change("code", "", table.Kind.LIVE, was[:SHORT], will[:SHORT], note))
    return found


def _published_code(run: RunDirectory) -> str | None:
    """The digest of the published node code; `None` if it cannot be read."""
    try:
        code = run.current()["code"]["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return code if isinstance(code, str) else None


def control(run: RunDirectory, stack: str) -> ClusterControl:
    """Return the control of a cluster: commands run on its login machine, which is on this host."""

    def ask(line: str, seconds: float) -> str:
        if not machine_access.is_up(run):
            raise NotUpError(f"stack {stack} is not up")
        if agent_lifecycle.controller_is_dead(run):
            raise UserError(agent_lifecycle.how_to_restart(stack))
        return _shell(run, line, seconds)

    return ClusterControl(ask, machine_access.slurm_conf(run))


def check_changes(
    run: RunDirectory, stack: str, design: ClusterDesign, say: Callable[[str], None], *, replace: bool
) -> CheckedChanges:
    """See `cli.provider.Provider.check_changes`.

    The engine cannot make a change that deletes files: the new cluster would come up in the old one's run
    directory, and the deletion of the old resources would remove it.
    """
    try:
        there = published(run)
    except UserError as error:
        say(f"what this changes cannot be told: {error}")
        return CheckedChanges()
    if there is None:
        return CheckedChanges()
    found = _differences(run, there, design)
    anew = any(change.kind in table.ALWAYS for change in found)
    if anew and replace:
        for line in [*(change.line() for change in found), *table.losses(found)]:
            say(line)
        return CheckedChanges(anew)  # its jobs end as those of a destroy
    names = [partition.name for partition in there.partitions]
    command = hint("up", stack, "--replace")
    checked = decision.check_changes(found, names, control(run, stack), say, replace=replace, command=command)
    return dataclasses.replace(checked, recreate=anew)


def changes(
    run: RunDirectory, stack: str, design: ClusterDesign
) -> tuple[Sequence[table.Change], Sequence[Job] | None] | None:
    """See `cli.provider.Provider.changes`."""
    try:
        there = published(run)
    except UserError:
        return None
    if there is None:
        return None
    found = _differences(run, there, design)
    if not found:
        return found, []
    try:
        return found, control(run, stack).jobs()
    except NotUpError:  # nobody could log in yet, so there are no jobs
        return found, []
    except UserError:
        return found, None


def drain(
    run: RunDirectory,
    stack: str,
    say: Callable[[str], None],
    agree: Callable[[Sequence[Job]], None],
    *,
    gone: bool = False,
) -> None:
    """See `cli.provider.Provider.drain`.

    Args:
        gone: whether the cluster's checkout is gone, so that there is no `./cluster exec` for it.
    """
    try:
        there = published(run)
    except UserError as error:
        say(decision.no_answer(error))
        return
    if there is None:
        return
    names = [partition.name for partition in there.partitions]
    decision.drain(control(run, stack), names, "" if gone else hint("exec", stack), say, agree)


def _shell(run: RunDirectory, line: str, seconds: float) -> str:
    command = machine_access.command(run, ["sh", "-c", line])
    process = subprocess.Popen(
        command.argv,
        env=without_slurm(os.environ) | command.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        # In its own session, so that a timeout ends all of its processes.
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=seconds)
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise UserError(f"the controller did not answer within {seconds:g} s") from None
        raise
    if process.returncode:
        raise UserError(err.strip() or f"Slurm's commands failed with status {process.returncode}")
    return out
