"""Keeps the fences: asks the cloud for room, tells Slurm which nodes it may want and which jobs may start.

What is decided is decided in `pools`, `fences`, `waiting` and `strays`, from plain data.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from infra.node import rpc
from infra.node.elastic.budget import Budget
from infra.node.elastic.driver import Driver, Room
from infra.node.elastic.errors import ErrorClass, Failure
from infra.node.elastic.fences import change, failure_of, is_open, missing
from infra.node.elastic.launcher import Launcher
from infra.node.elastic.pools import Pool, Pools
from infra.node.elastic.saves import Saves
from infra.node.elastic.view import REASON_PREFIX, log
from infra.node.elastic.waiting import JobChange, Run, Stock, changes, fits, runs, unstarted
from infra.node.model import ClusterDesign
from infra.node.slurm.control import Slurm, SlurmDown, SlurmError
from infra.node.slurm.hostlist import fold
from infra.node.slurm.states import JobState, NodeState

LEAST_PAUSE_SECONDS = 1.0
SHARE = 10
"""A look may take a tenth of the time: Slurm's text of 5,000 nodes takes half a second to read."""
NOT_NEEDED = f"{REASON_PREFIX}released: the job that it was for cannot run"


class Fencing:
    """One loop; it remembers nothing that a restart may not forget."""

    def __init__(
        self,
        design: ClusterDesign,
        control: Slurm,
        driver: Driver,
        pools: Pools,
        budget: Budget,
        launcher: Launcher,
    ) -> None:
        self._control = control
        self._driver = driver
        self._pools = pools
        self._budget = budget
        self._launcher = launcher
        static = design.static_nodes()
        self._static = {p.name: p.static_nodes() for p in design.partitions}
        self._dynamic = {p.name: [n for n in p.nodes() if n not in static] for p in design.partitions}
        self._partition = {node: name for name, nodes in self._dynamic.items() for node in nodes}
        # A cloud counts its calls, and its limits change slowly.
        self._interval = design.slurm.reconcile_interval
        self._asked = -self._interval
        self._machines: set[str] = set()
        self._adopted = False
        self._released: Counter[int] = Counter()
        self._runs: dict[int, Run] = {}
        self._saves = Saves(control)
        self._wake = threading.Event()

    def wake(self) -> None:
        """A pool has failed: look at once."""
        self._wake.set()

    def run(self) -> None:
        """Look for ever: often while there is trouble, else as often as the reconciler."""
        while True:
            begun = time.monotonic()
            try:
                self.once()
            except SlurmDown as error:
                log(f"fences: {error}")
            except Exception:  # the next look reads everything anew
                traceback.print_exc()
            took = time.monotonic() - begun
            quiet = self._adopted and not self._pools.troubles()
            self._wake.wait(max(LEAST_PAUSE_SECONDS, SHARE * took, self._interval if quiet else 0.0))
            self._wake.clear()

    def once(self) -> None:
        """One look.

        Raises:
            SlurmError: slurmctld does not answer; the next look does it.
        """
        now = time.monotonic()
        nodes = self._control.nodes()
        if not self._adopted:
            self._adopt(nodes, now)
        self._pools.tick(now)
        for pool in self._pools.troubles():
            if pool.kind is ErrorClass.BOOTSTRAP and not self._launcher.boots.failing(pool.partition):
                self._pools.healed(pool)
        machines: set[str] = set()
        if self._pools.troubles():
            machines = self._ask(nodes, now)
            # The cloud may have taken its time. A job that got a node meanwhile would be ended by its drain.
            nodes = self._control.nodes()
        for partition, dynamic in self._dynamic.items():
            self._fence(partition, nodes, dynamic, machines)
        self._tell(nodes)

    def _adopt(self, nodes: Mapping[str, NodeState], now: float) -> None:
        """Go on with the fences of an earlier daemon, and with what it was just going to fence."""
        for name, state in nodes.items():
            failure = failure_of(state.reason or "")
            partition = self._partition.get(name)
            if failure is None or partition is None:
                continue
            falling = "POWERING_DOWN" in state.flags and failure.kind is not ErrorClass.BOOTSTRAP
            if falling or (state.is_drained and state.is_powered_down):
                self._pools.adopt(partition, failure, now)
                if failure.kind is ErrorClass.BOOTSTRAP:
                    self._launcher.boots.adopt(partition, time.time())
        self._adopted = True

    def _ask(self, nodes: Mapping[str, NodeState], now: float) -> set[str]:
        """Learn of the pools in trouble how much room there is. Returns the nodes that have a machine."""
        troubles = {p: t for p, t in self._pools.troubles().items() if p.kind is not ErrorClass.BOOTSTRAP}
        fresh = any(trouble.known is None for trouble in troubles.values())
        if fresh or now - self._asked >= self._interval:
            self._asked = now
            self._machines = self._read_machines()
            for pool in troubles:
                count = missing(nodes, self._dynamic[pool.partition], self._machines)
                self._pools.answered(pool, self._room(pool, count))
        return self._machines

    def _read_machines(self) -> set[str]:
        try:
            machines = self._driver.list()
        except (rpc.RpcError, rpc.RpcUnavailableError) as error:
            log(f"fences: {error}")
            return self._machines
        waiting = self._launcher.unlisted(machine.id for machine in machines)
        return {m.node for m in machines if m.node and m.state.alive} | set(waiting)

    def _room(self, pool: Pool, count: int) -> Room | None:
        if pool.kind is ErrorClass.BUDGET:
            return self._budget.room(pool.partition, count)
        try:
            return self._driver.room(pool.partition, pool.zone, count)
        except Exception:  # a driver's surprise is no answer; the back-off goes on
            traceback.print_exc()
            return None

    def _fence(
        self, partition: str, nodes: Mapping[str, NodeState], dynamic: Sequence[str], machines: set[str]
    ) -> None:
        limit = self._pools.limit(partition)
        todo = change(nodes, dynamic, machines, limit, self._static[partition])
        if todo.free:
            log(f"lets {fold(todo.free)} go: {'as many can be had' if limit else 'nothing is in the way'}")
            with _bearing_refusal("fences"):
                self._control.undrain({name: nodes[name] for name in todo.free})
        if todo.fence and limit is not None:
            sentence = limit.failure.sentence()
            log(f"fences {fold(todo.fence)}: {sentence}")
            self._update_nodes(todo.fence, "DRAIN", REASON_PREFIX + sentence)

    def _update_nodes(self, names: Sequence[str], state: str, reason: str) -> None:
        with _bearing_refusal("fences"):
            self._control.update_node(names, state=state, reason=reason)

    # --- jobs --------------------------------------------------------------------------------------------

    def _tell(self, before: Mapping[str, NodeState]) -> None:
        jobs = list(self._control.jobs().values())
        # Read again: what was fenced or freed above counts for the jobs already.
        nodes = self._control.nodes() if any(job.is_pending for job in jobs) else before
        limits = {name: self._pools.limit(name) for name in self._dynamic}
        failures = {name: limit.failure if limit else None for name, limit in limits.items()}
        self._runs = runs(jobs, self._runs)
        stocks = self._stocks(nodes, failures, jobs)
        for one in changes(jobs, stocks, self._runs, time.time()):
            self._update(one)
        self._start_again(jobs)
        self._release(nodes, jobs, stocks)
        with _bearing_refusal("what began is not saved yet"):
            self._saves.see(nodes, jobs)

    def _start_again(self, jobs: list[JobState]) -> None:
        self._released = Counter({job.id: n for job in jobs if (n := self._released[job.id])})
        for job in unstarted(jobs, self._released):
            self._released[job.id] += 1
            log(f"job {job.spelling}: a node refused to start it; it is tried again")
            with _bearing_refusal(f"job {job.spelling}"):
                self._control.release(job.spelling)

    def _stocks(
        self, nodes: Mapping[str, NodeState], failures: Mapping[str, Failure | None], jobs: list[JobState]
    ) -> dict[str, Stock]:
        free = dict.fromkeys(failures, 0)
        for state in nodes.values():
            idle = state.is_up and not (state.has_job or state.is_drained)
            if idle or is_open(state):
                for name in state.partitions or (self._partition.get(state.name, ""),):
                    if name in free:
                        free[name] += 1
        stocks = {name: Stock(free[name], failure) for name, failure in failures.items()}
        if not any(one.start_now for one in changes(jobs, stocks, self._runs, time.time())):
            return stocks
        left = self._left(nodes)
        return {
            name: Stock(stock.free, stock.failure, settled=name not in left) for name, stock in stocks.items()
        }

    def _left(self, nodes: Mapping[str, NodeState]) -> set[str]:
        """Partitions that have machines of nodes which were given back."""
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

    def _update(self, one: JobChange) -> None:
        log(f"job {one.job}: {'starts as soon as it can' if one.start_now else one.comment or 'goes on'}")
        with _bearing_refusal(f"job {one.job}"):
            self._control.update_job(one.job, admin_comment=one.comment, start_now=one.start_now)

    def _release(
        self, nodes: Mapping[str, NodeState], jobs: list[JobState], stocks: Mapping[str, Stock]
    ) -> None:
        now = time.time()
        wanted = {name for job in jobs if fits(job, stocks, now) for name in job.partition.split(",")}
        found = self._launcher.strays.release(
            nodes, lambda node: self._partition.get(node) in wanted, time.monotonic()
        )
        up, coming = ([n for n in names if n in self._partition] for names in (found.up, found.coming))
        for names, state in ((up, "POWER_DOWN_ASAP"), (coming, "POWER_DOWN_FORCE")):
            if names:
                log(f"releases {fold(names)}: the job that it was for cannot run")
                self._update_nodes(names, state, NOT_NEEDED)


@contextlib.contextmanager
def _bearing_refusal(whose: str) -> Iterator[None]:
    """Slurm may refuse to change some nodes (the others have been changed), or a job that has just ended."""
    try:
        yield
    except SlurmDown:
        raise
    except SlurmError as error:
        log(f"{whose}: {error}")
