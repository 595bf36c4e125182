"""Waits for something outside this program, with a time limit: the one way of the commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")
Sleep = Callable[[float], None]


def attempts(seconds: float, every: float, sleep: Sleep | None = None) -> Iterator[float]:
    """Yield for each attempt the seconds that are left, until the time is up.

    There is at least one attempt, and one when the time is just over. The body of the loop leaves it by
    `return` or `break` once there is nothing more to wait for; its `else` is the end of the patience.

    Args:
        every: The pause between two attempts, in seconds.
        sleep: Waits that many seconds; `time.sleep` by default.
    """
    deadline = time.monotonic() + seconds
    while True:
        left = deadline - time.monotonic()
        yield max(0.0, left)
        if left < 0:
            return
        (sleep or time.sleep)(every)


def wait_until(condition: Callable[[], T], seconds: float, every: float, sleep: Sleep | None = None) -> T:
    """Call a condition until it returns something true or the time is up.

    Returns:
        What the condition returned last: false if the time is up.
    """
    for _ in attempts(seconds, every, sleep):
        if outcome := condition():
            break
    return outcome
