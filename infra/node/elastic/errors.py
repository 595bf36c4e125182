"""Every failure of a launch, classified once; each class has one policy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ErrorClass(StrEnum):
    """Why a machine could not be had or kept."""

    QUOTA = "quota"
    """The account may not have more: only a person can change that."""
    CAPACITY = "capacity"
    """The pool has none left now: another pool may, and so may this one later."""
    PLACEMENT = "placement"
    """The machines cannot be placed together."""
    PERMISSION = "permission"
    """The controller's identity may not do this."""
    THROTTLED = "throttled"
    """Too many calls, or the cloud's own trouble: the same call works a little later."""
    CONFIG = "config"
    """The request itself is wrong and stays wrong."""
    BOOTSTRAP = "bootstrap"
    """The machine came, and did not become a node."""
    PREEMPTED = "preempted"
    """The cloud took the machine back."""
    BUDGET = "budget"
    """It would cost more than the stack file allows."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the elastic core does about a class of failures.

    Attributes:
        backoff: seconds during which the pool is not asked again after the first failure in a row.
        backoff_max: where doubling the back-off ends.
        retry_call: the same call is repeated at once, with growing pauses, before it counts as failed.
        advice: what the user reads after the cause.
    """

    backoff: float
    backoff_max: float
    retry_call: bool
    advice: str


POLICIES: dict[ErrorClass, Policy] = {
    ErrorClass.QUOTA: Policy(30, 300, False, "ask for a higher quota, or lower the partition's max"),
    ErrorClass.CAPACITY: Policy(30, 600, False, "it is tried again by itself"),
    ErrorClass.PLACEMENT: Policy(60, 600, False, "use fewer nodes, or placement: none"),
    ErrorClass.PERMISSION: Policy(300, 300, False, "see the controller's role"),
    ErrorClass.THROTTLED: Policy(5, 60, True, "it is tried again by itself"),
    ErrorClass.CONFIG: Policy(300, 300, False, "correct the stack file and run up again"),
    ErrorClass.BOOTSTRAP: Policy(30, 600, False, "see the node's boot report, by `logs NODE`"),
    ErrorClass.PREEMPTED: Policy(0, 0, False, "the job is queued again by itself"),
    ErrorClass.BUDGET: Policy(0, 0, False, "raise it and run up again"),
}


@dataclass(frozen=True, slots=True)
class Failure:
    """Nodes that could not be had, and why.

    Attributes:
        nodes: Slurm's names.
        code: the cloud's own code, for those who look it up.
        message: the cloud's own words.
    """

    nodes: tuple[str, ...]
    kind: ErrorClass
    code: str
    message: str

    def sentence(self) -> str:
        """One line for a job's comment and a node's reason."""
        return f"{self.kind}: {self.message} ({self.code}); {POLICIES[self.kind].advice}"
