"""Waits until a condition is true. Standard library only."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
EVERY_SECONDS = 0.1


def wait_at_most(condition: Callable[[], T], seconds: float, every: float = EVERY_SECONDS) -> T:
    """Wait until a condition gives a true value, or until the time is up.

    Args:
        condition: Called at least once. An error of it ends the wait.
        seconds: The longest wait.
        every: Seconds between two calls.

    Returns:
        The condition's last value, which is false if the time is up.
    """
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(every)
    return value
