"""Makes slurmctld write its state to disk after nodes came up, nodes went off or jobs began.

By itself slurmctld does so too late: one that is killed comes back with the state from before.

Slurm's traps (docs/internals/slurm_traps.md): late-saves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from node.slurm.control import Slurm
from node.slurm.states import JobState, NodeState


class StateFlush:
    """A request for one save for all that came up, went off or began between two calls."""

    def __init__(self, control: Slurm) -> None:
        self._control = control
        # Both are empty at first: what happened while this daemon was down may not be saved either.
        self._up: frozenset[str] = frozenset()
        self._begun: frozenset[tuple[int, int]] = frozenset()

    def see(self, nodes: Mapping[str, NodeState], jobs: Iterable[JobState]) -> None:
        """Save slurmctld's state if a node came up or went off, or a job began, since the last call.

        Args:
            nodes: Node -> its state.
            jobs: All jobs.

        Raises:
            SlurmError: Slurm refused the save. The next call asks for it again.
        """
        up = frozenset(name for name, state in nodes.items() if state.is_up)
        running = {(job.id, job.restarts): job for job in jobs if job.is_running}
        if new := running.keys() - self._begun:
            self._control.save_all(running[max(new)])
        elif changed := (up ^ self._up) & nodes.keys():
            self._control.save_nodes(min((nodes[n] for n in changed), key=lambda n: (bool(n.reason), n.name)))
        self._up, self._begun = up, frozenset(running)
