"""Gives nodes their new hardware lines in slurm.conf once they are off and no job uses them.

Slurm's traps (docs/internals/slurm_traps.md): changed-hardware.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from node.design.model import ClusterDesign
from node.elastic.rules import OUTDATED
from node.elastic.view import REASON_PREFIX, is_admin_disabled, log
from node.slurm import hardware, runtime
from node.slurm.control import Slurm, SlurmError
from node.slurm.hostlist import fold
from node.slurm.resume_request import ResumeRequest
from node.slurm.states import NodeState
from node.system import files
from node.system.waiting import wait_at_most

PAUSE_SECONDS = 15.0
"""Seconds between two restarts of slurmctld.

A partition that empties node by node must not cost one restart for each node.
"""
START_SECONDS = 60.0
"""How long slurmctld may take to restart."""
POLL_SECONDS = 0.1
REASON = REASON_PREFIX + OUTDATED.reason


class Renewal:
    """The renewal of nodes' outdated lines in slurm.conf by restarting slurmctld.

    Args:
        design: The cluster's design.
        control: Slurm's commands.
        lib: The folder in which the controller remembers the line of each node.
        clock: Seconds on a clock that never jumps.
        sleep: Waits for some seconds.
        record: Records what people have changed, before slurmctld restarts.
    """

    def __init__(
        self,
        design: ClusterDesign,
        control: Slurm,
        lib: Path,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        record: Callable[[], None] = lambda: None,
    ) -> None:
        self._design = design
        self._control = control
        self._lib = lib
        self._record = record
        self._clock = clock
        self._sleep = sleep
        self._last: float | None = None
        self._lock = threading.Lock()

    def outdated_nodes(self) -> frozenset[str]:
        """Return the nodes whose lines in slurm.conf are from an earlier stack file."""
        record = hardware.read(self._lib)
        return frozenset() if record is None else frozenset(record.kept(self._design))

    def without_outdated_nodes(self, request: ResumeRequest) -> ResumeRequest:
        """Return a resume request without outdated nodes and without the other nodes of the same jobs.

        New machines have the hardware of the present stack file, but Slurm still counts with the old one. The
        jobs are requeued and start on the nodes' new lines.
        """
        outdated = self.outdated_nodes()
        stale = outdated.intersection(request.all_nodes)
        if not stale:
            return request
        same_jobs = {node for job in request.jobs if stale.intersection(job.nodes) for node in job.nodes}
        removed = [node for node in request.all_nodes if node in stale | same_jobs]
        log(f"not launched: {fold(removed)}; slurm.conf still has the old hardware of {fold(sorted(stale))}")
        self._control.power_down_force(removed, REASON)
        return ResumeRequest(
            tuple(node for node in request.all_nodes if node not in removed),
            tuple(job for job in request.jobs if not stale.intersection(job.nodes)),
        )

    def once(self, *, wait: bool = True) -> bool:
        """Give nodes that are off their new lines by restarting slurmctld, and retire the others.

        Until slurmctld is back no job starts in the partitions of these nodes, so that empty nodes stay
        empty.

        Args:
            wait: Whether to return only when slurmctld is back, or START_SECONDS have passed.

        Returns:
            Whether slurmctld was told to restart.

        Raises:
            SlurmError: slurmctld does not answer. The next call tries again.
        """
        if not self._lock.acquire(blocking=False):
            return False  # another thread is doing this
        try:
            record = hardware.read(self._lib)
            outdated = frozenset() if record is None else frozenset(record.kept(self._design))
            if record is None or not outdated:
                return False
            unseen = outdated.difference(record.seen)
            free = _free(outdated, self._control.nodes())
            paused = self._last is not None and self._clock() - self._last < PAUSE_SECONDS
            if not unseen and (paused or not free):
                return False
            self._record()
            closed = self._partitions_of(outdated)
            files.write(self._lib / hardware.CLOSED, json.dumps(closed).encode())
            for name in closed:
                self._control.close_partition(name)
            nodes = self._control.nodes()
            free = _free(outdated, nodes)
            free -= {n for job in self._control.jobs().values() if job.is_active for n in job.nodes}
            self._retire([nodes[name] for name in sorted(outdated - free) if name in nodes])
            hardware.request_renewal(self._lib, free, outdated - free)
            if free:
                log(f"{fold(sorted(free))}: empty, slurm.conf gets the new hardware")
            if outdated - free:
                log(f"{fold(sorted(outdated - free))}: keeps the old line in slurm.conf until it is off")
            self._last = self._clock()
            self._control.shutdown()
            if wait:
                self._wait()
            return True
        finally:
            self._lock.release()

    def _partitions_of(self, nodes: frozenset[str]) -> list[str]:
        """Return the partitions with any of these nodes, also those that people have created."""
        shown = runtime.shown_partitions(self._control.show_partitions())
        designed = {
            name
            for name, pools in self._design.slurm_partitions().items()
            if any(not nodes.isdisjoint(pool.nodes()) for pool in pools)
        }
        return sorted(
            designed | {n for n, options in shown.items() if not nodes.isdisjoint(runtime.nodes_of(options))}
        )

    def _retire(self, nodes: list[NodeState]) -> None:
        """Have nodes that are up take no further job and power down when theirs are over."""
        up = [n.name for n in nodes if n.is_up and not is_admin_disabled(n) and not n.is_leaving]
        if up:
            self._control.update_node(up, state="POWER_DOWN_ASAP", reason=REASON)

    def _wait(self) -> None:
        """Wait until the new slurmctld answers, or START_SECONDS have passed."""
        wait_at_most(self._answers, START_SECONDS, POLL_SECONDS, clock=self._clock, sleep=self._sleep)

    def _answers(self) -> bool:
        # The file disappears when slurmctld's start has read the request.
        if (self._lib / hardware.RENEWAL).exists():
            return False
        try:
            self._control.nodes()
        except SlurmError:
            return False
        return True


def _free(outdated: frozenset[str], nodes: Mapping[str, NodeState]) -> frozenset[str]:
    """Return the nodes that are off and that no job uses or waits for."""
    return frozenset(
        name for name in outdated if name in nodes and nodes[name].is_powered_down and not nodes[name].has_job
    )
