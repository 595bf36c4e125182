"""A local cluster that is up: what was published of it, what a change would do to it, the end of its jobs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Sequence

from infra.changes import reach, table
from infra.changes.jobs import Job
from infra.changes.reach import Reach, Weighed
from infra.errors import NotUpError, UserError
from infra.local import upkeep, way_in
from infra.local.changes import RULES
from infra.local.site import RunDirectory
from infra.node.codec import from_json
from infra.node.model import ClusterDesign, Settings


def published(run: RunDirectory) -> ClusterDesign | None:
    """The design that the machines of a cluster know; None: there is none, or not yet.

    Raises:
        UserError: another release of this published it.
    """
    try:
        current = json.loads((run.bucket / "current.json").read_text())
        text = (run.bucket / current["settings"]["key"]).read_text()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    try:
        return from_json(Settings, json.loads(text)).design
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"what was published of the cluster in {run.path} cannot be read: {error}") from error


def way(run: RunDirectory, stack: str) -> Reach:
    """The way to the cluster's login machine, which is on this machine, or is it."""

    def ask(line: str, seconds: float) -> str:
        if not way_in.is_up(run):
            raise NotUpError(f"stack {stack} is not up")
        if upkeep.fallen(run):
            raise UserError(upkeep.how_to_restart(stack))
        return _shell(run, line, seconds)

    return Reach(ask)


def weigh(
    run: RunDirectory, stack: str, design: ClusterDesign, say: Callable[[str], None], *, replace: bool
) -> Weighed:
    """See `infra.provider.Provider.weigh`.

    What would delete files cannot be made by the engine: the new cluster would come up in the run directory
    of the old one, and then the old one's resources would be deleted with it.
    """
    try:
        there = published(run)
    except UserError as error:
        say(f"what this changes cannot be told: {error}")
        return Weighed()
    if there is None:
        return Weighed()
    found = table.compare(there, design, RULES)
    anew = any(change.kind in table.ALWAYS for change in found)
    if anew and replace:
        for change in found:
            say(change.line())
        return Weighed(anew)  # its jobs end as those of a destroy
    names = [partition.name for partition in there.partitions]
    weighed = reach.weigh(found, names, way(run, stack), say, replace=replace)
    return Weighed(anew, weighed.release)


def changes(
    run: RunDirectory, stack: str, design: ClusterDesign
) -> tuple[Sequence[table.Change], Sequence[Job] | None] | None:
    """See `infra.provider.Provider.changes`."""
    try:
        there = published(run)
    except UserError:
        return None
    if there is None:
        return None
    found = table.compare(there, design, RULES)
    if not found:
        return found, []
    try:
        return found, way(run, stack).jobs()
    except UserError:
        return found, None


def drain(
    run: RunDirectory, stack: str, say: Callable[[str], None], agree: Callable[[Sequence[Job]], None]
) -> None:
    """See `infra.provider.Provider.drain`."""
    try:
        there = published(run)
    except UserError as error:
        say(reach.silent(error))
        return
    if there is None:
        return
    names = [partition.name for partition in there.partitions]
    keep = f"`./cluster exec --stack {stack} -- scontrol reconfigure`"
    reach.drain(way(run, stack), names, keep, say, agree)


def _shell(run: RunDirectory, line: str, seconds: float) -> str:
    command = way_in.command(run, ["sh", "-c", line])
    process = subprocess.Popen(
        command.argv,
        env={**os.environ, **command.env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        # Its end is that of all that it has started.
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
