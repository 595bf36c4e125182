"""What to do about each node, from what Slurm says of it, what the cloud says, and for how long.

Pure: `plan(observation, memory, now, policy)` returns actions and the next memory, and touches nothing. One
table (`RULES`) holds a rule for every pair of node phase and machine phase; its age is how long that very
pair has been seen, so that a listing that lags, or a call still under way, needs no rule of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from infra.node.elastic.driver import Machine, MachineState


class NodePhase(StrEnum):
    """What Slurm says of a node, as far as machines are concerned."""

    POWERED_DOWN = "powered_down"
    POWERING_UP = "powering_up"
    UP = "up"
    POWERING_DOWN = "powering_down"
    DOWN = "down"
    """DOWN or not responding."""
    FORGOTTEN = "forgotten"
    """Slurm does not know the name."""


class MachinePhase(StrEnum):
    """What the cloud says of the node's machine."""

    NONE = "none"
    PENDING = "pending"
    RUNNING = "running"
    FAILED = "failed"
    """It runs, and its boot failed: it will not become a node."""


class Verb(StrEnum):
    TERMINATE = "terminate"
    """Take the machine away; Slurm already counts the node as off."""
    POWER_DOWN = "power_down"
    """Tell Slurm to give the node back at once; it requeues the job and asks for the suspend."""
    LAUNCH = "launch"
    """Ask the cloud again for a machine that Slurm waits for."""
    POWER_UP = "power_up"
    """Tell Slurm to bring a static node up."""


class Patience(StrEnum):
    """Which of the policy's durations a rule waits for."""

    NOW = "now"
    SETTLE = "settle"
    LAUNCH = "launch"
    BOOT = "boot"
    SILENCE = "silence"


@dataclass(frozen=True, slots=True)
class Policy:
    """Durations in seconds.

    Attributes:
        settle: how long Slurm and the cloud may disagree while a change travels between them.
        launch: how long a wanted node may be without a machine before the launch counts as lost.
        boot: how long a machine may take to register (Slurm's ResumeTimeout).
        silence: how long a DOWN node may keep its machine.
    """

    settle: float
    launch: float
    boot: float
    silence: float

    def patience(self, which: Patience) -> float:
        return 0.0 if which is Patience.NOW else float(getattr(self, which.value))


@dataclass(frozen=True, slots=True)
class Rule:
    """What follows when a pair has lasted; `verb` None: it is as it should be, or will be."""

    verb: Verb | None
    patience: Patience = Patience.NOW
    reason: str = ""


_FINE = Rule(None)
BOOTSTRAP = "bootstrap: "
"""Begins the reason of a machine that came and did not become a node."""
RULES: dict[tuple[NodePhase, MachinePhase], Rule] = {
    (NodePhase.POWERED_DOWN, MachinePhase.NONE): _FINE,
    (NodePhase.POWERED_DOWN, MachinePhase.PENDING): Rule(
        Verb.TERMINATE, Patience.SETTLE, "nobody waits for this machine"
    ),
    (NodePhase.POWERED_DOWN, MachinePhase.RUNNING): Rule(
        Verb.TERMINATE, Patience.SETTLE, "nobody uses this machine"
    ),
    (NodePhase.POWERED_DOWN, MachinePhase.FAILED): Rule(
        Verb.TERMINATE, Patience.SETTLE, "nobody uses this machine"
    ),
    (NodePhase.POWERING_UP, MachinePhase.NONE): Rule(Verb.LAUNCH, Patience.LAUNCH, "the launch was lost"),
    (NodePhase.POWERING_UP, MachinePhase.PENDING): Rule(
        Verb.POWER_DOWN, Patience.BOOT, BOOTSTRAP + "the machine did not start in time"
    ),
    (NodePhase.POWERING_UP, MachinePhase.RUNNING): Rule(
        Verb.POWER_DOWN, Patience.BOOT, BOOTSTRAP + "the machine did not register in time"
    ),
    (NodePhase.POWERING_UP, MachinePhase.FAILED): Rule(
        Verb.POWER_DOWN, Patience.NOW, BOOTSTRAP + "the machine's boot failed"
    ),
    (NodePhase.UP, MachinePhase.NONE): Rule(
        Verb.POWER_DOWN, Patience.SETTLE, "preempted: the machine is gone"
    ),
    # A listing may lag behind the machine's own registration.
    (NodePhase.UP, MachinePhase.PENDING): _FINE,
    (NodePhase.UP, MachinePhase.RUNNING): _FINE,
    # Slurm's word counts: it registered.
    (NodePhase.UP, MachinePhase.FAILED): _FINE,
    (NodePhase.POWERING_DOWN, MachinePhase.NONE): _FINE,
    (NodePhase.POWERING_DOWN, MachinePhase.PENDING): Rule(
        Verb.TERMINATE, Patience.SETTLE, "the suspend was lost"
    ),
    (NodePhase.POWERING_DOWN, MachinePhase.RUNNING): Rule(
        Verb.TERMINATE, Patience.SETTLE, "the suspend was lost"
    ),
    (NodePhase.POWERING_DOWN, MachinePhase.FAILED): Rule(
        Verb.TERMINATE, Patience.SETTLE, "the suspend was lost"
    ),
    # POWER_DOWN also brings a node without a machine back to idle, which Slurm alone never does.
    (NodePhase.DOWN, MachinePhase.NONE): Rule(Verb.POWER_DOWN, Patience.SETTLE, "the machine is gone"),
    (NodePhase.DOWN, MachinePhase.PENDING): Rule(
        Verb.POWER_DOWN, Patience.SILENCE, "the machine does not respond"
    ),
    (NodePhase.DOWN, MachinePhase.RUNNING): Rule(
        Verb.POWER_DOWN, Patience.SILENCE, "the machine does not respond"
    ),
    (NodePhase.DOWN, MachinePhase.FAILED): Rule(
        Verb.POWER_DOWN, Patience.SILENCE, "the machine does not respond"
    ),
    (NodePhase.FORGOTTEN, MachinePhase.NONE): _FINE,
    (NodePhase.FORGOTTEN, MachinePhase.PENDING): Rule(
        Verb.TERMINATE, Patience.SETTLE, "no node has this name"
    ),
    (NodePhase.FORGOTTEN, MachinePhase.RUNNING): Rule(
        Verb.TERMINATE, Patience.SETTLE, "no node has this name"
    ),
    (NodePhase.FORGOTTEN, MachinePhase.FAILED): Rule(
        Verb.TERMINATE, Patience.SETTLE, "no node has this name"
    ),
}


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as Slurm has it.

    Attributes:
        held: a person took it out of service (DRAIN, or DOWN with a reason of theirs): it is left alone.
        static: it shall be up as long as the cluster is.
    """

    name: str
    phase: NodePhase
    held: bool = False
    static: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """All of Slurm and all of the cloud, read once, Slurm first.

    Attributes:
        busy: nodes with a launch or a termination under way: no rule applies to them.
    """

    nodes: tuple[NodeView, ...]
    machines: tuple[Machine, ...]
    busy: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Memory:
    """Since when each pair has been seen: name (a node's, or a nameless machine's id) -> (pair, time)."""

    since: Mapping[str, tuple[tuple[NodePhase, MachinePhase], float]] = field(default_factory=dict)


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
    machines, surplus = _by_node(observation.machines)
    views = {view.name: view for view in observation.nodes}
    for name in machines.keys() - views.keys():
        views[name] = NodeView(name, NodePhase.FORGOTTEN)

    actions = [
        Action(Verb.TERMINATE, machine.node, machine.id, "the node has another machine")
        for machine in surplus
        if machine.node not in observation.busy
    ]
    since: dict[str, tuple[tuple[NodePhase, MachinePhase], float]] = {}
    for name, view in views.items():
        machine = machines.get(name)
        pair = (view.phase, _phase(machine))
        before = memory.since.get(name)
        since[name] = before if before is not None and before[0] == pair else (pair, now)
        if name in observation.busy:
            since[name] = (pair, now)
            continue
        rule = _rule(view, pair)
        if rule.verb is None or now - since[name][1] < policy.patience(rule.patience):
            continue
        if view.held and rule.verb is not Verb.TERMINATE:
            continue
        identity = machine.id if machine is not None and rule.verb is Verb.TERMINATE else None
        reason = rule.reason
        if pair == (NodePhase.POWERING_UP, MachinePhase.FAILED) and machine is not None:
            reason = f"{BOOTSTRAP}{machine.failure}"
        actions.append(Action(rule.verb, machine.node if identity and machine else name, identity, reason))
        # The same action is not repeated before the pair has had its time again.
        since[name] = (pair, now)
    return sorted(actions, key=lambda a: (a.verb, a.node or "", a.machine or "")), Memory(since)


def _rule(view: NodeView, pair: tuple[NodePhase, MachinePhase]) -> Rule:
    if view.static and pair == (NodePhase.POWERED_DOWN, MachinePhase.NONE):
        return Rule(Verb.POWER_UP, Patience.SETTLE, "static node")
    return RULES[pair]


def _phase(machine: Machine | None) -> MachinePhase:
    if machine is None:
        return MachinePhase.NONE
    if machine.state is MachineState.PENDING:
        return MachinePhase.PENDING
    return MachinePhase.RUNNING if machine.failure is None else MachinePhase.FAILED


def _by_node(machines: Iterable[Machine]) -> tuple[dict[str, Machine], list[Machine]]:
    """Living machines by node (a nameless one by its id), and the surplus ones of a node that has several."""
    chosen: dict[str, Machine] = {}
    surplus: list[Machine] = []
    # The oldest running machine is the one that may run a job: it wins over any younger one.
    living = sorted(
        (m for m in machines if m.state.alive),
        key=lambda m: (m.state is not MachineState.RUNNING, m.launched, m.id),
    )
    for machine in living:
        name = machine.node or machine.id
        if name in chosen:
            surplus.append(machine)
        else:
            chosen[name] = machine
    return chosen, surplus
