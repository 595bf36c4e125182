"""Launches the machines that Slurm asks for, and powers down the nodes that get none.

Launches run in their own threads: nothing that slurmctld waits for calls the cloud.
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from node.design.model import ClusterDesign
from node.elastic.budget import Budget
from node.elastic.driver import Driver, LaunchGroup, LaunchResult, Machine
from node.elastic.failed_boots import FailedBoots
from node.elastic.failures import API_FAILURES, ErrorClass, Failure
from node.elastic.interruptions import Interruptions, interruption_reason
from node.elastic.launch_groups import launch_groups
from node.elastic.ledger import Ledger
from node.elastic.pools import PAUSING, Pool, Pools, combined, joint_cause
from node.elastic.replacements import Replacements, replacement_reason, utc_time
from node.elastic.surplus_nodes import SurplusNodes
from node.elastic.view import REASON_PREFIX, log
from node.slurm.control import Slurm, SlurmError
from node.slurm.hostlist import fold
from node.slurm.resume_request import ResumeRequest
from node.slurm.states import JobState

RETRY_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds between repetitions of a call while the cloud is busy."""
LISTING_DELAY_SECONDS = 60.0
"""After this time a cloud lists every machine that it has launched."""


@dataclass(frozen=True, slots=True)
class _Delayed:
    """A launch that waits until the former machines of its nodes have ended.

    Attributes:
        failure: Why it waits.
        until: How long it waits, on a clock that never jumps.
    """

    group: LaunchGroup
    jobs: Mapping[str, int]
    failure: Failure
    until: float


class Launcher:
    """The launcher of what Slurm asks for. Nodes that get no machine are powered down, their jobs told why.

    Attributes:
        boots: Counts failed boots.
        surplus_nodes: Nodes whose job cannot run.
    """

    def __init__(
        self,
        design: ClusterDesign,
        control: Slurm,
        driver: Driver,
        pools: Pools,
        budget: Budget,
        ledger: Ledger,
    ) -> None:
        self._design = design
        self._control = control
        self._driver = driver
        self._pools = pools
        self._budget = budget
        self._ledger = ledger
        self._lock = threading.Lock()
        self._busy: dict[str, int] = {}
        self._launched: dict[str, tuple[str, float]] = {}
        self._powered_down: set[str] = set()
        self._refused: set[str] = set()
        self._listed: frozenset[str] | None = None
        self._delayed: list[_Delayed] = []
        self._calling: set[str] = set()
        self.boots = FailedBoots()
        self._replacements = Replacements()
        self.interruptions = Interruptions(design)
        self.surplus_nodes = SurplusNodes()
        self._threads = ThreadPoolExecutor(driver.launch_threads, thread_name_prefix="launch")

    def busy(self) -> set[str]:
        """Return the nodes with a launch under way."""
        with self._lock:
            return set(self._busy)

    def given_back(self, nodes: Iterable[str]) -> None:
        """Record that Slurm has powered nodes down: their machines say nothing about the next ones."""
        names = list(nodes)
        with self._lock:
            self._powered_down.update(node for node in names if node in self._busy)
            over = [one for one in self._delayed if not set(names).isdisjoint(one.group.nodes)]
            self._delayed = [one for one in self._delayed if one not in over]
            refused = not self._refused.isdisjoint(names)
            self._refused.difference_update(names)
        if refused:
            # Before this a drain would be lost. Now the nodes get theirs, and their jobs may have others.
            self._pools.wake()
        self._ledger.forget(names)
        for one in over:
            self._count_launches(one.group.nodes, -1)

    def see(self, machines: Iterable[Machine]) -> None:
        """Record the cloud's newest listing: nodes that have a machine there are not launched again."""
        self._listed = frozenset(machine.node for machine in machines if machine.node and machine.state.alive)

    def unlisted(self, listed: Iterable[str]) -> dict[str, str]:
        """Return node -> machine id of machines that were launched but are in no listing yet.

        A cloud's listing lags behind.

        Args:
            listed: The ids of the cloud's newest listing.
        """
        known, now = set(listed), time.monotonic()
        with self._lock:
            self._launched = {
                node: (machine_id, at)
                for node, (machine_id, at) in self._launched.items()
                if machine_id not in known and now - at < LISTING_DELAY_SECONDS
            }
            return {node: machine_id for node, (machine_id, _) in self._launched.items()}

    def resume(self, request: ResumeRequest, request_id: str) -> None:
        """Start the launches for one resume request of Slurm.

        Args:
            request: Slurm's request.
            request_id: The same id if the same request is sent again.
        """
        calls, unknown = launch_groups(request, self._design, request_id)
        if unknown:
            log(f"Slurm asks for nodes that the design does not have: {fold(unknown)}")
        jobs = {node: job.job_id for job in request.jobs for node in job.nodes}
        self.surplus_nodes.wanted(jobs)
        for group in calls:
            self._count_launches(group.nodes, +1)
            self._threads.submit(self.launch, group, jobs)

    def launch(self, group: LaunchGroup, jobs: Mapping[str, int], until: float | None = None) -> None:
        """Launch one group, in this thread.

        Args:
            group: The nodes.
            jobs: Node -> the job that waits for it.
            until: How long the launch may wait for the ends of former machines, on a clock that never jumps.
        """
        nodes = group.nodes
        if until is None:
            # Later there would be no time left for the boot: Slurm has counted since its request.
            until = time.monotonic() + self._design.slurm.resume_timeout / 2
        own = self._begun(nodes)
        try:
            failures: list[Failure] = []
            left = self._without_machines(group.part(own), jobs, until) if own else None
            if left is None:
                return
            group = left
            with self._budget.admission(group) as (allowed, refused):
                if refused is not None:
                    wanted = len(group.nodes) if group.all_or_nothing else 1
                    self._fail(Pool.of(group.partition, None, refused.kind), refused, wanted)
                    failures.append(refused)
                if allowed is not None:
                    failures += self._launch_in_zones(allowed)
            for failure in failures:
                try:
                    if failure.own and failure.kind is ErrorClass.UNAVAILABLE:
                        self._delay(_Delayed(group.part(failure.nodes), jobs, failure, until))
                        continue
                    self._give_up(failure, jobs)
                    if failure.own:
                        self._control.avoid(failure.nodes if failure.seen is None else [failure.seen])
                except SlurmError as error:  # the reconciler finds the nodes that are left
                    log(f"powers down {fold(failure.nodes)}: {error}")
        except Exception:  # an unexpected error of the driver; the reconciler launches again
            traceback.print_exc()
        finally:
            with self._lock:
                self._calling.difference_update(own)
            self._count_launches(nodes, -1)

    def _begun(self, nodes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the nodes that no other launch is at. Slurm may ask again while the cloud is being called.

        What is launched for a node before it was powered down is not what Slurm asks for now.
        """
        with self._lock:
            own = tuple(n for n in nodes if n not in self._calling or n in self._powered_down)
            self._calling.update(own)
        if len(own) < len(nodes):
            log(f"{fold(set(nodes) - set(own))}: not launched, because a launch is under way")
        return own

    def launch_delayed(self) -> None:
        """Try the launches again that wait for the ends of machines. Those that waited too long are over."""
        now = time.monotonic()
        with self._lock:
            waiting, self._delayed = self._delayed, []
        for one in waiting:
            if now < one.until:
                self._threads.submit(self.launch, one.group, one.jobs, one.until)
                continue
            try:
                self._give_up(one.failure, one.jobs)
            except SlurmError as error:  # the reconciler finds the nodes, and the other launches go on
                log(f"powers down {fold(one.group.nodes)}: {error}")
            finally:
                self._count_launches(one.group.nodes, -1)

    def give_up_boots(self, nodes: list[str], why: str) -> None:
        """Power down nodes whose machines started but did not register. Jobs are tried on other nodes next.

        Args:
            nodes: The nodes.
            why: The cause.
        """
        failure = Failure(tuple(nodes), ErrorClass.BOOTSTRAP, "boot", why, seen=nodes[0])
        jobs = {n: job.id for job in self._control.jobs().values() if not job.is_over for n in job.nodes}
        for partition in {p.name for n in nodes if (p := self._design.partition_of(n))}:
            if pause := self.boots.failed(partition, time.time()):
                self._fail(Pool.of(partition, None, ErrorClass.BOOTSTRAP), failure, 1, pause)
        self._give_up(failure, jobs)
        self._control.avoid(nodes)

    def replaces(self, nodes: list[str], why: str) -> None:
        """Record that nodes are powered down for their health. After several in an hour the partition pauses.

        Args:
            nodes: The nodes.
            why: The cause.
        """
        for name in nodes:
            partition = self._design.partition_of(name)
            if partition and (pause := self._replacements.replaced(partition.name, time.monotonic())):
                until = f"until {utc_time(time.time() + pause)}"
                failure = Failure((), ErrorClass.HEALTH, until, replacement_reason(name, why), seen=name)
                self._fail(Pool.of(partition.name, None, ErrorClass.HEALTH), failure, 1, pause)

    def taken_back(self, machines: Mapping[str, str]) -> None:
        """Record machines that the cloud takes back. A spot pool where this happens again soon is closed.

        Args:
            machines: Node -> the id of its machine.
        """
        for partition, pause in self.interruptions.taken_back(machines, time.monotonic()):
            until = f"until {utc_time(time.time() + pause)}"
            failure = Failure((), ErrorClass.INTERRUPTED, until, interruption_reason())
            log(f"closes {partition}: {failure.sentence()}")
            self._fail(Pool.of(partition, None, ErrorClass.INTERRUPTED), failure, 1, pause)

    def _launch_in_zones(self, group: LaunchGroup) -> list[Failure]:
        """Launch in the first zone that has capacity; what fails there is tried in the next zone.

        Returns:
            The failures of nodes that no zone could launch.
        """
        for kind in PAUSING:
            of_kind = Pool.of(group.partition, None, kind)
            if why := self._pools.refusal(of_kind, len(group.nodes), whole=group.all_or_nothing):
                return [dataclasses.replace(why, nodes=group.nodes)]
        left, failures = group.nodes, []
        own: list[Failure] = []
        causes: list[tuple[str | None, Failure]] = []
        for pool in self._pools.zones(group.partition):
            if why := self._pools.refusal(pool, len(left), whole=group.all_or_nothing):
                causes.append((pool.zone, why))
                failures = [dataclasses.replace(why, nodes=left)]
                continue
            part = dataclasses.replace(group, nodes=left, zone=pool.zone, token=_token(group, pool.zone))
            result = self._call(part)
            own += [failure for failure in result.failures if failure.own]
            result = LaunchResult(result.launched, tuple(f for f in result.failures if not f.own))
            self._record(part, pool, result)
            failures = list(result.failures)
            if not failures:
                return own
            causes.append((pool.zone, failures[0]))
            lost = {node for failure in failures for node in failure.nodes}
            left = tuple(node for node in left if node in lost)
        return own + (failures if len(causes) == 1 else [combined(causes, left)])

    def _without_machines(
        self, group: LaunchGroup, jobs: Mapping[str, int], until: float
    ) -> LaunchGroup | None:
        """Return the part of a group that has no machines; `None` if there is none, or if it has to wait.

        Slurm asks again for a node that boots, or for a new machine of one that was up. What becomes of such
        a machine the reconciler decides, who launches another one when it has ended. A machine of a node that
        was powered down since should have ended, and Slurm would take no registration of it. It ends.
        """
        newest = self._ledger.newest()
        machines = self._machines_of(group.nodes, newest)
        there = {node for node in machines if node in newest}
        if there:
            log(f"{fold(there)}: not launched, because the machine is there")
        left = group.part([node for node in group.nodes if node not in there])
        if former := [node for node in left.nodes if node in machines]:
            in_use = self._end_unused({node: machines[node] for node in former})
            left = left.part([node for node in left.nodes if node not in in_use])
            former = [node for node in former if node not in in_use]
        if former:
            message = f"the former machine of {fold(former)} is ending"
            waiting = left.nodes if group.all_or_nothing else tuple(former)
            failure = Failure(waiting, ErrorClass.UNAVAILABLE, "Ending", message, own=True)
            self._delay(_Delayed(left.part(waiting), jobs, failure, until))
            left = left.part([node for node in left.nodes if node not in waiting])
        return left if left.nodes else None

    def _end_unused(self, machines: Mapping[str, list[str]]) -> set[str]:
        """Terminate nodes' former machines, but none that Slurm may use: what is known here may be wrong.

        A daemon that was killed knows less, and a launch may take so long that its node is up by then. While
        Slurm does not answer, nothing is terminated.

        Args:
            machines: Node -> the ids of its machines.

        Returns:
            The nodes whose machines stay, because Slurm does not wait for another one.
        """
        try:
            states, used = self._control.nodes(), nodes_in_use(self._control.jobs())
        except SlurmError as error:
            log(f"{fold(machines)}: whether the machines are in use is unknown: {error}")
            return set()
        waits = {n for n in machines if n in states and states[n].is_powering_up and n not in used}
        if in_use := machines.keys() - waits:
            log(f"{fold(in_use)}: not launched, because Slurm does not wait for another machine")
        if ids := [machine for node in machines if node in waits for machine in machines[node]]:
            self._driver.terminate(ids)
        with self._lock:
            for node in waits:
                self._launched.pop(node, None)
        return in_use

    def _machines_of(self, nodes: Iterable[str], newest: Mapping[str, str]) -> dict[str, list[str]]:
        """Return the ids of nodes' machines. The cloud is asked only if one is likely to be there."""
        with self._lock:
            launched = set(self._launched)
        known = self._listed
        likely = {n for n in nodes if known is None or n in known or n in newest or n in launched}
        if not likely:
            return {}
        try:
            machines = self._driver.list()
        except Exception as error:  # any refusal of any cloud, which will hardly launch anything now
            log(f"{fold(likely)}: whether there are machines is unknown: {error}")
            return {}
        ids_of = {node: [machine] for node, machine in self.unlisted(m.id for m in machines).items()}
        for machine in machines:
            if machine.node and machine.state.alive:
                ids_of.setdefault(machine.node, []).append(machine.id)
        return {node: ids for node, ids in ids_of.items() if node in likely}

    def _delay(self, later: _Delayed) -> None:
        """Keep a launch for later. Until then its nodes count as being launched."""
        log(f"{fold(later.group.nodes)}: {later.failure.message}: the launch waits for its end")
        self._count_launches(later.group.nodes, +1)
        with self._lock:
            self._delayed.append(later)

    def _record(self, part: LaunchGroup, pool: Pool, result: LaunchResult) -> None:
        job = "" if part.job is None else f", job {part.job}"
        log(f"launched {fold(result.launched) or 'nothing'} in one call{job}")
        self._budget.launched(result.launched)
        now = time.monotonic()
        with self._lock:
            self._launched.update({node: (machine_id, now) for node, machine_id in result.launched.items()})
            powered_down = self._powered_down & result.launched.keys()
        self._ledger.forget(powered_down)
        # Where only names were in use, nothing was launched, and nothing is known of the pool.
        whole = bool(result.launched) and not result.failures
        self._pools.launched(pool, len(result.launched), whole=whole)
        if result.failures:
            self._fail(pool, result.failures[0], len(part.nodes) if part.all_or_nothing else 1)

    def _call(self, group: LaunchGroup) -> LaunchResult:
        """Make one launch call. The machines that nodes had stay known where it launches none."""
        newest = {n: machine for n, machine in self._ledger.newest().items() if n in group.nodes}
        self._ledger.forget(group.nodes)
        launched: Mapping[str, str] = {}
        try:
            result = self._call_until_answered(group)
            launched = result.launched
            return result
        finally:
            # Under the lock, so that `given_back` forgets afterwards what is restored here.
            with self._lock:
                over = self._powered_down | launched.keys()
                if kept := {node: machine for node, machine in newest.items() if node not in over}:
                    self._ledger.restore(kept)

    def _call_until_answered(self, group: LaunchGroup) -> LaunchResult:
        """Call the cloud. If it is busy, repeat the call a little later with the same token."""
        for pause in (*RETRY_PAUSES, None):
            result = self._driver.launch(group)
            retry = [f for f in result.failures if f.kind in API_FAILURES and not f.own]
            if pause is None or not retry or result.launched:
                return result
            log(f"{fold(group.nodes)}: {retry[0].sentence()}; next try in {pause:g} s")
            time.sleep(pause)
        raise AssertionError("unreachable")

    def _fail(self, pool: Pool, failure: Failure, wanted: int, pause: float | None = None) -> None:
        self._pools.failed(pool, failure, time.monotonic(), wanted=wanted, pause=pause)

    def _give_up(self, failure: Failure, jobs: Mapping[str, int]) -> None:
        """Power nodes down in Slurm, with the cause on the node and on the jobs that waited for it.

        Nodes that are up stay. If a call failed because the node's machine exists already (a daemon or a
        controller that did not know of it asked again), that machine may run a job by now. Nodes of suspended
        jobs stay too, which Slurm may have given to a job that asks for a reboot.
        """
        states, now = self._control.nodes(), self._control.jobs()
        kept = {node for node in states if states[node].is_up} | nodes_in_use(now)
        lost = tuple(node for node in failure.nodes if node not in kept)
        if not lost:
            return
        failure = dataclasses.replace(failure, nodes=lost)
        sentence = failure.sentence()
        log(f"powers down {fold(failure.nodes)}: {sentence}")
        told = self._cause(failure).sentence()
        with self._lock:
            self._refused.update(lost)
        self.surplus_nodes.lost(failure.nodes, jobs, time.monotonic())
        waiting = {jobs[node] for node in failure.nodes if node in jobs}
        names = {job.id: job.spelling for job in now.values()}
        for job in [names.get(number, number) for number in sorted(waiting)]:
            try:
                self._control.update_job(job, admin_comment=told)
            except SlurmError as error:  # the job may have been cancelled in the meantime
                log(f"job {job}: {error}")
        self._control.power_down_force(failure.nodes, REASON_PREFIX + sentence)

    def _cause(self, failure: Failure) -> Failure:
        """Return the cause for the jobs of a failed launch, with those of the partition's other pools."""
        partition = self._design.partition_of(failure.nodes[0])
        if partition is None or partition.pool is None:
            return failure
        causes: list[tuple[str | None, Failure]] = []
        for pool in self._design.pools_of(partition.slurm_name):
            if pool is partition:
                causes.append((pool.pool, dataclasses.replace(failure, nodes=())))
            elif (limit := self._pools.limit(pool.name)) is not None and not limit.count:
                causes.append((pool.pool, limit.failure))
        return joint_cause(causes)

    def _count_launches(self, nodes: tuple[str, ...], by: int) -> None:
        with self._lock:
            for node in nodes:
                self._busy[node] = self._busy.get(node, 0) + by
                if not self._busy[node]:
                    del self._busy[node]
                    self._powered_down.discard(node)


def nodes_in_use(jobs: Mapping[int, JobState]) -> set[str]:
    """Return the nodes that a job runs on. Slurm shows those of suspended jobs as idle."""
    return {node for job in jobs.values() if job.is_running for node in job.nodes}


def _token(group: LaunchGroup, zone: str | None) -> str:
    """Return the token for a zone: a token stands for one request, so each zone needs its own."""
    if zone is None:
        return group.token
    return hashlib.sha256(f"{group.token}\n{zone}".encode()).hexdigest()[:32]
