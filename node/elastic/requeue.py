"""Requeues jobs whose machines are lost or about to be, tells them why, and sees that it comes about.

`elastic/capacity.py` decides when the requeued jobs may start.

Slurm's traps (docs/internals/slurm_traps.md): forgotten-requeue.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from node.elastic.failures import ErrorClass, Failure
from node.elastic.plan import Action, NodeView
from node.elastic.requeue_memory import RequestedRequeue, RequeueMemory
from node.elastic.rules import PREEMPTED, TAKEN, UNRESPONSIVE, NodePhase
from node.elastic.view import REASON_PREFIX, log
from node.slurm.control import Slurm, SlurmDown, SlurmError
from node.slurm.hostlist import fold
from node.slurm.states import JobState, NodeState

LOST_PHASES = (NodePhase.DOWN, NodePhase.POWERING_DOWN, NodePhase.POWERED_DOWN, NodePhase.STUCK)
"""The phases that a node can reach after it stopped answering."""

# A dependency as squeue shows it: `afterok:12(failed),afterany:13_4(unfulfilled)`.
_DEPENDED_ON = re.compile(r":(\d+(?:_(?:\d+|\*))?)")
_VERDICT = re.compile(r"\([a-z]+\)")


class Requeue:
    """The jobs on silent nodes, those that Slurm refuses to requeue, and the requeues that it may forget.

    Args:
        control: Slurm's commands.
        file: Where the requeues are stored that Slurm may still forget. `None` keeps them in memory only.
    """

    def __init__(self, control: Slurm, file: Path | None = None) -> None:
        self._control = control
        self._memory = RequeueMemory(file)
        self._jobs_on: dict[str, tuple[int, ...]] = {}
        self._not_requeueable: set[int] = set()

    def watch(self, views: Collection[NodeView]) -> None:
        """Record the jobs on silent nodes, tell those that Slurm has requeued why, and repeat what it forgot.

        The jobs are recorded early because Slurm no longer reports what ran on a node once it has given the
        node up. Slurm often powers such a node down by itself, and requeues those jobs by itself.
        """
        silent = {view.name for view in views if view.phase is NodePhase.SILENT}
        phases = {view.name: view.phase for view in views if view.name in self._jobs_on}
        new = silent - self._jobs_on.keys()
        self._jobs_on = {
            node: ids
            for node, ids in self._jobs_on.items()
            if phases.get(node) in (NodePhase.SILENT, *LOST_PHASES)
        }
        if not new and not self._jobs_on.keys() - silent and not self._memory:
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
        self._repeat(jobs)

    def _repeat(self, jobs: Mapping[int, JobState]) -> None:
        """Requeue the jobs whose requeue Slurm has forgotten."""
        for job, request in self._memory.forgotten(jobs):
            try:
                self._control.requeue(job.spelling)
            except SlurmDown:
                raise
            except SlurmError as error:  # its user may have forbidden it since
                log(f"job {job.id} is {job.state}, and Slurm has forgotten that it was queued again: {error}")
                self._memory.drop(job.id)
            else:
                log(
                    f"job {job.id} is queued again once more ({request.node}: {request.reason}): Slurm has "
                    f"forgotten that it was, and shows it as {job.state}"
                )
                self._comment(job.spelling, request.node, request.reason, held=job.is_held)
                self._renew_dependents(job, jobs)
        self._memory.save()

    def _renew_dependents(self, job: JobState, jobs: Mapping[int, JobState]) -> None:
        """Let jobs wait for this one again. Slurm has decided that they never start, because it failed."""
        names = {str(job.id), str(job.spelling), f"{job.array_job}_*"}
        try:
            dependencies = self._control.dependencies()
        except SlurmDown:
            raise
        except SlurmError as error:
            log(f"job {job.id}: jobs that wait for it are not known: {error}")
            return
        for other in jobs.values():
            text = dependencies.get(other.id, "")
            if not other.is_pending or names.isdisjoint(_DEPENDED_ON.findall(text)):
                continue
            try:
                self._control.update_job(other.spelling, dependency=_VERDICT.sub("", text))
            except SlurmDown:
                raise
            except SlurmError as error:  # it may have been cancelled in the meantime
                log(f"job {other.id}: {error}")

    def evacuate(self, actions: list[Action], nodes: Mapping[str, NodeState]) -> None:
        """Drain nodes and requeue those of their jobs that may be requeued.

        A second call drains nothing again: the reason on a node shows that it has been evacuated already. A
        job that runs there once more, because Slurm has forgotten its requeue, is requeued once more.

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
        due = []
        for job in self._control.jobs().values():
            node = next((name for name in job.nodes if name in reasons), None)
            # A job that may not be requeued runs until the cloud takes the machine.
            if node and job.has_work and job.requeue and job.id not in self._not_requeueable:
                due.append((job, node))
        # The daemon may be killed between Slurm's acknowledgement and the note of it.
        self._memory.expect({job.id: RequestedRequeue.of(job, node, reasons[node]) for job, node in due})
        try:
            for job, node in due:
                self._requeue(job, node, reasons[node])
        finally:
            self._memory.save()

    def _requeue(self, job: JobState, node: str, reason: str) -> None:
        try:
            self._control.requeue(job.spelling)
        except SlurmDown:
            raise
        except SlurmError as error:  # interactive jobs cannot be requeued, nor can jobs that are ending
            log(f"job {job.id}: {error}")
            self._memory.refuse(job.id)
            if not job.is_starting:  # a job that still waits for its nodes is tried again
                self._not_requeueable.add(job.id)
        else:
            self._memory.acknowledge(job.id)
            self._comment(job.spelling, node, reason, held=job.is_held)

    def requeueable_jobs(self, nodes: list[str]) -> list[tuple[JobState, str]]:
        """Find the jobs that use one of these nodes and may be requeued, each with the node."""
        requeueable = []
        for job in self._control.jobs().values():
            node = next((node for node in job.nodes if node in nodes), None) if job.is_active else None
            if node is not None and job.requeue:
                requeueable.append((job, node))
        return requeueable

    def explain(self, jobs: Sequence[tuple[JobState, str]], reason: str) -> None:
        """Tell jobs why they were requeued, and record that they were.

        This is called after the requeue. A comment on a running job is taken for an old one, and removed.

        Args:
            jobs: The answer of `requeueable_jobs`.
            reason: Why the nodes were lost.
        """
        # A job that was ending has a state of its own already, whatever Slurm forgets.
        started = {job.id: RequestedRequeue.of(job, node, reason) for job, node in jobs if job.has_work}
        self._memory.expect(started)
        for job, node in jobs:
            self._comment(job.spelling, node, reason, held=job.is_held)

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
