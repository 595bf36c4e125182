"""Slurm's nodes as the elastic core sees them: phases, who holds them, whose reasons they carry."""

from __future__ import annotations

import time

from infra.node.elastic.errors import ErrorClass
from infra.node.elastic.rules import NodePhase
from infra.node.slurm.states import NodeState

REASON_PREFIX = "slurm-stacks "
"""Marks reasons that are ours: a node with any other reason was taken out by a person."""
SLURMS_REASONS = (
    "Not responding",
    "ResumeTimeout reached",
    "Node unexpectedly rebooted",
    "NO NETWORK ADDRESS",
    # What it drains a node for by itself. A new machine is the cure.
    "Duplicate jobid",
    "Kill task failed",
    "batch job complete failure",
    "Prolog error",
    "Epilog error",
)
MISFITS = ("Low RealMemory", "Low CPUs", "Low socket*core", "Low TmpDisk", "gres/")
"""Begin what Slurm drains a node for that registers with less than its line in slurm.conf says."""
OURS = (REASON_PREFIX, *SLURMS_REASONS, *MISFITS)
"""Begin the reasons that no person gave."""
FENCES = tuple(f"{REASON_PREFIX}{kind}: " for kind in ErrorClass if kind is not ErrorClass.PREEMPTED)
"""Begin the reasons of nodes that are off and shall stay off: their pool cannot give machines now."""


def phase(state: NodeState) -> NodePhase:
    """Slurm's flags as the reconciler's phases."""
    ours = not held(state)
    if state.is_powering_down:
        return NodePhase.POWERING_DOWN
    if state.is_powered_down:
        lost = state.is_down or (state.is_drained and not is_fenced(state)) or _is_mute(state)
        return NodePhase.STUCK if ours and lost else NodePhase.POWERED_DOWN
    if state.is_powering_up and state.base != "DOWN":
        return NodePhase.POWERING_UP
    # After a restart of slurmctld a node is UNKNOWN until it has answered.
    if state.is_down and state.base != "UNKNOWN":
        return NodePhase.DOWN
    if state.is_down or state.is_silent:
        return NodePhase.SILENT
    if state.is_drained and (state.reason or "").startswith(OURS):
        if state.has_job:
            return NodePhase.DRAINING
        return NodePhase.UNFIT if "INVALID_REG" in state.flags else NodePhase.DRAINED
    return NodePhase.UP


def state_text(state: NodeState) -> str:
    """Slurm's own notation: IDLE+CLOUD+POWERED_DOWN."""
    return "+".join([state.base, *sorted(state.flags)])


def held(state: NodeState) -> bool:
    """A person took the node out of service, and only a person brings it back."""
    reason = state.reason or ""
    ours = not reason or reason.startswith(OURS)
    return (state.is_drained or state.is_down) and not ours


def is_fenced(state: NodeState) -> bool:
    """Off and drained by us, because its pool cannot give machines."""
    return state.is_drained and state.is_powered_down and (state.reason or "").startswith(FENCES)


def _is_mute(state: NodeState) -> bool:
    """Off and NOT_RESPONDING, as a person's RESUME leaves it: lost as soon as slurmctld starts anew."""
    return "NOT_RESPONDING" in state.flags and not (state.is_drained or state.has_job)


def log(message: str) -> None:
    """A line of the daemon's log."""
    print(f"{time.strftime('%FT%TZ', time.gmtime())} {message}", flush=True)
