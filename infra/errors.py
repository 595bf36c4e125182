"""Errors whose text is for the user. They are printed without a traceback."""

from __future__ import annotations

from typing import Any

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_REFUSED = 3
EXIT_INTERRUPTED = 130


class UserError(Exception):
    """One clear message that names what is wrong, what is allowed and what to do.

    Attributes:
        exit_code: 1 failed, 2 usage or stack file, 3 refused (no CLI, no credentials, another owner).
        code: The name of the error, such as `ssh.host-key`, which stays when the sentence changes; empty for
            mistakes of a stack file, of which each has a code of its own. Errors of one kind share it.
    """

    def __init__(self, message: str, exit_code: int = EXIT_FAILED, *, code: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.code = code

    @property
    def printed(self) -> str:
        """The message with its code at the end: on the same line, or below a message of several lines."""
        if not self.code:
            return str(self)
        return f"{self}{chr(10) if chr(10) in str(self) else ' '}[{self.code}]"

    def as_json(self) -> dict[str, Any]:
        """Return the error for a program that reads it."""
        return {"code": self.code, "message": str(self), "exit_code": self.exit_code}


class NotUpError(UserError):
    """The stack has no cluster. One that does not answer at the moment is another error."""


class UnusableFileError(Exception):
    """A file or folder of the user's cannot be sent to the cluster.

    Attributes:
        index: The position of its path among those that were given.
        allowed: What is allowed instead.
        advice: What to do.
    """

    def __init__(
        self, index: int, allowed: str, advice: str = "the path is relative to the stack file"
    ) -> None:
        super().__init__(f"{allowed} is expected ({advice})" if advice else f"{allowed} is expected")
        self.index, self.allowed, self.advice = index, allowed, advice
