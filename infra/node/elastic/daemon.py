"""The elastic daemon on the controller: answers Slurm's programs, launches, gives back, reconciles.

It holds no truth of its own: Slurm knows the nodes, the cloud knows the machines, and after a restart the
next reconcile pass finds what was under way. Nothing that slurmctld waits for calls the cloud.
"""

from __future__ import annotations

import fcntl
import json
import os
import queue
import signal
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from infra.node import rpc
from infra.node.codec import from_json
from infra.node.elastic import drivers
from infra.node.elastic.boots import FailedBoots
from infra.node.elastic.client import WAIT_ROUND_SECONDS
from infra.node.elastic.driver import Driver, LaunchGroup, LaunchResult, Machine, MachineState
from infra.node.elastic.errors import POLICIES, ErrorClass, Failure
from infra.node.elastic.launch import groups
from infra.node.elastic.ledger import Ledger
from infra.node.elastic.observer import Observer
from infra.node.elastic.plan import (
    BOOTSTRAP,
    Action,
    Memory,
    NodePhase,
    NodeView,
    Observation,
    Policy,
    Verb,
    plan,
)
from infra.node.model import ClusterDesign, Folders, Settings
from infra.node.slurm.control import Control, SlurmError
from infra.node.slurm.hostlist import expand, fold
from infra.node.slurm.states import NodeState
from infra.node.slurm.version import ResumeJob, ResumeRequest, parse_resume

RETRY_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)
LAUNCH_THREADS = 4
REASON_PREFIX = "slurm-stacks "
"""Marks reasons that are ours: a node with any other reason was taken out by a person."""
SLURMS_REASONS = (
    "Not responding",
    "ResumeTimeout reached",
    "Node unexpectedly rebooted",
    "NO NETWORK ADDRESS",
)


class Elastic:
    """The daemon's work, apart from its process.

    Args:
        lib: where requests are left while the daemon is down, and the ledger lies.
    """

    def __init__(self, settings: Settings, control: Control, driver: Driver, lib: Path) -> None:
        self._design: ClusterDesign = settings.design
        self._control = control
        self._driver = driver
        self._lib = lib
        self._ledger = Ledger(lib / "ledger.json", settings.design, time.monotonic)
        self._observer = Observer(
            control.nodes, lambda: {job.id for job in control.jobs().values() if not job.is_over}
        )
        self._memory = Memory()
        self._lock = threading.Lock()
        self._busy: dict[str, int] = {}
        self._paused: dict[str, tuple[float, int, Failure]] = {}
        self._boots = FailedBoots()
        self._queue: queue.Queue[dict[str, Any]] = queue.Queue()
        self._pool = ThreadPoolExecutor(LAUNCH_THREADS, thread_name_prefix="launch")
        self._ending = ThreadPoolExecutor(LAUNCH_THREADS, thread_name_prefix="terminate")
        timers = settings.design.slurm
        interval = timers.reconcile_interval
        self._policy = Policy(
            settle=max(5.0, 2 * interval),
            launch=max(10.0, 3 * interval),
            boot=float(timers.resume_timeout),
            silence=max(5.0, interval),
        )
        self._interval = interval

    # --- requests ----------------------------------------------------------------------------------------

    def handle(self, method: str, params: dict[str, Any]) -> Any:
        if method == "ping":
            return {"pid": os.getpid()}
        if method == "request":
            self._queue.put(params["request"])
            return {}
        if method == "wait":
            nodes = expand(params["nodes"])
            over = self._observer.wait(params["job"], nodes, params["asked"], WAIT_ROUND_SECONDS)
            return {"over": over}
        if method == "status":
            return self.status()
        raise ValueError(f"no call is named {method!r}")

    def run(self) -> None:
        """Requests that were left while the daemon was down, then requests and reconciling, for ever."""
        for file in sorted((self._lib / "requests").glob("*.json")):
            self._queue.put({**json.loads(file.read_text()), "late": True})
            file.unlink()
        threading.Thread(target=self._reconcile_loop, daemon=True, name="reconcile").start()
        while True:
            request = self._queue.get()
            try:
                self.process(request)
            except Exception:  # one bad request must not end the daemon; the reconciler mends what is left
                traceback.print_exc()

    def process(self, request: dict[str, Any]) -> None:
        """One request of Slurm's: resume, resume-fail or suspend."""
        log(f"{request['program']} {request['nodes']}")
        if request["program"] == "suspend":
            # Not here: a machine may take seconds to end, and a resume behind it must not wait for that.
            self._ending.submit(self._suspend, expand(request["nodes"]), request["time"])
        elif request["program"] == "resume":
            text = request.get("resume_file")
            wish = parse_resume(text) if text else ResumeRequest(tuple(expand(request["nodes"])))
            if request.get("late"):
                wish = self._still_wanted(wish)
            self._resume(wish, request["id"])
        elif request["program"] == "resume-fail":
            # Slurm has set these nodes DOWN; the reconciler gives them back with the machine's state at hand.
            log(f"not registered in time: {request['nodes']}")

    def _resume(self, wish: ResumeRequest, request_id: str) -> None:
        calls, strangers = groups(wish, self._design, request_id)
        if strangers:
            log(f"Slurm asks for nodes that the design has not: {fold(strangers)}")
        jobs = {node: job.job_id for job in wish.jobs for node in job.nodes}
        for group in calls:
            self._mark(group.nodes, +1)
            self._pool.submit(self._launch, group, jobs)

    def _launch(self, group: LaunchGroup, jobs: dict[str, int]) -> None:
        try:
            failures = self._paused_failure(group)
            if not failures:
                result = self._call(group)
                failures = result.failures
                self._remember(group.partition, failures)
                log(f"launched {fold(result.launched) or 'nothing'} in one call, job {group.job}")
            for failure in failures:
                self._give_up(failure, jobs)
        except Exception:  # a driver's surprise: the reconciler asks again
            traceback.print_exc()
        finally:
            self._mark(group.nodes, -1)

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

    def _paused_failure(self, group: LaunchGroup) -> tuple[Failure, ...]:
        """The failure that this pool has just had, while its back-off lasts."""
        with self._lock:
            until, _streak, failure = self._paused.get(group.partition, (0.0, 0, None))
        if failure is None or time.monotonic() >= until:
            return ()
        return (Failure(group.nodes, failure.kind, failure.code, failure.message),)

    def _remember(self, partition: str, failures: tuple[Failure, ...]) -> None:
        with self._lock:
            if not failures:
                self._paused.pop(partition, None)
                return
            failure = failures[0]
            policy = POLICIES[failure.kind]
            streak = self._paused.get(partition, (0.0, 0, failure))[1]
            pause = min(policy.backoff * 2**streak, policy.backoff_max)
            self._paused[partition] = (time.monotonic() + pause, streak + 1, failure)

    def _give_up(self, failure: Failure, jobs: dict[str, int]) -> None:
        """Give nodes back to Slurm, with the cause where people look: the node, and the jobs that waited."""
        sentence = failure.sentence()
        log(f"gives back {fold(failure.nodes)}: {sentence}")
        for job in sorted({jobs[node] for node in failure.nodes if node in jobs}):
            try:
                self._control.update_job(job, admin_comment=sentence)
            except SlurmError as error:  # the job may have been cancelled meanwhile
                log(f"job {job}: {error}")
        self._control.power_down_force(failure.nodes, REASON_PREFIX + sentence)

    def _give_up_boots(self, nodes: list[str], why: str) -> None:
        """Give back nodes whose machines came up and did not register. The next try is on others."""
        failure = Failure(tuple(nodes), ErrorClass.BOOTSTRAP, "boot", why)
        jobs = {n: job.id for job in self._control.jobs().values() if not job.is_over for n in job.nodes}
        for partition in {p.name for n in nodes if (p := self._design.partition_of(n))}:
            if pause := self._boots.failed(partition, time.time()):
                with self._lock:
                    self._paused[partition] = (time.monotonic() + pause, 0, failure)
        self._give_up(failure, jobs)
        self._control.avoid(nodes)

    def _still_wanted(self, wish: ResumeRequest) -> ResumeRequest:
        """What Slurm waits for even now: a request may have lain here while its job was cancelled."""
        nodes = self._control.nodes()
        left = tuple(n for n in wish.all_nodes if n in nodes and nodes[n].is_powering_up)
        return ResumeRequest(left, wish.jobs)

    def _suspend(self, nodes: list[str], asked: float) -> None:
        """Args:
        asked: when, in seconds since the epoch: a machine launched after it is for the node's next job.
        """
        try:
            wanted = set(nodes)
            machines = self._driver.list()
            ids = [m.id for m in machines if m.node in wanted and m.state.alive and m.launched <= asked]
            if ids:
                self._driver.terminate(ids)
                log(f"terminated {len(ids)} machines of {fold(nodes)}")
        except Exception:  # the reconciler finds machines whose nodes are off
            traceback.print_exc()

    def _mark(self, nodes: tuple[str, ...], by: int) -> None:
        with self._lock:
            for node in nodes:
                self._busy[node] = self._busy.get(node, 0) + by
                if not self._busy[node]:
                    del self._busy[node]

    # --- reconcile ---------------------------------------------------------------------------------------

    def _reconcile_loop(self) -> None:
        while True:
            time.sleep(self._interval)
            try:
                self.reconcile()
            except (SlurmError, rpc.RpcUnavailableError, rpc.RpcError) as error:
                log(f"reconcile: {error}")
            except Exception:  # the next pass reads everything anew
                traceback.print_exc()

    def reconcile(self) -> list[Action]:
        """One pass: read all of Slurm, then all of the cloud, decide, act."""
        with self._lock:
            busy = set(self._busy)
        nodes = self._control.nodes()
        machines = self._driver.list()
        with self._lock:
            busy |= set(self._busy)
        self._ledger.see(machines, time.time())
        self._see_successes(nodes, machines)
        static = {node for p in self._design.partitions for node in p.static_nodes()}
        views = tuple(
            NodeView(name, phase(state), held(state), name in static) for name, state in sorted(nodes.items())
        )
        observation = Observation(views, tuple(machines), frozenset(busy))
        actions, self._memory = plan(observation, self._memory, time.monotonic(), self._policy)
        self._apply(actions)
        return actions

    def _see_successes(self, nodes: dict[str, NodeState], machines: list[Machine]) -> None:
        for machine in machines:
            partition = self._design.partition_of(machine.node) if machine.node in nodes else None
            if partition is not None and nodes[str(machine.node)].is_up:
                self._boots.came_up(partition.name, machine.launched)

    def _apply(self, actions: list[Action]) -> None:
        for action in actions:
            log(f"{action.verb} {action.node or ''} {action.machine or ''}: {action.reason}")
        if ids := [a.machine for a in actions if a.verb is Verb.TERMINATE and a.machine]:
            self._driver.terminate(ids)
        by_reason: dict[str, list[str]] = {}
        for action in actions:
            if action.verb is Verb.POWER_DOWN and action.node:
                by_reason.setdefault(action.reason, []).append(action.node)
        for reason, nodes in by_reason.items():
            if reason.startswith(BOOTSTRAP):
                self._give_up_boots(nodes, reason.removeprefix(BOOTSTRAP))
            else:
                self._control.power_down_force(nodes, REASON_PREFIX + reason)
        if up := [a.node for a in actions if a.verb is Verb.POWER_UP and a.node]:
            self._control.power_up(up)
        if lost := [a.node for a in actions if a.verb is Verb.LAUNCH and a.node]:
            # With the jobs that wait for them, so that a job of several nodes is whole this time too.
            waiting = [job for job in self._control.jobs().values() if job.state == "CONFIGURING"]
            jobs = tuple(ResumeJob(job.id, job.nodes) for job in waiting)
            self._resume(ResumeRequest(tuple(lost), jobs), f"reconcile-{time.time():.6f}")

    # --- status ------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What the cluster is doing, in the shape of `./cluster status --json` (a contract)."""
        nodes = self._control.nodes()
        machines = [m for m in self._driver.list() if m.state is not MachineState.TERMINATED]
        jobs = self._control.jobs()
        by_node = {m.node: m for m in machines if m.node}
        return {
            "partitions": [
                {
                    "name": p.name,
                    "machine": p.machine,
                    "min": p.min,
                    "max": p.max,
                    "up": sum(1 for n in p.nodes() if n in nodes and nodes[n].is_up),
                }
                for p in self._design.partitions
            ],
            "nodes": [
                {
                    "name": name,
                    "partition": getattr(self._design.partition_of(name), "name", None),
                    "state": state_text(state),
                    "machine_state": by_node[name].state.value if name in by_node else None,
                    "reason": state.reason,
                }
                for name, state in nodes.items()
            ],
            "machines": {
                "running": sum(1 for m in machines if m.state is MachineState.RUNNING),
                "pending": sum(1 for m in machines if m.state is MachineState.PENDING),
            },
            "jobs": [
                {
                    "id": job.id,
                    "name": job.name,
                    "state": job.state,
                    "nodes": fold(job.nodes),
                    "cause": job.cause,
                }
                for job in jobs.values()
                if not job.is_over
            ],
            "cost": self._ledger.cost(time.time()),
        }


def phase(state: NodeState) -> NodePhase:
    """Slurm's flags as the reconciler's phases."""
    if state.is_powering_down:
        return NodePhase.POWERING_DOWN
    if state.is_powered_down:
        return NodePhase.POWERED_DOWN
    if state.is_powering_up:
        return NodePhase.POWERING_UP
    if state.is_down or state.is_silent:
        return NodePhase.DOWN
    return NodePhase.UP


def state_text(state: NodeState) -> str:
    """Slurm's own notation: IDLE+CLOUD+POWERED_DOWN."""
    return "+".join([state.base, *sorted(state.flags)])


def held(state: NodeState) -> bool:
    """A person took the node out of service, and only a person brings it back."""
    reason = state.reason or ""
    ours = not reason or reason.startswith((REASON_PREFIX, *SLURMS_REASONS))
    return (state.is_drained or state.is_down) and not ours


def log(message: str) -> None:
    print(f"{time.strftime('%FT%TZ', time.gmtime())} {message}", flush=True)


def main(settings_file: str) -> None:
    """The daemon's process: one at a time, by a lock, so that no machine is launched twice."""
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    settings = from_json(Settings, json.loads(Path(settings_file).read_text()))
    folders = Folders(settings)
    # Held until the process ends, however it ends.
    lock = os.open(str(folders.lib / "elastic.lock"), os.O_CREAT | os.O_WRONLY, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    control = Control(str(folders.slurm_conf))
    elastic = Elastic(settings, control, drivers.load(settings), Path(str(folders.lib)))
    server = rpc.Server(str(folders.daemon_socket), elastic.handle)
    threading.Thread(target=server.serve, daemon=True).start()
    log(f"the elastic daemon serves {settings.design.name}")
    elastic.run()
