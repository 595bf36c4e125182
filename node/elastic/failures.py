"""The classes of failures of launches and machines, and what the elastic daemon does about each class."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

NODE = "NODE"
"""Stands for a node's name in the advice of a policy."""


class ErrorClass(StrEnum):
    """Why a machine could not be launched or kept."""

    QUOTA = "quota"
    """The account may not have more machines. Only a person can change that."""
    CAPACITY = "capacity"
    """The pool has no machines left now. Another pool may have some, and so may this one later."""
    PLACEMENT = "placement"
    """The machines cannot be placed together."""
    PERMISSION = "permission"
    """The controller's identity may not do this."""
    THROTTLED = "throttled"
    """There were too many calls. The same call works a little later."""
    UNAVAILABLE = "unavailable"
    """The cloud did not answer, has a problem of its own, or is still busy with what the call needs. The same
    call works a little later.
    """
    CONFIG = "config"
    """The request itself is wrong and stays wrong."""
    BOOTSTRAP = "bootstrap"
    """The machine started but did not become a node."""
    PREEMPTED = "preempted"
    """The cloud took the machine back."""
    INTERRUPTED = "interrupted"
    """The cloud took spot machines back again and again."""
    HEALTH = "health"
    """The machines' devices, or the prologs of jobs on them, failed again and again."""
    BUDGET = "budget"
    """The machine would cost more than the stack file allows."""


API_FAILURES = (ErrorClass.THROTTLED, ErrorClass.UNAVAILABLE)
"""Classes in which the cloud has not said what it would do. They say nothing about a pool's capacity, and the
same call is repeated, with growing pauses, before it counts as failed.
"""


COUNTED = (ErrorClass.QUOTA, ErrorClass.CAPACITY, ErrorClass.BUDGET)
"""Classes whose messages tell how much is used and left, which changes while jobs wait."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How the elastic daemon treats a class of failures.

    Attributes:
        backoff: Seconds during which the pool is not asked again after the first of several failures in a
            row.
        backoff_max: The largest back-off in seconds. The back-off doubles with each failure up to this value.
        advice: What the user reads after the cause. `NODE` stands for the name of a node, where one is known.
    """

    backoff: float
    backoff_max: float
    advice: str


POLICIES: dict[ErrorClass, RetryPolicy] = {
    ErrorClass.QUOTA: RetryPolicy(30, 300, "ask for a higher quota, or lower the partition's max"),
    ErrorClass.CAPACITY: RetryPolicy(30, 600, "it is tried again by itself"),
    ErrorClass.PLACEMENT: RetryPolicy(60, 600, "use fewer nodes, or placement: none"),
    ErrorClass.PERMISSION: RetryPolicy(300, 300, "see the controller's role"),
    ErrorClass.THROTTLED: RetryPolicy(5, 60, "it is tried again by itself"),
    ErrorClass.UNAVAILABLE: RetryPolicy(5, 60, "it is tried again by itself"),
    ErrorClass.CONFIG: RetryPolicy(300, 300, "correct the stack file and run up again"),
    ErrorClass.BOOTSTRAP: RetryPolicy(30, 600, "see the node's boot report, by `logs NODE`"),
    ErrorClass.PREEMPTED: RetryPolicy(0, 0, "the job is queued again by itself"),
    ErrorClass.INTERRUPTED: RetryPolicy(600, 14400, "it is tried again by itself"),
    ErrorClass.HEALTH: RetryPolicy(600, 3600, "look for what they have in common, by `logs NODE`"),
    ErrorClass.BUDGET: RetryPolicy(0, 0, "raise it and run up again"),
}


@dataclass(frozen=True, slots=True)
class FallBack:
    """Whether a partition's next pool is used after a failure of a class.

    Attributes:
        falls: Whether it is. Otherwise jobs wait for the pool that they would have got, with the cause.
        why: The reason, as users read it.
    """

    falls: bool
    why: str


FALLS_BACK: dict[ErrorClass, FallBack] = {
    ErrorClass.CAPACITY: FallBack(True, "another pool may have machines"),
    ErrorClass.QUOTA: FallBack(True, "spot machines and instance types have quotas of their own"),
    ErrorClass.PLACEMENT: FallBack(True, "other machines may be placed together"),
    ErrorClass.INTERRUPTED: FallBack(True, "machines on demand are not taken back"),
    ErrorClass.HEALTH: FallBack(True, "other machines have other devices; a wrong prolog stops them, too"),
    ErrorClass.BUDGET: FallBack(True, "each pool is judged at its own price"),
    ErrorClass.PREEMPTED: FallBack(True, "a single machine that is lost closes no pool"),
    ErrorClass.PERMISSION: FallBack(
        False, "a missing right is a mistake, which would run all jobs elsewhere"
    ),
    ErrorClass.CONFIG: FallBack(False, "a wrong setting is a mistake, which would run all jobs elsewhere"),
    ErrorClass.BOOTSTRAP: FallBack(False, "what is installed is wrong, or a hook; the next pool has it, too"),
    ErrorClass.THROTTLED: FallBack(False, "the cloud has not said whether it has machines"),
    ErrorClass.UNAVAILABLE: FallBack(False, "the cloud has not said whether it has machines"),
}
"""Class -> whether the next pool of a partition is used.

A mistake of ours must not move all jobs to a dearer pool without anybody noticing.
"""


@dataclass(frozen=True, slots=True)
class Failure:
    """Nodes that could not be launched or kept, and why.

    Attributes:
        nodes: Slurm's names of the nodes.
        kind: The class of the failure.
        code: The cloud's own error code, for people who look it up.
        message: The cloud's own message.
        seen: A node whose logs show the cause; `None` means that no node is known to. `nodes` may be others,
            which are not launched for the same cause.
        own: Whether the cause is these nodes' own: their names are in use. It says nothing about the pool, or
            about other nodes. A name that is in use for a while only is UNAVAILABLE.
    """

    nodes: tuple[str, ...]
    kind: ErrorClass
    code: str
    message: str
    seen: str | None = None
    own: bool = False

    def sentence(self) -> str:
        """Return one line for a job's comment and a node's reason."""
        advice = POLICIES[self.kind].advice
        if self.seen is not None:
            advice = advice.replace(NODE, self.seen)
        return f"{self.kind}: {self.message} ({self.code}); {advice}"
