"""Notices from a cloud to a machine that the cloud will take the machine back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice that the cloud takes the machine back.

    Attributes:
        cause: the cloud's term for the cause.
        at: the time, in seconds since the epoch (UTC). `None` means that it may happen in hours, or never.
    """

    cause: str
    at: float | None


class Notices(Protocol):
    """A machine's metadata service. It raises ServiceError, or ValueError for an incomplete response."""

    def notice(self) -> Notice | None:
        """Returns the present notice. `None` means that there is none."""
        ...

    def wait(self, seconds: float) -> Notice | None:
        """Waits until the notice may have changed, at most so many seconds, and returns it."""
        ...
