"""The daemon's own code between a simulated Slurm and a simulated cloud, second by second, without threads.

`Elastic`, its launcher, reconciler and capacity limiter are the product's own. The world replaces their
threads by a queue that it works off, and their clock by its own, so a history of an hour takes a second and
is the same each time.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast
from unittest import mock

from node.design.model import ClusterDesign, Partition, SlurmSettings
from node.elastic import daemon as daemon_module
from node.elastic.daemon import Elastic
from node.elastic.driver import LaunchGroup
from node.elastic.view import DRAIN_PREFIXES
from node.slurm.control import SlurmError
from node.system.rpc import RpcError, RpcUnavailableError
from tests.support.doubles import design, settings
from tests.support.simulated_cloud import Record, SimulatedCloud
from tests.support.simulated_jobs import OVER, Job
from tests.support.simulated_slurm import Node, SimulatedSlurm

TIMERS = SlurmSettings(
    suspend_time=20, suspend_timeout=5, resume_timeout=60, slurmd_timeout=30, reconcile_interval=2.0
)
EPOCH = 1_700_000_000.0
T = TypeVar("T")
EXPECTED = (SlurmError, RpcError, RpcUnavailableError)


class Killed(BaseException):
    """The daemon was killed. No `except Exception` catches this, just as none sees SIGKILL."""


class Clock:
    """Replaces the module `time` in the daemon's modules. Threads left by other tests get the real time."""

    gmtime, strftime = staticmethod(time.gmtime), staticmethod(time.strftime)

    def __init__(self, world: World) -> None:
        self._world = world
        self.now = 1000.0
        self.shift = 0.0
        """By how much the wall clock was set."""

    def monotonic(self) -> float:
        return self.now if self._world.is_mine() else time.monotonic()

    def epoch(self, moment: float) -> float:
        return EPOCH + moment + self.shift

    def time(self) -> float:
        return self.epoch(self.now) if self._world.is_mine() else time.time()

    def sleep(self, seconds: float) -> None:
        """Sleep: this is the daemon's only thread, and Slurm and the cloud continue."""
        if not self._world.is_mine():
            time.sleep(seconds)
            return
        end = self.now + seconds
        while self.now < end:
            self._world.pass_time(min(1.0, end - self.now))


class _Mortal:
    def __init__(self, target: Any, world: World) -> None:
        self._target, self._world = target, world

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            self._world.count(f"{name} {arguments} {named}")
            return found(*arguments, **named)

        return call


def mortal(target: T, world: World) -> T:
    """Pass calls on, until the call with which the daemon is killed."""
    passing: Any = _Mortal(target, world)
    return cast(T, passing)


class Later:
    """A pool of threads that runs nothing by itself."""

    def __init__(self, world: World) -> None:
        self._world = world

    def submit(self, do: Callable[..., None], *arguments: Any) -> None:
        self._world.tasks.append((self._world.clock.now, do, arguments))


class World:
    """Slurm, a cloud, and the daemon between them.

    Args:
        folder: The folder of the daemon's ledger.
        unique: Whether the cloud gives a name once.

    Attributes:
        wrongs: Machines that were ended under a running job, and other things that must never happen.
        latency: Seconds that a launch or a termination waits before it is called.
        calls: The daemon's calls of Slurm and the cloud.
        kill_at: The call at which the daemon is killed; `None` means never.
    """

    def __init__(self, folder: Path, *partitions: Partition, unique: bool = True, **changes: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._thread = threading.get_ident()
        members = partitions or (Partition("debug", "local.small", 1, 100, 0, 5, default=True),)
        self.design: ClusterDesign = design(*members, **{"slurm": TIMERS, **changes})
        self.clock = Clock(self)
        self.cloud = SimulatedCloud(self.clock.monotonic, self.clock.epoch, unique)
        static = [n for p in members for n in p.static_nodes()]
        self.slurm = SimulatedSlurm(
            [(n, p.slurm_name) for p in members for n in p.nodes()],
            self.design.slurm,
            static,
            self.clock.monotonic,
            self._program,
            self.cloud.answering,
            {n: p.name for p in members if p.pool and not p.mixed for n in p.nodes()},
        )
        self.slurm.epoch = self.clock.epoch
        self.slurm.before_kill = self._node_is_killed
        self.cloud.sleep = self.clock.sleep
        self.cloud.before_launch = self._is_launched
        self.cloud.before_terminate = self._machine_is_ended
        self.tasks: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []
        self.latency = 0.0
        self.wrongs = self.slurm.wrongs
        self.lines: list[str] = []
        self.calls: list[str] = []
        self.kill_at: int | None = None
        self.daemon: Elastic | None = None
        self._requests: list[dict[str, Any]] = []
        self._spool: list[dict[str, Any]] = []
        self._number = 0
        self._reconciled = self._drains_updated = 0.0
        self._woken = False

    @contextlib.contextmanager
    def running(self) -> Iterator[World]:
        """Let the daemon's modules use this world's clock and threads."""
        with contextlib.ExitStack() as stack:
            for name, module in list(sys.modules.items()):
                if not name.startswith("node.elastic."):
                    continue
                if getattr(module, "time", None) is time:
                    stack.enter_context(mock.patch.object(module, "time", self.clock))
                if callable(getattr(module, "log", None)):
                    stack.enter_context(mock.patch.object(module, "log", self._note))
                if hasattr(module, "ThreadPoolExecutor"):
                    stack.enter_context(mock.patch.object(module, "ThreadPoolExecutor", self._later))
                if hasattr(module, "traceback"):
                    stack.enter_context(mock.patch.object(module, "traceback", self))
            stack.enter_context(mock.patch.object(daemon_module, "Observer", mock.Mock()))
            self.start()
            yield self

    def is_mine(self) -> bool:
        """Return whether the world's own thread calls."""
        return threading.get_ident() == self._thread

    # --- the daemon --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the daemon; after a kill this is its restart."""
        made = settings(self.folder, self.design)
        self.daemon = Elastic(made, mortal(self.slurm, self), mortal(self.cloud, self), self.folder)
        self.daemon.launcher._budget._now = self.clock.time
        self.daemon.capacity_limiter._pools._news = mock.Mock(spec=threading.Event, set=self._wake)
        self._requests = [{**request, "spooled": True} for request in self._spool]
        self._spool = []

    def kill(self) -> None:
        """Kill the daemon as SIGKILL does: what it had only in memory is lost."""
        self.daemon, self.kill_at = None, None
        self.tasks, self._requests = [], []

    def count(self, call: str) -> None:
        """Note a call. With the one whose number is `kill_at` the daemon is killed."""
        self.calls.append(call)
        if self.kill_at is not None and len(self.calls) >= self.kill_at:
            raise Killed

    def print_exc(self) -> None:
        """Replaces `traceback.print_exc`, where the daemon survives an unexpected error."""
        if not self.is_mine():
            return
        error = sys.exc_info()[1]
        self._note(f"survived {error!r}")
        if not isinstance(error, EXPECTED):
            self.wrongs.append(f"surprise: {error!r}")

    # --- time --------------------------------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        """Let time pass without the daemon."""
        self.clock.now += seconds
        self.cloud.tick()
        self.slurm.tick()

    def step(self, seconds: int = 1) -> None:
        """Let a second pass with the daemon, which is restarted, as init does, if it was killed."""
        for _ in range(seconds):
            self.pass_time(1.0)
            if self.daemon is None:
                self.start()
            try:
                self._work()
            except Killed:
                self._note("killed")
                self.kill()
            self._check()

    def until(self, there: Callable[[], Any], seconds: int) -> bool:
        """Return whether a condition was met in time."""
        for _ in range(seconds):
            if there():
                return True
            self.step()
        return bool(there())

    def _work(self) -> None:
        daemon = self.daemon
        assert daemon is not None
        while self._requests:
            request = self._requests.pop(0)
            self._survive(lambda request=request: daemon.process(request))  # type: ignore[misc]
        due = [task for task in self.tasks if self.clock.now - task[0] >= self.latency]
        self.tasks = [task for task in self.tasks if task not in due]
        for _, do, arguments in due:
            do(*arguments)
        now = self.clock.now
        if now - self._reconciled >= daemon.reconciler.interval:
            self._reconciled = now
            self._survive(daemon.reconciler.once)
            self._survive(daemon.launcher.launch_delayed)
            self._survive(daemon._budget_enforcer.enforce)
        quiet = not (daemon.capacity_limiter._pools.failures() or self._woken)
        if not quiet or now - self._drains_updated >= daemon.reconciler.interval:
            self._drains_updated, self._woken = now, False
            self._survive(daemon.capacity_limiter.once)

    def _survive(self, do: Callable[[], object]) -> None:
        try:
            do()
        except EXPECTED as error:
            self._note(f"survived {error!r}")

    def _wake(self) -> None:
        self._woken = True

    def _later(self, *_: object, **__: object) -> Later:
        return Later(self)

    def _note(self, line: str) -> None:
        if self.is_mine():
            self.lines.append(f"{self.clock.now:.0f} {line}")

    def _program(self, request: dict[str, Any]) -> None:
        self._number += 1
        self._note(f"Slurm: {request['program']} {request['nodes']}")
        made = {
            "id": f"r{self._number}",
            "program": request["program"],
            "nodes": request["nodes"],
            "time": self.clock.time(),
        }
        if "job" in request:
            made["job"] = request["job"]
        elif request["program"] == "resume":
            made["resume_file"] = json.dumps({"all_nodes": request["nodes"], "jobs": request["jobs"]})
        (self._spool if self.daemon is None else self._requests).append(made)

    # --- what must never be ------------------------------------------------------------------------------

    def _check(self) -> None:
        for record in (living := self.cloud.living()):
            others = [r for r in living if r.node == record.node]
            if self.cloud.unique and len(others) > 1:
                self.wrongs.append(f"{record.node} has {len(others)} machines")
        for partition in self.design.partitions:
            count = sum(1 for r in living if r.partition == partition.name)
            if self.cloud.unique and count > partition.max:
                self.wrongs.append(f"{count} machines of {partition.name}")
        self._check_pools()

    def _check_pools(self) -> None:
        """Note a job that has nodes of several pools, which no launch of its nodes may bring about."""
        for job in self.slurm.queue.values():
            pools = {p.name for n in job.nodes if (p := self.design.partition_of(n)) and p.pool}
            if len(pools) > 1:
                self.wrongs.append(f"{self.clock.now:.0f} job {job.id} has nodes of {sorted(pools)}")

    def _is_launched(self, group: LaunchGroup) -> None:
        most = self.design.budget.max_hours
        static = self.design.partition(group.partition).static_nodes()
        if most is not None and self.cloud.spent() >= most * 1.02 and not set(group.nodes) <= set(static):
            self.wrongs.append(f"{group.nodes} are launched after {self.cloud.spent():.3f} of {most} hours")

    def _machine_is_ended(self, record: Record) -> None:
        if record.taken_at is None and (job := self._job_on(record)):
            self.wrongs.append(f"{self.clock.now:.0f} {record.id} is ended under job {job.id}")

    def _node_is_killed(self, node: Node, jobs: list[Job]) -> None:
        for record in self.cloud.living():
            if record.node == node.name and record.taken_at is None and (job := self._job_on(record)):
                self.wrongs.append(f"{self.clock.now:.0f} {node.name} is given back under job {job.id}")

    def _job_on(self, record: Record) -> Job | None:
        jobs = (j for j in self.slurm.queue.values() if j.state in ("RUNNING", "SUSPENDED"))
        return next((j for j in jobs if j.machines.get(record.node) == record.id), None)

    def story(self, lines: int = 80) -> str:
        """Return what happened, for the message of a failed test."""
        told = [line for line in self.lines if "SlurmDown" not in line and "does not answer" not in line]
        return "\n".join([*told[-lines:], *self.wrongs, *self.unrest()])

    # --- the end -----------------------------------------------------------------------------------------

    def unrest(self) -> list[str]:
        """Return what differs from a cluster that has had nothing to do for a while."""
        static = self.design.static_nodes()
        # No script fails by itself.
        jobs = [j for j in self.slurm.queue.values() if j.state not in OVER or j.state == "FAILED"]
        found = [f"job {j.id} is {j.state}" for j in jobs if not self._waits_for_money(j)]
        for node in self.slurm.members.values():
            wanted = "up" if node.name in static else "down"
            # If the budget is used up, capacity drains of other causes stay as well.
            limited = self.design.budget.max_hours is not None and node.power == "down"
            drained_for_capacity = limited and (node.reason or "").startswith(DRAIN_PREFIXES)
            if node.power != wanted or node.down or (node.drained and not drained_for_capacity) or node.leave:
                found.append(f"{node.name} is {node.power} {sorted(node.flags())} {node.reason}")
        living = self.cloud.living()
        found += [f"{r.id} lives" for r in living if r.node not in static]
        return found + [f"{n} has no machine" for n in static if n not in {r.node for r in living}]

    def _waits_for_money(self, job: Job) -> bool:
        return job.state == "PENDING" and (job.comment or "").startswith("budget: ")
