"""Has slurmctld clean up after jobs that were queued again and whose node was lost before they had ended.

On some releases (`version.cleans_up_requeued_jobs`) it does so only if EpilogSlurmctld runs while the node is
given up, which is why ours waits (`node.elastic.programs`). But if the launch of a batch job fails because
the machine does not answer, slurmctld queues the job again at once, and may kill that epilog.

Reading the configuration again cures both: slurmctld then starts an epilog for each job that ends and has
none, and counts the GPUs in use from the jobs that run.

Slurm's traps (docs/internals/slurm_traps.md): requeued-gpus.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from node.design.model import ClusterDesign
from node.elastic.client import EPILOG_SECONDS
from node.elastic.reconfiguration import Reconfiguration
from node.elastic.view import log
from node.slurm import hardware, version
from node.slurm.control import Slurm
from node.slurm.hostlist import fold
from node.slurm.states import JobState, NodeState

PAUSE_SECONDS = 60.0
"""Seconds between two attempts to have GPUs counted anew."""


class RequeueCleanup:
    """A search for what slurmctld would not clean up, or has not.

    Args:
        design: The cluster's design. Without accelerators there is nothing to do.
        control: Slurm's commands.
        nodes: Returns the last reading of the nodes, with the accelerators in use (`Slurm.detailed_nodes`).
        reconfiguration: Has Slurm read its configuration.
        lib: The daemon's folder, with the record of Slurm's release.
        clock: Seconds on a clock that never jumps.
    """

    def __init__(
        self,
        design: ClusterDesign,
        control: Slurm,
        nodes: Callable[[], Mapping[str, NodeState]],
        reconfiguration: Reconfiguration,
        lib: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._accelerators = any(partition.accelerator for partition in design.partitions)
        self._control = control
        self._nodes = nodes
        self._reconfiguration = reconfiguration
        self._lib = lib
        self._clock = clock
        # A run of a job that ends on a silent node -> when its epilog was started again.
        self._epilogs: dict[tuple[int, int], float] = {}
        self._unused: set[str] = set()
        self._counted: float | None = None

    def once(self) -> None:
        """Look once, and have Slurm read its configuration if that is due.

        Raises:
            SlurmError: slurmctld does not answer. The next call looks again.
        """
        if not self._accelerators:
            return
        record = hardware.read(self._lib)
        if record is not None and version.cleans_up_requeued_jobs(record.release):
            return
        nodes = self._nodes()
        silent = {name for name, node in nodes.items() if node.is_silent and node.has_job}
        unused = {name for name, node in nodes.items() if node.gres_used and not node.has_job}
        jobs = [job for job in self._control.jobs().values() if job.is_active] if silent | unused else []
        self._start_epilogs(silent, jobs)
        # A node whose only job is suspended is idle.
        self._count_again(unused.difference(*(job.nodes for job in jobs)))

    def _start_epilogs(self, silent: set[str], jobs: Sequence[JobState]) -> None:
        """Start the epilogs of jobs that end on silent nodes, and again when those have ended."""
        ending = {
            (job.id, job.restarts): job
            for job in jobs
            if job.is_completing and not silent.isdisjoint(job.nodes)
        }
        now = self._clock()
        self._epilogs = {
            run: at for run, at in self._epilogs.items() if run in ending and now - at < EPILOG_SECONDS
        }
        due = [job for run, job in ending.items() if run not in self._epilogs]
        if due and self._reconfiguration.now():
            names = ", ".join(str(job.spelling) for job in due)
            log(f"Slurm was reconfigured, so that it cleans up after job {names}, whose node is silent")
            self._epilogs |= {(job.id, job.restarts): now for job in due}

    def _count_again(self, unused: set[str]) -> None:
        """Have accelerators counted anew if two calls see some in use on a node that has no job."""
        again, self._unused = unused & self._unused, unused
        now = self._clock()
        paused = self._counted is not None and now - self._counted < PAUSE_SECONDS
        if again and not paused and self._reconfiguration.now():
            log(f"Slurm was reconfigured, because it counted accelerators of {fold(sorted(again))} as used")
            self._counted = now
