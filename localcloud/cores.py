"""The CPU cores of this host on which a local machine runs: as many as its type has, for as long as it lives.

Without this a machine would use all cores of this host, so one node would be as quick as two, and a node's
number of cores would depend on who came first. So every machine has its type's number of cores. Cores that
nobody has are given out first. Where too few are free, a machine shares the cores that the fewest others
have; when a core becomes free, a machine that shares moves there (`Cores.moves`). A type with more cores than
this host gets all of them.

Agents of other clusters, even of other users, see how many machines have which core: each agent holds an
abstract Unix socket for each core that its machines use, whose name tells the core, whose it is, and how many
machines have it. The kernel removes the name when the agent ends, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from localcloud.addresses import claim_name, claimed_names
from node.system.processes import ProcessId
from node.system.waiting import wait_at_most

TAG = "cpus"
"""The tag of a machine with the number of its type's cores. A machine without it runs on any core."""
LOCK_SECONDS = 2.0
"""How long to wait while another agent gives out cores. It takes a few milliseconds."""
PASSES = 50
"""The most looks for threads that are still on a machine's former cores. Three are usual."""
_PREFIX = "core"
_LOCK = "cores-lock"
_SYSFS = Path("/sys/devices/system/cpu")


RUN_CHARACTERS = 24
"""How much of a run directory's name tells clusters apart."""


@dataclass(frozen=True, slots=True)
class Use:
    """How many machines of one cluster have a core.

    Attributes:
        owner: The user whose cluster it is, as a number.
        run: The name of the cluster's run directory, which tells apart clusters of one name.
    """

    core: int
    owner: int
    run: str
    machines: int
    cluster: str

    @property
    def name(self) -> str:
        text = (
            f"{_PREFIX}:{self.core}:{self.owner}:{self.run[:RUN_CHARACTERS]}:{self.machines}:{self.cluster}"
        )
        return text[:80]  # an abstract socket's name has at most 107 bytes

    @classmethod
    def of(cls, name: str) -> Use | None:
        """Read a claimed name; `None` if it is of another kind."""
        kind, *values = name.split(":")
        if kind != _PREFIX or len(values) != 5:
            return None
        core, owner, run, machines, cluster = values
        if not (core.isdecimal() and owner.isdecimal() and machines.isdecimal()):
            return None
        return cls(int(core), int(owner), run, int(machines), cluster)


def uses() -> list[Use]:
    """Return which clusters of this host have machines on which cores, by core."""
    claims = (Use.of(name) for name in claimed_names())
    return sorted((use for use in claims if use is not None), key=lambda use: (use.core, use.run))


class Cores:
    """The cores of a cluster's machines. It is not thread-safe; the cloud holds the lock.

    Args:
        run: The name of the cluster's run directory.
        usable: The cores that machines may have, better ones first; by default all that this process may use.
    """

    def __init__(self, run: str, usable: Iterable[int] | None = None) -> None:
        self._run = run[:24]
        self._usable = list(by_sharing(_siblings) if usable is None else usable)
        self._of: dict[str, tuple[int, ...]] = {}
        self._names: dict[int, tuple[str, socket.socket | None]] = {}
        self._cluster = ""

    def take(self, machine: str, count: int, cluster: str = "") -> list[int]:
        """Give `count` cores to a machine: those that the fewest machines of this host have.

        Returns fewer only if this host has fewer.
        """
        self._cluster = cluster or self._cluster
        with _one_at_a_time():
            load = self._load()
            order = sorted(self._usable, key=lambda core: (load[core], self._usable.index(core)))
            taken = sorted(order[:count])
            self._note(machine, taken)
        return taken

    def keep(self, machine: str, cores: Iterable[int], cluster: str = "") -> None:
        """Claim the cores that a machine got from an earlier agent."""
        self._cluster = cluster or self._cluster
        with _one_at_a_time():
            self._note(machine, cores)

    def moved(self, process: ProcessId | None, cores: list[int]) -> list[int]:
        """Return the cores of a machine that an earlier agent may have moved just before it was killed."""
        with contextlib.suppress(OSError):
            if process is not None and process.alive():
                affinity = os.sched_getaffinity(process.pid)
                if len(affinity) == len(cores) and affinity <= set(self._usable):
                    return sorted(affinity)
        return cores

    def give_back(self, machine: str) -> None:
        """Take a machine's cores from it, because it has ended."""
        if self._of.get(machine):
            self._note(machine, ())

    def moves(self) -> dict[str, list[int]]:
        """Return machine -> its cores from now on, for machines that get others because some became free.

        A machine leaves a core that it shares for one that fewer have. It always keeps its number of cores.
        """
        changed: dict[str, list[int]] = {}
        # This is asked twice a second, and nearly always there is nothing to do: no lock for that.
        load = self._load() if self._of else Counter()
        if not any(self._better(cores, load) for cores in self._of.values()):
            return {}
        with _one_at_a_time():
            load = self._load()
            for machine, cores in list(self._of.items()):
                while (step := self._better(self._of[machine], load)) is not None:
                    left, entered = step
                    load[left] -= 1
                    load[entered] += 1
                    moved = sorted(entered if core == left else core for core in self._of[machine])
                    self._note(machine, moved)
                if list(cores) != list(self._of[machine]):
                    changed[machine] = list(self._of[machine])
        return changed

    def _better(self, cores: Iterable[int], load: Mapping[int, int]) -> tuple[int, int] | None:
        """Return a core that the machine has, and another one that would be shared by fewer."""
        cores_of_machine = set(cores)
        others = [core for core in self._usable if core not in cores_of_machine]
        if not cores_of_machine or not others:
            return None
        worst = max(sorted(cores_of_machine), key=lambda core: load[core])
        best = min(others, key=lambda core: load[core])  # of equals the first, which is the better one
        return (worst, best) if load[best] + 1 < load[worst] else None

    def _load(self) -> Counter[int]:
        """Return how many machines have each core: ours, and those of other clusters."""
        load = Counter(core for cores in self._of.values() for core in cores)
        for use in uses():
            if (use.owner, use.run) != (os.getuid(), self._run):
                load[use.core] += use.machines
        return load

    def _note(self, machine: str, cores: Iterable[int]) -> None:
        """Remember which cores a machine has, and tell the other clusters."""
        before = self._of.pop(machine, ())
        if now := tuple(cores):
            self._of[machine] = now
        counts = Counter(core for cores in self._of.values() for core in cores)
        for core in {*before, *now}:
            name = Use(core, os.getuid(), self._run, counts[core], self._cluster).name
            former = self._names.pop(core, None)
            if former is not None and former[0] == name:
                self._names[core] = former
                continue
            if counts[core]:
                self._names[core] = (name, claim_name(name))
            if former is not None and former[1] is not None:
                former[1].close()

    def close(self) -> None:
        """Give all cores back."""
        for machine in list(self._of):
            self.give_back(machine)


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Let no other agent of this host give out cores meanwhile.

    An agent that holds the lock and stands still must not keep machines from starting, so the wait has a
    limit; two agents may then choose the same core, and the next look for moves sets it right.
    """
    lock = None

    def taken() -> bool:
        nonlocal lock
        if (lock := claim_name(_LOCK)) is None and _LOCK not in claimed_names():
            lock = claim_name(_LOCK)  # it was just given back, or this host allows no such names
            return True
        return lock is not None

    wait_at_most(taken, LOCK_SECONDS, 0.002)
    try:
        yield
    finally:
        if lock is not None:
            lock.close()


@contextlib.contextmanager
def running_on(cores: Iterable[int]) -> Iterator[None]:
    """Let this thread, and so all processes that it starts meanwhile, run on these cores only.

    Nothing changes without cores. A core may have been switched off; a machine starts all the same.
    """
    before = os.sched_getaffinity(0)
    put_on(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def put_on(pid: int, cores: Iterable[int]) -> None:
    """Let a machine's first process run on these cores only; without cores, on those that it has."""
    if wanted := set(cores):
        try:
            os.sched_setaffinity(pid, wanted)
        except (OSError, ValueError) as error:
            print(f"a machine does not run on its cores {in_words(sorted(wanted))}: {error}", flush=True)


def move(find: Callable[[], Iterable[int]], before: Iterable[int], after: Iterable[int]) -> None:
    """Move all threads of processes from a machine's cores to others.

    A thread that has chosen some of the machine's cores gets as many. One that runs on cores that were not
    the machine's has left them by itself, and stays. A process that is started meanwhile has the cores of its
    parent, so the last look finds nothing to move.

    Args:
        find: Returns the processes' pids; called until there is nothing to move.
    """
    old, new = set(before), set(after)
    change = dict(zip(sorted(old - new), sorted(new - old), strict=True))
    for _ in range(PASSES):
        # All of them, and not only up to the first that moved.
        if not sum(_moved(thread, old, change) for pid in find() for thread in _threads(pid)):
            return


def _moved(thread: int, old: set[int], change: Mapping[int, int]) -> bool:
    """Move a thread if it runs on cores of `old` only, and return whether that changed its cores."""
    with contextlib.suppress(OSError):  # it has ended, or is another user's
        mask = os.sched_getaffinity(thread)
        target = {change.get(core, core) for core in mask}
        if mask <= old and target != mask:
            os.sched_setaffinity(thread, target)
            return True
    return False


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208
    except OSError:
        return []


def by_sharing(siblings: Callable[[int], tuple[int, ...]]) -> list[int]:
    """Return the CPUs that this process may use: one of each physical core first, then their hyperthreads.

    Args:
        siblings: Returns the CPUs of a CPU's physical core, itself among them.
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
