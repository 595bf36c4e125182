"""What a cloud tells a machine of its own end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Notice:
    """The cloud takes the machine back.

    Attributes:
        cause: the cloud's word for it.
        at: when, in seconds since the epoch (UTC); None: it may do so, in hours or never.
    """

    cause: str
    at: float | None


class Notices(Protocol):
    """A machine's metadata service. What it raises is a ServiceError, or a ValueError for half an answer."""

    def notice(self) -> Notice | None:
        """As it is now."""
        ...

    def wait(self, seconds: float) -> Notice | None:
        """As it is when it may have changed, after so long at the latest."""
        ...
