"""Keeps the capacity drains: which nodes Slurm may ask for, and which pending jobs may start.

The pure functions at the beginning make the decisions, with `pools` and the launcher's surplus nodes.
`CapacityLimiter` asks Slurm and the driver, and carries them out.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
import traceback
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from node.design.model import ClusterDesign
from node.elastic.budget import Budget
from node.elastic.driver import COUNTED, NODE, POLICIES, AvailableCapacity, Driver, ErrorClass, Failure
from node.elastic.launcher import Launcher
from node.elastic.pools import OF_MACHINES, Limit, Pool, Pools
from node.elastic.rules import TAKEN
from node.elastic.view import DRAIN_PREFIXES, REASON_PREFIX, has_capacity_drain, log
from node.slurm.control import Slurm, SlurmDown, SlurmError
from node.slurm.hostlist import fold
from node.slurm.states import JobState, NodeState
from node.system import rpc

# Which nodes are drained for want of capacity, and which are undrained. Pure functions.
#
# A capacity drain is a node that is powered down and drained with our reason. The drains in Slurm are the
# only record: a daemon that starts continues with those that it finds. A drain with any other reason belongs
# to an administrator and is never touched.

_KINDS = {kind.value: kind for kind in ErrorClass}


@dataclass(frozen=True, slots=True)
class DrainChange:
    """What to change about one partition's nodes in Slurm.

    Attributes:
        drain: Nodes to drain.
        undrain: Nodes to undrain.
    """

    drain: tuple[str, ...] = ()
    undrain: tuple[str, ...] = ()


def kind_of(text: str | None) -> ErrorClass | None:
    """Return the class that begins a node's reason or a job's comment; `None` means the text is not ours."""
    word, colon, _ = (text or "").removeprefix(REASON_PREFIX).partition(":")
    return _KINDS.get(word) if colon else None


def failure_of(reason: str) -> Failure | None:
    """Return the failure that the reason of a capacity drain describes; `None` means it describes none."""
    kind = kind_of(reason) if reason.startswith(DRAIN_PREFIXES) else None
    if kind is None:
        return None
    advice = re.escape(f"; {POLICIES[kind].advice}").replace(NODE, r"(?P<seen>[\w-]+)")
    text, seen = reason.removeprefix(f"{REASON_PREFIX}{kind}: "), None
    if found := re.search(f"{advice}$", text):
        text, seen = text[: found.start()], found.groupdict().get("seen")
    message, bracket, code = text.rpartition(" (")
    if not bracket:
        message, code = text, ""
    return Failure((), kind, code.removesuffix(")"), message, seen if seen != NODE else None)


def is_capacity_drain(state: NodeState) -> bool:
    """Return whether we drained the node for want of capacity.

    Such a node is off or on its way there, as a rule.
    """
    if not state.is_drained or not (state.reason or "").startswith(DRAIN_PREFIXES) or _is_ending(state):
        return False
    # A node that was up when it was drained for the budget is powered down after its job (`budget_enforcer`),
    # and so is one whose own devices failed (`node.health`).
    off = state.is_powered_down or state.is_powering_up or state.is_powering_down
    return off or kind_of(state.reason) not in (ErrorClass.BUDGET, ErrorClass.HEALTH)


def is_open_drain(state: NodeState) -> bool:
    """Return whether the node is off and Slurm may power it up."""
    return state.is_powered_down and not (state.is_drained or state.is_down or state.has_job)


def is_drain_underway(state: NodeState) -> bool:
    """Return whether Slurm waits for the node, or will do so within a second."""
    return state.is_powering_up or (state.is_powered_down and state.has_job)


def missing_nodes(nodes: Mapping[str, NodeState], dynamic: Collection[str], machines: Collection[str]) -> int:
    """Count the nodes without a machine: the largest number of machines that could be launched."""
    return sum(1 for name in dynamic if name in nodes and name not in machines and not nodes[name].is_up)


def drain_change(
    nodes: Mapping[str, NodeState],
    dynamic: Iterable[str],
    machines: Collection[str],
    limit: Limit | None,
    static: Iterable[str] = (),
) -> DrainChange:
    """Compute the next changes to one partition's capacity drains.

    Args:
        nodes: Node -> its state.
        dynamic: The partition's nodes without the static ones.
        machines: Nodes that have a machine, perhaps from an earlier listing, but never from a later one than
            `limit`.
        limit: How many more nodes may be launched; `None` means there is no limit.
        static: The partition's static nodes. A static node without a machine is launched first, and no job
            may wait for it and a dynamic node at once.
    """
    states = {name: nodes[name] for name in dynamic if name in nodes}
    drained = [name for name, state in states.items() if is_capacity_drain(state)]
    if limit is None:
        return DrainChange((), tuple(drained))
    counted = (name for name, state in states.items() if is_drain_underway(state))
    underway = sum(1 for name in counted if limit.booting or name not in machines)
    absent = [n for n in static if n in nodes and not nodes[n].is_up and (limit.booting or n not in machines)]
    target = max(0, limit.count - underway - len(absent))
    available = [name for name, state in states.items() if is_open_drain(state)]
    # Slurm removes a drain when it begins to power a node down, so such nodes are drained again.
    powering_down = [name for name, s in states.items() if s.is_falling and not s.is_drained]
    # Slurm placed a job between our reading and our drain. The node may serve it like any other.
    assigned = [name for name in drained if is_drain_underway(states[name]) or states[name].is_up]
    ready = [name for name in drained if states[name].is_powered_down and not states[name].has_job]
    more = max(0, target - len(available))
    return DrainChange((*available[target:], *powering_down), (*assigned, *ready[:more]))


def _is_ending(state: NodeState) -> bool:
    """Return whether the node will be powered down, at once or when its job ends.

    Slurm itself drains such a node.
    """
    return state.is_leaving and not state.is_falling


# Pending jobs: who is told why, and who may start at once. Pure functions.
#
# A requeued job may not start for half a minute, so that no machine still honours its old credential. Once
# all its old machines are gone it need not wait that long, unless slurmctld may still be trying to start its
# last run.

LONGEST_PAUSE = 40.0
"""Seconds from a requeue to Slurm's own next try (`cred_expire`), with a margin.

A later begin time was set by a person.
"""
LAUNCH_SECONDS = 30.0
"""How long slurmctld tries to deliver a batch script to a machine that does not take it.

It is the sum of 12 s to connect, MessageTimeout for the answer, and a margin. When slurmctld gives up it
requeues the job, even if the job has another run by then (`job_complete` in its agent): that run would end,
and if it waits for its nodes its GPUs would count as used forever.
"""
FOR_NODES = ("Resources", "Priority", "ReqNodeNotAvail", "NodeDown", "Nodes required for job are DOWN")
"""Slurm's reasons for jobs that would start if there were more nodes."""
PAUSED = "BeginTime"
"""Slurm's reason for a job that has a begin time, such as a requeued one."""
UNSTARTED = "launch failed requeued held"
"""A node refused to start the job, and Slurm holds it until a person releases it.

Usually nothing is wrong with the job: slurmctld was killed just after it had started the job, started it once
more, and the node runs it already.
"""
MOST_RELEASES = 3
"""How often one job is released automatically; after that a person must look."""
UNKNOWN = ("None", "Cleaning", PAUSED)
"""The scheduler has not looked at the job since it was submitted, changed or requeued."""


@dataclass(frozen=True, slots=True)
class PartitionCapacity:
    """What a partition has for jobs now.

    Attributes:
        free: Nodes that a job may have at once: idle ones, and those that are off without a capacity drain.
        failure: Why there are no more; `None` means that nothing limits them.
        settled: Whether no machine is left of nodes that were powered down.
    """

    free: int
    failure: Failure | None = None
    settled: bool = True


@dataclass(frozen=True, slots=True)
class Run:
    """The last run of a job that was seen.

    Attributes:
        number: How often the job had been requeued before this run.
        began: Seconds since the epoch.
        launched: Whether its batch script was sent to its node.
    """

    number: int
    began: float
    launched: bool


@dataclass(frozen=True, slots=True)
class JobChange:
    """A change of a pending job in Slurm.

    Attributes:
        job: The job's `spelling`.
        comment: The new comment; "" removes it, `None` leaves it.
        start_now: Whether the job's begin time is removed.
        news: Whether the job has a comment of the same cause, in which only numbers have changed.
    """

    job: int | str
    comment: str | None = None
    start_now: bool = False
    news: bool = False


def runs(jobs: Iterable[JobState], before: Mapping[int, Run]) -> dict[int, Run]:
    """Return what is known of the last runs of jobs, by job id.

    Args:
        jobs: All jobs.
        before: The last answer.
    """
    found = {}
    for job in jobs:
        if job.has_work and job.start_time is not None:
            found[job.id] = Run(job.restarts, job.start_time, job.is_running)
        elif job.id in before:
            found[job.id] = before[job.id]
    return found


def job_changes(
    jobs: Iterable[JobState], capacities: Mapping[str, PartitionCapacity], seen: Mapping[int, Run], now: float
) -> list[JobChange]:
    """Return what to change about jobs in Slurm; nothing that has been changed already.

    Args:
        jobs: All jobs.
        capacities: Partition -> what it has for jobs.
        seen: The answer of `runs`.
        now: Seconds since the epoch.
    """
    result = []
    for job in jobs:
        if job.is_pending:
            comment, start = _comment(job, capacities), _may_start(job, capacities, seen.get(job.id), now)
        else:
            over = job.is_running and kind_of(job.admin_comment) is not None
            comment, start = ("" if over else None), False
        if comment is not None or start:
            news = bool(comment) and not start and kind_of(job.admin_comment) is kind_of(comment)
            result.append(JobChange(job.spelling, comment, start, news))
    return result


def unstarted(jobs: Iterable[JobState], released: Mapping[int, int]) -> list[JobState]:
    """Return the jobs that Slurm holds because a node refused to start them, and that may be tried again.

    Args:
        jobs: All jobs.
        released: Job id -> how often it was released automatically.
    """
    return [
        job
        for job in jobs
        if job.is_pending and job.reason == UNSTARTED and released.get(job.id, 0) < MOST_RELEASES
    ]


def job_fits(job: JobState, capacities: Mapping[str, PartitionCapacity], now: float) -> bool:
    """Return whether a pending job will get nodes from the present capacity."""
    if not job.is_pending or not (job.reason in ("None", *FOR_NODES) or _is_paused(job, now)):
        return False
    return any(capacity.free >= job.wanted_nodes for capacity in _capacities(job, capacities))


def _comment(job: JobState, capacities: Mapping[str, PartitionCapacity]) -> str | None:
    comment_kind = kind_of(job.admin_comment)
    partitions = _capacities(job, capacities)
    if not partitions or job.reason in UNKNOWN:
        return None
    if job.reason in FOR_NODES:
        limited = [
            partition.failure
            for partition in partitions
            if partition.failure is not None and partition.free < job.wanted_nodes
        ]
        if len(limited) == len(partitions):
            sentence = " ".join(limited[0].sentence().split())
            is_told = comment_kind is limited[0].kind and (
                comment_kind not in COUNTED or job.admin_comment == sentence
            )
            return None if is_told else sentence
        if any(partition.failure is not None for partition in partitions):
            return None
    # The job waits for something else now.
    return "" if comment_kind not in (None, ErrorClass.PREEMPTED) else None


def _may_start(
    job: JobState, capacities: Mapping[str, PartitionCapacity], run: Run | None, now: float
) -> bool:
    if kind_of(job.admin_comment) is None or not job.restarts or not _is_paused(job, now):
        return False
    if _is_being_launched(job, run, now):
        return False
    return any(
        capacity.settled and capacity.free >= job.wanted_nodes for capacity in _capacities(job, capacities)
    )


def _is_being_launched(job: JobState, run: Run | None, now: float) -> bool:
    """Return whether slurmctld may still be trying to start the run that this job has lost."""
    comment = job.admin_comment or ""
    if comment.startswith(TAKEN):  # the machine was alive, so it took or refused the script
        return False
    lost = kind_of(comment) is ErrorClass.PREEMPTED
    if run is None or run.number + 1 != job.restarts or not run.launched:
        return lost
    return now - run.began < LAUNCH_SECONDS


def _is_paused(job: JobState, now: float) -> bool:
    return job.reason == PAUSED and 0 < (job.eligible_time or 0.0) - now <= LONGEST_PAUSE


def _capacities(job: JobState, capacities: Mapping[str, PartitionCapacity]) -> list[PartitionCapacity]:
    # A job may name several partitions.
    return [capacities[name] for name in job.partition.split(",") if name in capacities]


# Makes slurmctld write its state to disk after nodes came up, nodes went off or jobs began.
#
# By itself slurmctld saves its jobs and nodes when a job is submitted or ends, when somebody changes one, and
# otherwise every five minutes. If it is killed in between, it comes back with the state from before the boot
# and starts a running job once more. The node refuses that and is drained, and the real run ends. A node that
# slurmctld believes to be booting is never heard again: slurmctld does not ask such a node, a slurmd
# registers only once, and at ResumeTimeout Slurm takes the node away from its job. A node that it believes to
# be up, whose machine has ended since, gets a job that cannot start there.


class StateFlush:
    """A request for one save for all that came up, went off or began between two calls."""

    def __init__(self, control: Slurm) -> None:
        self._control = control
        # Both are empty at first: what happened while this daemon was down may not be saved either.
        self._up: frozenset[str] = frozenset()
        self._begun: frozenset[tuple[int, int]] = frozenset()

    def see(self, nodes: Mapping[str, NodeState], jobs: Iterable[JobState]) -> None:
        """Save slurmctld's state if a node came up or went off, or a job began, since the last call.

        Args:
            nodes: Node -> its state.
            jobs: All jobs.

        Raises:
            SlurmError: Slurm refused the save. The next call asks for it again.
        """
        up = frozenset(name for name, state in nodes.items() if state.is_up)
        running = {(job.id, job.restarts): job for job in jobs if job.is_running}
        if new := running.keys() - self._begun:
            self._control.save_all(running[max(new)])
        elif changed := (up ^ self._up) & nodes.keys():
            self._control.save_nodes(min((nodes[n] for n in changed), key=lambda n: (bool(n.reason), n.name)))
        self._up, self._begun = up, frozenset(running)


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
    ) -> None:
        self._control = control
        self._changed = changed
        self._driver = driver
        self._pools = pools
        self._budget = budget
        self._launcher = launcher
        static = design.static_nodes()
        self._static = {p.name: p.static_nodes() for p in design.partitions}
        self._dynamic = {p.name: [n for n in p.nodes() if n not in static] for p in design.partitions}
        self._partition = {node: name for name, nodes in self._dynamic.items() for node in nodes}
        # A cloud limits the rate of calls, and its capacity changes slowly.
        self._interval = design.slurm.reconcile_interval
        self._asked = -self._interval
        self._told = -NEWS_SECONDS
        self._machines: set[str] = set()
        self._adopted = False
        self._released: Counter[int] = Counter()
        self._runs: dict[int, Run] = {}
        self._state_flush = StateFlush(control)
        self._wake = threading.Event()

    def wake(self) -> None:
        """Run a pass at once, because a pool has failed."""
        self._wake.set()

    def run(self) -> None:
        """Run forever: often while a pool has failed, otherwise as often as the reconciler."""
        while True:
            begun = time.monotonic()
            try:
                self.once()
            except SlurmError as error:
                log(f"capacity: {error}")
            except Exception:  # the next pass reads everything again
                traceback.print_exc()
            took = time.monotonic() - begun
            quiet = self._adopted and not self._pools.failures()
            self._wake.wait(max(MINIMUM_PAUSE_SECONDS, SHARE * took, self._interval if quiet else 0.0))
            self._wake.clear()

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
                self._pools.adopt(partition, failure, now)
                if failure.kind is ErrorClass.BOOTSTRAP:
                    self._launcher.boots.adopt(partition, time.time())
        self._adopted = True

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
        for job_change in job_changes(jobs, capacities, self._runs, time.time()):
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
    ) -> dict[str, PartitionCapacity]:
        shared = self._shared_partitions(nodes)
        failures = {**failures, **{name: _common(failures, whose) for name, whose in shared.items()}}
        free = dict.fromkeys(failures, 0)
        for state in nodes.values():
            idle = state.is_up and not (state.has_job or state.is_drained)
            if idle or is_open_drain(state):
                for name in state.partitions or (self._partition.get(state.name, ""),):
                    if name in free:
                        free[name] += 1
        capacities = {name: PartitionCapacity(free[name], failure) for name, failure in failures.items()}
        if not any(found.start_now for found in job_changes(jobs, capacities, self._runs, time.time())):
            return capacities
        left = self._unsettled_partitions(nodes)
        return {
            name: PartitionCapacity(
                capacity.free, capacity.failure, left.isdisjoint(shared.get(name, {name}))
            )
            for name, capacity in capacities.items()
        }

    def _shared_partitions(self, nodes: Mapping[str, NodeState]) -> dict[str, set[str]]:
        """Return the partitions that people have made -> the stack file's partitions of their nodes."""
        shared: dict[str, set[str]] = {}
        for state in nodes.values():
            for name in state.partitions:
                if name not in self._dynamic and state.name in self._partition:
                    shared.setdefault(name, set()).add(self._partition[state.name])
        return shared

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
        capacities: Mapping[str, PartitionCapacity],
    ) -> None:
        now = time.time()
        named = {name for job in jobs if job_fits(job, capacities, now) for name in job.partition.split(",")}
        shared = self._shared_partitions(nodes)
        wanted = {whose for name in named for whose in shared.get(name, {name})}
        surplus = self._launcher.surplus_nodes.release(
            nodes, lambda node: self._partition.get(node) in wanted, time.monotonic()
        )
        up, coming = ([n for n in names if n in self._partition] for names in (surplus.up, surplus.coming))
        for names, state in ((up, "POWER_DOWN_ASAP"), (coming, "POWER_DOWN_FORCE")):
            if names:
                log(f"releases {fold(names)}: the job that it was for cannot run")
                self._update_nodes(names, state, NOT_NEEDED)


def _common(failures: Mapping[str, Failure | None], partitions: Iterable[str]) -> Failure | None:
    """Return why none of these partitions gets more machines; `None` if one of them may."""
    causes = [failures.get(name) for name in sorted(partitions)]
    return causes[0] if None not in causes else None


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
