"""Decides what to do about each node, from what Slurm and the cloud say of it, and for how long.

`plan(observation, memory, now, policy)` is pure: it returns actions and the next memory and changes nothing.
One table (`elastic/rules.py`) holds a rule for every pair of node phase and machine phase. The age of a pair
is how long that very pair has been seen.

Slurm's traps (docs/internals/slurm_traps.md): reboot-of-a-node-that-is-up, lost-drains.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from node.elastic.driver import Machine, MachineState
from node.elastic.rules import (
    BOOTSTRAP,
    EMPTIED,
    HEALTH,
    LATER,
    LAUNCHED_TWICE,
    NEAR_SECONDS,
    OUTDATED,
    REGISTERED,
    RULES,
    STATIC,
    UNFIT,
    VANISHED,
    GracePeriod,
    MachinePhase,
    NodePhase,
    Rule,
    Verb,
)
from node.elastic.view import REASON_PREFIX, REBOOT_ISSUED, RESUME_TIMEOUT

Pair = tuple[NodePhase, MachinePhase]
"""What Slurm and the cloud say of one node."""
OWN_HEALTH = f"{REASON_PREFIX}{HEALTH}"
"""Prefix of the reason with which a node drains itself (`node.health.programs`)."""
SCRIPT_ERRORS = ("Prolog error", "Epilog error")
_REPLACEABLE = ((NodePhase.UP, MachinePhase.RUNNING), (NodePhase.UNFIT, MachinePhase.RUNNING))
"""The pairs in which an outdated machine is replaced."""
_UNLISTED = (NodePhase.POWERING_UP, MachinePhase.NONE)
_AT_REST = (NodePhase.POWERED_DOWN, MachinePhase.NONE)
_OFF = (NodePhase.POWERED_DOWN, NodePhase.STUCK, NodePhase.POWERING_DOWN)
BOOT_JITTER_SECONDS = 3.0
"""How much the boot time that Slurm reports may differ between two registrations of the same machine."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Durations in seconds. All but `credit` are grace periods of rules.

    Attributes:
        settle: How long Slurm and the cloud may disagree while a change travels between them.
        launch: How long a wanted node may have no machine before the launch counts as lost.
        boot: How long a machine may take to register. It is a little shorter than Slurm's ResumeTimeout, so
            that the daemon can report the cause.
        silence: How long a DOWN node may keep its machine.
        doubt: How long a report must last before it has costly consequences.
        credit: By how much a pair ages at most between two passes. While nothing can be read, nothing ages.
    """

    settle: float
    launch: float
    boot: float
    silence: float
    doubt: float
    credit: float

    def grace(self, which: GracePeriod) -> float:
        """Return the seconds of a grace period."""
        return 0.0 if which is GracePeriod.NOW else float(getattr(self, which.value))


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as Slurm has it.

    Attributes:
        name: The node's name.
        phase: Slurm's state of the node.
        admin_disabled: Whether an administrator took the node out of service (DRAIN, or DOWN with their own
            reason). Such a node is left alone, but for `Verb.KEEP_OUT`.
        drained: Whether the node takes no jobs, whoever asked for that.
        admin_reason: Whether its reason is an administrator's, whatever its state is.
        static: Whether the node is up as long as the cluster is.
        capacity_drain: Whether the node is off and we drained it so that Slurm does not launch it now.
        boot: When the machine that registered last had booted. It tells one machine of the node from the
            next.
        reason: Slurm's reason why the node is out of service.
    """

    name: str
    phase: NodePhase
    admin_disabled: bool = False
    drained: bool = False
    admin_reason: bool = False
    static: bool = False
    capacity_drain: bool = False
    boot: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """All of Slurm and all of the cloud, read once, Slurm first.

    Attributes:
        nodes: Slurm's nodes.
        machines: The cloud's machines.
        busy: Nodes with a launch or a termination under way. No rule applies to them.
        launched: Node -> the machine that this daemon launched for it, if no list shows the machine yet.
        newest: Node -> the machine that was launched last for it since it was last powered down, listed or
            not. It counts as seen.
        utc: When this was read, in seconds since the epoch. Announcements are compared with it. By default
            everything that will be taken is taken now.
    """

    nodes: tuple[NodeView, ...]
    machines: tuple[Machine, ...]
    busy: frozenset[str] = frozenset()
    launched: Mapping[str, str] = field(default_factory=dict)
    newest: Mapping[str, str] = field(default_factory=dict)
    utc: float = math.inf


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """What is remembered of a node, or of a machine without a node, from one pass to the next.

    Attributes:
        pair: The last pair of phases.
        machine: The id of the machine alive.
        age: For how many seconds this pair has been seen with this machine.
        alive: The machine that was last seen alive since the node was last powered up.
        boot: When that machine booted, as Slurm reports it.
        replaced: Whether the node's first machine ended while it started, so that another was launched.
        ended: Whether we have ended its machine because Slurm asks for another one.
        admin_reason: Why an administrator has taken the node out of service. Slurm forgets that itself: it
            takes a DOWN node back when its slurmd answers (ReturnToService), and undrains each node that it
            powers down (idle_on_node_suspend).
    """

    pair: Pair
    machine: str | None
    age: float = 0.0
    alive: str | None = None
    boot: float | None = None
    replaced: bool = False
    ended: bool = False
    admin_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered of all nodes from one pass to the next.

    Attributes:
        nodes: A node's name, or the id of a machine without a node -> what is remembered.
        at: When the last pass was, on a clock that never jumps.
    """

    nodes: Mapping[str, NodeMemory] = field(default_factory=dict)
    at: float | None = None

    def with_ended(self, actions: Iterable[Action]) -> Memory:
        """Return the memory once machines have been ended because Slurm asks for others (`NodeMemory.ended`).

        A decision alone says nothing: a job may have come to the node, and the cloud may have refused.
        """
        names = {action.node for action in actions if action.reason == REGISTERED.reason}
        ended = {n: replace(known, ended=True) for n, known in self.nodes.items() if n in names}
        return replace(self, nodes={**self.nodes, **ended})


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """Something to do about a node or a machine.

    Attributes:
        verb: What to do.
        node: The node's name; `None` for a machine without a node.
        machine: The machine's id, where the verb concerns a machine.
        reason: The reason that users read.
    """

    verb: Verb
    node: str | None
    machine: str | None
    reason: str


def plan(observation: Observation, memory: Memory, now: float, policy: Policy) -> tuple[list[Action], Memory]:
    """Decide what to do now, and what to remember for the next pass.

    Args:
        observation: What Slurm and the cloud say now.
        memory: What the last pass remembered.
        now: Seconds on a clock that never jumps.
        policy: The durations.
    """
    if not observation.nodes:
        # If Slurm has no node at all, it has not read its configuration.
        return [], memory
    machines = _by_node(observation.machines)
    views = {view.name: view for view in observation.nodes}
    for name in machines.keys() - views.keys():
        views[name] = NodeView(name, NodePhase.FORGOTTEN)
    # Slurm hears nodes, yet the cloud lists no machine at all. Such a list is not to be trusted.
    blind = not observation.machines and any(view.phase is NodePhase.UP for view in observation.nodes)
    passed = 0.0 if memory.at is None else min(max(0.0, now - memory.at), policy.credit)
    actions: list[Action] = []
    nodes: dict[str, NodeMemory] = {}
    rested: dict[tuple[float, float | None], NodeMemory] = {}
    awake = {*machines, *observation.launched, *observation.newest, *observation.busy}
    for name, view in views.items():
        before = memory.nodes.get(name)
        if before is not None and _rests(view, before) and name not in awake:
            # Nearly all of thousands of nodes rest. Those that have rested equally long share one memory.
            if (aged := rested.get((before.age, before.boot))) is None:
                aged = rested[before.age, before.boot] = replace(before, age=before.age + passed)
            nodes[name] = aged
            continue
        node_machines = machines.get(name, [])
        launched, newest = observation.launched.get(name), observation.newest.get(name)
        remembered = _look(view, node_machines, before, launched, newest, passed, observation.utc)
        nodes[name] = remembered
        rebooting = view.phase is NodePhase.REBOOTING
        if remembered.admin_reason is not None and not (view.drained or rebooting):
            actions.append(Action(Verb.KEEP_OUT, name, None, remembered.admin_reason))
            continue
        if name in observation.busy:
            nodes[name] = replace(remembered, age=0.0)
            continue
        rule = _rule(view, remembered, node_machines)
        if rule.verb is None or remembered.age < policy.grace(rule.grace):
            continue
        untouched = view.admin_disabled and not rebooting and rule.verb is not Verb.TERMINATE
        if untouched or (blind and rule.verb is Verb.LAUNCH):
            continue
        concerned = _registered(view, remembered, node_machines) if rule is REGISTERED else node_machines
        actions += _actions(rule, view, concerned)
        # The same action is repeated only after the grace period has passed again.
        nodes[name] = replace(
            remembered,
            age=0.0,
            replaced=remembered.replaced or rule.verb is Verb.LAUNCH,
        )
    return sorted(actions, key=lambda a: (a.verb, a.node or "", a.machine or "")), Memory(nodes, now)


def _rests(view: NodeView, before: NodeMemory) -> bool:
    """Return whether a node is off as it was, so that no rule applies to it while no machine is its own."""
    return (
        before.pair == _AT_REST
        and view.phase is NodePhase.POWERED_DOWN
        and view.boot == before.boot
        and before.alive is None
        and before.admin_reason is None
        and not (before.replaced or before.ended or view.static or view.admin_disabled)
    )


def _rule(view: NodeView, remembered: NodeMemory, machines: list[Machine]) -> Rule:
    off = remembered.pair[0] is NodePhase.POWERED_DOWN and remembered.pair[1] in (
        MachinePhase.NONE,
        MachinePhase.GONE,
    )
    if view.static and off and not view.capacity_drain:
        return STATIC
    if _registered(view, remembered, machines):
        return REGISTERED
    if remembered.replaced and remembered.pair == (NodePhase.POWERING_UP, MachinePhase.GONE):
        return LAUNCHED_TWICE
    if remembered.ended and not remembered.replaced and remembered.pair == _UNLISTED:
        return RULES[NodePhase.POWERING_UP][MachinePhase.GONE]
    if remembered.alive is not None and not remembered.ended and remembered.pair == _UNLISTED:
        return VANISHED
    # A machine that was made for an earlier stack file may be unfit now. That is no failed boot.
    if remembered.pair in _REPLACEABLE and any(m.outdated for m in machines if m.state.alive):
        return OUTDATED
    return RULES[remembered.pair[0]][remembered.pair[1]]


def _registered(view: NodeView, remembered: NodeMemory, machines: list[Machine]) -> list[Machine]:
    """Return the machines of a node that powers up which booted before Slurm asked for it.

    Slurm keeps the time of the node's last boot, and learns of the next one by the registration that ends the
    power-up. A clock that was set back makes a new machine look old, so this is believed once in a power-up.
    """
    if view.phase is not NodePhase.POWERING_UP or view.boot is None or remembered.replaced:
        return []
    return [m for m in machines if m.state.alive and m.launched <= view.boot + BOOT_JITTER_SECONDS]


def _actions(rule: Rule, view: NodeView, machines: list[Machine]) -> list[Action]:
    assert rule.verb is not None
    if rule.verb is Verb.TERMINATE:
        return [Action(rule.verb, m.node, m.id, rule.reason) for m in machines if m.state.alive]
    if rule.verb is Verb.EVACUATE or rule.reason == LATER:
        notices = _notices(m for m in machines if m.state.alive)
        return [Action(rule.verb, view.name, None, f"{rule.reason} at {clock(min(notices))}")]
    if rule.reason == UNFIT and view.reason:
        return [Action(rule.verb, view.name, None, f"{rule.reason}: {view.reason}")]
    if rule.reason == EMPTIED and (health := health_cause(view.reason or "")):
        return [Action(rule.verb, view.name, None, f"{HEALTH}{health}")]
    failures = [m.failure for m in machines if m.state.alive and m.failure]
    if view.phase is NodePhase.POWERING_UP and rule.reason.startswith(BOOTSTRAP) and failures:
        return [Action(rule.verb, view.name, None, f"{BOOTSTRAP}{failures[0]}")]
    return [Action(rule.verb, view.name, None, rule.reason)]


def health_cause(reason: str) -> str:
    """Return what a node's reason says against its devices or jobs' scripts on it; empty if nothing.

    Slurm gives the reasons of a prolog and an epilog that failed by themselves.
    """
    if reason.startswith(OWN_HEALTH):
        return reason.removeprefix(OWN_HEALTH)
    return reason if reason.startswith(SCRIPT_ERRORS) else ""


def clock(moment: float) -> str:
    """Format a moment in seconds since the epoch as reasons show it. Any number has a text."""
    try:
        return time.strftime("%H:%M:%S UTC", time.gmtime(moment))
    except (ValueError, OverflowError, OSError):  # no date of a calendar, or no number at all
        return "an unknown time"


def _look(
    view: NodeView,
    machines: list[Machine],
    before: NodeMemory | None,
    launched: str | None,
    newest: str | None,
    passed: float,
    utc: float,
) -> NodeMemory:
    """Combine what is seen of a node now with what is remembered of it."""
    living = [m for m in machines if m.state.alive]
    # The life of a node's machine is over when the node is off or on its way there. It has not begun while
    # the node powers up.
    lives = view.phase not in _OFF
    boot = None if view.phase is NodePhase.POWERING_UP else view.boot
    alive = before.alive if before is not None and lives and _same_life(before.boot, boot) else None
    if living and lives:
        alive = living[0].id
    elif alive is None and lives:
        # The machine may have ended before any listing showed it.
        alive = newest
    phase = _phase(machines, living, alive, launched, utc)
    pair = (view.phase, phase)
    machine = living[0].id if living else None
    unchanged = before is not None and (before.pair, before.machine) == (pair, machine)
    return NodeMemory(
        pair,
        machine,
        before.age + passed if before is not None and unchanged else 0.0,
        alive,
        boot,
        before is not None and before.replaced and view.phase is NodePhase.POWERING_UP,
        before is not None and before.ended and view.phase is NodePhase.POWERING_UP,
        _admin_reason(view, before),
    )


def _admin_reason(view: NodeView, before: NodeMemory | None) -> str | None:
    """Return why an administrator has taken the node out of service; `None` if it is in service.

    A node that Slurm has undrained while powering it down keeps its reason. An administrator's RESUME
    removes it.
    """
    if view.admin_disabled:
        return view.reason and view.reason.removesuffix(REBOOT_ISSUED)
    if view.phase not in _OFF:
        return None
    if before is not None and before.pair[0] is NodePhase.REBOOTING:
        # Slurm removes the reason of a reboot that is cancelled by a power-down.
        return before.admin_reason
    if before is None:  # the daemon has just started: who gave the node this reason while it was up?
        return view.reason if view.admin_reason else None
    return before.admin_reason if view.reason in (before.admin_reason, RESUME_TIMEOUT) else None


def _same_life(before: float | None, boot: float | None) -> bool:
    return before is None or (boot is not None and abs(boot - before) < BOOT_JITTER_SECONDS)


def _phase(
    machines: list[Machine], living: list[Machine], alive: str | None, launched: str | None, utc: float
) -> MachinePhase:
    if not living:
        if launched is not None and all(m.id != launched for m in machines):
            return MachinePhase.PENDING
        # A machine that ended before the node was last powered up says nothing about the present one.
        ended = alive is not None and any(m.id == alive for m in machines)
        return MachinePhase.GONE if ended else MachinePhase.NONE
    if notices := _notices(living):
        return MachinePhase.NOTICED if min(notices) - utc <= NEAR_SECONDS else MachinePhase.ANNOUNCED
    if len(living) > 1:
        return MachinePhase.SEVERAL
    if living[0].state is MachineState.PENDING:
        return MachinePhase.PENDING
    return MachinePhase.RUNNING if living[0].failure is None else MachinePhase.FAILED


def _notices(machines: Iterable[Machine]) -> list[float]:
    """Return when machines will be taken. A notice that is no time says nothing."""
    return [m.notice for m in machines if m.notice is not None and math.isfinite(m.notice)]


def _by_node(machines: Iterable[Machine]) -> dict[str, list[Machine]]:
    """Group machines by node, or by their own id: running ones first, older before younger."""
    machines_of: dict[str, list[Machine]] = {}
    for machine in sorted(machines, key=lambda m: (m.state is not MachineState.RUNNING, m.launched, m.id)):
        if machine.node or machine.state.alive:
            machines_of.setdefault(machine.node or machine.id, []).append(machine)
    return machines_of
