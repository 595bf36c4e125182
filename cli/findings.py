"""The doctor's checks and findings: what a check found, and what to do about it."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from infra.errors import UserError

SECONDS = 20.0
"""Most seconds for all checks together: a file system that hangs must not block the doctor.

The checks take one or two seconds, and several times as long on a busy machine.
"""


class Severity(StrEnum):
    """What a finding means for `up`."""

    STOPS = "stops"
    """`up` would fail, or end without its result."""
    WARNS = "warns"
    """`up` would work, but something else may not."""
    FINE = "fine"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check.

    Attributes:
        check: The name of the check, `<group>.<what>`, such as `ports.free`.
        found: What was checked, and its value.
        cure: A command or a sentence; `None` if nothing is wrong.
        code: The code of the error with which a command would refuse to go on; empty if there is none.
    """

    check: str
    severity: Severity
    found: str
    cure: str | None = None
    code: str = ""

    @property
    def group(self) -> str:
        return self.check.partition(".")[0]


def stops(check: str, found: str, cure: str) -> Finding:
    return Finding(check, Severity.STOPS, found, cure)


def warns(check: str, found: str, cure: str) -> Finding:
    return Finding(check, Severity.WARNS, found, cure)


def fine(check: str, found: str) -> Finding:
    return Finding(check, Severity.FINE, found)


def from_error(check: str, error: UserError) -> Finding:
    """Return the finding that a command would refuse to go on, with the code of its error."""
    return dataclasses.replace(from_message(check, Severity.STOPS, str(error)), code=error.code)


def from_message(check: str, severity: Severity, message: str) -> Finding:
    """Make a finding from a message of this program, which first says what is wrong and then what to do."""
    what, stop, cure = message.partition(". ")
    if not cure:
        what, stop, cure = message.partition("; ")
    problem = f"{what}." if stop == ". " else what
    return Finding(check, severity, problem, cure or "Fix it and run doctor again.")


@dataclass(frozen=True, slots=True)
class Check:
    """One check. It changes nothing, and needs no network if possible.

    Attributes:
        name: Names the finding if the check itself fails.
    """

    name: str
    look: Callable[[], Iterable[Finding]]


def examine(checks: Sequence[Check], seconds: float = SECONDS) -> list[Finding]:
    """Run all checks at the same time, and return their findings in order.

    A check that fails or hangs becomes a finding itself; it does not affect the other checks.
    """
    by_check: dict[int, list[Finding]] = {}

    def look(number: int, check: Check) -> None:
        try:
            by_check[number] = list(check.look())
        except UserError as error:
            by_check[number] = [from_error(check.name, error)]
        except Exception as error:  # a broken check must not prevent the others
            by_check[number] = [failed_check(check.name, error)]

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
        result += by_check.get(number, [failed_check(check.name, hangs)])
    return result


def failed_check(check: str, error: Exception) -> Finding:
    """Return the finding for a check that failed itself."""
    why = f"could not be checked: {type(error).__name__}: {error}"
    return warns(check, why, "Nothing is known about it; `up` may still work.")
