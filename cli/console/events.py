"""The events that a runner reports while it works. The command line renders them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

Operation = Literal["created", "updated", "replaced", "deleted", "unchanged", "read"]
"""What was done with a resource."""

Stream = Literal["stdout", "stderr"]
Level = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class ResourceStarted:
    """Work on a resource begins; unchanged resources report only `ResourceDone`.

    Attributes:
        operation: The operation, in the form that it has when it is done.
    """

    urn: str
    name: str
    type: str
    operation: Operation


@dataclass(frozen=True, slots=True)
class ResourceDone:
    """The operation on a resource has succeeded."""

    urn: str
    name: str
    type: str
    operation: Operation
    seconds: float


@dataclass(frozen=True, slots=True)
class ResourceFailed:
    """A resource's command failed; the run continues with resources that do not depend on it."""

    urn: str
    name: str
    type: str
    operation: Operation
    seconds: float
    message: str


@dataclass(frozen=True, slots=True)
class OutputLine:
    """A line that a resource's command printed, without its newline; secrets are masked."""

    urn: str
    name: str
    stream: Stream
    line: str


@dataclass(frozen=True, slots=True)
class Message:
    """A message for the user: one or more lines of text."""

    text: str
    level: Level = "info"


@dataclass(frozen=True, slots=True)
class Summary:
    """The last event of a run: the number of resources for each operation."""

    counts: dict[Operation, int] = field(default_factory=dict)
    failed: int = 0
    seconds: float = 0.0

    @property
    def changed(self) -> bool:
        """Whether the run changed anything."""
        return any(n for op, n in self.counts.items() if op not in ("unchanged", "read"))

    def __str__(self) -> str:
        parts = [f"{op} {n}" for op, n in self.counts.items() if n]
        if self.failed:
            parts.append(f"failed {self.failed}")
        return ", ".join(parts) or "nothing to do"


Event = ResourceStarted | ResourceDone | ResourceFailed | OutputLine | Message | Summary
OnEvent = Callable[[Event], None]
"""Called from several threads at once; must not block for long."""


def ignore(_event: Event) -> None:
    """Do nothing: an `OnEvent` for a caller who does not want to know."""
