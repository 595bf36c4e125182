"""Boot reports from the cluster's bucket: which machines that run will not become nodes, or will be taken.

One list of the reports a look, and an object only where it is new and has come to rest: a boot that goes on
writes its report again at each step.
"""

from __future__ import annotations

import dataclasses
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol

from infra.node.bootstrap import report
from infra.node.cloud.objects import Entry
from infra.node.elastic.driver import Machine, MachineState
from infra.node.elastic.view import log

FOLDER = "boot/"
ASK_SECONDS = 10.0
"""Between two looks, at least."""
REST_SECONDS = 5.0
"""A report that has not changed for so long is read."""
READS = 100
"""Reports of one look, at most: the others are read in the next ones."""
THREADS = 8
SILENT_SECONDS = 900.0
"""A machine that runs and has not begun to report by then will not: a boot's first words come in a minute or
two, and Slurm waits for all that it may do after them (`infra.node.bootstrap.limits`)."""
SILENCE = (
    f"the machine has reported nothing in {SILENT_SECONDS / 60:g} minutes: its image does not start, or it "
    "does not reach the cluster's bucket (routes, its role)"
)


class Told(NamedTuple):
    """What a machine tells of itself.

    Attributes:
        failure: why it will not become a node.
        notice: when it will be taken back, in seconds since the epoch (UTC).
    """

    failure: str | None = None
    notice: float | None = None


Boots = Callable[[Mapping[str, float]], Mapping[str, Told]]
"""Running nodes and when each was launched (seconds since the epoch) -> what their boot reports tell."""


class Shelf(Protocol):
    """A bucket, as it is read here. It is asked from several threads."""

    def list(self, prefix: str) -> Mapping[str, Entry]:
        """All objects whose names begin so, by name."""
        ...

    def get(self, key: str) -> bytes: ...


class BootReports:
    """A mirror of the reports of machines that run, for `infra.node.bootstrap.report`.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, bucket: Shelf, clock: Callable[[], float] = time.time) -> None:
        self._bucket = bucket
        self._clock = clock
        self._looking = threading.Lock()
        self._looked: float | None = None
        self._listed = float("-inf")
        self._heard: frozenset[str] = frozenset()
        self._read: dict[str, str] = {}
        self._trouble = ""
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __call__(self, running: Mapping[str, float]) -> dict[str, Told]:
        """What those nodes' machines tell that have something to tell.

        Never fails: what was read before counts, for a listing must not depend on the bucket.

        Args:
            running: node -> when its machine was launched, in seconds since the epoch.
        """
        # One looks; the others do not wait for a bucket that may take a minute not to answer.
        if self._looking.acquire(blocking=False):
            try:
                now = self._clock()
                if self._looked is None or not 0 <= now - self._looked < ASK_SECONDS:
                    self._looked = now
                    self._folder = self._folder or tempfile.TemporaryDirectory(prefix="slurm-stacks-boot-")
                    self._tell(self._look(Path(self._folder.name), running, now))
            finally:
                self._looking.release()
        if self._folder is None:
            return {}
        mirror, found = Path(self._folder.name), {}
        for node, at in running.items():
            file = mirror / f"{node}.json"
            # By when the bucket has answered: while it does not, nobody is known to be silent.
            silent = node not in self._heard and self._listed - at >= SILENT_SECONDS
            failure = SILENCE if silent else report.failure(file, since=at)
            found[node] = Told(failure, report.notice(file, since=at))
        return {node: told for node, told in found.items() if told != Told()}

    def _look(self, mirror: Path, running: Mapping[str, float], now: float) -> Exception | None:
        """Read what is new. Returns the first thing that the bucket refused."""
        due: list[tuple[float, str, str]] = []
        try:
            entries = self._bucket.list(FOLDER)
        except Exception as error:  # whatever the bucket's client raises
            return error
        heard = set()
        for name, entry in entries.items():
            node = name.removeprefix(FOLDER).removesuffix(".json")
            # Older than the machine: the report of an earlier one of the same name.
            ours = node in running and entry.updated >= running[node]
            heard |= {node} if ours else set()
            if ours and now - entry.updated >= REST_SECONDS and self._read.get(node) != entry.etag:
                due.append((entry.updated, node, entry.etag))
        self._heard, self._listed = frozenset(heard), now
        with ThreadPoolExecutor(THREADS, thread_name_prefix="boots") as threads:
            wanted = sorted(due)[:READS]
            errors = list(threads.map(lambda one: self._fetch(mirror, one[1], one[2]), wanted))
        return next((error for error in errors if error is not None), None)

    def _fetch(self, mirror: Path, node: str, etag: str) -> Exception | None:
        draft = mirror / f".{node}"
        try:
            draft.write_bytes(self._bucket.get(f"{FOLDER}{node}.json"))
            draft.replace(mirror / f"{node}.json")
        except Exception as error:  # of one report: the others are read all the same
            return error
        self._read[node] = etag
        return None

    def _tell(self, error: Exception | None) -> None:
        trouble = "" if error is None else repr(error)
        if trouble and trouble != self._trouble:
            log(f"boot reports: {trouble}")
        self._trouble = trouble


def with_boots(machines: list[Machine], boots: Boots) -> list[Machine]:
    """Machines with what those that run tell of themselves."""
    running = {m.node: m.launched for m in machines if m.state is MachineState.RUNNING and m.node}
    if not running:
        return machines
    try:
        told = boots(running)
    except Exception as error:  # whatever reads the bucket: a listing must not depend on it
        log(f"boot reports: {error!r}")
        return machines
    return [
        _with(m, told.get(m.node or "", Told())) if m.state is MachineState.RUNNING else m for m in machines
    ]


def _with(machine: Machine, told: Told) -> Machine:
    notices = [at for at in (machine.notice, told.notice) if at is not None]
    return dataclasses.replace(
        machine, failure=machine.failure or told.failure, notice=min(notices, default=None)
    )
