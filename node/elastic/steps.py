"""The steps that the daemon repeats. Each has a name, and what it fails with is known until it works."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from node.elastic.view import log
from node.slurm.control import SlurmError
from node.system import rpc

EXPECTED = (SlurmError, rpc.RpcUnavailableError, rpc.RpcError)
"""What a step raises while Slurm or the cloud does not answer, or refuses: its text says enough."""
MESSAGE_LENGTH = 400
"""The largest length of an error in the status."""


class NotTried:
    """What a step returns that had nothing to try, such as before its pause is over. It counts as false."""

    def __bool__(self) -> bool:
        return False


NOT_TRIED = NotTried()


@dataclass(frozen=True, slots=True)
class StepError:
    """What a step's last try has failed with. Times are seconds since the epoch.

    Attributes:
        message: The error, on one line.
        at: When the last try failed.
        since: When the first of the tries failed that have failed in a row.
        times: How many tries have failed in a row.
    """

    message: str
    at: float
    since: float
    times: int


class Step:
    """One of the steps. An error of it stops no other step.

    Args:
        name: Its name, by which logs and the status call it.
        does: What is not done while it fails, in words that follow "the step".
        work: Its work. What it raises is its error; `NOT_TRIED` leaves the last one.

    Attributes:
        error: What its last try has failed with; `None` means that it works, or was not tried yet.
    """

    def __init__(self, name: str, does: str, work: Callable[[], object]) -> None:
        self.name = name
        self.does = does
        self.error: StepError | None = None
        self._work = work

    def run(self) -> None:
        """Do the work once. It is tried again by the next call, which reads everything anew."""
        try:
            if self._work() is not NOT_TRIED:
                self.error = None
        except EXPECTED as error:
            log(f"{self.name}: {error}")
            self._failed(str(error))
        except Exception as error:  # whatever it is: the other steps go on
            traceback.print_exc()
            self._failed(f"{type(error).__name__}: {error}")

    def status(self) -> dict[str, Any]:
        """Return the step for the status."""
        error = self.error
        return {"name": self.name, "does": self.does, "error": None if error is None else asdict(error)}

    def _failed(self, message: str) -> None:
        now, before = time.time(), self.error
        since, times = (now, 0) if before is None else (before.since, before.times)
        self.error = StepError(" ".join(message.split())[:MESSAGE_LENGTH], now, since, times + 1)
