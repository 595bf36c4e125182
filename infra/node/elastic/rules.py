"""The reconciler's table: for every pair of what Slurm and the cloud say of a node, what follows.

Two witnesses speak of a machine. Slurm hears its slurmd, or does not; the cloud lists it, says that it has
ended, or does not mention it. Nothing that may run a job is given up on one word alone, and never because a
list does not mention it: lists lag, and calls fail half way.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class NodePhase(StrEnum):
    """What Slurm says of a node, as far as machines are concerned."""

    POWERED_DOWN = "powered_down"
    STUCK = "stuck"
    """Off, and DOWN, drained or silent because of a machine that is no more: Slurm itself never uses it again
    (a silent one not after slurmctld's next start)."""
    POWERING_UP = "powering_up"
    UP = "up"
    DRAINING = "draining"
    """Up, drained by us or by Slurm itself, and a job is on it."""
    DRAINED = "drained"
    """The same, and no job is on it any more."""
    UNFIT = "unfit"
    """It registered with less than Slurm was told of it, and no job is on it: Slurm gives it none."""
    SILENT = "silent"
    """It has not answered lately, or not since slurmctld started; its jobs are still its own."""
    POWERING_DOWN = "powering_down"
    DOWN = "down"
    """Slurm has given it up, and its jobs are queued again or over."""
    FORGOTTEN = "forgotten"
    """Slurm does not know the name."""


class MachinePhase(StrEnum):
    """What the cloud says of the node's machine."""

    NONE = "none"
    """The cloud does not mention one."""
    GONE = "gone"
    """The cloud says that the machine which this node had has ended, or is ending."""
    PENDING = "pending"
    RUNNING = "running"
    FAILED = "failed"
    """It runs, and its boot failed: it will not become a node."""
    NOTICED = "noticed"
    """The cloud takes it back within NEAR_SECONDS."""
    ANNOUNCED = "announced"
    """The cloud has said when it takes it back, and that is later."""
    SEVERAL = "several"
    """More than one lives; which of them is the node cannot be told from here."""


class Verb(StrEnum):
    TERMINATE = "terminate"
    """Take the machines away; Slurm already counts the node as off."""
    POWER_DOWN = "power_down"
    """Tell Slurm to give the node back at once; it requeues the job and asks for the suspend."""
    LAUNCH = "launch"
    """Ask the cloud again for a machine that Slurm waits for."""
    POWER_UP = "power_up"
    """Tell Slurm to bring a static node up."""
    EVACUATE = "evacuate"
    """Take no new job, and queue those again that may be: the machine will be taken."""
    DRAIN = "drain"
    """Take no new job; what runs goes on, and the node is given back after it."""
    RETIRE = "retire"
    """Tell Slurm to give the node back as soon as its jobs are over."""


class Patience(StrEnum):
    """Which of the policy's durations a rule waits for."""

    NOW = "now"
    SETTLE = "settle"
    LAUNCH = "launch"
    BOOT = "boot"
    SILENCE = "silence"
    DOUBT = "doubt"


@dataclass(frozen=True, slots=True)
class Rule:
    """What follows when a pair has lasted; `verb` None: it is as it should be, or will be."""

    verb: Verb | None
    patience: Patience = Patience.NOW
    reason: str = ""


BOOTSTRAP = "bootstrap: "
"""Begins the reason of a machine that came and did not become a node."""
PREEMPTED = "preempted: "
"""Begins the reason of a machine that is no more, or will not be: it says nothing against the next one."""
MUTE = PREEMPTED + "the machine does not respond"
TAKEN = PREEMPTED + "the cloud takes this machine"
NEAR_SECONDS = 300.0
"""How long before a machine is taken its jobs are queued again; before that they go on, and no other starts.

It holds Slurm's KillWait (30 s), in which a job saves its work, an epilog, and what an announcement is off
by: Compute Engine says "an hour" of the host maintenance of a machine with GPUs, and not until when. The
short notices (30 s, 60 s, EC2's two minutes) all lie within it.
"""
LATER = PREEMPTED + "the cloud will take this machine"
"""Of a node that takes no more jobs; what runs on it goes on until shortly before that."""
AT_RISK = PREEMPTED + "the cloud may take this machine soon"
"""Of a node that takes no more jobs; what runs on it goes on, for it may never come to that."""

UNFIT = BOOTSTRAP + "the machine is smaller than the cluster was told"
"""Of a node that registered with less than its line in slurm.conf says; Slurm's words follow."""
EMPTIED = "out of service, and its jobs are over"
"""Of a node that takes no more jobs and has none; Slurm shows one whose job is suspended in the same way."""
USABLE = "its machine is gone: the node can be used again"

_FINE = Rule(None)
_GONE = PREEMPTED + "the machine is gone"
_UNUSED = Rule(Verb.TERMINATE, Patience.SETTLE, "nobody uses this machine")
_LOST = Rule(Verb.TERMINATE, Patience.SETTLE, "the suspend was lost")
_NAMELESS = Rule(Verb.TERMINATE, Patience.DOUBT, "no node has this name")
_LATE = Rule(Verb.POWER_DOWN, Patience.BOOT, BOOTSTRAP + "the machine did not register in time")
_EMPTIED = Rule(Verb.POWER_DOWN, Patience.SETTLE, EMPTIED)
_UNRESPONSIVE = Rule(Verb.POWER_DOWN, Patience.SILENCE, MUTE)
_UNFIT = Rule(Verb.POWER_DOWN, Patience.SETTLE, UNFIT)
_EVACUATE = Rule(Verb.EVACUATE, Patience.NOW, TAKEN)
_TAKEN = Rule(Verb.POWER_DOWN, Patience.NOW, TAKEN)
# Switched off once more it comes back as new; RESUME would leave NOT_RESPONDING.
_USABLE = Rule(Verb.POWER_DOWN, Patience.SETTLE, USABLE)
_DIED = Rule(Verb.POWER_DOWN, Patience.SETTLE, _GONE)
_SURELY_DIED = Rule(Verb.POWER_DOWN, Patience.NOW, _GONE)

STATIC = Rule(Verb.POWER_UP, Patience.SETTLE, "static node")
"""Of a static node that is off and has no machine."""
OUTDATED = Rule(Verb.RETIRE, Patience.SETTLE, "its partition's machines are made otherwise by now")
"""Of a node that is up on a machine as the partition had it before: another one follows after its jobs."""
LAUNCHED_TWICE = Rule(Verb.POWER_DOWN, Patience.NOW, BOOTSTRAP + "its machines end while they start")
"""Of a node whose second machine ended too before it registered."""

_M = MachinePhase
RULES: dict[NodePhase, dict[MachinePhase, Rule]] = {
    NodePhase.POWERED_DOWN: {
        _M.NONE: _FINE,
        _M.GONE: _FINE,
        _M.PENDING: _UNUSED,
        _M.RUNNING: _UNUSED,
        _M.FAILED: _UNUSED,
        _M.NOTICED: _UNUSED,
        _M.ANNOUNCED: _UNUSED,
        _M.SEVERAL: _UNUSED,
    },
    NodePhase.STUCK: {
        _M.NONE: _USABLE,
        _M.GONE: _USABLE,
        # Its machine first: a node that is usable again may be asked for at once.
        _M.PENDING: _UNUSED,
        _M.RUNNING: _UNUSED,
        _M.FAILED: _UNUSED,
        _M.NOTICED: _UNUSED,
        _M.ANNOUNCED: _UNUSED,
        _M.SEVERAL: _UNUSED,
    },
    NodePhase.POWERING_UP: {
        _M.NONE: Rule(Verb.LAUNCH, Patience.LAUNCH, "the launch was lost"),
        _M.GONE: Rule(Verb.LAUNCH, Patience.NOW, "its machine ended while it started"),
        _M.PENDING: Rule(Verb.POWER_DOWN, Patience.BOOT, BOOTSTRAP + "the machine did not start in time"),
        _M.RUNNING: _LATE,
        _M.FAILED: Rule(Verb.POWER_DOWN, Patience.NOW, BOOTSTRAP + "the machine's boot failed"),
        _M.NOTICED: _TAKEN,
        _M.ANNOUNCED: _TAKEN,
        _M.SEVERAL: _LATE,
    },
    NodePhase.UP: {
        # Slurm hears it, so it is there; where that is no longer so, Slurm says it soon (SlurmdTimeout).
        _M.NONE: _FINE,
        _M.GONE: _DIED,
        # A listing may lag behind the machine's own registration.
        _M.PENDING: _FINE,
        _M.RUNNING: _FINE,
        # Slurm's word counts: it registered.
        _M.FAILED: _FINE,
        _M.NOTICED: _EVACUATE,
        _M.ANNOUNCED: Rule(Verb.DRAIN, Patience.NOW, LATER),
        # Either of them may run the jobs.
        _M.SEVERAL: Rule(Verb.RETIRE, Patience.SETTLE, "several machines have this node's name"),
    },
    NodePhase.DRAINING: {
        _M.NONE: _FINE,
        _M.GONE: _DIED,
        _M.PENDING: _FINE,
        _M.RUNNING: _FINE,
        _M.FAILED: _FINE,
        # Again, for what an evacuation that was cut off has left.
        _M.NOTICED: _EVACUATE,
        _M.ANNOUNCED: _FINE,
        _M.SEVERAL: _FINE,
    },
    NodePhase.DRAINED: {
        _M.NONE: _EMPTIED,
        _M.GONE: _SURELY_DIED,
        _M.PENDING: _EMPTIED,
        _M.RUNNING: _EMPTIED,
        _M.FAILED: _EMPTIED,
        _M.NOTICED: _TAKEN,
        _M.ANNOUNCED: _EMPTIED,
        _M.SEVERAL: _EMPTIED,
    },
    NodePhase.UNFIT: {
        # As a boot that failed, so that not one such machine follows the other for ever.
        _M.NONE: _UNFIT,
        _M.GONE: _SURELY_DIED,
        _M.PENDING: _UNFIT,
        _M.RUNNING: _UNFIT,
        _M.FAILED: _UNFIT,
        _M.NOTICED: _TAKEN,
        _M.ANNOUNCED: _TAKEN,
        _M.SEVERAL: _UNFIT,
    },
    NodePhase.SILENT: {
        _M.NONE: _FINE,
        _M.GONE: _DIED,
        _M.PENDING: _FINE,
        # Busy machines are slow to answer: Slurm's own patience (SlurmdTimeout) decides.
        _M.RUNNING: _FINE,
        _M.FAILED: _FINE,
        _M.NOTICED: _EVACUATE,
        _M.ANNOUNCED: _FINE,
        _M.SEVERAL: _FINE,
    },
    NodePhase.POWERING_DOWN: {
        _M.NONE: _FINE,
        _M.GONE: _FINE,
        _M.PENDING: _LOST,
        _M.RUNNING: _LOST,
        _M.FAILED: _LOST,
        _M.NOTICED: _LOST,
        _M.ANNOUNCED: _LOST,
        _M.SEVERAL: _LOST,
    },
    NodePhase.DOWN: {
        # POWER_DOWN also brings a node without a machine back to idle, which Slurm alone never does.
        _M.NONE: _DIED,
        _M.GONE: _SURELY_DIED,
        _M.PENDING: _UNRESPONSIVE,
        _M.RUNNING: _UNRESPONSIVE,
        _M.FAILED: _UNRESPONSIVE,
        _M.NOTICED: _TAKEN,
        _M.ANNOUNCED: _TAKEN,
        _M.SEVERAL: _UNRESPONSIVE,
    },
    NodePhase.FORGOTTEN: {
        _M.NONE: _FINE,
        _M.GONE: _FINE,
        _M.PENDING: _NAMELESS,
        _M.RUNNING: _NAMELESS,
        _M.FAILED: _NAMELESS,
        _M.NOTICED: _NAMELESS,
        _M.ANNOUNCED: _NAMELESS,
        _M.SEVERAL: _NAMELESS,
    },
}
