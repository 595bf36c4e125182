"""Counts the nodes that are replaced for their health. Beyond a few in an hour a partition pauses.

A new machine usually cures a broken device. Where it does not (a driver that fits no more, a prolog with a
mistake, a reservation that gives the same hardware again), machine after machine would be paid for and
given back. The count is in memory: a daemon that starts again begins anew, but takes over a pause, which
Slurm has, unless `up` has changed settings or code since.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict, deque

MOST_REPLACEMENTS = 4
"""The replacements of a partition within WINDOW_SECONDS after which it pauses."""
REPLACEMENT_WINDOW_SECONDS = 3600.0
_UNTIL = re.compile(r"until (\d\d):(\d\d) UTC")


class Replacements:
    """The times when nodes of each partition were replaced, on a clock that never jumps."""

    def __init__(self) -> None:
        self._times: dict[str, deque[float]] = defaultdict(deque)

    def replaced(self, partition: str, now: float) -> float:
        """Record a replacement.

        Returns:
            Seconds during which the partition should get no machine; 0 while there were fewer than MOST.
        """
        times = self._times[partition]
        times.append(now)
        while now - times[0] >= REPLACEMENT_WINDOW_SECONDS:
            times.popleft()
        if len(times) < MOST_REPLACEMENTS:
            return 0.0
        return REPLACEMENT_WINDOW_SECONDS - (now - times[len(times) - MOST_REPLACEMENTS])


def replacement_reason(node: str, why: str) -> str:
    """Return why a partition pauses, naming the last node and its cause."""
    return f"{MOST_REPLACEMENTS} nodes or more were replaced within an hour, the last {node}: {why}"


def utc_time(moment: float) -> str:
    """Format the end of a pause, in seconds since the epoch."""
    return time.strftime("%H:%M UTC", time.gmtime(moment))


def end_of_pause(code: str, began: float) -> float | None:
    """Return when a pause ends that a drain tells of, in seconds since the epoch; `None` if it tells of none.

    Args:
        code: The failure's code, with a time of day as `utc_time` makes it.
        began: When the pause began, in seconds since the epoch. It ends within a day.
    """
    if (match := _UNTIL.fullmatch(code)) is None:
        return None
    seconds = 3600 * int(match[1]) + 60 * int(match[2])
    minute = began - began % 60
    return minute + (seconds - minute) % 86400
