"""Requeues jobs whose machines are lost or about to be, and tells them why.

`elastic/capacity.py` decides when the requeued jobs may start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from node.elastic.driver import ErrorClass, Failure
from node.elastic.plan import Action, NodeView
from node.elastic.rules import PREEMPTED, TAKEN, UNRESPONSIVE, NodePhase
from node.elastic.view import REASON_PREFIX, log
from node.slurm.control import Slurm, SlurmDown, SlurmError
from node.slurm.hostlist import fold
from node.slurm.states import NodeState

LOST_PHASES = (NodePhase.DOWN, NodePhase.POWERING_DOWN, NodePhase.POWERED_DOWN, NodePhase.STUCK)
"""The phases that a node can reach after it stopped answering."""


class Requeue:
    """The jobs that ran on nodes that stopped answering, and those that Slurm refuses to requeue."""

    def __init__(self, control: Slurm) -> None:
        self._control = control
        self._jobs_on: dict[str, tuple[int, ...]] = {}
        self._not_requeueable: set[int] = set()

    def watch(self, views: Iterable[NodeView]) -> None:
        """Record the jobs on silent nodes, and tell those that Slurm has requeued why.

        The jobs are recorded early because Slurm no longer reports what ran on a node once it has given the
        node up. Slurm often powers such a node down by itself.
        """
        phases = {view.name: view.phase for view in views}
        silent = {name for name, phase in phases.items() if phase is NodePhase.SILENT}
        new = silent - self._jobs_on.keys()
        self._jobs_on = {
            node: ids
            for node, ids in self._jobs_on.items()
            if phases.get(node) in (NodePhase.SILENT, *LOST_PHASES)
        }
        if not new and not self._jobs_on.keys() - silent:
            return
        jobs = self._control.jobs()
        for node in self._jobs_on.keys() - silent:
            lost = [jobs[number] for number in self._jobs_on[node] if number in jobs]
            for job in lost:
                if job.is_pending and job.restarts:
                    self._comment(job.spelling, node, UNRESPONSIVE, held=job.is_held)
            # Slurm requeues the jobs one after another. The rest stays recorded until Slurm has done so.
            self._jobs_on[node] = tuple(job.id for job in lost if job.is_active)
        for node in new:
            self._jobs_on[node] = tuple(
                job.id for job in jobs.values() if job.is_active and node in job.nodes
            )
        self._jobs_on = {node: ids for node, ids in self._jobs_on.items() if ids}

    def evacuate(self, actions: list[Action], nodes: Mapping[str, NodeState]) -> None:
        """Drain nodes and requeue those of their jobs that may be requeued.

        A second call changes nothing: the reason on a node shows that it has been evacuated already.

        Args:
            actions: What was decided, with the node and the reason of each.
            nodes: The nodes' states on which the decision was based.
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
            if not job.requeue or job.id in self._not_requeueable:
                continue  # the job runs until the cloud takes the machine
            try:
                self._control.requeue(job.spelling)
            except SlurmDown:
                raise
            except SlurmError as error:  # interactive jobs cannot be requeued, nor can jobs that are ending
                log(f"job {job.id}: {error}")
                if job.state == "RUNNING":  # a job that still waits for its nodes is tried again
                    self._not_requeueable.add(job.id)
            else:
                self._comment(job.spelling, node, reasons[node], held=job.is_held)

    def requeueable_jobs(self, nodes: list[str]) -> dict[int | str, tuple[str, bool]]:
        """Find the jobs that use one of these nodes and may be requeued.

        Returns:
            The job's `spelling` -> the node, and whether Slurm will hold the job in the queue.
        """
        found = {}
        for job in self._control.jobs().values():
            node = next((node for node in job.nodes if node in nodes), None) if job.is_active else None
            if node is not None and job.requeue:
                found[job.spelling] = node, job.is_held
        return found

    def explain(self, jobs: Mapping[int | str, tuple[str, bool]], reason: str) -> None:
        """Tell jobs why they were requeued.

        This is called after the requeue. A comment on a running job is taken for an old one, and removed.

        Args:
            jobs: The answer of `requeueable_jobs`.
            reason: Why the nodes were lost.
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
        except SlurmError as error:  # the job may have been cancelled in the meantime
            log(f"job {job}: {error}")


def _is_evacuated(state: NodeState | None) -> bool:
    reason = REASON_PREFIX + TAKEN
    return state is not None and state.is_drained and (state.reason or "").startswith(reason)
