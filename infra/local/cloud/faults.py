"""What befalls machines on a user's wish: they die, stand still, lose their network, are taken back."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict
from typing import Any

from infra.local.cloud.errors import CloudError
from infra.local.cloud.machines import Maker
from infra.local.cloud.memory import Memory, Record

ACTIONS = ("kill", "freeze", "thaw", "cut", "join", "preempt")


class Faults:
    """Acts on one cloud's machines.

    Args:
        lock: the cloud's, under which `memory` is read and changed.
    """

    def __init__(self, memory: Memory, maker: Maker, lock: threading.RLock) -> None:
        self._memory = memory
        self._maker = maker
        self._lock = lock

    def do(self, action: str, node: str, notice: float | None = None) -> dict[str, Any]:
        """Have something happen to a node's machine; what has happened already is no error.

        Args:
            action: one of ACTIONS.
            notice: preempt: seconds until the machine is taken; None and 0: at once.

        Returns:
            The machine's record.

        Raises:
            CloudError: NotFound, no such machine lives; InvalidRequest, this cannot happen to it.
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
                self._announce(record, notice)
            elif action not in ("preempt", "kill"):
                self._touch(action, record)
        if action == "kill" or (action == "preempt" and not notice):
            self._take(record)
        with self._lock:
            return asdict(record)

    def go_on(self) -> None:
        """Keep the promises of an agent before this one: machines that it announced to take are taken."""
        for record in self._memory.machines.values():
            if record.alive and record.notice is not None:
                self._take_later(record, record.notice - time.time())

    def _machine_of(self, node: str) -> Record:
        living = {r.node: r for r in self._memory.machines.values() if r.alive}
        if node not in living:
            there = ", ".join(living) or "none"
            raise CloudError("NotFound", f"no machine of that name runs: {node}; there are: {there}")
        return living[node]

    def _touch(self, action: str, record: Record) -> None:
        if record.process is None:
            raise CloudError("InvalidRequest", f"{record.node} has not booted yet: it is {record.state}")
        if action == "freeze":
            self._maker.freeze(record.boot(), record.process)
        elif action == "thaw":
            self._maker.thaw(record.boot(), record.process)
        elif action == "cut":
            self._maker.cut(record.boot(), record.process)
        else:
            self._maker.join(record.boot(), record.process)
        if action in ("freeze", "thaw"):
            record.frozen = action == "freeze"
        else:
            record.cut = action == "cut"
        self._memory.try_to_save()

    def _announce(self, record: Record, seconds: float) -> None:
        """A cloud that has given notice may come earlier, and does not come later."""
        at = time.time() + seconds
        if record.notice is None or at < record.notice:
            record.notice = at
            self._memory.try_to_save()
            self._take_later(record, seconds)

    def _take_later(self, record: Record, seconds: float) -> None:
        timer = threading.Timer(max(0.0, seconds), self._take, (record,))
        timer.daemon = True
        timer.start()

    def _take(self, record: Record) -> None:
        """Power off: nothing of the machine has a moment to say goodbye."""
        with self._lock:
            if not record.alive:
                return
            record.change("terminated" if record.process is None else "stopping")
            self._memory.try_to_save()
        if record.process is None:
            return
        self._maker.kill(record.boot(), record.process)
        if not record.process.alive():
            with self._lock:
                record.change("terminated")
                self._memory.try_to_save()
