"""Random histories of jobs, faults and restarts: what must hold at every moment and at the end.

`SLURM_STACKS_HISTORIES=2000` runs that many of them instead of a few. `./cluster test --all` doubles them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from node.design.model import Budget, Partition
from node.elastic.failures import ErrorClass
from node.elastic.pools import OF_MACHINES
from node.elastic.view import is_admin_disabled
from node.slurm.control import SlurmError
from tests.support.simulation import World

HISTORIES = int(os.environ.get("SLURM_STACKS_HISTORIES", "30"))
CALLS = int(os.environ.get("SLURM_STACKS_HISTORY_LENGTH", "30"))
REST_SECONDS = 4000
"""The longest back-off, and some boots."""
ERRORS = [e for e in ErrorClass if e not in (*OF_MACHINES, ErrorClass.PREEMPTED, ErrorClass.BUDGET)]
INDEX = st.integers(0, 20)
POOLS = {"spot": 4, "large": 6, "rest": 3}
"""Pool -> its nodes, in the order in which they are wanted."""


class Histories(RuleBasedStateMachine):
    """A cluster of six nodes. In half of the histories one of them is static."""

    def partitions(self, static: int) -> list[Partition]:
        return [Partition("debug", "local.small", 1, 100, static, 6, default=True)]

    @initialize(
        static=st.integers(0, 1),
        unique=st.booleans(),
        tells_room=st.booleans(),
        delay=st.integers(0, 12),
        hours=st.sampled_from([None, None, None, 0.05, 0.3]),
    )
    def begin(self, static: int, unique: bool, tells_room: bool, delay: int, hours: float | None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="histories-"))
        self.stack = ExitStack()
        self.world = self.stack.enter_context(
            World(
                self.folder, *self.partitions(static), unique=unique, budget=Budget(max_hours=hours)
            ).running()
        )
        self.world.cloud.tells_room = tells_room
        self.world.cloud.boot_delay = float(delay)

    @rule(seconds=st.sampled_from([1, 2, 3, 5, 10, 30, 60]))
    def time_passes(self, seconds: int) -> None:
        self.world.step(seconds)

    # --- users -------------------------------------------------------------------------------------------

    @rule(
        count=st.integers(1, 6),
        work=st.sampled_from([1, 5, 30, 120]),
        requeue=st.booleans(),
        reboot=st.sampled_from([False, False, True]),
    )
    def somebody_submits(self, count: int, work: int, requeue: bool, reboot: bool) -> None:
        if self.world.slurm.alive:
            self.world.slurm.submit(count, work, requeue, reboot=reboot)
            self.world.step(2)

    @rule(index=INDEX, asap=st.booleans(), down=st.booleans())
    def an_administrator_reboots(self, index: int, asap: bool, down: bool) -> None:
        names = list(self.world.slurm.members)
        if self.world.slurm.alive:
            name = names[index % len(names)]
            self.world.slurm.reboot(name, asap=asap, next_state="DOWN" if down else None)

    @rule(index=INDEX)
    def somebody_cancels(self, index: int) -> None:
        jobs = list(self.world.slurm.queue)
        if jobs and self.world.slurm.alive:
            self.world.slurm.cancel([jobs[index % len(jobs)]])

    @rule(count=st.integers(1, 8), work=st.sampled_from([5, 30]), limit=st.none() | st.integers(1, 3))
    def somebody_submits_an_array(self, count: int, work: int, limit: int | None) -> None:
        if self.world.slurm.alive:
            self.world.slurm.submit_array(range(count), 1, work, limit=limit)
            self.world.step(2)

    @rule(index=INDEX, what=st.sampled_from(["suspend", "resume", "hold", "release"]))
    def an_administrator_intervenes(self, index: int, what: str) -> None:
        slurm = self.world.slurm
        jobs = [job for job in slurm.jobs().values() if not job.is_over] if slurm.alive else []
        if not jobs:
            return
        job = jobs[index % len(jobs)].spelling
        # Slurm refuses what cannot be done with the job now.
        with suppress(SlurmError):
            if what == "hold":
                slurm.update_job(job, hold=True)
            else:
                getattr(slurm, what)(job)

    @rule(count=st.integers(1, 3))
    def nodes_refuse_to_start_jobs(self, count: int) -> None:
        self.world.slurm.refused_starts = count

    # --- machines ----------------------------------------------------------------------------------------

    @precondition(lambda self: self.world.cloud.living())
    @rule(index=INDEX, what=st.sampled_from(["die", "freeze", "thaw"]), notice=st.none() | st.integers(1, 90))
    def a_machine_meets_something(self, index: int, what: str, notice: int | None) -> None:
        living = self.world.cloud.living()
        record = living[index % len(living)]
        if notice is not None:
            record.taken_at = self.world.clock.now + notice
        elif what == "die":
            self.world.cloud.kill(record)
        else:
            record.frozen = what == "freeze"

    @rule(mute=st.integers(0, 2), broken=st.integers(0, 2))
    def machines_that_will_not_become_nodes(self, mute: int, broken: int) -> None:
        self.world.cloud.mute, self.world.cloud.broken = mute, broken

    # --- the cloud ---------------------------------------------------------------------------------------

    @rule(quota=st.none() | st.integers(0, 6), error=st.none() | st.sampled_from(ERRORS))
    def the_cloud_refuses(self, quota: int | None, error: ErrorClass | None) -> None:
        self.world.cloud.quota, self.world.cloud.error = quota, error

    # The ledger relies on the listing, and the budget on the ledger.
    @precondition(lambda self: self.world.design.budget.max_hours is None)
    @rule(fault=st.sampled_from(["empty", "halved", "unreachable"]), seconds=st.sampled_from([3, 30, 120]))
    def the_cloud_lies(self, fault: str, seconds: int) -> None:
        setattr(self.world.cloud, fault, True)
        self.world.step(seconds)
        setattr(self.world.cloud, fault, False)

    @rule(
        lag=st.sampled_from([0.0, 5.0, 50.0]),
        latency=st.sampled_from([0.0, 2.0, 15.0]),
        listing=st.sampled_from([0.0, 0.0, 3.0, 15.0]),
    )
    def the_cloud_is_slow(self, lag: float, latency: float, listing: float) -> None:
        self.world.cloud.lag, self.world.cloud.slowness = lag, listing
        self.world.latency = latency

    # --- the controller ----------------------------------------------------------------------------------

    @rule(calls=st.integers(1, 30))
    def the_daemon_is_killed(self, calls: int) -> None:
        self.world.kill_at = len(self.world.calls) + calls

    @rule(seconds=st.integers(1, 90))
    def the_daemon_is_away(self, seconds: int) -> None:
        self.world.kill()
        for _ in range(seconds):
            self.world.pass_time(1.0)

    @rule(seconds=st.integers(1, 90), lost=st.sampled_from([False, False, False, True]))
    def slurmctld_is_away(self, seconds: int, lost: bool) -> None:
        self.world.slurm.stop()
        self.world.step(seconds)
        self.world.slurm.start(lost)

    @precondition(lambda self: self.world.slurm.alive and self.world.cloud.living())
    @rule(index=INDEX, notice=st.integers(1, 90), seconds=st.integers(1, 30))
    def slurmctld_is_killed_before_it_has_saved_an_evacuation(
        self, index: int, notice: int, seconds: int
    ) -> None:
        slurm, living = self.world.slurm, self.world.cloud.living()
        living[index % len(living)].taken_at = self.world.clock.now + notice
        self.world.until(lambda: any(job.state == "COMPLETING" for job in slurm.queue.values()), 4)
        slurm.kill(requeues=True)
        self.world.step(seconds)
        slurm.start()

    @precondition(lambda self: self.world.design.budget.max_hours is None)
    @rule(hours=st.sampled_from([-1, 1]))
    def the_clock_is_set(self, hours: int) -> None:
        self.world.clock.shift += 3600 * hours

    # --- what must hold ----------------------------------------------------------------------------------

    @invariant()
    def nothing_is_wrong(self) -> None:
        if hasattr(self, "world"):
            assert self.world.wrongs == [], self.world.story()

    def nobody_waits(self) -> bool:
        """Once everything is at rest and an administrator has released held jobs and resumed nodes."""
        kept_out = [name for name, state in self.world.slurm.nodes().items() if is_admin_disabled(state)]
        if kept_out:
            self.world.slurm.update_node(kept_out, state="RESUME")
        for job in list(self.world.slurm.queue.values()):
            if job.held and job.state == "PENDING":
                self.world.slurm.release(job.id)
        return not self.world.unrest()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            if not self.world.slurm.alive:
                self.world.slurm.start()
            self.world.cloud.calm()
            self.world.slurm.refused_starts = 0
            for job in list(self.world.slurm.queue.values()):
                with suppress(SlurmError):
                    self.world.slurm.resume(job.id)
            self.world.latency = 0.0
            for record in self.world.cloud.living():
                record.frozen = False
            self.world.until(self.nobody_waits, REST_SECONDS)
            assert self.world.wrongs == [], self.world.story()
            assert self.world.unrest() == [], self.world.story()
        finally:
            self.stack.close()
            shutil.rmtree(self.folder)


class PoolHistories(Histories):
    """The same with three pools, of which some refuse, and the first one's machines are taken back."""

    def partitions(self, static: int) -> list[Partition]:
        return [
            Partition(
                f"debug-{pool}", "local.small", 1, 100, static * (not number), size, default=True,
                pool=pool, spot=pool == "spot",
            )
            for number, (pool, size) in enumerate(POOLS.items())
        ]  # fmt: skip

    @rule(
        pool=st.sampled_from(list(POOLS)),
        capacity=st.none() | st.integers(0, 4),
        error=st.none() | st.sampled_from(ERRORS),
    )
    def a_pool_refuses(self, pool: str, capacity: int | None, error: ErrorClass | None) -> None:
        cloud, name = self.world.cloud, f"debug-{pool}"
        cloud.capacity.pop(name, None)
        cloud.errors.pop(name, None)
        if capacity is not None:
            cloud.capacity[name] = capacity
        elif error is not None:
            cloud.errors[name] = error
        self.world.step(2)

    @rule(notice=st.integers(0, 90), seconds=st.sampled_from([1, 70, 200]))
    def spot_machines_are_taken_back(self, notice: int, seconds: int) -> None:
        for record in self.world.cloud.living():
            if record.partition == "debug-spot":
                record.taken_at = self.world.clock.now + notice
        self.world.step(seconds)


FEW = settings(
    max_examples=HISTORIES,
    stateful_step_count=CALLS,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)


class MoreHistories(Histories):
    """The same, for `./cluster test --all`."""


Histories.TestCase.settings = MoreHistories.TestCase.settings = FEW
PoolHistories.TestCase.settings = settings(FEW, max_examples=max(1, HISTORIES // 3))
TestHistories = Histories.TestCase
TestPoolHistories = PoolHistories.TestCase
TestMoreHistories = pytest.mark.wide(MoreHistories.TestCase)
