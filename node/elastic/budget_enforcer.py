"""Enforces a used-up budget: powers nodes down and cancels or keeps their jobs, as the stack file says."""

from __future__ import annotations

from collections.abc import Sequence

from node.design.model import ClusterDesign
from node.elastic.budget import Budget
from node.elastic.view import REASON_PREFIX, log
from node.slurm.control import Slurm, SlurmError
from node.slurm.hostlist import fold
from node.slurm.states import JobState


def cancel(control: Slurm, jobs: Sequence[JobState], sentence: str) -> None:
    """Cancel jobs, and tell their owners why.

    Raises:
        SlurmError: slurmctld does not answer, or cancels not all of them.
    """
    for job in jobs:
        log(f"cancels job {job.id}: {sentence}")
        try:
            control.update_job(job.spelling, admin_comment=sentence)
            # The message goes to the job's own output, where its owner looks first.
            control.run("scontrol", "notify", str(job.spelling), f"slurm-stacks: {sentence}")
        except SlurmError as error:  # the job may have ended in the meantime
            log(f"job {job.id}: {error}")
    control.cancel([job.spelling for job in jobs])


class BudgetEnforcer:
    """The enforcer, which ends what would cost more. It keeps no state: Slurm shows what it has done.

    Static nodes stay, and so do jobs on static nodes only. Neither costs more than the cluster does anyway.
    """

    def __init__(self, design: ClusterDesign, control: Slurm, budget: Budget) -> None:
        self._cancels = design.budget.running_jobs == "cancel"
        self._design = design
        self._control = control
        self._budget = budget
        self._static = design.static_nodes()

    def enforce(self) -> None:
        """Run one pass. It does nothing while the budget lasts, and nothing twice.

        Raises:
            SlurmError: slurmctld does not answer. The next pass tries again.
        """
        failure = self._budget.used_up()
        if failure is None:
            return
        sentence = failure.sentence()
        # A node that is drained already is powered down after its job, or an administrator cares for it.
        nodes = [n for n in self._control.nodes().values() if self._counts(n.name) and not n.is_drained]
        up = [node for node in nodes if node.is_up]
        # A cancelled job has some time to save its work. POWER_DOWN_ASAP would power the node down under it,
        # so the node is only drained. The reconciler powers it down when it is empty.
        busy = [node.name for node in up if node.has_job] if self._cancels else []
        for names, state in (
            (busy, "DRAIN"),
            ([n.name for n in up if n.name not in busy], "POWER_DOWN_ASAP"),
        ):
            if names:
                log(f"powers down {fold(names)} when their jobs end: {sentence}")
                self._control.update_node(names, state=state, reason=REASON_PREFIX + sentence)
        if self._cancels:
            jobs = [job for job in self._control.jobs().values() if self._is_ours(job)]
            cancel(self._control, jobs, sentence)
            # The jobs of these nodes have not begun. They are requeued rather than started and then
            # cancelled.
            if coming := [node.name for node in nodes if node.is_powering_up]:
                log(f"powers down {fold(coming)}: {sentence}")
                self._control.power_down_force(coming, REASON_PREFIX + sentence)

    def _is_ours(self, job: JobState) -> bool:
        return job.is_running and any(self._counts(node) for node in job.nodes)

    def _counts(self, node: str) -> bool:
        return node not in self._static and self._design.partition_of(node) is not None
