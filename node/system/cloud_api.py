"""The parts of the clouds' APIs that need no HTTP: errors, objects' digests, and notices of a machine's end.

All errors are OSErrors, which the boot's steps and its report expect.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol


class ServiceError(OSError):
    """The cloud refused a call. The message is one sentence.

    Attributes:
        code: The cloud's error code, such as `AccessDenied` or `PERMISSION_DENIED`. Empty if it gave none.
        status: The HTTP status. 0 means that there was no response.
    """

    def __init__(self, message: str, code: str = "", status: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


class MissingError(ServiceError):
    """The requested object does not exist, or has no content yet."""


class UnreachableError(ServiceError):
    """The server did not answer in any attempt."""


def checked(content: bytes, sha256: str | None, what: str) -> bytes:
    """Return an object's content after a check of its digest.

    Args:
        sha256: The expected digest in hexadecimal. `None` means that any content is accepted.
        what: The object's name for the message.

    Raises:
        ServiceError: The digest is wrong.
    """
    digest = hashlib.sha256(content).hexdigest()
    if sha256 not in (None, digest):
        raise ServiceError(f"{what}: its digest is {digest}, and should be {sha256}")
    return content


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice that the cloud takes the machine back.

    Attributes:
        cause: The cloud's term for the cause.
        at: The time, in seconds since the epoch (UTC). `None` means that it may happen in hours, or never.
    """

    cause: str
    at: float | None


class Notices(Protocol):
    """A machine's metadata service. It raises ServiceError, or ValueError for an incomplete response."""

    def notice(self) -> Notice | None:
        """Return the present notice. `None` means that there is none."""
        ...

    def wait(self, seconds: float) -> Notice | None:
        """Wait until the notice may have changed, at most so many seconds, and returns it."""
        ...
