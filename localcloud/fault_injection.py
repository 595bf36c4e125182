"""Fault injection: machines are killed, frozen, cut off from the network or preempted on request."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict
from typing import Any

from localcloud.machines import CloudError, MachineRuntime
from localcloud.records import MachineRecord, MachineStore

ACTIONS = ("kill", "freeze", "thaw", "cut", "join", "preempt")


class FaultInjector:
    """The faults that are injected into one cloud's machines.

    Args:
        lock: The cloud's lock, which guards `store`.
    """

    def __init__(self, store: MachineStore, runtime: MachineRuntime, lock: threading.RLock) -> None:
        self._store = store
        self._runtime = runtime
        self._lock = lock

    def inject(self, action: str, node: str, notice: float | None = None) -> dict[str, Any]:
        """Apply a fault to a node's machine; a fault that it already has is no error.

        Args:
            action: One of `ACTIONS`.
            notice: Only for `preempt`: seconds until the machine ends; `None` and 0 end it at once.

        Returns:
            The machine's record.

        Raises:
            CloudError: `NotFound` if no such machine runs; `InvalidRequest` if it cannot have this fault.
        """
        if action not in ACTIONS:
            raise CloudError("InvalidRequest", f"{action!r} is none of {', '.join(ACTIONS)}")
        if isinstance(notice, bool) or not isinstance(notice, int | float | None):
            raise CloudError("InvalidRequest", f"notice: seconds are expected, not {notice!r}")
        if notice is not None and not 0 <= notice < threading.TIMEOUT_MAX:
            raise CloudError("InvalidRequest", f"notice: {notice} is not 0 or more")
        with self._lock:
            record = self._machine_of(node)
            if action == "preempt" and notice:
                self._schedule_preemption(record, notice)
            elif action not in ("preempt", "kill"):
                self._apply(action, record)
        if action == "kill" or (action == "preempt" and not notice):
            self._power_off(record)
        with self._lock:
            return asdict(record)

    def resume_preemptions(self) -> None:
        """Carry out the preemptions that an earlier agent announced."""
        for record in self._store.machines.values():
            if record.alive and record.notice is not None:
                self._power_off_later(record, record.notice - time.time())

    def _machine_of(self, node: str) -> MachineRecord:
        living = {r.node: r for r in self._store.machines.values() if r.alive}
        if node not in living:
            names = ", ".join(living) or "none"
            raise CloudError("NotFound", f"no machine of that name runs: {node}; there are: {names}")
        return living[node]

    def _apply(self, action: str, record: MachineRecord) -> None:
        if record.process is None:
            raise CloudError("InvalidRequest", f"{record.node} has not booted yet: it is {record.state}")
        getattr(self._runtime, action)(record.boot(), record.process)
        if action in ("freeze", "thaw"):
            record.frozen = action == "freeze"
        else:
            record.cut = action == "cut"
        self._store.try_to_save()

    def _schedule_preemption(self, record: MachineRecord, seconds: float) -> None:
        """Set the time of the preemption. A later notice may bring it forward, but never delays it."""
        at = time.time() + seconds
        if record.notice is None or at < record.notice:
            record.notice = at
            self._store.try_to_save()
            self._power_off_later(record, seconds)

    def _power_off_later(self, record: MachineRecord, seconds: float) -> None:
        timer = threading.Timer(max(0.0, seconds), self._power_off, (record,))
        timer.daemon = True
        timer.start()

    def _power_off(self, record: MachineRecord) -> None:
        """End the machine as a power loss does: no process of it can react."""
        with self._lock:
            if not record.alive:
                return
            record.change("terminated" if record.process is None else "stopping")
            self._store.try_to_save()
        if record.process is None:
            return
        self._runtime.kill(record.boot(), record.process)
        if not record.process.alive():
            with self._lock:
                record.change("terminated")
                self._store.try_to_save()
