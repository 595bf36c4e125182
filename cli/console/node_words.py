"""The states of nodes and partitions in words."""

from __future__ import annotations

import time

from node.elastic.view import REASON_PREFIX, is_admin_disabled
from node.slurm.reservations import Reservation
from node.slurm.states import MISSING, NodeState

UNUSABLE = {
    "INVALID_REG": ("unfit", "it has less than the cluster was told"),
    "REBOOT_ISSUED": ("restarting", "its restart was asked for by hand"),
    "PERFCTRS": ("busy", "a job has its performance counters, and so it takes no other"),
    "BLOCKED": ("blocked", "a job that has the nodes around it keeps others away"),
}
"""Flag of a node that takes no jobs for now -> its state, and why if Slurm has no reason."""
SOON = {
    "POWER_DOWN": "it goes back after its job",
    "REBOOT_REQUESTED": "it is restarted when it is free",
    "PLANNED": "Slurm has it in mind for a job that waits",
}
"""Flag of a node that is as it should be -> what will become of it."""
PARTITION_STATES = {
    "DOWN": "it takes jobs and starts none",
    "DRAIN": "it takes no more jobs, and starts those that wait",
    "INACTIVE": "it takes no jobs and starts none",
}
"""What a partition does that is not UP."""


def node_words(
    state: str,
    machine: str | None,
    reason: str | None,
    kept: Reservation | None = None,
    *,
    listed: bool = True,
) -> tuple[str, str]:
    """Return a node's state, and why it is not up, in words.

    What somebody has taken out of service comes before what its machine does, so it never looks usable.

    Args:
        state: The state in Slurm's notation: IDLE+CLOUD+POWERED_DOWN.
        machine: The state of its machine, as the cloud reports it. `None` means that there is no machine.
        reason: Slurm's reason, which may be an old one.
        kept: The reservation that has the node now. Slurm marks its nodes a few seconds later.
        listed: Whether the cloud has listed the machines just now.
    """
    base, *flags = state.split("+")
    node = NodeState("", base, frozenset(flags), reason)
    said = (reason or "").removeprefix(REASON_PREFIX)
    if base == MISSING:
        return "missing", (
            "Slurm does not list it: it was set to FUTURE by hand, or slurm.conf was changed; "
            "`scontrol reconfigure` brings back what slurm.conf has"
        )
    if node.is_drained:
        return _drained(node, said)
    if node.is_down and base != "UNKNOWN":
        if node.is_powered_down and not is_admin_disabled(node):
            return "down", f"last: {said}" if said else ""
        return "down", said or "Slurm gives no reason"
    if kept is not None or node.flags & {"MAINTENANCE", "RESERVED"}:
        repairs = "MAINTENANCE" in flags or (kept is not None and kept.is_maintenance)
        rest = "+".join([base, *(flag for flag in flags if flag not in ("MAINTENANCE", "RESERVED"))])
        what, why = node_words(rest, machine, reason, listed=listed)
        trouble = f"; {why}" if why and what not in ("off", "idle", "busy") else ""
        whose = f"{kept.name}, for {kept.purpose} {kept.times(time.time())}" if kept else "by a reservation"
        return f"{'in maintenance' if repairs else 'reserved'}, {what}", f"{whose}{trouble}"
    if node.is_powering_up:
        waits = {None: "no machine yet", "pending": "its machine boots", "running": "has not registered yet"}
        return "starting", waits.get(machine, "")
    if node.is_powering_down:
        return "going back", said
    if node.is_powered_down:
        if machine is not None:
            return "off", "its machine is being ended"
        return "off", f"last: {said}" if said else ""
    return _registered(node, said, missing=machine is None and listed)


def _drained(node: NodeState, said: str) -> tuple[str, str]:
    if node.is_powered_down and (node.reason or "").startswith(REASON_PREFIX):
        return "drained, powered down", said
    # FAIL is DRAIN under another name, for programs that then leave the node.
    word = "drained" if "DRAIN" in node.flags else "drained (fail)"
    return f"{word}, its job goes on" if node.has_job else word, said or "it was taken out of service by hand"


def _registered(node: NodeState, said: str, *, missing: bool) -> tuple[str, str]:
    """The words for a node that is neither off nor out of service.

    Args:
        missing: Whether the cloud lists no machine for it.
    """
    if node.base == "UNKNOWN":
        return "unknown", "Slurm has not heard from it since slurmctld started"
    if node.is_silent:
        return "silent", said or "does not answer"
    for flag, words in UNUSABLE.items():
        if flag in node.flags:
            return words[0], said or words[1]
    if missing:
        return ("busy" if node.has_job else "idle"), "the cloud lists no machine of this name"
    for flag, why in SOON.items():
        if flag in node.flags:
            return ("busy" if node.has_job else "idle"), why
    return ("busy" if node.has_job else "idle"), ""
