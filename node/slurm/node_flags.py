"""What the words mean of which Slurm makes a node's state. Readers ask `NodeState`, and know none of them.

`scontrol show node` tells a base state and all flags, IDLE+CLOUD+POWERED_DOWN, on every release from 22.05 to
26.05, unlike `sinfo`, which makes one word of them unless it is asked for StateComplete. A flag of a release
to come, or one without a word, which Slurm shows as `?`, takes no node out of use here: `unknown` tells it.

`tests/node/data/slurm_node_states.json` has all words of the releases, and `tests/test_node_states.py` holds
that each is here and that no other module compares any.

Slurm's traps (docs/internals/slurm_traps.md): node-words.
"""

from __future__ import annotations

from collections.abc import Iterable

IDLE, ALLOCATED, MIXED = "IDLE", "ALLOCATED", "MIXED"
DOWN, ERROR, FUTURE, UNKNOWN = "DOWN", "ERROR", "FUTURE", "UNKNOWN"
MISSING = "MISSING"
"""Our word for the base state of a node that the cluster has and Slurm does not list.

`scontrol` leaves out a node that somebody has set to FUTURE, and one without a line in slurm.conf.
"""
WITH_JOBS = frozenset({ALLOCATED, MIXED})
BROKEN = frozenset({DOWN, ERROR, FUTURE, UNKNOWN, MISSING})
BASES = WITH_JOBS | BROKEN | {IDLE}

POWERED_DOWN, POWERING_DOWN, POWER_DOWN = "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"
POWERING_UP, POWER_UP = "POWERING_UP", "POWER_UP"
REBOOT_REQUESTED, REBOOT_ISSUED = "REBOOT_REQUESTED", "REBOOT_ISSUED"
DRAIN, FAIL = "DRAIN", "FAIL"
NOT_RESPONDING, INVALID_REG = "NOT_RESPONDING", "INVALID_REG"
MAINTENANCE, RESERVED = "MAINTENANCE", "RESERVED"
BLOCKED, PERFCTRS, PLANNED, COMPLETING = "BLOCKED", "PERFCTRS", "PLANNED", "COMPLETING"

OFF = frozenset({POWERED_DOWN, POWERING_DOWN})
UNFIT = frozenset({NOT_RESPONDING, REBOOT_ISSUED, INVALID_REG})
"""The node is registered but unusable: silent, restarting, or with less hardware than its line says."""
OUT_OF_SERVICE = frozenset({DRAIN, FAIL})
OF_RESERVATIONS = frozenset({MAINTENANCE, RESERVED})
KEPT = OF_RESERVATIONS | {PERFCTRS, BLOCKED, INVALID_REG, REBOOT_ISSUED}
"""Slurm gives these nodes to no job, or only to those of a reservation."""
ORIGINS = frozenset({"CLOUD", "DYNAMIC_FUTURE", "DYNAMIC_NORM", "EXTERNAL", "RESUME"})
"""They say where a node's line came from, or have a meaning in requests only."""
FLAGS = OFF | UNFIT | OUT_OF_SERVICE | KEPT | ORIGINS | {
    POWER_DOWN, POWERING_UP, POWER_UP, REBOOT_REQUESTED, PLANNED, COMPLETING,
}  # fmt: skip


def unknown(flags: Iterable[str]) -> list[str]:
    """Return those of a node's flags whose meaning is not known here."""
    return sorted(set(flags) - FLAGS)
