"""A simulated Slurm for the elastic daemon: power states, registration, silence, requeues. It models 22.05.

Every transition here was seen with a real slurmctld: what `POWER_DOWN_FORCE` leaves, how long a dead node
stays `UP`, when a requeued job may start (tests/cluster); what becomes of suspended and held jobs and of
arrays (`tests/node/test_simulated_slurm.py`, one scenario for both).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from node.design.model import SlurmSettings
from node.slurm.control import Slurm, SlurmDown, SlurmError
from node.slurm.reservations import Reservation
from node.slurm.states import JobState, NodeState
from tests.support import simulated_jobs
from tests.support.doubles import job as job_state
from tests.support.simulated_disk import Disk
from tests.support.simulated_jobs import HELD_BY_ADMIN, HELD_BY_USER, HOLDING, OVER, UNSTARTED, Job, Jobs

REQUEUE_PAUSE = 31.0
"""cred_expire + 1."""
LAUNCH_SECONDS = 11.0
"""Seconds until slurmctld gives up delivering a job's script to a machine that does not exist."""
DOWN_AFTER = 13.0
"""Seconds from the first ping without an answer to DOWN."""
REGISTER_SECONDS = 4.0
"""Seconds from the controller's start until it has heard its nodes."""
END_LIMIT = 1e9
"""A time at which no simulated history arrives."""


@dataclass
class Node:
    """A node.

    Attributes:
        power: down | asked (a job holds it, ResumeProgram is not called yet) | rising | up | falling
        leave: Whether POWER_DOWN_ASAP or POWER_DOWN_FORCE was requested.
        lost: Whether slurmctld started while the node was off and silent, and so never uses it.
        told: Whether its slurmd has registered already, and slurmctld has forgotten it.
        reboot: Whether somebody has asked for its reboot (REQUESTED), and RebootProgram was called (ISSUED).
        next_state: The state after the reboot.
    """

    name: str
    partition: str
    power: str = "down"
    drained: bool = False
    down: bool = False
    silent: bool = False
    leave: str | None = None
    reason: str | None = None
    boot: float | None = None
    asked_at: float = 0.0
    falls_until: float = 0.0
    heard_at: float = 0.0
    idle_since: float = 0.0
    weight: int = 1
    lost: bool = False
    told: bool = False
    reboot: str | None = None
    next_state: str | None = None

    def flags(self) -> frozenset[str]:
        found = {"CLOUD"}
        found |= {"down": {"POWERED_DOWN"}, "asked": {"POWERED_DOWN"}, "rising": {"POWERING_UP"}}.get(
            self.power, set()
        )
        if self.power == "falling":
            found.add("POWERING_DOWN")
        if self.leave:
            found.add("POWER_DOWN")
        if self.reboot:
            found.add(f"REBOOT_{self.reboot}")
        if self.drained:
            found.add("DRAIN")
        if self.silent:
            found.add("NOT_RESPONDING")
        return frozenset(found)


class SimulatedSlurm(Slurm):
    """The controller, and the calls that it answers.

    Args:
        clock: Returns seconds on a clock that never jumps.
        program: Called as Slurm calls its programs, with a request as `elastic.client` makes it.
        machine_of: Returns the machine that answers as a node's slurmd now, as (id, boot); `None` means none
            does.
        pools: Node -> the pool from which a job with this node has all of its nodes. The first pool with
            enough of them is taken.

    Attributes:
        refused_starts: How many of the next starts fail at the node, after which Slurm holds the job.
    """

    def __init__(
        self,
        nodes: Iterable[tuple[str, str]],
        timers: SlurmSettings,
        static: Iterable[str],
        clock: Callable[[], float],
        program: Callable[[dict[str, Any]], None],
        machine_of: Callable[[str], tuple[str, float] | None],
        pools: Mapping[str, str] | None = None,
    ) -> None:
        self._pools = pools or {}
        self.members = {name: Node(name, partition) for name, partition in nodes}
        self._jobs = Jobs()
        self.timers = timers
        self.alive = True
        self._static = set(static)
        self._clock = clock
        self._program = program
        self._machine_of = machine_of
        self.refused_starts = 0
        self._hears_from = 0.0
        self._undelivered: list[tuple[float, Job, int]] = []
        self._disk = Disk()
        self.wrongs: list[str] = []
        """What must never be."""
        self.before_kill: Callable[[Node, list[Job]], None] = lambda node, jobs: None

    # --- the user and the world --------------------------------------------------------------------------

    @property
    def queue(self) -> dict[int, Job]:
        """Return all jobs that it remembers, by id."""
        return self._jobs.all

    def submit(
        self,
        count: int,
        work: float,
        requeue: bool = True,
        partition: str = "debug",
        *,
        held: bool = False,
        reboot: bool = False,
    ) -> Job:
        self._disk.due = True
        hold = HELD_BY_USER if held else None
        return self._jobs.add(Job(0, count, work, requeue, partition, held=hold, reboot=reboot))

    def reboot(self, name: str, *, asap: bool = False, next_state: str | None = None) -> None:
        """Ask for a node's reboot as `scontrol reboot` does. A node that is off is left out."""
        self._answer()
        node = self.members[name]
        if node.power in ("down", "falling") or node.leave or node.reboot:
            return
        self._disk.due = True
        node.reboot = "REQUESTED"
        node.next_state = next_state or ("RESUME" if asap else None)
        node.drained = node.drained or asap
        node.reason = node.reason or ("Reboot ASAP" if asap else "reboot requested")

    def submit_array(
        self, tasks: Iterable[int], count: int, work: float, *, limit: int | None = None, requeue: bool = True
    ) -> Job:
        """Submit an array. Its tasks are one job until they begin; each then gets its own id."""
        made = self._jobs.add(Job(0, count, work, requeue, "debug", tasks=tuple(tasks), limit=limit))
        made.array = made.id
        self._disk.due = True
        return made

    def suspend(self, job: int | str) -> None:
        """Suspend a job, as an administrator does who wants the nodes for something else."""
        self._answer()
        self._disk.due = True
        for one in self._jobs.named(job):
            simulated_jobs.suspend(one, self._clock())

    def resume(self, job: int | str) -> None:
        self._answer()
        self._disk.due = True
        for one in self._jobs.named(job):
            simulated_jobs.resume(one, self._clock())

    def stop(self) -> None:
        """Stop as requested, with its state saved."""
        self.alive = False

    def kill(self, *, requeues: bool = False) -> None:
        """Lose what was not saved. Only what a boot may have changed since is modelled, and requeues.

        Args:
            requeues: Whether it had not saved yet that jobs are requeued which are still ending. It then
                takes them for running ones, but their scripts have got SIGTERM.
        """
        self.alive = False
        self._disk.restore(self.members.values(), self.queue.values())
        for one in self.queue.values():
            if requeues and one.state == "COMPLETING":
                one.state, one.dies_at, one.ends_at, one.comment = "RUNNING", one.ends_at, END_LIMIT, None

    def start(self, lost: bool = False) -> None:
        """Start the controller.

        Args:
            lost: Whether its saved state is lost: it then has no job, and every node is off.
        """
        self.alive = True
        self._undelivered = []
        self._hears_from = self._clock() + REGISTER_SECONDS
        for name, node in self.members.items():
            node.heard_at = self._clock()
            if lost:
                self.members[name] = Node(name, node.partition)
            elif node.power == "up":
                node.boot = None
            node.lost = node.silent and node.power == "down"
        if lost:
            self.queue.clear()

    def jobs_on(self, node: str) -> list[Job]:
        """Return the jobs that use the node, without suspended ones."""
        return [j for j in self.queue.values() if node in j.nodes and j.state in HOLDING]

    def all_on(self, node: str) -> list[Job]:
        """Return the jobs that use the node, including suspended ones."""
        return [j for j in self.queue.values() if node in j.nodes and j.state in (*HOLDING, "SUSPENDED")]

    def tick(self) -> None:
        if not self.alive:
            return
        for node in self.members.values():
            self._hear(node)
            self._power(node)
        self._deliver()
        for one in list(self.queue.values()):
            self._progress(one)
        self._schedule()
        self._resume()
        self._disk.tick(self._clock(), self.members.values(), self.queue.values())

    # --- what is asked of it -----------------------------------------------------------------------------

    def run(self, *command: str) -> str:
        """Run a command that changes nothing.

        Raises:
            NotImplementedError: The command changes something: the model has methods for these.
        """
        self._answer()
        if command[:2] != ("scontrol", "notify"):
            raise NotImplementedError(command)
        return ""

    def show_partitions(self) -> str:
        self._answer()
        return ""

    def show_config(self) -> str:
        self._answer()
        return ""

    def ping(self) -> bool:
        return self.alive

    def reconfigure(self) -> None:
        """Do nothing: its configuration does not change here."""
        self._answer()

    def nodes(self) -> dict[str, NodeState]:
        self._answer()
        return {name: self._state(node) for name, node in self.members.items()}

    def detailed_nodes(self) -> dict[str, NodeState]:
        return self.nodes()

    def jobs(self) -> dict[int, JobState]:
        self._answer()
        return {one.id: self._job_state(one) for one in self.queue.values()}

    def detailed_jobs(self) -> dict[int, JobState]:
        return self.jobs()

    def owners(self) -> dict[int, dict[str, str]]:
        return {}

    def dependencies(self) -> dict[int, str]:
        return {}

    def reservations(self) -> list[Reservation]:
        return []

    def partition_states(self) -> dict[str, str]:
        return {node.partition: "UP" for node in self.members.values()}

    def update_node(
        self,
        nodes: Iterable[str],
        *,
        state: str | None = None,
        reason: str | None = None,
        weight: int | None = None,
    ) -> None:
        self._answer()
        refused = None
        self._disk.due = True
        for name in nodes:
            node = self.members.get(name)
            if node is None or (state == "RESUME" and not (node.drained or node.down)):
                refused = SlurmError(["scontrol"], 1, "Invalid node state specified")
                continue
            if weight is not None:
                node.weight = weight
            if reason is not None:
                node.reason = reason
            if state is not None:
                self._set(node, state)
        if refused:
            raise refused

    def update_job(
        self,
        job: int | str,
        *,
        admin_comment: str | None = None,
        start_now: bool = False,
        hold: bool = False,
        dependency: str | None = None,
    ) -> None:
        if dependency is not None:
            raise NotImplementedError(dependency)
        self._disk.due = True
        for one in self._named(job):
            if admin_comment is not None:
                one.comment = admin_comment or None
            if start_now:
                one.eligible_at = self._clock()
            if hold:
                one.held = HELD_BY_ADMIN

    def save_nodes(self, node: NodeState) -> None:
        self._answer()
        self._disk.due = True

    def save_all(self, job: JobState) -> None:
        self._named(job.spelling)
        self._disk.due = True

    def requeue(self, job: int | str) -> None:
        self._answer()
        for one in self._jobs.named(job, ended=True):
            if not one.requeue:
                raise SlurmError(["scontrol", "requeue"], 1, "Requested operation is presently disabled")
            self._send_back(one, kill_wait=3.0)

    def requeue_held(self, job: int | str) -> None:
        raise NotImplementedError("the simulation's jobs have no options that pass over topology.conf")

    def release(self, job: int | str) -> None:
        self._disk.due = True
        for one in self._named(job):
            if one.state != "SUSPENDED":
                one.held = None

    def cancel(self, jobs: Iterable[int | str]) -> None:
        self._answer()
        for name in jobs:
            with contextlib.suppress(SlurmError):
                for one in self._jobs.named(name):
                    self._end(one, "CANCELLED")

    # --- inside ------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        if not self.alive:
            raise SlurmDown(["scontrol"], 1, "Unable to contact slurm controller")

    def _named(self, spelling: int | str) -> list[Job]:
        self._answer()
        return self._jobs.named(spelling)

    def _set(self, node: Node, state: str) -> None:
        if state == "DRAIN":
            node.drained = True
        elif state == "DOWN":
            node.down = True
            for one in self.all_on(node.name):
                self._lose(one)
        elif state in ("UNDRAIN", "RESUME", "IDLE"):
            node.silent = node.silent or (state != "IDLE" and node.power in ("down", "falling"))
            node.drained, node.reason = False, None
            node.down = node.down and state == "UNDRAIN"
        elif state == "POWER_UP" and node.power == "down":
            node.power = "asked"
        elif state.startswith("POWER_DOWN") and node.reboot and node.power != "falling":
            # The reboot is cancelled, with the reason that this very command may have given.
            node.reboot = node.next_state = node.reason = None
            node.down = False
            self._set(node, state)
        elif state == "POWER_DOWN_FORCE" or (state == "POWER_DOWN_ASAP" and node.power != "down"):
            node.leave = state
            if state == "POWER_DOWN_ASAP":
                node.drained = True
                return
            held = self.all_on(node.name)
            self.before_kill(node, held)
            for one in held:
                self._lose(one)

    def _hear(self, node: Node) -> None:
        now = self._clock()
        machine = self._machine_of(node.name) if now >= self._hears_from else None
        if machine is not None and node.power == "rising" and machine[1] >= node.asked_at and not node.told:
            node.power, node.silent, node.boot, node.heard_at = "up", False, machine[1], now
            node.idle_since = now
        elif machine is not None and node.reboot == "ISSUED" and machine[1] < node.asked_at:
            node.heard_at = now  # "Still waiting for boot of node"
        elif machine is not None and node.power == "up":
            if node.reboot == "ISSUED":
                node.drained, node.reboot, node.next_state = False, None, None
            if node.down:  # ReturnToService=2
                node.down, node.reason = False, node.reason if node.drained else None
            node.silent, node.boot, node.heard_at = False, machine[1], now
            # "Node unexpectedly rebooted": the jobs on the node are lost.
            for one in self.all_on(node.name):
                if one.machines.get(node.name, machine[0]) != machine[0]:
                    self._lose(one)
        quiet = now - node.heard_at
        if node.power == "up" and quiet > self.timers.slurmd_timeout:
            node.silent = True
            if quiet > self.timers.slurmd_timeout + DOWN_AFTER and not node.down:
                node.down, node.reason = True, "Not responding"
                for one in self.all_on(node.name):
                    self._lose(one)

    def _power(self, node: Node) -> None:
        now = self._clock()
        # Its nodes count as idle under a suspended job, but are not powered down.
        held = bool(self.all_on(node.name))
        if held:
            node.idle_since = now
        if node.reboot == "REQUESTED" and node.power == "up" and not (held or node.silent):
            node.reboot, node.down, node.asked_at = "ISSUED", True, now
            node.reason = f"{node.reason} : reboot issued"
        elif node.reboot == "ISSUED" and now - node.asked_at > self.timers.resume_timeout:
            node.reboot, node.drained = None, False
            node.reason = f"{node.reason} : reboot timed out"
        if node.power == "rising" and now - node.asked_at > self.timers.resume_timeout:
            node.power, node.down, node.reason = "down", True, "ResumeTimeout reached"
            node.leave = None
            for one in self.jobs_on(node.name):
                self._lose(one)
            self._program({"program": "resume-fail", "nodes": node.name})
        elif node.power == "asked" and not held and node.name not in self._static:
            node.power = "down"
        elif node.leave and not held and node.power != "falling":
            self._fall(node)
        elif node.power == "up" and not (held or node.name in self._static):
            if now - node.idle_since > self.timers.suspend_time:
                self._fall(node)
        elif node.power == "falling" and now >= node.falls_until:
            node.power = "down"

    def _fall(self, node: Node) -> None:
        node.power, node.leave = "falling", None
        # As in Slurm's idle_on_node_suspend.
        node.drained = node.down = node.silent = node.lost = node.told = False
        node.reboot = node.next_state = None
        node.falls_until = self._clock() + self.timers.suspend_timeout
        self._program({"program": "suspend", "nodes": node.name})

    def _schedule(self) -> None:
        now = self._clock()
        for one in list(self.queue.values()):
            # As many tasks of a pending array begin as there are nodes for.
            while one.state == "PENDING" and not one.held and one.eligible_at <= now:
                free = self._free(one)
                if len(free) < one.count or self._jobs.is_full(one):
                    break
                begins = self._jobs.task(one, one.tasks[0]) if one.tasks else one
                begins.state, begins.nodes = "CONFIGURING", tuple(n.name for n in free[: one.count])
                begins.began = now
                self._disk.due = True
                if begins.reboot:
                    self._reboot(begins)
                for node in free[: one.count]:
                    if node.power == "down":
                        node.power = "asked"

    def _reboot(self, job: Job) -> None:
        """Call ResumeProgram for all nodes of a job that asks for a reboot, without a file."""
        for name in job.nodes:
            node = self.members[name]
            node.power, node.silent, node.asked_at = "rising", True, self._clock()
        self._program({"program": "resume", "nodes": ",".join(job.nodes), "job": str(job.id)})

    def _free(self, job: Job) -> list[Node]:
        free = [
            n
            for n in self.members.values()
            if n.partition == job.partition
            and n.power in ("up", "down")
            and not (n.drained or n.down or n.lost or n.leave or n.reboot == "ISSUED" or self.jobs_on(n.name))
            and not (n.silent and n.power == "up")
        ]
        free.sort(key=lambda n: (n.weight, n.power != "up"))
        pools = [[n for n in free if self._pools.get(n.name) == pool] for pool in self._pool_order()]
        return next((nodes for nodes in pools if len(nodes) >= job.count), max(pools, key=len))

    def _pool_order(self) -> list[str | None]:
        return list(dict.fromkeys(self._pools.get(name) for name in self.members))

    def _resume(self) -> None:
        asked = [n for n in self.members.values() if n.power == "asked"]
        if not asked:
            return
        for node in asked:
            node.power, node.silent, node.asked_at = "rising", True, self._clock()
        names = {n.name for n in asked}
        wishes = [
            {"job_id": one.id, "nodes": ",".join(sorted(names & set(one.nodes)))}
            for one in self.queue.values()
            if one.state == "CONFIGURING" and names & set(one.nodes)
        ]
        self._program({"program": "resume", "nodes": ",".join(sorted(names)), "jobs": wishes})

    def _deliver(self) -> None:
        """Give up batch scripts that no machine accepted: their jobs are requeued, whatever run they have."""
        now = self._clock()
        due = [one for one in self._undelivered if one[0] <= now]
        self._undelivered = [one for one in self._undelivered if one[0] > now]
        for _, job, run in due:
            if job.state not in ("CONFIGURING", "RUNNING"):
                continue
            if job.restarts != run:
                self.wrongs.append(f"{now:.0f} run {job.restarts} of job {job.id} ends for run {run}")
            self._pend(job)

    def _progress(self, one: Job) -> None:
        now = self._clock()
        if one.state == "CONFIGURING" and all(self.members[n].power == "up" for n in one.nodes):
            found = {n: self._machine_of(n) for n in one.nodes}
            one.machines = {n: m[0] for n, m in found.items() if m is not None}
            if self.refused_starts:
                self.refused_starts -= 1
                self._pend(one)
                one.held = UNSTARTED
                return
            one.state, one.began, one.ends_at = "RUNNING", now, now + one.work
            if found[one.nodes[0]] is None:
                self._undelivered.append((now + LAUNCH_SECONDS, one, one.restarts))
        elif one.dies_at is not None and one.state in ("RUNNING", "SUSPENDED") and now >= one.dies_at:
            if self._runs(one, one.nodes[0]):
                self._end(one, "FAILED")
        elif one.state == "RUNNING" and now >= one.ends_at:
            if all(self._runs(one, n) for n in one.nodes):
                self._end(one, "COMPLETED")
        elif one.state == "COMPLETING" and now >= one.ends_at:
            self._pend(one)

    def _runs(self, one: Job, node: str) -> bool:
        machine = self._machine_of(node)
        # A node that did not answer when the job began gets its part of the job when it does.
        return machine is not None and machine[0] == one.machines.setdefault(node, machine[0])

    def _lose(self, one: Job) -> None:
        if one.requeue:
            self._send_back(one, kill_wait=0.0)
        else:
            self._end(one, "NODE_FAIL")

    def _send_back(self, one: Job, kill_wait: float) -> None:
        if one.state in ("RUNNING", "SUSPENDED") and kill_wait:
            one.state, one.ends_at = "COMPLETING", self._clock() + kill_wait
        elif one.state in (*HOLDING, *OVER, "SUSPENDED"):
            self._pend(one)

    def _pend(self, one: Job) -> None:
        self._disk.due = True
        one.state, one.nodes, one.machines, one.dies_at = "PENDING", (), {}, None
        one.restarts += 1
        one.eligible_at = self._clock() + REQUEUE_PAUSE

    def _end(self, one: Job, state: str) -> None:
        self._disk.due = True
        one.state, one.nodes, one.machines, one.dies_at = state, (), {}, None

    def _state(self, node: Node) -> NodeState:
        held = bool(self.jobs_on(node.name))
        base = "DOWN" if node.down else ("ALLOCATED" if held else "IDLE")
        return NodeState(
            node.name,
            base,
            node.flags(),
            node.reason,
            boot_time=None if node.boot is None else self.epoch(node.boot),
            next_state=node.next_state,
            partitions=(node.partition,),
            cpus_alloc=int(held),
            cpus=1,
        )

    def _job_state(self, one: Job) -> JobState:
        return job_state(
            one.id,
            one.state,
            reason=self._reason(one),
            priority=0 if one.held else 1,
            array_job=one.array,
            array_task=one.indices,
            partition=one.partition,
            nodes=one.nodes,
            wanted_nodes=one.count,
            requeue=one.requeue,
            restarts=one.restarts,
            eligible_time=self.epoch(one.eligible_at),
            start_time=None if one.began is None or one.state == "PENDING" else self.epoch(one.began),
            admin_comment=one.comment,
        )

    def _reason(self, one: Job) -> str:
        if one.held and one.state != "SUSPENDED":
            return one.held
        if one.state != "PENDING":
            return "None"
        if self._jobs.is_full(one):
            return "JobArrayTaskLimit"
        return "BeginTime" if one.eligible_at > self._clock() else "Resources"

    epoch: Callable[[float], float] = staticmethod(lambda moment: moment)
    """From the clock that never jumps to seconds since the epoch."""
