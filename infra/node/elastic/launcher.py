"""From Slurm's wish for nodes to machines, and back where they cannot be had.

Launches run in threads of their own: nothing that slurmctld waits for calls the cloud.
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from infra.node.elastic.budget import Budget
from infra.node.elastic.driver import Driver, LaunchGroup, LaunchResult
from infra.node.elastic.errors import POLICIES, ErrorClass, Failure
from infra.node.elastic.failed_boots import FailedBoots
from infra.node.elastic.launch import groups
from infra.node.elastic.pools import Pool, Pools, together
from infra.node.elastic.strays import Strays
from infra.node.elastic.view import REASON_PREFIX, log
from infra.node.model import ClusterDesign
from infra.node.slurm.control import Slurm, SlurmError
from infra.node.slurm.hostlist import fold
from infra.node.slurm.version import ResumeRequest

RETRY_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)
LISTED_SECONDS = 60.0
"""By then a cloud lists every machine that it has launched."""


class Launcher:
    """Launches what Slurm asks for; gives nodes back with the cause where people look for it.

    Attributes:
        changed: called when a pool has failed, so that its fence need not wait for the next look.
    """

    def __init__(
        self,
        design: ClusterDesign,
        control: Slurm,
        driver: Driver,
        pools: Pools,
        budget: Budget,
    ) -> None:
        self._design = design
        self._control = control
        self._driver = driver
        self._pools = pools
        self._budget = budget
        self.changed: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._busy: dict[str, int] = {}
        self._launched: dict[str, tuple[str, float]] = {}
        self._own: dict[str, str] = {}
        self._outlived: set[str] = set()
        self.boots = FailedBoots()
        self.strays = Strays()
        self._threads = ThreadPoolExecutor(driver.launch_threads, thread_name_prefix="launch")

    def busy(self) -> set[str]:
        """Nodes with a launch under way."""
        with self._lock:
            return set(self._busy)

    def own(self) -> dict[str, str]:
        """Node -> id of the machine that was launched for its present life, by this daemon."""
        with self._lock:
            return dict(self._own)

    def given_back(self, nodes: Iterable[str]) -> None:
        """Slurm has switched nodes off: what was launched for them is no sign of their next life."""
        with self._lock:
            for node in nodes:
                self._own.pop(node, None)
                if node in self._busy:
                    self._outlived.add(node)

    def unlisted(self, listed: Iterable[str]) -> dict[str, str]:
        """Node -> machine id of what was launched and is in no listing yet: a cloud's list lags behind.

        Args:
            listed: the ids of the cloud's newest listing.
        """
        known, now = set(listed), time.monotonic()
        with self._lock:
            self._launched = {
                node: (identity, at)
                for node, (identity, at) in self._launched.items()
                if identity not in known and now - at < LISTED_SECONDS
            }
            return {node: identity for node, (identity, _) in self._launched.items()}

    def resume(self, wish: ResumeRequest, request_id: str) -> None:
        """Begin the launches for one wish of Slurm's.

        Args:
            request_id: the same when the same wish is sent again.
        """
        calls, strangers = groups(wish, self._design, request_id)
        if strangers:
            log(f"Slurm asks for nodes that the design has not: {fold(strangers)}")
        jobs = {node: job.job_id for job in wish.jobs for node in job.nodes}
        self.strays.wanted(jobs)
        for group in calls:
            self._mark(group.nodes, +1)
            self._threads.submit(self.launch, group, jobs)

    def launch(self, group: LaunchGroup, jobs: Mapping[str, int]) -> None:
        """One group, now.

        Args:
            jobs: node -> the job that waits for it.
        """
        try:
            failures: list[Failure] = []
            with self._budget.admission(group) as (allowed, refused):
                if refused is not None:
                    wanted = len(group.nodes) if group.all_or_nothing else 1
                    self._fail(Pool.of(group.partition, None, refused.kind), refused, wanted)
                    failures.append(refused)
                if allowed is not None:
                    failures += self._launch_in_zones(allowed)
            for failure in failures:
                try:
                    self._give_up(failure, jobs)
                except SlurmError as error:  # of some nodes; the reconciler finds them
                    log(f"gives back {fold(failure.nodes)}: {error}")
        except Exception:  # a driver's surprise: the reconciler asks again
            traceback.print_exc()
        finally:
            self._mark(group.nodes, -1)

    def give_up_boots(self, nodes: list[str], why: str) -> None:
        """Give back nodes whose machines came up and did not register. The next try is on others."""
        failure = Failure(tuple(nodes), ErrorClass.BOOTSTRAP, "boot", why)
        jobs = {n: job.id for job in self._control.jobs().values() if not job.is_over for n in job.nodes}
        for partition in {p.name for n in nodes if (p := self._design.partition_of(n))}:
            if pause := self.boots.failed(partition, time.time()):
                self._fail(Pool.of(partition, None, ErrorClass.BOOTSTRAP), failure, 1, pause)
        self._give_up(failure, jobs)
        self._control.avoid(nodes)

    def _launch_in_zones(self, group: LaunchGroup) -> list[Failure]:
        """Launch in the first zone that has room; what fails there is tried in the next.

        Returns:
            The failures of what no zone gave.
        """
        boots = Pool.of(group.partition, None, ErrorClass.BOOTSTRAP)
        if why := self._pools.refusal(boots, len(group.nodes), whole=group.all_or_nothing):
            return [dataclasses.replace(why, nodes=group.nodes)]
        left, failures = group.nodes, []
        causes: list[tuple[str | None, Failure]] = []
        for pool in self._pools.zones(group.partition):
            if why := self._pools.refusal(pool, len(left), whole=group.all_or_nothing):
                causes.append((pool.zone, why))
                failures = [dataclasses.replace(why, nodes=left)]
                continue
            part = dataclasses.replace(group, nodes=left, zone=pool.zone, token=_token(group, pool.zone))
            result = self._call(part)
            self._take(part, pool, result)
            if not result.failures:
                return []
            failures = list(result.failures)
            causes.append((pool.zone, failures[0]))
            lost = {node for failure in failures for node in failure.nodes}
            left = tuple(node for node in left if node in lost)
        return failures if len(causes) == 1 else [together(causes, left)]

    def _take(self, part: LaunchGroup, pool: Pool, result: LaunchResult) -> None:
        log(f"launched {fold(result.launched) or 'nothing'} in one call, job {part.job}")
        self._budget.launched(result.launched)
        now = time.monotonic()
        with self._lock:
            self._launched.update({node: (identity, now) for node, identity in result.launched.items()})
            self._own.update({n: i for n, i in result.launched.items() if n not in self._outlived})
        self._pools.launched(pool, len(result.launched), whole=not result.failures)
        if result.failures:
            self._fail(pool, result.failures[0], len(part.nodes) if part.all_or_nothing else 1)

    def _call(self, group: LaunchGroup) -> LaunchResult:
        """One launch call; a cloud that is busy is asked again, with the same token, a little later."""
        for pause in (*RETRY_PAUSES, None):
            result = self._driver.launch(group)
            retry = [f for f in result.failures if POLICIES[f.kind].retry_call]
            if pause is None or not retry or result.launched:
                return result
            log(f"{fold(group.nodes)}: {retry[0].sentence()}; next try in {pause:g} s")
            time.sleep(pause)
        raise AssertionError("unreachable")

    def _fail(self, pool: Pool, failure: Failure, wanted: int, pause: float | None = None) -> None:
        self._pools.failed(pool, failure, time.monotonic(), wanted=wanted, pause=pause)
        self.changed()

    def _give_up(self, failure: Failure, jobs: Mapping[str, int]) -> None:
        """Give nodes back to Slurm, with the cause where people look: the node, and the jobs that waited.

        Not those that are up: where a call failed because the node's machine is there already (a daemon or a
        controller that knew nothing of it asked again), that machine may run a job by now.
        """
        states = self._control.nodes()
        lost = tuple(node for node in failure.nodes if node not in states or not states[node].is_up)
        if not lost:
            return
        failure = dataclasses.replace(failure, nodes=lost)
        sentence = failure.sentence()
        log(f"gives back {fold(failure.nodes)}: {sentence}")
        self.strays.lost(failure.nodes, jobs, time.monotonic())
        waiting = {jobs[node] for node in failure.nodes if node in jobs}
        names = {job.id: job.spelling for job in self._control.jobs().values()} if waiting else {}
        for job in [names.get(number, number) for number in sorted(waiting)]:
            try:
                self._control.update_job(job, admin_comment=sentence)
            except SlurmError as error:  # the job may have been cancelled meanwhile
                log(f"job {job}: {error}")
        self._control.power_down_force(failure.nodes, REASON_PREFIX + sentence)

    def _mark(self, nodes: tuple[str, ...], by: int) -> None:
        with self._lock:
            for node in nodes:
                self._busy[node] = self._busy.get(node, 0) + by
                if not self._busy[node]:
                    del self._busy[node]
                    self._outlived.discard(node)


def _token(group: LaunchGroup, zone: str | None) -> str:
    """A wish for another zone is another wish; in one zone a wish is tried once."""
    if zone is None:
        return group.token
    return hashlib.sha256(f"{group.token}\n{zone}".encode()).hexdigest()[:32]
