"""What can go wrong with a call to a cloud. All are OSErrors: the boot report and the steps expect those."""

from __future__ import annotations


class ServiceError(OSError):
    """The cloud refused, in one sentence.

    Attributes:
        code: the cloud's name for it, like `AccessDenied` or `PERMISSION_DENIED`; empty where it gave none.
        status: of HTTP; 0 where there was no answer.
    """

    def __init__(self, message: str, code: str = "", status: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


class MissingError(ServiceError):
    """There is no such object, or it has no content yet."""


class UnreachableError(ServiceError):
    """Nobody answered in all attempts."""
