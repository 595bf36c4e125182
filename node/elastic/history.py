"""The last changes of each node's state, with their times: they answer why a node went, when nobody looked.

A change is what the reconciler saw: Slurm's words, with the reason where the node is out of service or off,
and what the cloud said of its machine (`MachinePhase`). It counts if it means something else to the
reconciler's table, or if the reason is another one. A job that begins or ends is no change, nor are other
numbers in the reason of a capacity drain, nor is it one that the cloud lists an ended machine no longer.

Slurm's traps (docs/internals/slurm_traps.md): old-reasons.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from node.elastic.capacity_drains import kind_of
from node.elastic.failures import COUNTED
from node.elastic.rules import MachinePhase, NodePhase
from node.elastic.view import log, phase, state_text
from node.slurm.states import NodeState
from node.system import files, foreign

FILE = "history.jsonl"
"""The record in the daemon's folder: a line for each change."""
MOST_CHANGES = 10
"""The number of changes that are kept of each node."""
REASON_LENGTH = 200
MOST_BYTES = 64 << 20
"""A larger record is none of ours: that of 5,000 nodes has 20 MB at most."""
SPARE_LINES = 100
"""How many lines too many a record has before it is written anew; or half as many as are kept, if more."""
_ENDED = (MachinePhase.NONE, MachinePhase.GONE)
_OFF = (NodePhase.POWERED_DOWN, NodePhase.STUCK, NodePhase.POWERING_DOWN)


@dataclass(frozen=True, slots=True)
class Change:
    """What a node has changed to. The status and the record have these fields.

    Attributes:
        at: When it was seen first, in seconds since the epoch.
        state: Slurm's words: IDLE+CLOUD+POWERED_DOWN.
        machine: What the cloud said of its machine (`MachinePhase`).
        reason: Slurm's reason, if the node was out of service or off; `None` if Slurm had none.
    """

    at: int
    state: str
    machine: str
    reason: str | None

    def fields(self) -> dict[str, Any]:
        """Return it for the status and the record. `asdict` would take seconds for thousands of nodes."""
        return {"at": self.at, "state": self.state, "machine": self.machine, "reason": self.reason}


class NodeHistory:
    """The changes of all nodes. One thread adds to them, and any may read.

    Args:
        file: The record, which survives the daemon. Lines that cannot be read are left out.
        nodes: The nodes of the design. Others are forgotten.
    """

    def __init__(self, file: Path, nodes: Collection[str]) -> None:
        self._file = file
        self._nodes = frozenset(nodes)
        self._changes: dict[str, tuple[Change, ...]] = {}
        self._seen: tuple[Mapping[str, NodeState], Mapping[str, MachinePhase]] = {}, {}
        self._lines = 0
        # A record that is not there, or not whole, is written anew with the first change.
        self._is_whole = False
        try:
            for node, change in _read(foreign.read(file, MOST_BYTES).data.splitlines(), self._nodes):
                self._add(node, change)
        except FileNotFoundError:
            pass
        except (OSError, foreign.UnusableError) as error:
            log(f"{file} cannot be read, so the history of nodes begins anew: {error}")

    def of(self, node: str) -> tuple[Change, ...]:
        """Return a node's last changes, the oldest first."""
        return self._changes.get(node, ())

    def see(self, nodes: Mapping[str, NodeState], machines: Mapping[str, MachinePhase], at: float) -> None:
        """Record what has changed.

        Args:
            nodes: Node -> its state. Those of nodes that have not changed are the same objects as before.
            machines: Node -> what the cloud says of its machine. Nodes of which this is unknown are left out.
            at: When the states were read, in seconds since the epoch.

        Raises:
            OSError: The record cannot be written. The next call writes all of it.
        """
        new = []
        (nodes_before, machines_before), self._seen = self._seen, (dict(nodes), dict(machines))
        for node, state in nodes.items():
            machine = machines.get(node)
            if nodes_before.get(node) is state and machines_before.get(node) is machine:
                continue
            if machine is None or node not in self._nodes:
                continue
            if change := _change(state, machine, int(at), self.of(node)[-1:]):
                self._add(node, change)
                new.append((node, change))
        if new or (self._changes and not self._is_whole):
            self._save(new)

    def _add(self, node: str, change: Change) -> None:
        self._changes[node] = (*self.of(node)[1 - MOST_CHANGES :], change)

    def _save(self, new: Iterable[tuple[str, Change]]) -> None:
        kept = sum(len(changes) for changes in self._changes.values())
        anew = not self._is_whole or self._lines > kept + max(SPARE_LINES, kept // 2)
        self._is_whole = False
        if anew:
            new = [(node, change) for node, changes in self._changes.items() for change in changes]
            self._lines = 0
        lines = [json.dumps({"node": node, **change.fields()}) + "\n" for node, change in new]
        if anew:
            files.write(self._file, "".join(lines).encode())
        else:
            with foreign.log(self._file) as stream:
                stream.write("".join(lines).encode())
        self._lines += len(lines)
        self._is_whole = True


def read(file: Path, node: str) -> list[Change]:
    """Return a node's last changes from the record, the oldest first.

    Raises:
        FileNotFoundError: There is no record yet.
        OSError, UnusableError: It cannot be read.
    """
    name = json.dumps(node).encode()
    lines = [line for line in foreign.read(file, MOST_BYTES).data.splitlines() if name in line]
    return [change for _, change in _read(lines, (node,))][-MOST_CHANGES:]


def _read(lines: Iterable[bytes], nodes: Collection[str]) -> Iterator[tuple[str, Change]]:
    """Yield the changes of these nodes, without the lines that cannot be read."""
    for line in lines:
        try:
            record = foreign.parse_strictly(line)
            node, at, reason = record["node"], record["at"], record["reason"]
            if node not in nodes or not foreign.is_time(at) or not isinstance(reason, str | None):
                continue
            state, machine = str(record["state"]), MachinePhase(record["machine"])
            # Thousands of nodes have the same words.
            yield node, Change(int(at), sys.intern(state), machine.value, reason and sys.intern(reason))
        except (ValueError, TypeError, KeyError):
            continue


def _change(state: NodeState, machine: MachinePhase, at: int, last: tuple[Change, ...]) -> Change | None:
    """Return a node's change; `None` if it is as at the last one, or has only ever been off."""
    reason = _reason(state, last)
    now = Change(at, sys.intern(state_text(state)), machine.value, reason and sys.intern(reason))
    was = _meaning(last[0].state, last[0].machine, last[0].reason) if last else NEVER_UP
    return None if _meaning(now.state, now.machine, now.reason) == was else now


def _reason(state: NodeState, last: tuple[Change, ...]) -> str | None:
    """Return why the node is out of service or off. Slurm also keeps the reasons of what is over."""
    in_service = (state.is_up or state.is_powering_up) and not (state.is_drained or state.is_silent)
    if not state.reason or in_service:
        return None
    reason = " ".join(state.reason.split())[:REASON_LENGTH]
    is_old = bool(last) and reason != last[0].reason and (state.reason_time or math.inf) < last[0].at
    return None if is_old else reason


@lru_cache(4096)
def _meaning(state: str, machine: str, reason: str | None) -> tuple[object, ...]:
    """Return what two states have in common that mean the same."""
    node = NodeState.parse("", state, reason)
    slurm, kind = phase(node), kind_of(reason)
    is_off = slurm in _OFF and machine in _ENDED
    return slurm, node.is_drained, None if is_off else machine, kind if kind in COUNTED else reason


NEVER_UP = (NodePhase.POWERED_DOWN, False, None, None)
"""What the state of a node means that has not been used yet."""
