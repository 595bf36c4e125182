"""Keeps jobs off nodes of several pools where options of theirs pass over topology.conf.

With `--contiguous`, `--spread-job` or `--distribution=arbitrary` Slurm does not look at its switches, and
nodes of two pools are neighbours for it. Machines of two pools are unlike and need not be near each other.
Slurm has no option against it but a plugin for submissions. The prolog on the controller is the first to know
the job's nodes, and it runs before the job.

Slurm's traps (docs/internals/slurm_traps.md): passed-topology.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from node.design.model import ClusterDesign
from node.elastic.view import log
from node.slurm.control import Slurm, SlurmDown, SlurmError


def joined_pools(design: ClusterDesign, nodes: Sequence[str]) -> list[str]:
    """Return the names of the pools of one partition that a job has together and may not; empty for none."""
    if len(nodes) < 2:
        return []
    found = {p.name: p for node in nodes if (p := design.partition_of(node)) and p.pool and not p.mixed}
    by_partition: dict[str, list[str]] = {}
    for name, pool in found.items():
        by_partition.setdefault(pool.slurm_name, []).append(name)
    return next((sorted(names) for names in by_partition.values() if len(names) > 1), [])


def sentence(pools: Sequence[str]) -> str:
    """Return what the job's comment says."""
    return (
        f"pools: it would have nodes of {' and '.join(pools)} together, because --contiguous, --spread-job "
        "and --distribution=arbitrary pass over pools; submit it without them, or name nodes of one pool (-w)"
    )


class PoolGuard:
    """The guard that a job's prolog asks.

    Args:
        design: The cluster's design.
        control: Slurm's commands.
    """

    def __init__(self, design: ClusterDesign, control: Slurm) -> None:
        self._design = design
        self._control = control
        self._lock = threading.Lock()
        self._held: set[int] = set()
        self._needed = any(p.pool is not None and not p.mixed for p in design.partitions)

    def check(self, job: int, nodes: Sequence[str]) -> None:
        """Hold a job that has nodes of several pools, in another thread: Slurm's answer may take long."""
        if self._needed and (pools := joined_pools(self._design, nodes)):
            threading.Thread(target=self._once, args=(job, pools), name="pool-guard").start()

    def _once(self, job: int, pools: Sequence[str]) -> None:
        """Hold a job, unless that is under way: its prolog asks again while it waits."""
        with self._lock:
            if job in self._held:
                return
            self._held.add(job)
        try:
            self.hold(job, pools)
        finally:
            with self._lock:
                self._held.discard(job)

    def hold(self, job: int, pools: Sequence[str]) -> None:
        """Queue a job again and hold it, or cancel one that cannot be queued again, and say why."""
        why = sentence(pools)
        try:
            self._control.update_job(job, admin_comment=why)
            self._control.requeue_held(job)
            log(f"job {job} is held: {why}")
        except SlurmDown as error:  # its prolog asks again
            log(f"job {job} stays: {error}")
        except SlurmError as error:  # srun, salloc, --no-requeue; or it has ended, or is held already
            now = self._control.jobs().get(job)
            if now is not None and now.nodes and not now.is_pending and not now.is_over:
                log(f"job {job} is cancelled: {why} ({error})")
                self._control.cancel([job])
