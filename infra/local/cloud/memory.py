"""What the local cloud knows of its machines, and keeps on the disk for the next agent."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from infra.local.cloud.machines import Boot
from infra.node.bootstrap import files
from infra.node.processes import ProcessId


@dataclass(slots=True)
class Record:
    """A machine.

    Attributes:
        state: pending | running | stopping | terminated.
        launched: seconds since the epoch.
        changed: when `state` last changed, seconds since the epoch.
        zone: where the launch wanted it; None where it named none.
        number: how many machines this cloud had launched before it.
        registers: whether it will start its bootstrap; one that does not only runs.
        notice: when the cloud takes it back, seconds since the epoch; None: it does not.
        frozen: it stands still.
        cut: it has no network.
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
        return Boot(self.id, self.role, self.node, self.registers)


@dataclass(slots=True)
class Launch:
    """What became of a launch, for a call that is repeated."""

    ids: list[str]
    failures: list[dict[str, Any]] = field(default_factory=list)


class Memory:
    """Machines by id, launches by token. Not thread-safe: the cloud has the lock.

    Attributes:
        count: machines that were ever launched.
        unsaved: what is here is not on the disk, which was full.
    """

    def __init__(self, file: Path) -> None:
        self.machines: dict[str, Record] = {}
        self.launches: dict[str, Launch] = {}
        self.count = 0
        self.unsaved = False
        self._file = file
        self._write = True

    def living(self, role: str) -> list[Record]:
        return [r for r in self.machines.values() if r.alive and r.role == role]

    def stop_writing(self) -> None:
        """The folder is not ours any more."""
        self._write = False

    def try_to_save(self) -> None:
        """A full disk must not keep machines from ending; a later call writes it down."""
        try:
            self.save()
        except OSError as error:
            if not self.unsaved:
                print(f"{self._file} cannot be written: {error.strerror}", flush=True)
            self.unsaved = True
        else:
            self.unsaved = False

    def save(self) -> None:
        """Write all of it down.

        Raises:
            OSError: it cannot be written; the message of the caller names the file.
        """
        if not self._write:
            return
        content = {
            "count": self.count,
            "machines": [asdict(r) for r in self.machines.values()],
            "launches": {token: asdict(launch) for token, launch in self.launches.items()},
        }
        # Where the folder is gone nobody will ever read it, and the machines must end all the same.
        with contextlib.suppress(FileNotFoundError):
            files.place(self._file, json.dumps(content).encode())

    def load(self) -> bool:
        """Take in what an agent before this one has left.

        Returns:
            False if the file is damaged: nothing is known.
        """
        if not self._file.exists():
            return True
        try:
            content = json.loads(self._file.read_text())
            records = [_record(item) for item in content["machines"]]
            launches = {token: Launch(**launch) for token, launch in content["launches"].items()}
            self.count = int(content.get("count", len(records)))
        except (ValueError, KeyError, TypeError) as error:
            print(f"{self._file} is damaged ({error!r}): what runs is ended, and made anew on request")
            return False
        self.machines = {record.id: record for record in records}
        self.launches = launches
        return True


def _record(item: dict[str, Any]) -> Record:
    process = item.pop("process")
    return Record(**item, process=ProcessId(**process) if process else None)
