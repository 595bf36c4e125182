"""Nodes get the hardware lines of the newest stack file once they are off, and no job holds them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from infra.node.elastic.rules import OUTDATED
from infra.node.elastic.view import REASON_PREFIX, held, log
from infra.node.model import ClusterDesign
from infra.node.slurm import hardware
from infra.node.slurm.control import Slurm, SlurmError
from infra.node.slurm.hostlist import fold
from infra.node.slurm.states import NodeState
from infra.node.slurm.version import ResumeRequest

PAUSE_SECONDS = 15.0
"""Between two starts of slurmctld: a partition that empties node by node must not cost one for each."""
START_SECONDS = 60.0
POLL_SECONDS = 0.1
REASON = REASON_PREFIX + OUTDATED.reason


class Renewal:
    """Args:
    lib: where the controller remembers the line of each node.
    """

    def __init__(
        self,
        design: ClusterDesign,
        control: Slurm,
        lib: Path,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._design = design
        self._control = control
        self._lib = lib
        self._clock = clock
        self._sleep = sleep
        self._last: float | None = None
        self._lock = threading.Lock()

    def kept(self) -> frozenset[str]:
        """The nodes whose lines in slurm.conf are of an earlier stack file."""
        record = hardware.read(self._lib)
        return frozenset() if record is None else frozenset(record.kept(self._design))

    def without_kept(self, wish: ResumeRequest) -> ResumeRequest:
        """A request without the nodes that keep their lines, and without those of the same jobs.

        Their machines would be made as the stack file says now, and Slurm would count with others. The jobs
        are queued again, and start on the nodes' new lines.
        """
        kept = self.kept()
        stale = kept.intersection(wish.all_nodes)
        if not stale:
            return wish
        with_them = {node for job in wish.jobs if stale.intersection(job.nodes) for node in job.nodes}
        given_back = [node for node in wish.all_nodes if node in stale | with_them]
        log(f"not launched, for the lines of {fold(sorted(stale))} are of before: {fold(given_back)}")
        self._control.power_down_force(given_back, REASON)
        return ResumeRequest(
            tuple(node for node in wish.all_nodes if node not in given_back),
            tuple(job for job in wish.jobs if not stale.intersection(job.nodes)),
        )

    def once(self, *, wait: bool = True) -> bool:
        """Give nodes that are off their new lines, by another start of slurmctld; have the others retire.

        Until slurmctld is back no job starts in the partitions of these nodes: what is empty stays so.

        Args:
            wait: return when slurmctld is back, or has had its time.

        Returns:
            Whether slurmctld was told to start anew.

        Raises:
            SlurmError: slurmctld does not answer; the next look goes on.
        """
        if not self._lock.acquire(blocking=False):
            return False  # somebody is at it
        try:
            record = hardware.read(self._lib)
            kept = frozenset() if record is None else frozenset(record.kept(self._design))
            if record is None or not kept:
                return False
            unseen = kept.difference(record.seen)
            free = _free(kept, self._control.nodes())
            paused = self._last is not None and self._clock() - self._last < PAUSE_SECONDS
            if not unseen and (paused or not free):
                return False
            for partition in self._design.partitions:
                if not kept.isdisjoint(partition.nodes()):
                    self._control.close_partition(partition.name)
            nodes = self._control.nodes()
            free = _free(kept, nodes)
            free -= {n for job in self._control.jobs().values() if job.is_active for n in job.nodes}
            self._retire([nodes[name] for name in sorted(kept - free) if name in nodes])
            hardware.ask(self._lib, free, kept - free)
            if free:
                log(f"{fold(sorted(free))}: empty, so slurm.conf says its new hardware from now on")
            if kept - free:
                log(f"{fold(sorted(kept - free))}: keeps its line in slurm.conf until it is off")
            self._last = self._clock()
            self._control.shutdown()
            if wait:
                self._wait()
            return True
        finally:
            self._lock.release()

    def _retire(self, nodes: list[NodeState]) -> None:
        """Those that are up take no further job, and go when theirs are over."""
        up = [n.name for n in nodes if n.is_up and not held(n) and "POWER_DOWN" not in n.flags]
        if up:
            self._control.update_node(up, state="POWER_DOWN_ASAP", reason=REASON)

    def _wait(self) -> None:
        """Until the new slurmctld answers, or has had its time."""
        deadline = self._clock() + START_SECONDS
        while self._clock() < deadline:
            # Whoever starts it has taken the request first.
            if not (self._lib / hardware.RENEWAL).exists() and self._answers():
                return
            self._sleep(POLL_SECONDS)

    def _answers(self) -> bool:
        try:
            self._control.nodes()
        except SlurmError:
            return False
        return True


def _free(kept: frozenset[str], nodes: dict[str, NodeState]) -> frozenset[str]:
    """Nodes that are off and that no job holds, not even one that waits for them."""
    return frozenset(
        name for name in kept if name in nodes and nodes[name].is_powered_down and not nodes[name].has_job
    )
