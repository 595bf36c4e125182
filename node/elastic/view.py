"""How the elastic daemon reads Slurm's nodes: their phases, and who set their reasons.

Slurm's traps (docs/internals/slurm_traps.md): resumed-while-off.
"""

from __future__ import annotations

import time

from node.elastic.failures import ErrorClass
from node.elastic.rules import NodePhase
from node.slurm.states import NodeState

REASON_PREFIX = "slurm-stacks "
"""Marks our reasons. A node with another reason was taken out of service by an administrator."""
RESUME_TIMEOUT = "ResumeTimeout reached"
"""Slurm's reason of a node that did not register in time. It replaces an administrator's."""
SLURMS_REASONS = (
    "Not responding",
    RESUME_TIMEOUT,
    "Node unexpectedly rebooted",
    "NO NETWORK ADDRESS",
    # Slurm drains a node for these. A new machine solves them.
    "Duplicate jobid",
    "Kill task failed",
    "batch job complete failure",
    "Prolog error",
    "Epilog error",
)
"""Prefixes of reasons that Slurm itself sets."""
INVALID_REGISTRATION = ("Low RealMemory", "Low CPUs", "Low socket*core", "Low TmpDisk", "gres/")
"""Prefixes of Slurm's reasons for nodes that register with less than their line in slurm.conf says."""
REBOOT_ISSUED, REBOOT_TIMED_OUT = " : reboot issued", " : reboot timed out"
"""What Slurm adds to the reason with which somebody has asked for a reboot."""
REBOOT_REASONS = ("Reboot ASAP", "reboot requested")
"""Slurm's reasons of a reboot that was asked for without one."""
AUTOMATIC_REASONS = (REASON_PREFIX, *SLURMS_REASONS, *INVALID_REGISTRATION)
"""Prefixes of all reasons that no administrator gave."""
DRAIN_PREFIXES = tuple(f"{REASON_PREFIX}{kind}: " for kind in ErrorClass if kind is not ErrorClass.PREEMPTED)
"""Prefixes of the reasons of capacity drains: the nodes stay off, because their pool has no machines now."""


def phase(state: NodeState) -> NodePhase:
    """Return the reconciler's phase for Slurm's flags."""
    is_automatic = not is_admin_disabled(state)
    if state.is_powering_down:
        return NodePhase.POWERING_DOWN
    if state.is_powered_down:
        lost = (
            state.is_down or (state.is_drained and not has_capacity_drain(state)) or _is_unresponsive(state)
        )
        return NodePhase.STUCK if is_automatic and lost else NodePhase.POWERED_DOWN
    if state.is_powering_up and not state.is_set_down:
        return NodePhase.POWERING_UP
    if state.is_rebooting:
        return NodePhase.REBOOTING
    # After a restart of slurmctld a node is UNKNOWN until it answers.
    if state.is_down and not state.is_unknown:
        return NodePhase.DOWN
    if state.is_down or state.is_silent:
        return NodePhase.SILENT
    if state.is_drained and (state.reason or "").startswith(AUTOMATIC_REASONS):
        if state.has_job:
            return NodePhase.DRAINING
        return NodePhase.UNFIT if state.is_unfit else NodePhase.DRAINED
    return NodePhase.UP


def state_text(state: NodeState) -> str:
    """Return the state in Slurm's notation, such as IDLE+CLOUD+POWERED_DOWN."""
    return "+".join([state.base, *sorted(state.flags)])


def is_admin_disabled(state: NodeState) -> bool:
    """Return whether an administrator took the node out of service, so that only one may bring it back."""
    out_of_service = state.is_drained or state.is_down
    if state.awaits_reboot:
        # `ASAP` drains the node, and Slurm sets it DOWN while it reboots. Both end with the reboot, unless
        # somebody wants the node to be DOWN then, or had drained it before.
        out_of_service = (
            state.is_drained
            if state.next_state is None
            else (out_of_service and state.next_state.startswith("DOWN"))
        )
    return out_of_service and has_admin_reason(state)


def has_admin_reason(state: NodeState) -> bool:
    """Return whether a person gave the node's reason, which may be that of an earlier state."""
    reason = state.reason or ""
    return bool(reason) and not (reason.startswith(AUTOMATIC_REASONS) or reason.endswith(REBOOT_TIMED_OUT))


def has_capacity_drain(state: NodeState) -> bool:
    """Return whether the node is off and drained by us because its pool has no machines."""
    return state.is_drained and state.is_powered_down and (state.reason or "").startswith(DRAIN_PREFIXES)


def _is_unresponsive(state: NodeState) -> bool:
    """Return whether the node is off and NOT_RESPONDING, as an administrator's RESUME leaves it.

    Slurm loses such a node as soon as slurmctld restarts.
    """
    return state.does_not_respond and not (state.is_drained or state.has_job)


def log(message: str) -> None:
    """Print a line to the daemon's log."""
    print(f"{time.strftime('%FT%TZ', time.gmtime())} {message}", flush=True)
