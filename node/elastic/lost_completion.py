"""Frees nodes that are off and that slurmctld counts as ending a job which it no longer has.

A slurmctld that is killed again and again while a job ends may forget the job's end on its nodes. Nobody
tells it anything about a node that is off, so the node stays COMPLETING for ever, and jobs wait for it.

Slurm's traps (docs/internals/slurm_traps.md): lost-completion.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from node.elastic.view import REASON_PREFIX, log
from node.slurm.control import Slurm
from node.slurm.hostlist import fold
from node.slurm.states import NodeState

DOUBT_SECONDS = 90.0
"""How long a node must be seen like this: longer than slurmctld's start, and than a job's end on a lost node
takes (KillWait, and the epilog that waits for SlurmdTimeout)."""
REASON = f"{REASON_PREFIX}Slurm counted a job as ending here that it no longer has"


class LostCompletion:
    """A search for nodes that end a job of which slurmctld knows nothing.

    Args:
        control: Slurm's commands.
        nodes: Returns the last reading of the nodes.
        clock: Seconds on a clock that never jumps.
    """

    def __init__(
        self,
        control: Slurm,
        nodes: Callable[[], Mapping[str, NodeState]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._control = control
        self._nodes = nodes
        self._clock = clock
        self._since: dict[str, float] = {}

    def once(self) -> None:
        """Look once, and free the nodes that have been like this for long.

        Slurm gives no job a node that is COMPLETING, so none can be on it by the time it is set to DOWN.

        Raises:
            SlurmError: slurmctld does not answer. The next call looks again.
        """
        ending = {name for name, node in self._nodes().items() if _is_off_and_ends_a_job(node)}
        if ending:
            jobs = self._control.jobs().values()
            ending = ending.difference(*(job.nodes for job in jobs if job.is_active))
        now = self._clock()
        self._since = {name: self._since.get(name, now) for name in ending}
        due = sorted(name for name, since in self._since.items() if now - since >= DOUBT_SECONDS)
        if not due:
            return
        present = self._control.nodes()
        due = [name for name in due if name in present and _is_off_and_ends_a_job(present[name])]
        if due:
            log(f"frees {fold(due)}: off, and ending a job that Slurm no longer has")
            self._control.update_node(due, state="DOWN", reason=REASON)
            self._control.power_down_force(due, REASON)
        self._since = {}


def _is_off_and_ends_a_job(node: NodeState) -> bool:
    return node.is_off and node.ends_job and node.is_idle and not node.is_powering_up
