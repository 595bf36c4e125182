"""How long machines ran and what that cost: the daemon's only memory on disk."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from infra.node.elastic.driver import Machine
from infra.node.model import ClusterDesign


class Ledger:
    """Machine-seconds by partition, from each machine's launch to the pass that no longer sees it alive.

    Args:
        file: survives restarts of the daemon; machines that ended meanwhile count up to the first pass after.
    """

    def __init__(self, file: Path, design: ClusterDesign) -> None:
        self._file = file
        self._design = design
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
        living = {m.id: m for m in machines if m.state.alive and m.node}
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
