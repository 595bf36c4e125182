"""CPU cores of this host that belong to one machine of a local cluster, for as long as the machine lives.

A machine's type says how many cores it has. Without cores of its own a machine would use all cores of this
host, so one node would be as quick as two. Each agent takes cores for its machines, and claims them as it
claims addresses (`addresses.py`): no two clusters of this host have the same core, even clusters of different
users. If too few cores are left, a machine gets none of its own and runs on any.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

from localcloud.addresses import claim_name

TAG = "cpus"
"""The tag of a machine with the number of its type's cores. A machine without it runs on any core."""
_SYSFS = Path("/sys/devices/system/cpu")


class Cores:
    """The cores that the agent holds. It is not thread-safe; the cloud holds the lock.

    Args:
        usable: the cores that machines may have, better ones first.
        claim: claims a core for as long as the returned socket is open; `None` if another agent has it.
    """

    def __init__(
        self, usable: Iterable[int] | None = None, claim: Callable[[int], socket.socket | None] | None = None
    ) -> None:
        self._usable = list(by_sharing(_siblings) if usable is None else usable)
        self._claim = claim or (lambda core: claim_name(f"core-{core}"))
        self._held: dict[int, socket.socket] = {}

    def take(self, count: int) -> list[int]:
        """Take `count` cores that nobody holds. Returns an empty list if there are fewer."""
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
        """Claim the cores that a machine got from an earlier agent."""
        for core in cores:
            if core not in self._held and not self._hold(core):
                print(f"core {core} belongs to another cluster by now: a machine shares it", flush=True)

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
    """Return the CPUs that this process may use: one of each physical core first, then their hyperthreads.

    Args:
        siblings: returns the CPUs of a CPU's physical core, itself among them.
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


def wanted(tags: dict[str, str]) -> int:
    """Return how many cores a machine's type has; 0 if its tags do not say."""
    text = tags.get(TAG, "")
    return int(text) if text.isdecimal() else 0


def in_words(cores: Iterable[int]) -> str:
    """Return cores in the format of `taskset --cpu-list` and of cgroups: `0,3`."""
    return ",".join(map(str, cores))
