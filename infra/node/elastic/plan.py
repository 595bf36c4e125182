"""What to do about each node, from what Slurm says of it, what the cloud says, and for how long.

Pure: `plan(observation, memory, now, policy)` returns actions and the next memory, and touches nothing. One
table (`elastic/rules.py`) holds a rule for every pair of node phase and machine phase; its age is how long
that very pair has been seen.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from infra.node.elastic.driver import Machine, MachineState
from infra.node.elastic.rules import (
    BOOTSTRAP,
    LATER,
    LAUNCHED_TWICE,
    NEAR_SECONDS,
    OUTDATED,
    RULES,
    STATIC,
    UNFIT,
    MachinePhase,
    NodePhase,
    Patience,
    Rule,
    Verb,
)

Pair = tuple[NodePhase, MachinePhase]
_REPLACEABLE = ((NodePhase.UP, MachinePhase.RUNNING), (NodePhase.UNFIT, MachinePhase.RUNNING))
BOOT_JITTER_SECONDS = 3.0
"""By how much Slurm's word on when a machine started may differ from one registration to the next."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Durations in seconds.

    Attributes:
        settle: how long Slurm and the cloud may disagree while a change travels between them.
        launch: how long a wanted node may be without a machine before the launch counts as lost.
        boot: how long a machine may take to register: a little less than Slurm's ResumeTimeout, so that the
            cause is ours to tell.
        silence: how long a DOWN node may keep its machine.
        doubt: how long a word that would cost much must stand.
        credit: what a pair ages at most between two passes: while nothing could be read, nothing ages.
    """

    settle: float
    launch: float
    boot: float
    silence: float
    doubt: float
    credit: float

    def patience(self, which: Patience) -> float:
        return 0.0 if which is Patience.NOW else float(getattr(self, which.value))


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as Slurm has it.

    Attributes:
        held: a person took it out of service (DRAIN, or DOWN with a reason of theirs): it is left alone.
        static: it shall be up as long as the cluster is.
        fenced: powered down, and not to be launched now (drained by us).
        boot: when the machine that registered last had started; tells one life of the node from the next.
        reason: Slurm's words of why it is out of service.
    """

    name: str
    phase: NodePhase
    held: bool = False
    static: bool = False
    fenced: bool = False
    boot: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """All of Slurm and all of the cloud, read once, Slurm first.

    Attributes:
        busy: nodes with a launch or a termination under way: no rule applies to them.
        launched: node -> the machine that the cloud took for it, as far as this daemon launched it: a list
            that does not show it yet lags behind.
        own: node -> the newest machine that this daemon launched for it, listed or not: it counts as seen.
        utc: when it was read, in seconds since the epoch: machines are taken back at such times. By default
            all that will be taken are taken now.
    """

    nodes: tuple[NodeView, ...]
    machines: tuple[Machine, ...]
    busy: frozenset[str] = frozenset()
    launched: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)
    utc: float = math.inf


@dataclass(frozen=True, slots=True)
class Sight:
    """What is remembered of a name (a node's, or a nameless machine's id).

    Attributes:
        age: for how many seconds this pair, with this machine, has been seen.
        alive: the machine that was last seen alive in this life of the node.
        boot: that life.
        replaced: its machine ended while it started, and another was asked for.
    """

    pair: Pair
    machine: str | None
    age: float = 0.0
    alive: str | None = None
    boot: float | None = None
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """Attributes:
    at: when the last pass was.
    """

    sights: Mapping[str, Sight] = field(default_factory=dict)
    at: float | None = None


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """Attributes:
    node: the node's name, or None for a machine that is no node's.
    machine: the machine's id where the verb is about a machine.
    """

    verb: Verb
    node: str | None
    machine: str | None
    reason: str


def plan(observation: Observation, memory: Memory, now: float, policy: Policy) -> tuple[list[Action], Memory]:
    """What to do now, and what to remember for the next pass.

    Args:
        now: seconds on a clock that never jumps.
    """
    if not observation.nodes:
        # A Slurm without a single node is one that has not read its configuration.
        return [], memory
    machines = _by_node(observation.machines)
    views = {view.name: view for view in observation.nodes}
    for name in machines.keys() - views.keys():
        views[name] = NodeView(name, NodePhase.FORGOTTEN)
    # Slurm hears nodes, and the cloud says that there is nothing: its list is not to be believed.
    blind = not observation.machines and any(view.phase is NodePhase.UP for view in observation.nodes)
    passed = 0.0 if memory.at is None else min(max(0.0, now - memory.at), policy.credit)
    actions: list[Action] = []
    sights: dict[str, Sight] = {}
    for name, view in views.items():
        mine = machines.get(name, [])
        launched, own = observation.launched.get(name), observation.own.get(name)
        sight = _look(view, mine, memory.sights.get(name), launched, own, passed, observation.utc)
        sights[name] = sight
        if name in observation.busy:
            sights[name] = replace(sight, age=0.0)
            continue
        rule = _rule(view, sight, mine)
        if rule.verb is None or sight.age < policy.patience(rule.patience):
            continue
        if (view.held and rule.verb is not Verb.TERMINATE) or (blind and rule.verb is Verb.LAUNCH):
            continue
        actions += _actions(rule, view, mine)
        # The same action is not repeated before the pair has had its time again.
        sights[name] = replace(sight, age=0.0, replaced=sight.replaced or rule.verb is Verb.LAUNCH)
    return sorted(actions, key=lambda a: (a.verb, a.node or "", a.machine or "")), Memory(sights, now)


def _rule(view: NodeView, sight: Sight, machines: list[Machine]) -> Rule:
    off = sight.pair[0] is NodePhase.POWERED_DOWN and sight.pair[1] in (MachinePhase.NONE, MachinePhase.GONE)
    if view.static and off and not view.fenced:
        return STATIC
    if sight.replaced and sight.pair == (NodePhase.POWERING_UP, MachinePhase.GONE):
        return LAUNCHED_TWICE
    # One that was made before the stack file said more of it is unfit since: no failed boot.
    if sight.pair in _REPLACEABLE and any(m.outdated for m in machines if m.state.alive):
        return OUTDATED
    return RULES[sight.pair[0]][sight.pair[1]]


def _actions(rule: Rule, view: NodeView, machines: list[Machine]) -> list[Action]:
    assert rule.verb is not None
    if rule.verb is Verb.TERMINATE:
        return [Action(rule.verb, m.node, m.id, rule.reason) for m in machines if m.state.alive]
    if rule.verb is Verb.EVACUATE or rule.reason == LATER:
        notices = [m.notice for m in machines if m.state.alive and m.notice is not None]
        return [Action(rule.verb, view.name, None, f"{rule.reason} at {clock(min(notices))}")]
    if rule.reason == UNFIT and view.reason:
        return [Action(rule.verb, view.name, None, f"{rule.reason}: {view.reason}")]
    failures = [m.failure for m in machines if m.state.alive and m.failure]
    if view.phase is NodePhase.POWERING_UP and rule.reason.startswith(BOOTSTRAP) and failures:
        return [Action(rule.verb, view.name, None, f"{BOOTSTRAP}{failures[0]}")]
    return [Action(rule.verb, view.name, None, rule.reason)]


def clock(moment: float) -> str:
    """A moment in seconds since the epoch, as reasons have it."""
    return time.strftime("%H:%M:%S UTC", time.gmtime(moment))


def _look(
    view: NodeView,
    machines: list[Machine],
    before: Sight | None,
    launched: str | None,
    own: str | None,
    passed: float,
    utc: float,
) -> Sight:
    """What is seen of a name now, with what is remembered of it."""
    living = [m for m in machines if m.state.alive]
    # A node that is off or on its way there has ended its life; one that starts has not begun it.
    lives = view.phase not in (NodePhase.POWERED_DOWN, NodePhase.STUCK, NodePhase.POWERING_DOWN)
    boot = None if view.phase is NodePhase.POWERING_UP else view.boot
    alive = before.alive if before is not None and lives and _same_life(before.boot, boot) else None
    if living and lives:
        alive = living[0].id
    elif alive is None and lives:
        # It may have ended before anybody looked.
        alive = own
    phase = _phase(machines, living, alive, launched, utc)
    pair = (view.phase, phase)
    machine = living[0].id if living else None
    unchanged = before is not None and (before.pair, before.machine) == (pair, machine)
    return Sight(
        pair,
        machine,
        before.age + passed if before is not None and unchanged else 0.0,
        alive,
        boot,
        before is not None and before.replaced and view.phase is NodePhase.POWERING_UP,
    )


def _same_life(before: float | None, boot: float | None) -> bool:
    return before is None or (boot is not None and abs(boot - before) < BOOT_JITTER_SECONDS)


def _phase(
    machines: list[Machine], living: list[Machine], alive: str | None, launched: str | None, utc: float
) -> MachinePhase:
    if not living:
        if launched is not None and all(m.id != launched for m in machines):
            return MachinePhase.PENDING
        # One that ended before this life of the node began says nothing of it.
        ended = alive is not None and any(m.id == alive for m in machines)
        return MachinePhase.GONE if ended else MachinePhase.NONE
    if notices := [m.notice for m in living if m.notice is not None]:
        return MachinePhase.NOTICED if min(notices) - utc <= NEAR_SECONDS else MachinePhase.ANNOUNCED
    if len(living) > 1:
        return MachinePhase.SEVERAL
    if living[0].state is MachineState.PENDING:
        return MachinePhase.PENDING
    return MachinePhase.RUNNING if living[0].failure is None else MachinePhase.FAILED


def _by_node(machines: Iterable[Machine]) -> dict[str, list[Machine]]:
    """All machines by node (a nameless one by its id): running ones first, older before younger."""
    found: dict[str, list[Machine]] = {}
    for machine in sorted(machines, key=lambda m: (m.state is not MachineState.RUNNING, m.launched, m.id)):
        if machine.node or machine.state.alive:
            found.setdefault(machine.node or machine.id, []).append(machine)
    return found
