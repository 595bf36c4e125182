"""Refuses to end a cluster that has jobs: what a component's guard runs before the cluster's head goes.

`./cluster` asks for jobs before it changes anything. A plain `pulumi up` or `pulumi destroy` asks nobody. So
the component has a resource that the engine must delete before what holds the queue (`Shell.guard`), and
whose deletion fails while there are jobs. The engine then stops, and has deleted nothing of the cluster.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from infra.errors import EXIT_REFUSED, UserError
from node.logs.text import printable
from node.system import foreign, plurals

VARIABLE = "SLURM_STACKS_END_JOBS"
"""The environment variable that lets a change end jobs. A value in the program would count from the next
change on, because a resource is deleted with the properties that it has in the state."""
MOST_LISTED = 20
CURE = f"run the command again with {VARIABLE}=1 in its environment, which ends them"


def check(ask: Callable[[], str]) -> None:
    """Refuse to go on while the cluster has jobs that have not ended, unless the user allows it.

    Args:
        ask: Returns what the cluster's own command `status` prints.

    Raises:
        UserError: Exit 3; there are jobs, or the cluster does not say whether there are.
    """
    if os.environ.get(VARIABLE) == "1":
        return
    try:
        jobs = _jobs(ask())
    except UserError as error:
        raise UserError(
            "nothing of the cluster was deleted: this would end its jobs, and whether there are any is not "
            f"known, because the cluster does not answer ({error}). If they may end, or there are none, "
            f"{CURE}",
            EXIT_REFUSED,
            code="guard.jobs-unknown",
        ) from None
    if not jobs:
        return
    lines = jobs[:MOST_LISTED]
    if len(jobs) > MOST_LISTED:
        lines.append(f"and {len(jobs) - MOST_LISTED} more")
    raise UserError(
        f"nothing of the cluster was deleted: this would end {plurals.count(len(jobs), 'job')} of it:\n"
        + "\n".join(f"  {line}" for line in lines)
        + f"\nLet them end, or {CURE}",
        EXIT_REFUSED,
        code="guard.ends-jobs",
    )


def _jobs(answer: str) -> list[str]:
    """Return a line for each job in a status.

    Raises:
        UserError: The answer is no status.
    """
    try:
        return [_line(job) for job in foreign.parse(answer)["jobs"]]
    except (ValueError, TypeError, KeyError):
        raise UserError("its answer is no status", code="guard.no-status") from None


def _line(job: dict[str, Any]) -> str:
    number, name, user, state = (printable(str(job[key])) for key in ("slurm_id", "name", "user", "state"))
    return f"job {number} {name} ({user}, {state})"
