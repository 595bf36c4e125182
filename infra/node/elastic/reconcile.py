"""One reconcile pass: read all of Slurm, then all of the cloud, ask the pure `plan()`, act."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial

from infra.node.elastic.driver import Driver, Machine
from infra.node.elastic.launcher import Launcher
from infra.node.elastic.ledger import Ledger
from infra.node.elastic.plan import Action, Memory, NodeView, Observation, Policy, plan
from infra.node.elastic.requeue import Requeue
from infra.node.elastic.rules import BOOTSTRAP, EMPTIED, PREEMPTED, NodePhase, Verb
from infra.node.elastic.view import REASON_PREFIX, held, is_fenced, log, phase
from infra.node.model import ClusterDesign, SlurmSettings
from infra.node.slurm.control import Slurm, SlurmDown
from infra.node.slurm.states import NodeState
from infra.node.slurm.version import ResumeJob, ResumeRequest

IN_USE = ("RUNNING", "SUSPENDED")
FRESH_SECONDS = 0.5
"""How old a reading of the nodes may be for a step: one for each would be minutes for a thousand reasons."""


def policy_of(timers: SlurmSettings) -> Policy:
    """The durations that follow from Slurm's timers and the pause between two passes."""
    interval, boot = timers.reconcile_interval, float(timers.resume_timeout)
    settle = max(5.0, 2 * interval)
    return Policy(
        settle=settle,
        launch=max(10.0, 3 * interval),
        # Before Slurm's own end of patience: it would set the node DOWN, and not say why.
        boot=max(boot / 2, boot - 3 * interval - 2),
        silence=settle,
        doubt=max(60.0, 3 * interval),
        # Less than any patience: an old sight and one new reading never suffice.
        credit=max(settle / 2, 1.5 * interval),
    )


class Reconciler:
    """Holds no truth of its own, only since when it has seen what.

    Args:
        kept: the nodes whose lines in slurm.conf are of before (`infra.node.slurm.hardware`).
    """

    def __init__(
        self,
        design: ClusterDesign,
        control: Slurm,
        driver: Driver,
        launcher: Launcher,
        ledger: Ledger,
        kept: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        self._kept = kept
        self._design = design
        self._control = control
        self._driver = driver
        self._launcher = launcher
        self._ledger = ledger
        self._memory = Memory()
        self.seen: list[Machine] = []
        self._requeue = Requeue(control)
        self._static = design.static_nodes()
        self.interval = design.slurm.reconcile_interval
        self.policy = policy_of(design.slurm)

    def once(self) -> list[Action]:
        """One pass.

        Raises:
            SlurmError: slurmctld does not answer; the next pass reads everything anew.
            RpcError, RpcUnavailableError: the cloud does not answer, or refuses.
        """
        busy = self._launcher.busy()
        nodes = self._control.nodes()
        machines = self.seen = self._driver.list()
        busy |= self._launcher.busy()
        unlisted = self._launcher.unlisted(m.id for m in machines)
        self._ledger.see(machines, time.time())
        self._see_successes(nodes, machines)
        kept = self._kept()
        views = tuple(self._view(state, kept) for _, state in sorted(nodes.items()))
        # Slurm is told of another machine only when this one is gone.
        machines = [replace(m, outdated=True) if m.node in kept else m for m in machines]
        own = self._launcher.own()
        observation = Observation(views, tuple(machines), frozenset(busy), unlisted, own, time.time())
        actions, self._memory = plan(observation, self._memory, time.monotonic(), self.policy)
        self._requeue.watch(views)
        self.apply(actions, nodes)
        return actions

    def apply(self, actions: list[Action], before: dict[str, NodeState]) -> None:
        """Do what was decided. What fails keeps nothing else from being done.

        Args:
            before: the reading that the decision was made on.

        Raises:
            Exception: the first failure, after all the rest; the next passes find what is left.
        """
        failure: Exception | None = None
        now: dict[str, NodeState] = {}
        read = -math.inf
        for wanted, step in self._steps(actions, before):
            try:
                # Not once for all: the cloud may have taken its time for the list, or for the step before.
                if wanted and time.monotonic() - read > FRESH_SECONDS:
                    now, read = self._control.nodes(), time.monotonic()
                if due := _still_due(wanted, before, now):
                    _tell(due)
                    step(due)
            except SlurmDown:
                raise
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _steps(
        self, actions: list[Action], before: dict[str, NodeState]
    ) -> Iterator[tuple[list[Action], Callable[[list[Action]], None]]]:
        """The actions that a step does together, with the step; in the order in which they are done."""
        of = {verb: [action for action in actions if action.verb is verb] for verb in Verb}
        yield of[Verb.EVACUATE], partial(self._requeue.evacuate, nodes=before)
        yield of[Verb.TERMINATE], self._terminate
        for verb, step in (
            (Verb.POWER_DOWN, self._power_down),
            (Verb.DRAIN, self._drain),
            (Verb.RETIRE, self._retire),
            (Verb.POWER_UP, self._power_up),
        ):
            for reason in dict.fromkeys(action.reason for action in of[verb]):
                yield [a for a in of[verb] if a.reason == reason], step
        yield of[Verb.LAUNCH], self._launch

    def _view(self, state: NodeState, kept: Collection[str]) -> NodeView:
        return NodeView(
            state.name,
            phase(state),
            held=held(state),
            # One that keeps its line gets the new one while it is off.
            static=state.name in self._static and state.name not in kept,
            fenced=is_fenced(state),
            boot=state.boot_time,
            reason=state.reason,
        )

    def _terminate(self, actions: list[Action]) -> None:
        """End machines, except under a job that Slurm counts as running, whatever it says of the node."""
        if spared := self._used([a.node for a in actions if a.node]):
            log(f"a job runs on {', '.join(spared)}: the machine stays")
        if ids := [a.machine for a in actions if a.machine and a.node not in spared]:
            self._driver.terminate(ids)

    def _used(self, names: list[str]) -> list[str]:
        """Those of the nodes that a job runs on."""
        used = {n for job in self._control.jobs().values() if job.state in IN_USE for n in job.nodes}
        return sorted(used & set(names))

    def _power_down(self, actions: list[Action]) -> None:
        names, reason = _names(actions), actions[0].reason
        if reason.startswith(BOOTSTRAP):
            self._launcher.give_up_boots(names, reason.removeprefix(BOOTSTRAP))
            return
        lost = self._used(names)
        if lost and reason == EMPTIED:
            log(f"a suspended job is on {', '.join(lost)}: the node stays")
            names, lost = [name for name in names if name not in lost], []
        if not names:
            return
        jobs = self._requeue.on(names) if reason.startswith(PREEMPTED) else {}
        if lost:
            # Else Slurm takes the job back without tidying it up: one with --exclusive, on a node without
            # GPUs of a cluster that has some, would be held for ever as never runnable.
            self._control.update_node(lost, state="DOWN", reason=REASON_PREFIX + reason)
        self._control.power_down_force(names, REASON_PREFIX + reason)
        self._requeue.explain(jobs, reason)

    def _drain(self, actions: list[Action]) -> None:
        # Not POWER_DOWN_ASAP: Slurm switches a node whose only job is suspended off at once.
        reason = REASON_PREFIX + actions[0].reason
        self._control.update_node(_names(actions), state="DRAIN", reason=reason)

    def _retire(self, actions: list[Action]) -> None:
        reason = REASON_PREFIX + actions[0].reason
        self._control.update_node(_names(actions), state="POWER_DOWN_ASAP", reason=reason)

    def _power_up(self, actions: list[Action]) -> None:
        self._control.power_up(_names(actions))

    def _launch(self, actions: list[Action]) -> None:
        # With the jobs that wait for them, so that a job of several nodes is whole this time too.
        waiting = [job for job in self._control.jobs().values() if job.state == "CONFIGURING"]
        jobs = tuple(ResumeJob(job.id, job.nodes) for job in waiting)
        self._launcher.resume(ResumeRequest(tuple(_names(actions)), jobs), f"reconcile-{time.time():.6f}")

    def _see_successes(self, nodes: dict[str, NodeState], machines: list[Machine]) -> None:
        for machine in machines:
            partition = self._design.partition_of(machine.node or "") if machine.node in nodes else None
            if partition is not None and nodes[str(machine.node)].is_up:
                self._launcher.boots.came_up(partition.name, machine.launched)


def _still_due(
    actions: list[Action], before: dict[str, NodeState], now: dict[str, NodeState]
) -> list[Action]:
    """Those whose node is as it was: Slurm goes on meanwhile, and may have given it a job."""

    def seen(nodes: dict[str, NodeState], name: str | None) -> NodePhase | None:
        return phase(nodes[name]) if name in nodes else None

    return [a for a in actions if seen(now, a.node) is seen(before, a.node)]


def _names(actions: list[Action]) -> list[str]:
    return [action.node for action in actions if action.node]


def _tell(actions: list[Action]) -> None:
    for action in actions:
        if action.verb is not Verb.EVACUATE:  # that one is told where it begins, not at each pass
            log(f"{action.verb} {action.node or ''} {action.machine or ''}: {action.reason}")
