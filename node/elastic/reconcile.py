"""The reconciler: reads all of Slurm and all of the cloud, asks the pure `plan()` what to do, and does it.

Slurm's traps (docs/internals/slurm_traps.md): suspended-jobs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial

from node.design.model import ClusterDesign, SlurmSettings
from node.elastic.driver import Driver, Machine
from node.elastic.launcher import Launcher, nodes_in_use
from node.elastic.ledger import Ledger
from node.elastic.plan import Action, Memory, NodeView, Observation, Policy, plan
from node.elastic.requeue import Requeue
from node.elastic.rules import (
    BOOTSTRAP,
    EMPTIED,
    GONE,
    HEALTH,
    PREEMPTED,
    REBOOT,
    TAKEN,
    MachinePhase,
    NodePhase,
    Verb,
)
from node.elastic.view import (
    REASON_PREFIX,
    has_admin_reason,
    has_capacity_drain,
    is_admin_disabled,
    log,
    phase,
)
from node.slurm.control import Slurm, SlurmDown
from node.slurm.resume_request import ResumeJob, ResumeRequest
from node.slurm.states import NodeState

FRESH_SECONDS = 0.5
"""How old a reading of the nodes may be before a step reads them again.

A new reading for each of a thousand steps would take minutes.
"""


def policy_of(timers: SlurmSettings) -> Policy:
    """Return the durations that follow from Slurm's timers and from the pause between two passes."""
    interval, boot = timers.reconcile_interval, float(timers.resume_timeout)
    settle = max(5.0, 2 * interval)
    return Policy(
        settle=settle,
        launch=max(10.0, 3 * interval),
        # Shorter than Slurm's own ResumeTimeout: Slurm would set the node DOWN without a cause.
        boot=max(boot / 2, boot - 3 * interval - 2),
        silence=settle,
        doubt=max(60.0, 3 * interval),
        # Shorter than any grace period: an old observation and one new reading are never enough.
        credit=max(settle / 2, 1.5 * interval),
    )


class Reconciler:
    """The reconciler, which makes Slurm's nodes and the cloud's machines agree.

    It keeps no state of its own except since when it has seen each combination of states.

    Args:
        design: The cluster's design.
        control: Slurm's commands.
        driver: The cloud.
        launcher: Launches machines.
        ledger: Records how long machines ran.
        requeue: Requeues jobs whose machines are lost.
        outdated_nodes: Returns the nodes whose lines in slurm.conf are from an earlier stack file
            (`node.slurm.hardware`).

    Attributes:
        nodes: Slurm's nodes, as the last pass has read them; none if Slurm did not answer.
        read_at: When the last pass began to read them, in seconds since the epoch.
        read_began: The same on `time.monotonic`.
        seen: The machines, as the last pass that could list them has seen them.
    """

    def __init__(
        self,
        design: ClusterDesign,
        control: Slurm,
        driver: Driver,
        launcher: Launcher,
        ledger: Ledger,
        requeue: Requeue,
        outdated_nodes: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        self._outdated_nodes = outdated_nodes
        self._design = design
        self._control = control
        self._driver = driver
        self._launcher = launcher
        self._ledger = ledger
        self._memory = Memory()
        self._views: dict[str, tuple[NodeState, NodeView]] = {}
        self.nodes: Mapping[str, NodeState] = {}
        self.read_at = 0.0
        self.read_began = math.inf
        self.seen: list[Machine] = []
        # What counts accelerators in use takes its answer from the same reading.
        has_accelerators = any(partition.accelerator for partition in design.partitions)
        self._read_nodes = control.detailed_nodes if has_accelerators else control.nodes
        self._requeue = requeue
        self._static = design.static_nodes()
        self.interval = design.slurm.reconcile_interval
        self.policy = policy_of(design.slurm)

    def once(self) -> list[Action]:
        """Run one pass.

        Returns:
            What was decided.

        Raises:
            SlurmError: slurmctld does not answer. The next pass reads everything again.
            RpcError, RpcUnavailableError: The cloud refuses, or does not answer.
        """
        busy, before = self._launcher.busy(), self._ledger.newest()
        self.nodes, self.read_at, self.read_began = {}, time.time(), time.monotonic()
        nodes = self.nodes = self._read_nodes()
        machines = self.seen = self._driver.list()
        busy |= self._launcher.busy()
        unlisted = self._launcher.unlisted(m.id for m in machines)
        self._launcher.see(machines)
        up = {name for m in machines if (name := m.node or "") in nodes and nodes[name].is_up}
        self._ledger.see(machines, time.time(), up)
        self._see_successes(nodes, machines)
        outdated_nodes = self._outdated_nodes()
        views = self._all_views(nodes, outdated_nodes)
        # A node gets its new line in slurm.conf only after its old machine is gone.
        machines = [replace(m, outdated=True) if m.node in outdated_nodes else m for m in machines]
        newest = self._ledger.newest()
        # An earlier daemon may have been killed before it heard that Slurm had powered these nodes down.
        off = [n for n, _ in before.items() & newest.items() if n in nodes and nodes[n].is_powered_down]
        self._ledger.forget(node for node in off if node not in busy)
        observation = Observation(views, tuple(machines), frozenset(busy), unlisted, newest, time.time())
        actions, self._memory = plan(observation, self._memory, time.monotonic(), self.policy)
        self._requeue.watch(views)
        lost = [a for a in actions if a.node and a.reason.startswith((TAKEN, GONE))]
        self._launcher.taken_back({str(a.node): newest.get(str(a.node)) or str(a.node) for a in lost})
        self.apply(actions, nodes)
        return actions

    def machine_phases(self) -> dict[str, MachinePhase]:
        """Return node -> what the cloud says of its machine, as the last pass that could list them knows."""
        return {name: remembered.pair[1] for name, remembered in self._memory.nodes.items()}

    def apply(self, actions: list[Action], before: Mapping[str, NodeState]) -> None:
        """Carry out the actions. A step that fails does not keep the others from being done.

        Args:
            actions: What was decided.
            before: The nodes' states on which the decision was based.

        Raises:
            Exception: The first failure, raised after all other steps. The next passes find what is left.
        """
        failure: Exception | None = None
        now: Mapping[str, NodeState] = {}
        read = -math.inf
        for wanted, step in self._steps(actions, before):
            try:
                # Nodes are read again before each step: the cloud may have been slow to list, or in the step
                # before.
                if wanted and time.monotonic() - read > FRESH_SECONDS:
                    now, read = self._control.nodes(), time.monotonic()
                if due := _still_due(wanted, before, now):
                    _log_actions(due)
                    step(due)
            except SlurmDown:
                raise
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _steps(
        self, actions: list[Action], before: Mapping[str, NodeState]
    ) -> Iterator[tuple[list[Action], Callable[[list[Action]], None]]]:
        """Yield the actions that are carried out together, each group with its method."""
        of = {verb: [action for action in actions if action.verb is verb] for verb in Verb}
        yield of[Verb.EVACUATE], partial(self._requeue.evacuate, nodes=before)
        yield of[Verb.TERMINATE], self._terminate
        for verb, step in (
            (Verb.KEEP_OUT, self._keep_out),
            (Verb.POWER_DOWN, self._power_down),
            (Verb.DRAIN, self._drain),
            (Verb.RETIRE, self._retire),
            (Verb.POWER_UP, self._power_up),
        ):
            for reason in dict.fromkeys(action.reason for action in of[verb]):
                yield [a for a in of[verb] if a.reason == reason], step
        yield of[Verb.LAUNCH], self._launch

    def _all_views(
        self, nodes: Mapping[str, NodeState], outdated_nodes: Collection[str]
    ) -> tuple[NodeView, ...]:
        """Return the views in the order of their names. Those of nodes that have not changed are kept."""
        known, self._views = self._views, {}
        for name in sorted(nodes):
            state = nodes[name]
            entry = known.get(name)
            # Of a static node its line counts as well.
            if entry is None or entry[0] is not state or name in self._static:
                entry = state, self._view(state, outdated_nodes)
            self._views[name] = entry
        return tuple(view for _, view in self._views.values())

    def _view(self, state: NodeState, outdated_nodes: Collection[str]) -> NodeView:
        return NodeView(
            state.name,
            phase(state),
            admin_disabled=is_admin_disabled(state),
            drained=state.is_drained,
            admin_reason=has_admin_reason(state),
            # A static node with an outdated line stays off until it has the new one.
            static=state.name in self._static and state.name not in outdated_nodes,
            capacity_drain=has_capacity_drain(state),
            boot=state.boot_time,
            reason=state.reason,
        )

    def _terminate(self, actions: list[Action]) -> None:
        """Terminate machines, except where Slurm counts a job as running, whatever it says of the node."""
        if spared := self._used([a.node for a in actions if a.node]):
            log(f"a job runs on {', '.join(spared)}: the machine stays")
        ending = [a for a in actions if a.machine and a.node not in spared]
        if ending:
            self._driver.terminate([a.machine for a in ending if a.machine])
            self._memory = self._memory.with_ended(ending)

    def _used(self, names: list[str]) -> list[str]:
        """Return those of the nodes that a job runs on."""
        return sorted(nodes_in_use(self._control.jobs()) & set(names))

    def _power_down(self, actions: list[Action]) -> None:
        names, reason = _names(actions), actions[0].reason
        if reason.startswith(BOOTSTRAP):
            self._launcher.give_up_boots(names, reason.removeprefix(BOOTSTRAP))
            return
        lost = self._used(names)
        if lost and (reason in (EMPTIED, REBOOT) or reason.startswith(HEALTH)):
            log(f"a suspended job is on {', '.join(lost)}: the node stays")
            names, lost = [name for name in names if name not in lost], []
        if not names:
            return
        if reason.startswith(HEALTH):
            self._launcher.replaces(names, reason.removeprefix(HEALTH))
        jobs = self._requeue.requeueable_jobs(names) if reason.startswith(PREEMPTED) else []
        if lost:
            # Slurm cleans the job up only if the node is set DOWN first. Otherwise a job with --exclusive, on
            # a node without GPUs of a cluster that has some, would be held forever as never runnable.
            self._control.update_node(lost, state="DOWN", reason=REASON_PREFIX + reason)
        self._control.power_down_force(names, REASON_PREFIX + reason)
        self._requeue.explain(jobs, reason)

    def _drain(self, actions: list[Action]) -> None:
        # POWER_DOWN_ASAP would not do: Slurm powers a node down at once if its only job is suspended.
        reason = REASON_PREFIX + actions[0].reason
        self._control.update_node(_names(actions), state="DRAIN", reason=reason)

    def _keep_out(self, actions: list[Action]) -> None:
        self._control.update_node(_names(actions), state="DRAIN", reason=actions[0].reason)

    def _retire(self, actions: list[Action]) -> None:
        reason = REASON_PREFIX + actions[0].reason
        self._control.update_node(_names(actions), state="POWER_DOWN_ASAP", reason=reason)

    def _power_up(self, actions: list[Action]) -> None:
        self._control.power_up(_names(actions))

    def _launch(self, actions: list[Action]) -> None:
        # The request contains the waiting jobs, so that a job of several nodes is again launched as a whole.
        waiting = [job for job in self._control.jobs().values() if job.is_starting]
        jobs = tuple(ResumeJob(job.id, job.nodes) for job in waiting)
        self._launcher.resume(ResumeRequest(tuple(_names(actions)), jobs), f"reconcile-{time.time():.6f}")

    def _see_successes(self, nodes: Mapping[str, NodeState], machines: list[Machine]) -> None:
        for machine in machines:
            partition = self._design.partition_of(machine.node or "") if machine.node in nodes else None
            if partition is not None and nodes[str(machine.node)].is_up:
                self._launcher.boots.came_up(partition.name, machine.launched)


def _still_due(
    actions: list[Action], before: Mapping[str, NodeState], now: Mapping[str, NodeState]
) -> list[Action]:
    """Return the actions whose node is unchanged. Slurm may have given a node a job in the meantime.

    An administrator may have said RESUME, which removes the reason.
    """

    def seen(nodes: Mapping[str, NodeState], action: Action) -> tuple[NodePhase, str | None] | None:
        if (state := nodes.get(action.node or "")) is None:
            return None
        return phase(state), state.reason if action.verb is Verb.KEEP_OUT else None

    return [a for a in actions if seen(now, a) == seen(before, a)]


def _names(actions: list[Action]) -> list[str]:
    return [action.node for action in actions if action.node]


def _log_actions(actions: list[Action]) -> None:
    for action in actions:
        if action.verb is not Verb.EVACUATE:  # an evacuation is logged when it begins, not in each pass
            log(f"{action.verb} {action.node or ''} {action.machine or ''}: {action.reason}")
