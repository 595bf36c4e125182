"""How long machines ran and what that cost: the daemon's only memory on disk."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from infra.node.elastic.driver import Machine
from infra.node.model import ClusterDesign

JUMP_SECONDS = 1.0


class Ledger:
    """Machine-seconds by partition, from each machine's launch to the pass that no longer sees it alive.

    Args:
        file: survives restarts of the daemon; machines that ended meanwhile count up to the first pass after.
        steady: seconds on a clock that never jumps. With it, a clock that is set while machines run changes
            nothing of what they cost.
    """

    def __init__(self, file: Path, design: ClusterDesign, steady: Callable[[], float] | None = None) -> None:
        self._file = file
        self._design = design
        self._steady = steady
        self._offset: float | None = None
        # Told by the reconciler's thread, asked by those of the daemon's callers.
        self._lock = threading.Lock()
        self._closed: dict[str, float] = {}
        self._open: dict[str, tuple[str, float]] = {}
        if file.exists():
            content = json.loads(file.read_text())
            self._closed = content["closed"]
            self._open = {key: (value[0], value[1]) for key, value in content["open"].items()}

    def see(self, machines: Iterable[Machine], now: float) -> None:
        """Take in one listing.

        Args:
            now: seconds since the epoch, as the machines' launch times are.
        """
        with self._lock:
            self._see(machines, now)

    def _see(self, machines: Iterable[Machine], now: float) -> None:
        living = {m.id: m for m in machines if m.state.alive and m.node}
        self._follow(now)
        before = (dict(self._closed), dict(self._open))
        for identity, machine in living.items():
            partition = self._design.partition_of(machine.node or "")
            if partition is not None:
                self._open.setdefault(identity, (partition.name, machine.launched))
        for identity in self._open.keys() - living.keys():
            name, launched = self._open.pop(identity)
            self._closed[name] = self._closed.get(name, 0.0) + max(0.0, now - launched)
        if before != (self._closed, self._open):
            draft = self._file.with_suffix(".new")
            draft.write_text(json.dumps({"closed": self._closed, "open": self._open}))
            draft.replace(self._file)

    def cost(self, now: float) -> dict[str, Any]:
        """Node-hours and USD so far; `usd` is None where a partition that ran has no known price."""
        with self._lock:
            self._follow(now)
            seconds = dict(self._closed)
            for name, launched in self._open.values():
                seconds[name] = seconds.get(name, 0.0) + max(0.0, now - launched)
        usd: float | None = 0.0
        for name, value in seconds.items():
            price = next((p.price_hour for p in self._design.partitions if p.name == name), None)
            usd = None if price is None or usd is None else usd + value / 3600 * price
        return {
            "node_hours": round(sum(seconds.values()) / 3600, 4),
            "usd": None if usd is None else round(usd, 4),
            "by_partition": {name: round(value / 3600, 4) for name, value in sorted(seconds.items())},
        }

    def _follow(self, now: float) -> None:
        """Where the clock has jumped, the launches jump with it: how long machines have run stays."""
        if self._steady is None:
            return
        offset = now - self._steady()
        jump = 0.0 if self._offset is None else offset - self._offset
        self._offset = offset
        # Less is a clock that is being corrected gently.
        if abs(jump) > JUMP_SECONDS:
            self._open = {key: (name, launched + jump) for key, (name, launched) in self._open.items()}
