"""Which pools are shut and until when, and why a job has nodes of another pool than its partition's first.

A job's pool is chosen by Slurm, which keeps no reason. So what was shut is noted when the job starts: its
prolog asks the daemon anyway. The notes survive the daemon.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from node.design.model import ClusterDesign, Partition
from node.elastic.failures import Failure
from node.elastic.pools import PARTITION_WIDE, Pool, PoolFailure, Pools
from node.elastic.view import log
from node.system import files, foreign

FILE = "pool_choices.json"
"""The notes in the daemon's folder."""
MOST_JOBS = 1000
"""The number of jobs of which a note is kept: the newest."""
MOST_WORDS = 300
"""The greatest length of a note, in characters."""
OPEN = "it was open, but its free nodes were too few for the job or not what it asks for"


def shut(pools: Pools, name: str, now: float, at: float) -> dict[str, Any] | None:
    """Return why a pool gives no or few machines, in the form of the status contract; `None`: it is open.

    Args:
        pools: What is known of all pools.
        name: The name of the pool's group of nodes (`Partition.name`).
        now: Seconds on the clock of `pools`.
        at: The same moment, in seconds since the epoch.
    """
    limit = pools.limit(name)
    if limit is None:
        return None
    until = min(
        (_ends(failing) for failing in _behind(pools, limit.held_by or name, limit.failure)), default=math.inf
    )
    return {
        "cause": limit.failure.sentence(),
        "until": None if until == math.inf else int(at + max(0.0, until - now)),
        "left": limit.count,
    }


def _behind(pools: Pools, name: str, failure: Failure) -> Iterable[PoolFailure]:
    """Return what limits a pool for this cause: the pool as a whole, or each of its zones."""
    failures = pools.failures()
    wide = failure.kind in PARTITION_WIDE
    those = (Pool(name, None, failure.kind),) if wide else pools.zones(name)
    return [failures[pool] for pool in those if pool in failures]


def _ends(failing: PoolFailure) -> float:
    """Return when a failure ends by itself; infinity: when the cloud, or the budget, says so."""
    return math.inf if failing.known else failing.until


class PoolChoices:
    """Notes why jobs got a later pool. Threads that serve prologs write, and those that serve status read.

    Args:
        file: The notes. What cannot be read is left out.
        design: The cluster's design.
        pools: What is known of all pools.
    """

    def __init__(self, file: Path, design: ClusterDesign, pools: Pools) -> None:
        self._file = file
        self._design = design
        self._pools = pools
        self._lock = threading.Lock()
        self._why = _read(file)

    def starts(self, job: int, nodes: Iterable[str]) -> None:
        """Note why a job that starts has nodes of a later pool. One of the first pool has no note.

        A note that cannot be written is kept in memory: no job's start fails by it.
        """
        why = self._reason(nodes)
        with self._lock:
            known = self._why.pop(job, None)
            if why is not None:
                self._why[job] = why
            if known is None and why is None:
                return
            while len(self._why) > MOST_JOBS:
                del self._why[next(iter(self._why))]
            try:
                files.write(self._file, json.dumps(self._why).encode())
            except OSError as error:
                log(f"{self._file} cannot be written: {error}")

    def of(self, job: int) -> str | None:
        """Return why a job has nodes of a later pool; `None`: it has the first one's, or nobody knows."""
        with self._lock:
            return self._why.get(job)

    def _reason(self, nodes: Iterable[str]) -> str | None:
        has = {p.name: p for node in nodes if (p := self._design.partition_of(node)) is not None}
        if not has or next(iter(has.values())).pool is None:
            return None
        every = self._design.pools_of(next(iter(has.values())).slurm_name)
        earlier = every[: max(every.index(p) for p in has.values() if p in every)]
        return "; ".join(self._was(p) for p in earlier if p.name not in has)[:MOST_WORDS] or None

    def _was(self, pool: Partition) -> str:
        limit = self._pools.limit(pool.name)
        return f"{pool.pool}: {OPEN if limit is None else limit.failure.sentence()}"


def _read(file: Path) -> dict[int, str]:
    try:
        return {int(job): str(why) for job, why in foreign.record(file).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        log(f"{file} cannot be read and is left out: {error!r}")
        return {}
