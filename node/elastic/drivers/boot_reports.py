"""Boot reports from the cluster's bucket: which running machines will not become nodes, or will be taken.

A pass lists the reports once. It reads a report only if it is new and has not changed for a moment, because a
running boot writes its report again at each step.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from node.bootstrap import report
from node.cloud.objects import Entry
from node.elastic.driver import Machine, MachineState
from node.elastic.view import log

FOLDER = "boot/"
"""The reports' prefix in the bucket."""
ASK_SECONDS = 10.0
"""The shortest pause between two passes."""
REST_SECONDS = 5.0
"""A report is read once it has not changed for this long."""
READS = 100
"""The largest number of reports of one pass. The next passes read the others."""
THREADS = 8
"""Reports that are read in parallel."""
SILENT_SECONDS = 900.0
"""A running machine without a report after this time will never report.

The first report comes within a minute or two, and Slurm waits for everything that the boot may do after it
(`node.bootstrap.limits`).
"""
SILENCE = (
    f"the machine has reported nothing in {SILENT_SECONDS / 60:g} minutes: its image does not start, or it "
    "does not reach the cluster's bucket (routes, its role, a clock that is 15 minutes off)"
)


class BootStatus(NamedTuple):
    """What a machine's boot report says.

    Attributes:
        failure: Why the machine will not become a node.
        notice: When the cloud will take the machine back, in seconds since the epoch (UTC).
    """

    failure: str | None = None
    notice: float | None = None


BootStatusReader = Callable[[Mapping[str, float]], Mapping[str, BootStatus]]
"""Running nodes and when each was launched (seconds since the epoch) -> what their boot reports say."""


class ReportBucket(Protocol):
    """The part of a bucket's interface that reads reports. It is called from several threads."""

    def list(self, prefix: str) -> Mapping[str, Entry]:
        """Return all objects whose names begin with a prefix, by name."""
        ...

    def get(self, key: str) -> bytes: ...


class BootReports:
    """Keeps the reports of running machines, as last read from the bucket.

    Args:
        bucket: The cluster's bucket.
        clock: Returns seconds since the epoch.
    """

    def __init__(self, bucket: ReportBucket, clock: Callable[[], float] = time.time) -> None:
        self._bucket = bucket
        self._clock = clock
        self._pass_lock = threading.Lock()
        self._last_pass: float | None = None
        self._last_listing = float("-inf")
        self._reported: frozenset[str] = frozenset()
        self._read: dict[str, str] = {}
        self._reports: dict[str, str] = {}
        self._last_error = ""

    def __call__(self, running: Mapping[str, float]) -> dict[str, BootStatus]:
        """Return what the machines of these nodes report. Nodes without news are left out.

        Never raises: earlier reports still count, because listing machines must not depend on the bucket.

        Args:
            running: Node -> when its machine was launched, in seconds since the epoch.
        """
        # Only one thread reads. The others do not wait for a bucket that may take a minute to fail.
        if self._pass_lock.acquire(blocking=False):
            try:
                now = self._clock()
                if self._last_pass is None or not 0 <= now - self._last_pass < ASK_SECONDS:
                    self._last_pass = now
                    self._log_once(self._read_new(running, now))
            finally:
                self._pass_lock.release()
        found = {}
        for node, at in running.items():
            content = self._reports.get(node, "")
            # The time of the last listing counts: while the bucket does not answer, no machine counts as
            # silent.
            no_report = node not in self._reported and self._last_listing - at >= SILENT_SECONDS
            failure = SILENCE if no_report else report.failure_in(content, since=at)
            found[node] = BootStatus(failure, report.notice_in(content, since=at))
        return {node: status for node, status in found.items() if status != BootStatus()}

    def _read_new(self, running: Mapping[str, float], now: float) -> Exception | None:
        """Read new reports.

        Returns:
            The bucket's first error.
        """
        due: list[tuple[float, str, str]] = []
        try:
            entries = self._bucket.list(FOLDER)
        except Exception as error:  # the bucket's client may raise anything
            return error
        reported = set()
        for name, entry in entries.items():
            node = name.removeprefix(FOLDER).removesuffix(".json")
            # A report that is older than the machine belongs to an earlier machine of the same name.
            current = node in running and entry.updated >= running[node]
            reported |= {node} if current else set()
            if current and now - entry.updated >= REST_SECONDS and self._read.get(node) != entry.etag:
                due.append((entry.updated, node, entry.etag))
        self._reported, self._last_listing = frozenset(reported), now
        with ThreadPoolExecutor(THREADS, thread_name_prefix="boots") as threads:
            wanted = sorted(due)[:READS]
            errors = list(threads.map(lambda one: self._fetch(one[1], one[2]), wanted))
        return next((error for error in errors if error is not None), None)

    def _fetch(self, node: str, etag: str) -> Exception | None:
        try:
            content = self._bucket.get(f"{FOLDER}{node}.json").decode(errors="replace")
        except Exception as error:  # one report failed; the others are still read
            return error
        self._reports[node], self._read[node] = content, etag
        return None

    def _log_once(self, error: Exception | None) -> None:
        text = "" if error is None else repr(error)
        if text and text != self._last_error:
            log(f"boot reports: {text}")
        self._last_error = text


def with_boots(machines: list[Machine], boots: BootStatusReader) -> list[Machine]:
    """Return the machines with what the running ones report."""
    running = {m.node: m.launched for m in machines if m.state is MachineState.RUNNING and m.node}
    if not running:
        return machines
    try:
        statuses = boots(running)
    except Exception as error:  # a listing must not depend on the bucket
        log(f"boot reports: {error!r}")
        return machines
    return [
        _with(m, statuses.get(m.node or "", BootStatus())) if m.state is MachineState.RUNNING else m
        for m in machines
    ]


def _with(machine: Machine, status: BootStatus) -> Machine:
    notices = [at for at in (machine.notice, status.notice) if at is not None]
    return dataclasses.replace(
        machine, failure=machine.failure or status.failure, notice=min(notices, default=None)
    )
