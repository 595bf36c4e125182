"""Doubles of what a machine's code calls: settings in a folder, Slurm's commands, a cloud, services."""

from __future__ import annotations

import dataclasses
import getpass
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from node.bootstrap.services import Service, Services
from node.design.model import ClusterDesign, Host, Partition, Settings, Site, SlurmSettings
from node.design.sites import LocalSite
from node.elastic.daemon import Elastic
from node.elastic.driver import (
    LAUNCH_THREADS,
    AvailableCapacity,
    Driver,
    LaunchGroup,
    LaunchResult,
    Machine,
    MachineState,
)
from node.elastic.failures import ErrorClass, Failure
from node.slurm.control import Slurm, SlurmError
from node.slurm.reservations import Reservation
from node.slurm.states import JobState, NodeState
from node.slurm.topology import Place

DEBUG = Partition("debug", "local.small", 2, 1000, 0, 10, default=True, price_hour=0.5)
HEAD = Host("controller", "controller", ("controller", "login"), "local.head", 0)


def design(*partitions: Partition, **changes: Any) -> ClusterDesign:
    """A small local cluster's design, with one partition `debug` of ten nodes unless others are given."""
    cluster_design = ClusterDesign("t", "test", "local", "process", (HEAD,), partitions or (DEBUG,), ())
    return dataclasses.replace(cluster_design, **changes)


def settings(root: Path, cluster_design: ClusterDesign | None = None, **site: Any) -> Settings:
    """Settings of a cluster whose folders are all below `root`."""
    place = Site(
        root=str(root),
        user=getpass.getuser(),
        controller_host="localhost",
        controller_address="127.0.0.1",
        slurmctld_port=16800,
        slurmd_port=16801,
        python="/usr/bin/python3",
        apps=str(root / "apps"),
        shared=str(root / "shared"),
        cloud=LocalSite(str(root / "agent.sock")),
    )
    return Settings(cluster_design or design(), dataclasses.replace(place, **site))


def fast_design(*partitions: Partition, **changes: Any) -> ClusterDesign:
    return design(*partitions, slurm=SlurmSettings(reconcile_interval=0.05), **changes)


def node(name: str, base: str = "IDLE", *flags: str, reason: str | None = None) -> NodeState:
    return NodeState(name, base, frozenset(flags), reason)


def job(number: int, state: str = "RUNNING", **changes: Any) -> JobState:
    plain: dict[str, Any] = {
        "id": number, "state": state, "name": "keras-job", "reason": "None", "explanation": None,
        "partition": "debug", "user": "u", "nodes": (), "wanted_nodes": 1, "batch_host": None,
        "requeue": True, "restarts": 0, "priority": 1, "submit_time": 1.0, "eligible_time": 1.0,
        "start_time": None, "end_time": None, "array_job": None, "array_task": None, "het_job": None,
        "exit_code": 0, "signal": 0, "comment": None,
        "admin_comment": None,
    }  # fmt: skip
    return JobState(**plain | changes)


class FakeControl(Slurm):
    """Slurm's commands. `calls` records what it was told to do.

    Attributes:
        error: The error that reading the nodes raises.
        refuse_commands: Words of a command, any of which makes Slurm refuse it.
    """

    def __init__(self, nodes: Iterable[NodeState] = (), jobs: Iterable[JobState] = ()) -> None:
        self.state = {n.name: n for n in nodes}
        self.queue = {j.id: j for j in jobs}
        self.calls: list[tuple[Any, ...]] = []
        self.saves: list[str | int] = []
        self.reserved: list[Reservation] = []
        self.partitions: dict[str, str] = {}
        self.waits_for: dict[int, str] = {}
        self.booked: dict[int, dict[str, str]] = {}
        self.refuse_job_updates = False
        self.refuse_node_updates = False
        self.refuse_commands: set[str] = set()
        self.error: Exception | None = None

    def run(self, *command: str) -> str:
        self.calls.append(command)
        if self.refuse_commands & set(command):
            raise SlurmError(command, 1, "Invalid job id specified")
        return ""

    def show_partitions(self) -> str:
        return ""

    def show_config(self) -> str:
        return ""

    def nodes(self) -> Mapping[str, NodeState]:
        if self.error is not None:
            raise self.error
        return dict(self.state)

    def detailed_nodes(self) -> Mapping[str, NodeState]:
        return self.nodes()

    def jobs(self) -> dict[int, JobState]:
        return dict(self.queue)

    def detailed_jobs(self) -> dict[int, JobState]:
        return self.jobs()

    def owners(self) -> dict[int, dict[str, str]]:
        return self.booked

    def dependencies(self) -> dict[int, str]:
        return self.waits_for

    def reservations(self) -> list[Reservation]:
        return self.reserved

    def partition_states(self) -> dict[str, str]:
        return self.partitions

    def ping(self) -> bool:
        return self.error is None

    def update_node(
        self,
        nodes: Iterable[str],
        *,
        state: str | None = None,
        reason: str | None = None,
        weight: int | None = None,
    ) -> None:
        if self.refuse_node_updates:
            raise SlurmError(["scontrol"], 1, "Invalid node state specified")
        names = tuple(nodes)
        if not names:
            return
        if state == "POWER_DOWN_FORCE":
            self.calls.append(("down", names, reason))
            return
        if state == "POWER_UP":
            self.calls.append(("up", names))
            return
        if weight is not None:
            self.calls.append(("avoid", names))
            return
        self.calls.append(("node", names, state, reason))
        for name in names:
            flags, why = self.state[name].flags, self.state[name].reason
            if state == "DRAIN":
                flags, why = flags | {"DRAIN"}, reason
            elif state in ("UNDRAIN", "IDLE"):
                flags, why = flags - {"DRAIN"}, None
            self.state[name] = dataclasses.replace(self.state[name], flags=flags, reason=why)

    def update_job(
        self,
        job: int | str,
        *,
        admin_comment: str | None = None,
        start_now: bool = False,
        hold: bool = False,
        dependency: str | None = None,
    ) -> None:
        self._see_job()
        if admin_comment is not None:
            self.calls.append(("comment", job, admin_comment))
        if start_now:
            self.calls.append(("start", job))
        if hold:
            self.calls.append(("hold", job))
        if dependency is not None:
            self.calls.append(("dependency", job, dependency))

    def save_nodes(self, node: NodeState) -> None:
        self.saves.append(node.name)

    def save_all(self, job: JobState) -> None:
        self._see_job()
        self.saves.append(job.id)

    def requeue(self, job: int | str) -> None:
        self._see_job()
        self.calls.append(("requeue", job))

    def requeue_held(self, job: int | str) -> None:
        self._see_job()
        self.calls.append(("requeue_held", job))

    def release(self, job: int | str) -> None:
        self._see_job()
        self.calls.append(("release", job))

    def cancel(self, jobs: Iterable[int | str]) -> None:
        self.calls.append(("cancel", *jobs))

    def reconfigure(self) -> None:
        self.calls.append(("reconfigure",))

    def open_partitions(self) -> list[str]:
        return []

    def _see_job(self) -> None:
        if self.refuse_job_updates:
            raise SlurmError(["scontrol"], 1, "Job has already finished")


class FakeDriver(Driver):
    """A cloud that answers each launch with the next of `answers` (the last one again), or accepts it."""

    launch_threads = LAUNCH_THREADS

    def __init__(self) -> None:
        self.machines: list[Machine] = []
        self.launches: list[LaunchGroup] = []
        self.answers: list[tuple[Failure, ...] | Exception] = []
        self.terminated: list[str] = []
        self.free: int | None = None
        self.obstacle = Failure((), ErrorClass.QUOTA, "Code", "there is no more")
        self.asked: list[tuple[str, str | None, int]] = []
        self.where: dict[str, Place] = {}
        self.gate = threading.Event()
        self.gate.set()

    def launch(self, group: LaunchGroup) -> LaunchResult:
        self.launches.append(group)
        assert self.gate.wait(60)
        answer = self.answers.pop(0) if self.answers else ()
        if isinstance(answer, Exception):
            raise answer
        lost = {name for failure in answer for name in failure.nodes}
        made = {name: f"m-{name}" for name in group.nodes if name not in lost}
        self.machines += [Machine(i, n, MachineState.RUNNING, time.time()) for n, i in made.items()]
        return LaunchResult(made, answer)

    def terminate(self, ids: Sequence[str]) -> None:
        self.terminated += ids
        self.machines = [m for m in self.machines if m.id not in ids]

    def list(self) -> list[Machine]:
        return list(self.machines)

    def available_capacity(self, partition: str, zone: str | None, count: int) -> AvailableCapacity | None:
        """Return `free` machines, limited by `obstacle`; `None` means that this cloud cannot tell."""
        self.asked.append((partition, zone, count))
        if self.free is None:
            return None
        return AvailableCapacity(count) if self.free >= count else AvailableCapacity(self.free, self.obstacle)

    def places(self, machines: Sequence[Machine]) -> dict[str, Place]:
        return {str(m.node): self.where[str(m.node)] for m in machines if m.node in self.where}


@contextmanager
def running(elastic: Elastic) -> Iterator[None]:
    """Run the daemon's threads, which stop afterwards so that they do not disturb later tests."""
    resting, forever = threading.Semaphore(0), threading.Event()

    def rest(*_: object) -> None:
        resting.release()
        forever.wait()

    threading.Thread(target=elastic.run, daemon=True).start()
    try:
        yield
    finally:
        elastic.process = rest  # type: ignore[method-assign, assignment]
        elastic.look = elastic.capacity_limiter.step.run = rest  # type: ignore[method-assign]
        elastic._queue.put({})
        elastic.capacity_limiter._pools._news.set()
        for _ in ("requests", "reconcile", "capacity"):
            assert resting.acquire(timeout=120)


class FakeServices(Services):
    """Records what is started. Nothing runs."""

    def __init__(self) -> None:
        self.started: list[Service] = []

    def start(self, service: Service) -> int:
        self.started.append(service)
        return 2**22 + len(self.started)  # no process has such a pid

    def stop(self, name: str) -> None:
        """Nothing runs."""

    def tend(self) -> None:
        """Nothing dies."""

    def keep(self) -> None:
        raise AssertionError("a boot is not the services' life")
