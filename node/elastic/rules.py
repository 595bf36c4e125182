"""The reconciler's table: what to do for every pair of what Slurm and the cloud say of a node.

There are two sources. Slurm hears a node's slurmd, or does not. The cloud lists the machine, reports its end,
or does not mention it. A machine that may run a job is given up only when one of them says that it ended or
will end, never because a list does not mention it: lists lag, and calls fail half way.

Slurm's traps (docs/internals/slurm_traps.md): resumed-while-off.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class NodePhase(StrEnum):
    """What Slurm says of a node, reduced to what matters for machines."""

    POWERED_DOWN = "powered_down"
    STUCK = "stuck"
    """The node is off, and DOWN, drained or silent because of a machine that no longer exists.

    Slurm itself never uses such a node again (a silent one: not after slurmctld's next start).
    """
    POWERING_UP = "powering_up"
    UP = "up"
    DRAINING = "draining"
    """The node is up, drained by us or by Slurm itself, and still runs a job."""
    DRAINED = "drained"
    """The node is up, drained by us or by Slurm itself, and runs no job any more."""
    UNFIT = "unfit"
    """The node registered with less hardware than slurm.conf says and runs no job. Slurm gives it none."""
    SILENT = "silent"
    """The node has not answered lately, or not since slurmctld started. Its jobs still count as running."""
    REBOOTING = "rebooting"
    """Somebody has asked Slurm for the node's reboot. It is free, and Slurm waits for its next boot."""
    POWERING_DOWN = "powering_down"
    DOWN = "down"
    """Slurm has given the node up. Its jobs have been requeued or have ended."""
    FORGOTTEN = "forgotten"
    """Slurm does not know a node of this name."""


class MachinePhase(StrEnum):
    """What the cloud says of the node's machine."""

    NONE = "none"
    """The cloud does not mention a machine of the node."""
    GONE = "gone"
    """The cloud says that the machine of this node has ended or is ending."""
    PENDING = "pending"
    RUNNING = "running"
    FAILED = "failed"
    """The machine runs, but its boot failed: it will not become a node."""
    NOTICED = "noticed"
    """The cloud takes the machine back within NEAR_SECONDS."""
    ANNOUNCED = "announced"
    """The cloud has said when it takes the machine back, and that is later than NEAR_SECONDS."""
    SEVERAL = "several"
    """More than one machine of this name is alive. Which of them is the node cannot be told from here."""


class Verb(StrEnum):
    """What the reconciler can do about a node or its machine."""

    TERMINATE = "terminate"
    """Terminate the machines. Slurm already counts the node as off."""
    POWER_DOWN = "power_down"
    """Have Slurm power the node down at once. Slurm requeues the job and calls SuspendProgram."""
    LAUNCH = "launch"
    """Ask the cloud again for a machine that Slurm waits for."""
    POWER_UP = "power_up"
    """Have Slurm power a static node up."""
    EVACUATE = "evacuate"
    """Drain the node and requeue its jobs where possible: the cloud will take the machine."""
    DRAIN = "drain"
    """Drain the node. Running jobs continue, and the node is powered down after them."""
    RETIRE = "retire"
    """Have Slurm power the node down as soon as its jobs are over."""
    KEEP_OUT = "keep_out"
    """Drain the node for the administrator who took it out of service: Slurm has put it back, or will."""


class GracePeriod(StrEnum):
    """Which of the policy's durations a rule waits for before it acts."""

    NOW = "now"
    SETTLE = "settle"
    LAUNCH = "launch"
    BOOT = "boot"
    SILENCE = "silence"
    DOUBT = "doubt"


@dataclass(frozen=True, slots=True)
class Rule:
    """What to do once a pair has lasted long enough.

    Attributes:
        verb: The action; `None` means that the state is right, or will become right by itself.
        grace: How long the pair must last.
        reason: The reason that users read.
    """

    verb: Verb | None
    grace: GracePeriod = GracePeriod.NOW
    reason: str = ""


BOOTSTRAP = "bootstrap: "
"""Prefix of the reason of a machine that started but did not become a node."""
PREEMPTED = "preempted: "
"""Prefix of the reason of a machine that is lost or will be. It says nothing against the node's next machine.
"""
GONE = PREEMPTED + "the machine is gone"
UNRESPONSIVE = PREEMPTED + "the machine does not respond"
TAKEN = PREEMPTED + "the cloud takes this machine"
NEAR_SECONDS = 300.0
"""How long before a machine is taken its jobs are requeued. Before that they continue, and no others start.

The time covers Slurm's KillWait (30 s), in which a job saves its work, an epilog, and the inaccuracy of an
announcement: Compute Engine says "an hour" of the host maintenance of a machine with GPUs, and not until
when. The short notices (30 s, 60 s, EC2's two minutes) all lie within it.
"""
LATER = PREEMPTED + "the cloud will take this machine"
"""The reason of a node that takes no more jobs. Its jobs continue until shortly before the machine is taken.
"""
AT_RISK = PREEMPTED + "the cloud may take this machine soon"
"""The reason of a node that takes no more jobs. Its jobs continue, because the machine may never be taken."""

UNFIT = BOOTSTRAP + "the machine has less than slurm.conf says"
"""The reason of a node that registered with less than its line in slurm.conf says. Slurm's own text follows.
"""
EMPTIED = "out of service, and its jobs are over"
"""The reason of a drained node without jobs. Slurm shows a node whose job is suspended in the same way."""
REBOOT = "reboot: its next job gets a new machine"
"""The reason of a node whose reboot was asked for. Its machine ends."""
HEALTH = "health: "
"""Prefix of the reason of a node whose devices failed, or a job's prolog or epilog on it."""
USABLE = "its machine is gone: the node can be used again"

_FINE = Rule(None)
_UNUSED = Rule(Verb.TERMINATE, GracePeriod.SETTLE, "nobody uses this machine")
_LOST = Rule(Verb.TERMINATE, GracePeriod.SETTLE, "the suspend was lost")
_NAMELESS = Rule(Verb.TERMINATE, GracePeriod.DOUBT, "no node has this name")
_LATE = Rule(Verb.POWER_DOWN, GracePeriod.BOOT, BOOTSTRAP + "the machine did not register in time")
_EMPTIED = Rule(Verb.POWER_DOWN, GracePeriod.SETTLE, EMPTIED)
_UNRESPONSIVE = Rule(Verb.POWER_DOWN, GracePeriod.SILENCE, UNRESPONSIVE)
_UNFIT = Rule(Verb.POWER_DOWN, GracePeriod.SETTLE, UNFIT)
_EVACUATE = Rule(Verb.EVACUATE, GracePeriod.NOW, TAKEN)
_TAKEN = Rule(Verb.POWER_DOWN, GracePeriod.NOW, TAKEN)
# Powering the node down once more resets it. RESUME would leave the flag NOT_RESPONDING.
_USABLE = Rule(Verb.POWER_DOWN, GracePeriod.SETTLE, USABLE)
_DIED = Rule(Verb.POWER_DOWN, GracePeriod.SETTLE, GONE)
_SURELY_DIED = Rule(Verb.POWER_DOWN, GracePeriod.NOW, GONE)

STATIC = Rule(Verb.POWER_UP, GracePeriod.SETTLE, "static node")
"""The rule for a static node that is off and has no machine."""
OUTDATED = Rule(Verb.RETIRE, GracePeriod.SETTLE, "its partition's new machines are made differently")
"""The rule for a node that is up on an outdated machine. A new machine replaces it after its jobs."""
REGISTERED = Rule(Verb.TERMINATE, GracePeriod.NOW, "Slurm asks for a new machine of its node")
"""The rule for a node that powers up and has the machine with which it was up before.

Slurm takes no registration of it: it waits for one that booted after its request (`--reboot` before 23.02, or
a SuspendProgram that was lost). When the machine has ended, another one is launched."""
VANISHED = Rule(Verb.LAUNCH, GracePeriod.DOUBT, "the machine is gone from the list")
"""The rule for a node that powers up whose machine is known, but in no list.

A list that is wrong must not lead to a second machine of this name: when that one registers, Slurm takes the
node for rebooted, and its job is lost."""
LAUNCHED_TWICE = Rule(Verb.POWER_DOWN, GracePeriod.NOW, BOOTSTRAP + "its machines end while they start")
"""The rule for a node whose second machine also ended before it registered."""

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
        # The machine ends first: a node that is usable again may be launched at once.
        _M.PENDING: _UNUSED,
        _M.RUNNING: _UNUSED,
        _M.FAILED: _UNUSED,
        _M.NOTICED: _UNUSED,
        _M.ANNOUNCED: _UNUSED,
        _M.SEVERAL: _UNUSED,
    },
    NodePhase.POWERING_UP: {
        _M.NONE: Rule(Verb.LAUNCH, GracePeriod.LAUNCH, "the launch was lost"),
        _M.GONE: Rule(Verb.LAUNCH, GracePeriod.NOW, "its machine ended while it started"),
        _M.PENDING: Rule(Verb.POWER_DOWN, GracePeriod.BOOT, BOOTSTRAP + "the machine did not start in time"),
        _M.RUNNING: _LATE,
        _M.FAILED: Rule(Verb.POWER_DOWN, GracePeriod.NOW, BOOTSTRAP + "the machine's boot failed"),
        _M.NOTICED: _TAKEN,
        _M.ANNOUNCED: _TAKEN,
        _M.SEVERAL: _LATE,
    },
    NodePhase.UP: {
        # Slurm hears the node, so its machine exists. If that changes, Slurm says so soon (SlurmdTimeout).
        _M.NONE: _FINE,
        _M.GONE: _DIED,
        # The cloud's listing may be older than the node's registration.
        _M.PENDING: _FINE,
        _M.RUNNING: _FINE,
        # The node registered, so its boot did not fail after all.
        _M.FAILED: _FINE,
        _M.NOTICED: _EVACUATE,
        _M.ANNOUNCED: Rule(Verb.DRAIN, GracePeriod.NOW, LATER),
        # Any of the machines may be the one that runs the jobs.
        _M.SEVERAL: Rule(Verb.RETIRE, GracePeriod.SETTLE, "several machines have this node's name"),
    },
    NodePhase.DRAINING: {
        _M.NONE: _FINE,
        _M.GONE: _DIED,
        _M.PENDING: _FINE,
        _M.RUNNING: _FINE,
        _M.FAILED: _FINE,
        # The evacuation is repeated in case an earlier one was interrupted.
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
        # This counts as a failed boot, so that such machines are not launched one after the other forever.
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
        # Busy machines are slow to answer: Slurm's own grace (SlurmdTimeout) decides.
        _M.RUNNING: _FINE,
        _M.FAILED: _FINE,
        _M.NOTICED: _EVACUATE,
        _M.ANNOUNCED: _FINE,
        _M.SEVERAL: _FINE,
    },
    # The machine is replaced, because no cloud's API is needed for that which other rules do not need.
    # Powering a node down ends Slurm's wait for its boot.
    NodePhase.REBOOTING: dict.fromkeys(_M, Rule(Verb.POWER_DOWN, GracePeriod.NOW, REBOOT)),
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
        # POWER_DOWN also returns a node without a machine to idle, which Slurm never does by itself.
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
