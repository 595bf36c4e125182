"""Which nodes are fenced, and which let go: from the nodes' states and what limits their partition. Pure.

A fence is a node that is off and drained with our reason. It is all there is to remember: a daemon that
starts goes on with the fences that it finds. A drain with any other reason is a person's, never touched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from infra.node.elastic.errors import POLICIES, ErrorClass, Failure
from infra.node.elastic.pools import Limit
from infra.node.elastic.view import FENCES, REASON_PREFIX
from infra.node.slurm.states import NodeState

_KINDS = {kind.value: kind for kind in ErrorClass}


@dataclass(frozen=True, slots=True)
class Change:
    """What to tell Slurm of one partition's nodes.

    Attributes:
        fence: to be drained.
        free: to be undrained.
    """

    fence: tuple[str, ...] = ()
    free: tuple[str, ...] = ()


def kind_of(text: str | None) -> ErrorClass | None:
    """The class that a node's reason or a job's comment of ours begins with; None: it is not ours."""
    word, colon, _ = (text or "").removeprefix(REASON_PREFIX).partition(":")
    return _KINDS.get(word) if colon else None


def failure_of(reason: str) -> Failure | None:
    """The failure that a fence's reason tells of; None: it is no fence's."""
    kind = kind_of(reason) if reason.startswith(FENCES) else None
    if kind is None:
        return None
    said = reason.removeprefix(f"{REASON_PREFIX}{kind}: ").removesuffix(f"; {POLICIES[kind].advice}")
    message, bracket, code = said.rpartition(" (")
    return Failure((), kind, code.removesuffix(")"), message) if bracket else Failure((), kind, "", said)


def is_fence(state: NodeState) -> bool:
    """Drained by us for want of machines: as a rule a node that is off, or on its way there."""
    if not state.is_drained or not (state.reason or "").startswith(FENCES) or _is_ending(state):
        return False
    # One that was up when it was drained for the budget goes when its job is over (`overspent`).
    off = state.is_powered_down or state.is_powering_up or state.is_powering_down
    return off or kind_of(state.reason) is not ErrorClass.BUDGET


def is_open(state: NodeState) -> bool:
    """Off, and Slurm may ask for it."""
    return state.is_powered_down and not (state.is_drained or state.is_down or state.has_job)


def is_underway(state: NodeState) -> bool:
    """Slurm waits for it, or will in a second."""
    return state.is_powering_up or (state.is_powered_down and state.has_job)


def missing(nodes: Mapping[str, NodeState], dynamic: Collection[str], machines: Collection[str]) -> int:
    """Nodes that have no machine: as many could be asked for at most."""
    return sum(1 for name in dynamic if name in nodes and name not in machines and not nodes[name].is_up)


def change(
    nodes: Mapping[str, NodeState],
    dynamic: Iterable[str],
    machines: Collection[str],
    limit: Limit | None,
    static: Iterable[str] = (),
) -> Change:
    """The next step of one partition's fences.

    Args:
        dynamic: its nodes, without the static ones.
        static: those; one that is not there comes first, and no job may wait for it and another one together.
        machines: nodes that have a machine, or an earlier reading of them: never later than `limit`'s.
    """
    states = {name: nodes[name] for name in dynamic if name in nodes}
    fenced = [name for name, state in states.items() if is_fence(state)]
    if limit is None:
        return Change((), tuple(fenced))
    counted = (name for name, state in states.items() if is_underway(state))
    underway = sum(1 for name in counted if limit.booting or name not in machines)
    absent = [n for n in static if n in nodes and not nodes[n].is_up and (limit.booting or n not in machines)]
    target = max(0, limit.count - underway - len(absent))
    opened = [name for name, state in states.items() if is_open(state)]
    # An earlier drain is lost: Slurm takes it away when it begins to power a node down.
    falling = [name for name, s in states.items() if "POWERING_DOWN" in s.flags and not s.is_drained]
    # A job was placed in the moment between our reading and our drain: its node is as good as any.
    raced = [name for name in fenced if is_underway(states[name]) or states[name].is_up]
    ready = [name for name in fenced if states[name].is_powered_down and not states[name].has_job]
    more = max(0, target - len(opened))
    return Change((*opened[target:], *falling), (*raced, *ready[:more]))


def _is_ending(state: NodeState) -> bool:
    """Asked to go when its job ends, or at once; Slurm's own drain goes with that."""
    return "POWER_DOWN" in state.flags and "POWERING_DOWN" not in state.flags
