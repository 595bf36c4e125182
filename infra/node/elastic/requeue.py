"""Jobs whose machines are lost or will be: queued again, and told why; `elastic/waiting.py` starts them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from infra.node.elastic.errors import ErrorClass, Failure
from infra.node.elastic.plan import Action, NodeView
from infra.node.elastic.rules import MUTE, PREEMPTED, TAKEN, NodePhase
from infra.node.elastic.view import REASON_PREFIX, log
from infra.node.slurm.control import Slurm, SlurmDown, SlurmError
from infra.node.slurm.hostlist import fold
from infra.node.slurm.states import NodeState

LOST = (NodePhase.DOWN, NodePhase.POWERING_DOWN, NodePhase.POWERED_DOWN, NodePhase.STUCK)
"""What a node comes to that did not answer."""


class Requeue:
    """Remembers which jobs were on a node that fell silent, and which cannot be queued again."""

    def __init__(self, control: Slurm) -> None:
        self._control = control
        self._on: dict[str, tuple[int, ...]] = {}
        self._refused: set[int] = set()

    def watch(self, views: Iterable[NodeView]) -> None:
        """Note whose jobs are in danger, and tell those that Slurm has queued again because of it.

        Once Slurm has given a node up it no longer says what ran there, and often takes it away by itself.
        """
        phases = {view.name: view.phase for view in views}
        silent = {name for name, phase in phases.items() if phase is NodePhase.SILENT}
        new = silent - self._on.keys()
        self._on = {
            node: ids for node, ids in self._on.items() if phases.get(node) in (NodePhase.SILENT, *LOST)
        }
        if not new and not self._on.keys() - silent:
            return
        jobs = self._control.jobs()
        for node in self._on.keys() - silent:
            lost = [jobs[number] for number in self._on[node] if number in jobs]
            for job in lost:
                if job.is_pending and job.restarts:
                    self._comment(job.spelling, node, MUTE, held=job.is_held)
            # Until Slurm has come to each of them.
            self._on[node] = tuple(job.id for job in lost if job.is_active)
        for node in new:
            self._on[node] = tuple(job.id for job in jobs.values() if job.is_active and node in job.nodes)
        self._on = {node: ids for node, ids in self._on.items() if ids}

    def evacuate(self, actions: list[Action], nodes: Mapping[str, NodeState]) -> None:
        """Have nodes take no new job, and queue those of their jobs again that may be.

        Done again it changes nothing: an earlier evacuation is seen by the reason on the node.

        Args:
            nodes: the reading that the decision was made on.
        """
        reasons = {action.node: action.reason for action in actions if action.node}
        if not reasons:
            return
        for reason in sorted(set(reasons.values())):
            new = [n for n, r in reasons.items() if r == reason and not _is_evacuated(nodes.get(n))]
            if new:
                log(f"evacuates {fold(new)}: {reason}")
                self._control.update_node(new, state="DRAIN", reason=REASON_PREFIX + reason)
        for job in self._control.jobs().values():
            node = next((name for name in job.nodes if name in reasons), None)
            if node is None or job.state not in ("RUNNING", "CONFIGURING", "SUSPENDED"):
                continue
            if not job.requeue or job.id in self._refused:
                continue  # it runs until the machine is taken
            try:
                self._control.requeue(job.spelling)
            except SlurmDown:
                raise
            except SlurmError as error:  # an interactive one, or it is just ending
                log(f"job {job.id}: {error}")
                if job.state == "RUNNING":  # one that still waits for its nodes is asked again
                    self._refused.add(job.id)
            else:
                self._comment(job.spelling, node, reasons[node], held=job.is_held)

    def on(self, nodes: list[str]) -> dict[int | str, tuple[str, bool]]:
        """Jobs that hold one of these nodes and may be queued again.

        Returns:
            By their `spelling`: the node, and whether Slurm will hold them in the queue.
        """
        found = {}
        for job in self._control.jobs().values():
            node = next((node for node in job.nodes if node in nodes), None) if job.is_active else None
            if node is not None and job.requeue:
                found[job.spelling] = node, job.is_held
        return found

    def explain(self, jobs: Mapping[int | str, tuple[str, bool]], reason: str) -> None:
        """Tell jobs why they were queued again.

        After that, and not before: a comment on a job that runs is taken for an old one, and removed.
        """
        for job, (node, held) in jobs.items():
            self._comment(job, node, reason, held=held)

    def _comment(self, job: int | str, node: str, reason: str, *, held: bool) -> None:
        failure = Failure((node,), ErrorClass.PREEMPTED, node, reason.removeprefix(PREEMPTED))
        sentence = failure.sentence()
        if held:
            sentence = f"{sentence.rpartition('; ')[0]}; it is held: `scontrol release {job}` lets it go"
        try:
            self._control.update_job(job, admin_comment=sentence)
        except SlurmDown:
            raise
        except SlurmError as error:  # the job may have been cancelled meanwhile
            log(f"job {job}: {error}")


def _is_evacuated(state: NodeState | None) -> bool:
    reason = REASON_PREFIX + TAKEN
    return state is not None and state.is_drained and (state.reason or "").startswith(reason)
