"""Errors whose text is for the user. They are printed without a traceback."""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_REFUSED = 3
EXIT_INTERRUPTED = 130


class UserError(Exception):
    """One clear message that names what is wrong, what is allowed and what to do.

    Attributes:
        exit_code: 1 failed, 2 usage or stack file, 3 refused (no CLI, no credentials, another owner).
        code: The name of the error, such as `file.not-yaml`, which stays when the sentence changes; empty if
            it has none. The message ends with it.
    """

    def __init__(self, message: str, exit_code: int = EXIT_FAILED, *, code: str = "") -> None:
        super().__init__(f"{message} [{code}]" if code else message)
        self.exit_code = exit_code
        self.code = code


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
