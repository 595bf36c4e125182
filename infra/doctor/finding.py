"""What was looked at before an `up`, what was found, and the cure; and how checks are run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from infra.errors import UserError

SECONDS = 20.0
"""How long all checks may take together: a file system that hangs must not hang the doctor.

They take a second or two, and several times as long on a machine that has much else to do.
"""


class Severity(StrEnum):
    """What a finding means for `up`."""

    STOPS = "stops"
    """`up` would fail, or end without its result."""
    WARNS = "warns"
    """`up` would do its work; something else may not."""
    FINE = "fine"


@dataclass(frozen=True, slots=True)
class Finding:
    """Attributes:
    check: `<group>.<what>`: ports.free.
    found: what was looked at and the value.
    cure: a command or a sentence; None where nothing is wrong.
    """

    check: str
    severity: Severity
    found: str
    cure: str | None = None

    @property
    def group(self) -> str:
        return self.check.partition(".")[0]


def stops(check: str, found: str, cure: str) -> Finding:
    return Finding(check, Severity.STOPS, found, cure)


def warns(check: str, found: str, cure: str) -> Finding:
    return Finding(check, Severity.WARNS, found, cure)


def fine(check: str, found: str) -> Finding:
    return Finding(check, Severity.FINE, found)


def said(check: str, severity: Severity, message: str) -> Finding:
    """A finding from one of the program's own messages, which say what is wrong first and then what to do."""
    what, stop, cure = message.partition(". ")
    if not cure:
        what, stop, cure = message.partition("; ")
    found = f"{what}." if stop == ". " else what
    return Finding(check, severity, found, cure or "Mend it and run doctor again.")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look at, without changing anything; without a network wherever that is possible.

    Attributes:
        name: stands for its findings where it comes to none.
    """

    name: str
    look: Callable[[], Iterable[Finding]]


def examine(checks: Sequence[Check], seconds: float = SECONDS) -> list[Finding]:
    """The findings of all checks, in their order.

    Each looks for itself, side by side with the others: one that fails or hangs is a finding of its own and
    keeps none of the others from being told.
    """
    found: dict[int, list[Finding]] = {}

    def look(number: int, check: Check) -> None:
        try:
            found[number] = list(check.look())
        except UserError as error:
            found[number] = [said(check.name, Severity.STOPS, str(error))]
        except Exception as error:  # whatever is broken here must not keep the rest from being looked at
            found[number] = [broken(check.name, error)]

    threads = [
        threading.Thread(target=look, args=(number, check), daemon=True)
        for number, check in enumerate(checks)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    hangs = TimeoutError(f"no answer within {seconds:g} s (a file system that hangs?)")
    result: list[Finding] = []
    for number, check in enumerate(checks):
        result += found.get(number, [broken(check.name, hangs)])
    return result


def broken(check: str, error: Exception) -> Finding:
    """A check that came to nothing."""
    why = f"could not be looked at: {type(error).__name__}: {error}"
    return warns(check, why, "Nothing is known about it; `up` may still work.")
