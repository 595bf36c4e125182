"""The local cloud's records of its machines, kept on the disk for the next agent."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from localcloud.machines import Boot
from node.system import files, foreign
from node.system.processes import ProcessId


@dataclass(slots=True)
class MachineRecord:
    """One machine of the cloud.

    Attributes:
        state: pending | running | stopping | terminated.
        launched: The time of the launch, in seconds since the epoch.
        changed: When `state` last changed, in seconds since the epoch.
        zone: The zone that the launch asked for; `None` if it named none.
        number: How many machines this cloud had launched before this one.
        registers: Whether the machine starts its bootstrap; without it, the machine never becomes a node.
        notice: When the machine will be preempted, in seconds since the epoch; `None` means never.
        frozen: Whether the machine's processes are frozen.
        cut: Whether the machine is cut off from the network.
        cores: The cores of this host on which the machine runs; empty means any.
    """

    id: str
    name: str
    node: str
    machine: str
    gpus: int
    tags: dict[str, str]
    token: str
    state: str
    launched: float
    changed: float
    process: ProcessId | None = None
    zone: str | None = None
    number: int = 0
    registers: bool = True
    notice: float | None = None
    frozen: bool = False
    cut: bool = False
    cores: list[int] = field(default_factory=list)

    @property
    def role(self) -> str:
        return self.tags["role"]

    @property
    def alive(self) -> bool:
        return self.state in ("pending", "running")

    def change(self, state: str) -> None:
        self.state = state
        self.changed = time.time()

    def boot(self) -> Boot:
        return Boot(self.id, self.role, self.node, self.registers, tuple(self.cores))


@dataclass(slots=True)
class LaunchRecord:
    """The result of a launch, for a call that repeats its token."""

    ids: list[str]
    failures: list[dict[str, Any]] = field(default_factory=list)


class MachineStore:
    """Machines by id and launches by token. It is not thread-safe; the cloud holds the lock.

    Attributes:
        count: How many machines were ever launched.
        unsaved: Whether the last attempt to save failed, because the disk was full for example.
    """

    def __init__(self, file: Path) -> None:
        self.machines: dict[str, MachineRecord] = {}
        self.launches: dict[str, LaunchRecord] = {}
        self.count = 0
        self.unsaved = False
        self._file = file
        self._write = True

    def living(self, role: str) -> list[MachineRecord]:
        return [r for r in self.machines.values() if r.alive and r.role == role]

    def stop_writing(self) -> None:
        """Never save again: the folder is no longer this cloud's."""
        self._write = False

    def try_to_save(self) -> None:
        """Save, and only log a failure: a full disk must not keep machines from ending.

        A later call saves the changes.
        """
        try:
            self.save()
        except OSError as error:
            if not self.unsaved:
                print(f"{self._file} cannot be written: {error.strerror}", flush=True)
            self.unsaved = True
        else:
            self.unsaved = False

    def save(self) -> None:
        """Write all records to the disk.

        Raises:
            OSError: The file cannot be written; the caller's message names it.
        """
        if not self._write:
            return
        content = {
            "count": self.count,
            "machines": [asdict(r) for r in self.machines.values()],
            "launches": {token: asdict(launch) for token, launch in self.launches.items()},
        }
        # If the folder is gone, nobody will read the file, and the machines must still end.
        with contextlib.suppress(FileNotFoundError):
            files.write(self._file, json.dumps(content).encode())

    def load(self) -> bool:
        """Read the records of an earlier agent.

        Returns:
            False if the file is damaged; there are no records then.
        """
        if not self._file.exists():
            return True
        try:
            content = foreign.record(self._file)
            records = [_record(item) for item in content["machines"]]
            launches = {token: LaunchRecord(**launch) for token, launch in content["launches"].items()}
            self.count = int(content.get("count", len(records)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            print(f"{self._file} is damaged ({error!r}): all machines are ended; new ones start on request")
            return False
        self.machines = {record.id: record for record in records}
        self.launches = launches
        return True


def _record(item: dict[str, Any]) -> MachineRecord:
    process = item.pop("process")
    return MachineRecord(**item, process=ProcessId(**process) if process else None)
