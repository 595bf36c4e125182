"""Waits: until a condition is true, or until an action that may fail for a while succeeds.

Every wait of a machine's code is one of these three. A loop of its own has only what waits for events, and
what ends when its process does. It imports next to nothing, because programs that Slurm calls use it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
EVERY_SECONDS = 0.02


def wait_at_most(
    condition: Callable[[], T],
    seconds: float,
    every: float = EVERY_SECONDS,
    *,
    clock: Callable[[], float] | None = None,
    sleep: Callable[[float], object] | None = None,
) -> T:
    """Wait until a condition gives a true value, or until the time is up.

    Args:
        condition: Called at least once.
        seconds: The longest wait.
        every: Seconds between two calls.
        clock: The source of time; `time.monotonic` by default.
        sleep: The pause; `time.sleep` by default.

    Returns:
        The condition's last value, which is false if the time is up.
    """
    clock, sleep = clock or time.monotonic, sleep or time.sleep
    end = clock() + seconds
    while not (value := condition()) and clock() < end:
        sleep(every)
    return value


def wait_until(
    condition: Callable[[], T | None],
    seconds: float,
    message: str,
    every: float = EVERY_SECONDS,
    *,
    clock: Callable[[], float] | None = None,
    sleep: Callable[[float], object] | None = None,
) -> T:
    """Wait until a condition gives a true value, and return it.

    Args:
        condition: Called at least once.
        seconds: The longest wait.
        message: The error's text, which names what was waited for.
        every: Seconds between two calls.
        clock: The source of time; `time.monotonic` by default.
        sleep: The pause; `time.sleep` by default.

    Raises:
        TimeoutError: The time is up.
    """
    value = wait_at_most(condition, seconds, every, clock=clock, sleep=sleep)
    if not value:
        raise TimeoutError(message)
    return value


def retry(
    action: Callable[[], T],
    errors: type[Exception] | tuple[type[Exception], ...],
    pauses: Iterable[float],
    passes: Callable[[Any], object] | None = None,
    *,
    sleep: Callable[[float], object] | None = None,
) -> T:
    """Call an action until it succeeds, and return its result.

    Args:
        action: Called once more than there are pauses, at most.
        errors: The errors that may pass by themselves. Any other ends the calls.
        pauses: Seconds between two calls: a list, or `pauses_for` or `doubling_pauses`.
        passes: Called with an error before a further call. A false answer ends the calls.
        sleep: The pause; `time.sleep` by default.

    Raises:
        Exception: The last error of the action.
    """
    left = iter(pauses)
    while True:
        try:
            return action()
        except errors as error:
            if (pause := next(left, None)) is None or (passes and not passes(error)):
                raise
        (sleep or time.sleep)(pause)


def pauses_for(seconds: float, every: float, clock: Callable[[], float] | None = None) -> Iterator[float]:
    """Return equal pauses until the time is up, which counts from this call."""
    clock = clock or time.monotonic
    end = clock() + seconds
    return iter(lambda: every if clock() < end else -1.0, -1.0)


def doubling_pauses(count: int, first: float, longest: float) -> list[float]:
    """Return pauses of which each is twice the one before, up to the longest."""
    return [min(first * 2**number, longest) for number in range(count)]
