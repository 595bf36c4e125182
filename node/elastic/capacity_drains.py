"""Which nodes are drained for want of capacity, and which are undrained. Pure functions.

A capacity drain is a node that is powered down and drained with our reason. The drains in Slurm are the
only record: a daemon that starts continues with those that it finds. A drain with any other reason belongs
to an administrator and is never touched.

Slurm's traps (docs/internals/slurm_traps.md): lost-drains.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from node.elastic.failures import NODE, POLICIES, ErrorClass, Failure
from node.elastic.pools import Limit
from node.elastic.view import DRAIN_PREFIXES, REASON_PREFIX
from node.slurm.states import NodeState

_KINDS = {kind.value: kind for kind in ErrorClass}


@dataclass(frozen=True, slots=True)
class DrainChange:
    """What to change about one partition's nodes in Slurm.

    Attributes:
        drain: Nodes to drain.
        undrain: Nodes to undrain.
    """

    drain: tuple[str, ...] = ()
    undrain: tuple[str, ...] = ()


def kind_of(text: str | None) -> ErrorClass | None:
    """Return the class that begins a node's reason or a job's comment; `None` means the text is not ours."""
    word, colon, _ = (text or "").removeprefix(REASON_PREFIX).partition(":")
    return _KINDS.get(word) if colon else None


def failure_of(reason: str) -> Failure | None:
    """Return the failure that the reason of a capacity drain describes; `None` means it describes none."""
    kind = kind_of(reason) if reason.startswith(DRAIN_PREFIXES) else None
    if kind is None:
        return None
    advice = re.escape(f"; {POLICIES[kind].advice}").replace(NODE, r"(?P<seen>[\w-]+)")
    text, seen = reason.removeprefix(f"{REASON_PREFIX}{kind}: "), None
    if match := re.search(f"{advice}$", text):
        text, seen = text[: match.start()], match.groupdict().get("seen")
    message, bracket, code = text.rpartition(" (")
    if not bracket:
        message, code = text, ""
    return Failure((), kind, code.removesuffix(")"), message, seen if seen != NODE else None)


def is_capacity_drain(state: NodeState) -> bool:
    """Return whether we drained the node for want of capacity.

    Such a node is off or on its way there, as a rule.
    """
    if not state.is_drained or not (state.reason or "").startswith(DRAIN_PREFIXES) or _is_ending(state):
        return False
    # A node that was up when it was drained for the budget is powered down after its job (`budget_enforcer`),
    # and so is one whose own devices failed (`node.health`).
    off = state.is_powered_down or state.is_powering_up or state.is_powering_down
    return off or kind_of(state.reason) not in (ErrorClass.BUDGET, ErrorClass.HEALTH)


def may_power_up(state: NodeState) -> bool:
    """Return whether the node is off and Slurm may power it up."""
    return state.is_powered_down and not (state.is_drained or state.is_down or state.has_job)


def is_awaited(state: NodeState) -> bool:
    """Return whether Slurm waits for the node, or will do so within a second."""
    return state.is_powering_up or (state.is_powered_down and state.has_job)


def missing_nodes(nodes: Mapping[str, NodeState], dynamic: Collection[str], machines: Collection[str]) -> int:
    """Count the nodes without a machine: the largest number of machines that could be launched."""
    return sum(1 for name in dynamic if name in nodes and name not in machines and not nodes[name].is_up)


def drain_change(
    nodes: Mapping[str, NodeState],
    dynamic: Iterable[str],
    machines: Collection[str],
    limit: Limit | None,
    static: Iterable[str] = (),
) -> DrainChange:
    """Compute the next changes to one partition's capacity drains.

    Args:
        nodes: Node -> its state.
        dynamic: The partition's nodes without the static ones.
        machines: Nodes that have a machine, perhaps from an earlier listing, but never from a later one than
            `limit`.
        limit: How many more nodes may be launched; `None` means there is no limit.
        static: The partition's static nodes. A static node without a machine is launched first, and no job
            may wait for it and a dynamic node at once.
    """
    states = [nodes[name] for name in dynamic if name in nodes]
    drained = [state for state in states if is_capacity_drain(state)]
    if limit is None:
        return DrainChange(undrain=_names(drained))
    absent = [state for state in states if is_awaited(state)]
    absent += [nodes[name] for name in static if name in nodes and not nodes[name].is_up]
    claims = sum(1 for state in absent if limit.booting or state.name not in machines)
    room = max(0, limit.count - claims)
    startable = [state for state in states if may_power_up(state)]
    # Slurm removes a drain when it begins to power a node down, so such nodes are drained again.
    undrained_by_slurm = [state for state in states if state.is_falling and not state.is_drained]
    # Slurm placed a job between our reading and our drain. The node may serve it like any other.
    in_use = [state for state in drained if is_awaited(state) or state.is_up]
    unused = [state for state in drained if state.is_powered_down and not state.has_job]
    return DrainChange(
        drain=_names(startable[room:] + undrained_by_slurm),
        undrain=_names(in_use + unused[: max(0, room - len(startable))]),
    )


def _names(states: Iterable[NodeState]) -> tuple[str, ...]:
    return tuple(state.name for state in states)


def _is_ending(state: NodeState) -> bool:
    """Return whether the node will be powered down, at once or when its job ends.

    Slurm itself drains such a node.
    """
    return state.is_leaving and not state.is_falling
