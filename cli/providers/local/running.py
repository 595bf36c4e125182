"""A running local cluster: its published design, what a change would do to it, and the end of its jobs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence

from cli.changes import decision, table
from cli.changes.closing import Holder
from cli.changes.decision import CheckedChanges, ClusterControl
from cli.changes.jobs import Job
from cli.changes.table import Rules
from infra import bundle
from infra.config import changes as key_changes
from infra.effects import Kind
from infra.errors import NotUpError, UserError
from infra.program.stack import Stack
from node.design.model import ClusterDesign
from node.design.published import parse_settings
from node.slurm.environment import without_slurm
from operations import programs
from operations.local import agent, machine_access
from operations.local.run_directory import RunDirectory

RULES = Rules(key_changes.table("local"))
SHORT = 8
"""The number of characters of a digest that messages show."""


def published(run: RunDirectory) -> ClusterDesign | None:
    """Return the published design of a cluster; `None` if there is none yet.

    Raises:
        UserError: The design cannot be read, because another release of this program published it.
    """
    try:
        text = (run.bucket / run.current()["settings"]["key"]).read_text()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    try:
        return parse_settings(text).design
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"what was published of the cluster in {run.path} cannot be read: {error}",
            code="cluster.settings-unreadable",
        ) from error


def _differences(run: RunDirectory, running: ClusterDesign, design: ClusterDesign) -> list[table.Change]:
    """Return a running cluster's differences to the stack file, and its code's to this checkout's."""
    differences = table.compare(running, design, RULES)
    was = _published_code(run)
    will = bundle.digest(bundle.node_archive(design))
    if was is not None and was != will:
        note = "daemons restart, jobs go on"
        differences.append(table.Change("code", "", Kind.LIVE, was[:SHORT], will[:SHORT], note))
    return differences


def _published_code(run: RunDirectory) -> str | None:
    """Return the digest of the published node code; `None` if it cannot be read."""
    try:
        code = run.current()["code"]["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return code if isinstance(code, str) else None


def control(run: RunDirectory, stack: Stack, command: str) -> ClusterControl:
    """Return the control of a cluster: commands run on its controller, which is on this host.

    Args:
        command: The word after `./cluster`, for the mark of what takes partitions out of service.
    """

    def ask(line: str, seconds: float) -> str:
        if not machine_access.is_up(run):
            raise NotUpError(f"stack {stack.name} is not up", code="cluster.not-up")
        if agent.controller_is_dead(run):
            raise UserError(agent.how_to_restart(stack.name), code="controller.not-running")
        return _shell(run, line, seconds)

    holder, conf = Holder.of(stack, command), machine_access.slurm_conf(run)
    if run.containers:
        return ClusterControl(ask, conf, holder=holder)
    state, elastic = run.path / "state", run.path / "lib" / "elastic"
    return ClusterControl(ask, conf, str(state), str(elastic), holder=holder)


def check_changes(
    run: RunDirectory, stack: Stack, design: ClusterDesign, say: Callable[[str], None], *, replace: bool
) -> CheckedChanges:
    """See `cli.providers.provider.Provider.check_changes`.

    The engine cannot make a change that deletes files: the new cluster would come up in the old one's run
    directory, and the deletion of the old resources would remove it.
    """
    try:
        design_up = published(run)
    except UserError as error:
        say(f"what this changes cannot be told: {error}")
        return CheckedChanges()
    if design_up is None:
        return CheckedChanges()
    differences = _differences(run, design_up, design)
    anew = any(change.kind in table.ALWAYS for change in differences)
    reach = control(run, stack, "up --replace" if replace else "up")
    if anew and replace:
        for line in [*(change.line() for change in differences), *table.losses(differences)]:
            say(line)
        return CheckedChanges(anew)  # its jobs end as those of a destroy
    names = list(design_up.slurm_partitions())
    checked = decision.check_changes(differences, names, reach, say, replace=replace, design=design)
    return dataclasses.replace(checked, recreate=anew)


def changes(
    run: RunDirectory, stack: Stack, design: ClusterDesign
) -> tuple[Sequence[table.Change], Sequence[Job] | None] | None:
    """See `cli.providers.provider.Provider.changes`."""
    try:
        design_up = published(run)
    except UserError:
        return None
    if design_up is None:
        return None
    differences = _differences(run, design_up, design)
    if not differences:
        return differences, []
    try:
        return differences, control(run, stack, "plan").jobs()
    except NotUpError:  # nobody could log in yet, so there are no jobs
        return differences, []
    except UserError:
        return differences, None


def drain(
    run: RunDirectory,
    stack: Stack,
    say: Callable[[str], None],
    agree: Callable[[Sequence[Job]], None],
    *,
    gone: bool = False,
) -> None:
    """See `cli.providers.provider.Provider.drain`.

    Args:
        gone: Whether the cluster's checkout is gone, so that there is no `up` for it.
    """
    try:
        design = published(run)
    except UserError as error:
        say(decision.no_answer(error))
        return
    if design is None:
        return
    decision.drain(control(run, stack, "down"), stack.name, say, agree, gone=gone)


def _shell(run: RunDirectory, line: str, seconds: float) -> str:
    command = machine_access.command(run, ["sh", "-c", line], controller=True)
    env = without_slurm(os.environ) | command.env
    done = programs.capture(command.argv, env=env, seconds=seconds, apart=True)
    if done.status == programs.TIMED_OUT:
        raise UserError(f"the controller did not answer within {seconds:g} s", code="cluster.no-answer")
    if done.failed:
        raise UserError(
            done.err.strip() or f"Slurm's commands failed with status {done.status}", code="slurm.failed"
        )
    return done.out
