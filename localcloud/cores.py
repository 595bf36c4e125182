"""CPU cores of this host that belong to one machine of a local cluster, for as long as it lives.

A machine type says how many cores it has. Without cores of its own a machine would have all of this host's,
so one node would be as quick as two. Each agent takes cores for its machines, and claims them by abstract
Unix sockets, as it does addresses (`addresses.py`): no two clusters of this host have the same core,
whoever's they are. Where too few are left, a machine has none of its own and runs on any, as it did before
there were claims.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

TAG = "cpus"
"""The tag of a machine that says how many cores its type has. A machine without it runs on any."""
_CLAIM = "\0slurm-stacks-core-"
_SYSFS = Path("/sys/devices/system/cpu")


class Cores:
    """The agent's hold on cores. Not thread-safe: the cloud has the lock.

    Args:
        usable: those that machines may have, better ones first.
        claim: takes a core from every other agent of this host: a socket to hold, or None.
    """

    def __init__(
        self, usable: Iterable[int] | None = None, claim: Callable[[int], socket.socket | None] | None = None
    ) -> None:
        self._usable = list(by_sharing(_siblings) if usable is None else usable)
        self._claim = claim or _claimed
        self._held: dict[int, socket.socket] = {}

    def take(self, count: int) -> list[int]:
        """So many cores that nobody has; none at all where there are fewer."""
        taken: list[int] = []
        for core in self._usable:
            if len(taken) == count:
                break
            if core not in self._held and self._hold(core):
                taken.append(core)
        if len(taken) < count:
            self.give_back(taken)
            return []
        return sorted(taken)

    def keep(self, cores: Iterable[int]) -> None:
        """Claim again what a machine has had since an earlier agent."""
        for core in cores:
            if core not in self._held and not self._hold(core):
                print(f"core {core} is another cluster's by now: a machine shares it", flush=True)

    def give_back(self, cores: Iterable[int]) -> None:
        for core in cores:
            if (held := self._held.pop(core, None)) is not None:
                held.close()

    def _hold(self, core: int) -> bool:
        held = self._claim(core)
        if held is not None:
            self._held[core] = held
        return held is not None


def by_sharing(siblings: Callable[[int], tuple[int, ...]]) -> list[int]:
    """The CPUs that this process may use: one of each physical core first, then their hyperthreads.

    Args:
        siblings: CPU -> the CPUs of its physical core, itself among them.
    """
    return sorted(os.sched_getaffinity(0), key=lambda cpu: (siblings(cpu).index(cpu), cpu))


def _siblings(cpu: int) -> tuple[int, ...]:
    try:
        text = (_SYSFS / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text()
        return tuple(n for part in text.strip().split(",") for n in _range(part))
    except (OSError, ValueError):
        return (cpu,)


def _range(part: str) -> range:
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)


def _claimed(core: int) -> socket.socket | None:
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        held.bind(f"{_CLAIM}{core}")
    except OSError:
        held.close()
        return None
    return held


def wanted(tags: dict[str, str]) -> int:
    """How many cores a machine's type has, by its tags; 0 where they do not say."""
    text = tags.get(TAG, "")
    return int(text) if text.isdecimal() else 0


def in_words(cores: Iterable[int]) -> str:
    """As `taskset --cpu-list` and cgroups take them: 0,3."""
    return ",".join(map(str, cores))
