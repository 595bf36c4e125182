"""What a change of a key does to a cluster that is up: the words in which each field of a stack file says it.

A field has its effect among the metadata of its type, `efa: Annotated[bool, effect(aws=Kind.RENEWED)]`.
`infra.config.changes` makes each provider's table of them. The facts of instance types say theirs, too, so
this module imports nothing of `infra.config`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The effect of a change; the value is the text for users."""

    NOTHING = "changes nothing on this cloud"
    LIVE = "applied to the running cluster"
    NODES = "new nodes only: a node that is up keeps what it has until it is removed"
    RENEWED = (
        "new nodes have it; a node that is up takes no further job, and is removed when its jobs are over"
    )
    PAUSE = "the machine stops and starts: jobs go on, and wait for it where they need it"
    ENDS = "removes nodes, and ends the jobs that run on them"
    TAKEOVER = "needs a new head, which takes over: jobs go on, and none starts until it has booted"
    MOVED = "needs a new head at another address: waiting jobs stay, and running ones are queued again"
    HEAD = "needs a new head: its queue and running jobs are lost"
    DATA = "is recreated: its contents are lost"
    NEVER = "is not possible"


HERE = "a local stack uses this machine's hardware as it is"
"""The remark of a key that a local stack does not use."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a change of a key does on one provider.

    Attributes:
        note: A remark for the user's text.
        less: The kind if a number decreases; `None` means `kind`.
        design: The fields of the design that show the change on this provider; `None` means the effect's.
    """

    kind: Kind
    note: str = ""
    less: Kind | None = None
    design: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """What a change of a key does, by provider. `None`: the provider does not use the key.

    Attributes:
        design: The fields of the design that show the change (`<section>.<field>`); `None` means the one
            with the key's own name, and empty that there is none.
    """

    aws: Outcome | None
    gcp: Outcome | None
    local: Outcome | None
    design: tuple[str, ...] | None = None


def effect(
    everywhere: Kind | Outcome | None = None,
    *,
    clouds: Kind | Outcome | None = None,
    aws: Kind | Outcome | None = None,
    gcp: Kind | Outcome | None = None,
    local: Kind | Outcome | None = None,
    design: tuple[str, ...] | None = None,
) -> Effect:
    """Return the effect of a key; a provider's own outcome wins over that of the clouds, and that of all."""
    return Effect(
        _outcome(aws or clouds or everywhere),
        _outcome(gcp or clouds or everywhere),
        _outcome(local or everywhere),
        design,
    )


def _outcome(given: Kind | Outcome | None) -> Outcome | None:
    return Outcome(given) if isinstance(given, Kind) else given
