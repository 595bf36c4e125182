"""Keeps the capacity drains: which nodes Slurm may ask for, and which pending jobs may start.

The pure functions at the beginning make the decisions, with `pools` and the launcher's surplus nodes.
`CapacityLimiter` asks Slurm and the driver, and carries them out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from node.design.model import ClusterDesign
from node.elastic.budget import Budget
from node.elastic.capacity_drains import drain_change, failure_of, missing_nodes
from node.elastic.driver import AvailableCapacity, Driver
from node.elastic.failures import COUNTED, ErrorClass, Failure
from node.elastic.launcher import Launcher
from node.elastic.pending_jobs import (
    NOBODY,
    Capacities,
    JobChange,
    Run,
    fitting,
    job_changes,
    runs,
    unstarted,
)
from node.elastic.placing import Placing
from node.elastic.pools import OF_MACHINES, Pool, Pools
from node.elastic.replacements import end_of_pause
from node.elastic.state_flush import StateFlush
from node.elastic.steps import Step
from node.elastic.view import REASON_PREFIX, has_capacity_drain, log
from node.slurm.control import Slurm, SlurmDown, SlurmError
from node.slurm.hostlist import fold
from node.slurm.states import JobState, NodeState
from node.system import rpc

MINIMUM_PAUSE_SECONDS = 1.0
"""The shortest pause between two passes."""
SHARE = 10
"""The pause is at least this many times the duration of a pass: reading 5,000 nodes from Slurm takes 0.5 s.
"""
NEWS_SECONDS = 10.0
"""How often the numbers in comments and reasons are brought up to date."""
MOST_NEWS = 20
"""To how many jobs this is done at a time: each takes a command, and people read the first ones."""
NOT_NEEDED = f"{REASON_PREFIX}released: the job that it was for cannot run"
"""The reason of a node that is powered down because its job cannot run."""


class CapacityLimiter:
    """One loop that limits Slurm to the nodes for which there is capacity.

    It keeps nothing in memory that is needed after a restart.

    Args:
        changed: When `up` last changed the settings or the code, in seconds since the epoch.
        stopped: Returns which jobs wait because their accounts have used their budgets (`job_changes`).

    Attributes:
        step: One pass, with its last error.
    """

    def __init__(
        self,
        design: ClusterDesign,
        control: Slurm,
        driver: Driver,
        pools: Pools,
        budget: Budget,
        launcher: Launcher,
        changed: float = 0.0,
        stopped: Callable[[Iterable[JobState]], Mapping[int, Failure] | None] = lambda _: NOBODY,
    ) -> None:
        self._control = control
        self._stopped = stopped
        self._changed = changed
        self._driver = driver
        self._pools = pools
        self._budget = budget
        self._launcher = launcher
        static = design.static_nodes()
        self._static = {p.name: p.static_nodes() for p in design.partitions}
        self._dynamic = {p.name: [n for n in p.nodes() if n not in static] for p in design.partitions}
        self._partition = {node: name for name, nodes in self._dynamic.items() for node in nodes}
        self._placing = Placing(design)
        # A cloud limits the rate of calls, and its capacity changes slowly.
        self._interval = design.slurm.reconcile_interval
        self._asked = -self._interval
        self._told = -NEWS_SECONDS
        self._machines: set[str] = set()
        self._adopted = False
        self._released: Counter[int] = Counter()
        self._runs: dict[int, Run] = {}
        self._state_flush = StateFlush(control)
        self.step = Step("capacity", "limits Slurm to the nodes that can be had", self.once)

    def run(self) -> None:
        """Run forever: often while a pool has failed, otherwise as often as the reconciler."""
        while True:
            begun = time.monotonic()
            self.step.run()
            took = time.monotonic() - begun
            quiet = self._adopted and not self._pools.failures()
            # The drains of a pool that fails do not wait for the next pass.
            self._pools.wait_for_failure(
                max(MINIMUM_PAUSE_SECONDS, SHARE * took, self._interval if quiet else 0.0)
            )

    def once(self) -> None:
        """Run one pass.

        Raises:
            SlurmError: slurmctld does not answer. The next pass tries again.
        """
        now = time.monotonic()
        nodes = self._control.nodes()
        if not self._adopted:
            self._adopt(nodes, now)
        self._pools.tick(now)
        for pool in self._pools.failures():
            if pool.kind is ErrorClass.BOOTSTRAP and not self._launcher.boots.failing(pool.partition):
                self._pools.recovered(pool)
        machines: set[str] = set()
        if self._pools.failures():
            if self._ask(nodes, now):
                # The cloud may have been slow. If a job got a node in the meantime, draining that node would
                # end the job.
                nodes = self._control.nodes()
            machines = self._machines
        news = now - self._told >= NEWS_SECONDS
        self._told = now if news else self._told
        for partition, dynamic in self._dynamic.items():
            self._update_drains(partition, nodes, dynamic, machines, news=news)
        self._update_jobs(nodes, MOST_NEWS if news else 0)

    def _adopt(self, nodes: Mapping[str, NodeState], now: float) -> None:
        """Continue with an earlier daemon's capacity drains, and with nodes that it was about to drain."""
        for name, state in nodes.items():
            failure = failure_of(state.reason or "")
            partition = self._partition.get(name)
            if failure is None or partition is None:
                continue
            # What has changed since then may be the cure, such as a prolog.
            if failure.kind is ErrorClass.HEALTH and (state.reason_time or math.inf) < self._changed:
                continue
            powering_down = state.is_falling and failure.kind not in OF_MACHINES
            if powering_down or (state.is_drained and state.is_powered_down):
                left = self._adopt_pause(partition, failure, state, now)
                self._pools.adopt(partition, failure, now, left)
                if failure.kind is ErrorClass.BOOTSTRAP:
                    self._launcher.boots.adopt(partition, time.time())
        self._adopted = True

    def _adopt_pause(self, partition: str, failure: Failure, state: NodeState, now: float) -> float | None:
        """Return for how many seconds a drain goes on; `None` if it does not say when it ends."""
        began = state.reason_time
        if began is None or (until := end_of_pause(failure.code, began)) is None:
            return None
        left = max(0.0, until - time.time())
        if failure.kind is ErrorClass.INTERRUPTED:
            self._launcher.interruptions.adopt(partition, until - began, left, now)
        return left

    def _ask(self, nodes: Mapping[str, NodeState], now: float) -> bool:
        """Ask for the nodes that have a machine, and for the capacity of the failed pools.

        Returns:
            Whether the cloud was asked. Otherwise the last answer is recent enough.
        """
        failures = {p: t for p, t in self._pools.failures().items() if p.kind not in OF_MACHINES}
        fresh = any(failing.known is None for failing in failures.values())
        if not fresh and now - self._asked < self._interval:
            return False
        self._asked = now
        self._machines = self._read_machines()
        for pool in failures:
            count = missing_nodes(nodes, self._dynamic[pool.partition], self._machines)
            self._pools.answered(pool, self._available_capacity(pool, count))
        return True

    def _read_machines(self) -> set[str]:
        try:
            machines = self._driver.list()
        except (rpc.RpcError, rpc.RpcUnavailableError) as error:
            log(f"capacity: {error}")
            return self._machines
        waiting = self._launcher.unlisted(machine.id for machine in machines)
        return {m.node for m in machines if m.node and m.state.alive} | set(waiting)

    def _available_capacity(self, pool: Pool, count: int) -> AvailableCapacity | None:
        if pool.kind is ErrorClass.BUDGET:
            return self._budget.available_capacity(pool.partition, count)
        try:
            return self._driver.available_capacity(pool.partition, pool.zone, count)
        except Exception:  # an unexpected error of the driver is no answer; the back-off continues
            traceback.print_exc()
            return None

    def _update_drains(
        self,
        partition: str,
        nodes: Mapping[str, NodeState],
        dynamic: Sequence[str],
        machines: set[str],
        *,
        news: bool,
    ) -> None:
        limit = self._pools.limit(partition)
        todo = drain_change(nodes, dynamic, machines, limit, self._static[partition])
        if todo.undrain:
            why = "there is capacity for these nodes" if limit else "nothing limits the capacity any more"
            log(f"undrains {fold(todo.undrain)}: {why}")
            with _tolerate_refusal("capacity"):
                self._control.undrain({name: nodes[name] for name in todo.undrain})
        if todo.drain and limit is not None:
            sentence = limit.failure.sentence()
            log(f"drains {fold(todo.drain)}: {sentence}")
            self._update_nodes(todo.drain, "DRAIN", REASON_PREFIX + sentence)
        if news and limit is not None and limit.failure.kind in COUNTED:
            reason = " ".join(f"{REASON_PREFIX}{limit.failure.sentence()}".split())
            kept = [
                n for n in dynamic if n in nodes and has_capacity_drain(nodes[n]) and n not in todo.undrain
            ]
            self._update_nodes([n for n in kept if nodes[n].reason != reason], None, reason)

    def _update_nodes(self, names: Sequence[str], state: str | None, reason: str) -> None:
        with _tolerate_refusal("capacity"):
            self._control.update_node(names, state=state, reason=reason)

    # --- jobs --------------------------------------------------------------------------------------------

    def _update_jobs(self, before: Mapping[str, NodeState], news: int) -> None:
        jobs = list(self._control.jobs().values())
        # The nodes are read again: jobs should count what was drained or undrained above.
        nodes = self._control.nodes() if any(job.is_pending for job in jobs) else before
        limits = {name: self._pools.limit(name) for name in self._dynamic}
        failures = {name: limit.failure if limit else None for name, limit in limits.items()}
        self._runs = runs(jobs, self._runs)
        capacities = self._capacities(nodes, failures, jobs)
        stopped = self._stopped(jobs)
        for job_change in job_changes(jobs, capacities, self._runs, time.time(), stopped):
            if job_change.news:
                news -= 1
            if not job_change.news or news >= 0:
                self._update(job_change)
        self._start_again(jobs)
        self._release(nodes, jobs, capacities)
        with _tolerate_refusal("slurmctld has not saved its state yet"):
            self._state_flush.see(nodes, jobs)

    def _start_again(self, jobs: list[JobState]) -> None:
        self._released = Counter({job.id: n for job in jobs if (n := self._released[job.id])})
        for job in unstarted(jobs, self._released):
            self._released[job.id] += 1
            log(f"job {job.spelling}: a node refused to start it; it is released and tried again")
            with _tolerate_refusal(f"job {job.spelling}"):
                self._control.release(job.spelling)

    def _capacities(
        self, nodes: Mapping[str, NodeState], failures: Mapping[str, Failure | None], jobs: list[JobState]
    ) -> Capacities:
        capacities = self._placing.capacities(nodes, failures)
        if not any(change.start_now for change in job_changes(jobs, capacities, self._runs, time.time())):
            return capacities
        left = self._unsettled_partitions(nodes)
        return {
            name: [
                dataclasses.replace(one, settled=all(left.isdisjoint(pool.groups) for pool in pools))
                for one in pools
            ]
            for name, pools in capacities.items()
        }

    def _unsettled_partitions(self, nodes: Mapping[str, NodeState]) -> set[str]:
        """Return the partitions that still have machines of nodes which were powered down."""
        try:
            machines = self._driver.list()
        except (rpc.RpcError, rpc.RpcUnavailableError):
            return set(self._dynamic)
        states = ((m.node, nodes.get(m.node or "")) for m in machines if m.state.value != "terminated")
        return {
            self._partition[node]
            for node, state in states
            if node in self._partition and state is not None and not (state.is_up or state.is_powering_up)
        }

    def _update(self, job_change: JobChange) -> None:
        what = "may start now" if job_change.start_now else job_change.comment or "the comment is removed"
        log(f"job {job_change.job}: {what}")
        with _tolerate_refusal(f"job {job_change.job}"):
            self._control.update_job(
                job_change.job, admin_comment=job_change.comment, start_now=job_change.start_now
            )

    def _release(
        self,
        nodes: Mapping[str, NodeState],
        jobs: list[JobState],
        capacities: Capacities,
    ) -> None:
        now = time.time()
        wanted = {group for job in jobs for one in fitting(job, capacities, now) for group in one.groups}
        surplus = self._launcher.surplus_nodes.release(
            nodes, lambda node: self._partition.get(node) in wanted, time.monotonic()
        )
        up, coming = ([n for n in names if n in self._partition] for names in (surplus.up, surplus.coming))
        for names, state in ((up, "POWER_DOWN_ASAP"), (coming, "POWER_DOWN_FORCE")):
            if names:
                log(f"releases {fold(names)}: the job that it was for cannot run")
                self._update_nodes(names, state, NOT_NEEDED)


@contextlib.contextmanager
def _tolerate_refusal(subject: str) -> Iterator[None]:
    """Log a refusal of Slurm and continue.

    Slurm may refuse to change some nodes (the others have been changed), or a job that has just ended.
    """
    try:
        yield
    except SlurmDown:
        raise
    except SlurmError as error:
        log(f"{subject}: {error}")
