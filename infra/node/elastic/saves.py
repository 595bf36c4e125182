"""Has slurmctld write down that nodes came up and jobs began, which it does not do by itself.

It saves its jobs and nodes when a job is submitted or ends, when somebody changes one, and else every five
minutes. Killed in between, it comes back with what was true before the boot, and starts a job once more that
runs. The node refuses that and is drained, and the run that there is ends. A node of which it thinks that it
boots is never heard again: slurmctld asks such a node nothing, a slurmd says its name only once, and at
ResumeTimeout Slurm takes the node from under its job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from infra.node.slurm.control import Slurm
from infra.node.slurm.states import JobState, NodeState


class Saves:
    """Asks for one save for all that came up or began between two looks."""

    def __init__(self, control: Slurm) -> None:
        self._control = control
        # None at first: what happened while this daemon was down may not be saved either.
        self._up: frozenset[str] = frozenset()
        self._begun: frozenset[tuple[int, int]] = frozenset()

    def see(self, nodes: Mapping[str, NodeState], jobs: Iterable[JobState]) -> None:
        """One look.

        Raises:
            SlurmError: Slurm refused the save; the next look asks for it again.
        """
        up = frozenset(name for name, state in nodes.items() if state.is_up)
        running = {(job.id, job.restarts): job for job in jobs if job.state == "RUNNING"}
        if new := running.keys() - self._begun:
            self._control.save_all(running[max(new)])
        elif came := up - self._up:
            self._control.save_nodes(min((nodes[n] for n in came), key=lambda n: (bool(n.reason), n.name)))
        self._up, self._begun = up, frozenset(running)
