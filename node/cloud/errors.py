"""The errors of calls to a cloud. All are OSErrors, which the boot's steps and its report expect."""

from __future__ import annotations


class ServiceError(OSError):
    """The cloud refused a call. The message is one sentence.

    Attributes:
        code: the cloud's error code, such as `AccessDenied` or `PERMISSION_DENIED`. Empty if it gave none.
        status: the HTTP status. 0 means that there was no response.
    """

    def __init__(self, message: str, code: str = "", status: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


class MissingError(ServiceError):
    """The requested object does not exist, or has no content yet."""


class UnreachableError(ServiceError):
    """The server did not answer in any attempt."""
