"""Errors whose text is for the user: printed as they are, without a traceback."""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_REFUSED = 3
EXIT_INTERRUPTED = 130


class UserError(Exception):
    """One clear message that names what is wrong, what is allowed and what to do.

    Attributes:
        exit_code: 1 failed, 2 usage or stack file, 3 refused (no CLI, no credentials, another owner).
    """

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class NotUpError(UserError):
    """The stack has no cluster: not one that is silent for a moment."""
