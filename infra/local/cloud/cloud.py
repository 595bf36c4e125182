"""The local cloud's state and rules: machines with names and tags, quota, boot delay, whole launches."""

from __future__ import annotations

import builtins
import contextlib
import json
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from infra.local.cloud.machines import Boot, Maker
from infra.node.processes import ProcessId

KEEP_TERMINATED_SECONDS = 60.0


class CloudError(Exception):
    """A refused call. `code` is one of those that infra.node.elastic.drivers.local classifies."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(slots=True)
class Record:
    """A machine.

    Attributes:
        state: pending | running | stopping | terminated.
        launched: seconds since the epoch.
        changed: when `state` last changed, seconds since the epoch.
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


@dataclass(slots=True)
class Limits:
    """What this cloud allows, as an account's quota does. None is no limit.

    Attributes:
        boot_delay: seconds a machine stays pending.
        quota_nodes: compute machines at one time.
        quota_gpus: their devices at one time.
    """

    boot_delay: float = 0.0
    quota_nodes: int | None = None
    quota_gpus: int | None = None


@dataclass(slots=True)
class _Launch:
    ids: list[str]
    failures: list[dict[str, Any]] = field(default_factory=list)


class Cloud:
    """Thread-safe; every change is on disk before it is answered, unless the disk is full.

    Args:
        folder: holds machines.json; a cloud made on the same folder again knows its machines.
    """

    def __init__(self, folder: Path, maker: Maker, limits: Limits) -> None:
        self._file = folder / "machines.json"
        self._maker = maker
        self.limits = limits
        self._lock = threading.RLock()
        self._closed = False
        self._unsaved = False
        self._write = True
        self._machines: dict[str, Record] = {}
        self._launches: dict[str, _Launch] = {}
        self._ended: dict[str, float] = {}
        """When terminated machines were first seen so, on a clock that never jumps."""
        self._load()

    # --- the API -----------------------------------------------------------------------------------------

    def launch(
        self,
        token: str,
        names: Mapping[str, str],
        min_count: int,
        machine: str,
        tags: Mapping[str, str],
        gpus: int = 0,
    ) -> dict[str, Any]:
        """Launch machines; fewer than `min_count` possible: none.

        Args:
            names: host name in the cluster -> name in the cloud.
            tags: put on every machine; the host's name is added as `node`.

        Returns:
            {"machines": [{"id","node",…}], "failures": [{"nodes","code","message"}]}

        Raises:
            CloudError: nothing was launched.
        """
        with self._lock:
            if self._closed:
                raise CloudError("Unavailable", "the cloud is shutting down")
            if not names or not 1 <= min_count <= len(names) or "cluster" not in tags or "role" not in tags:
                raise CloudError(
                    "InvalidRequest", "names, min_count and the tags cluster and role are needed"
                )
            if token in self._launches:
                earlier = self._launches[token]
                return self._answer(earlier.ids, earlier.failures)
            taken = {r.name for r in self._machines.values() if r.state in ("pending", "running", "stopping")}
            if clash := sorted(set(names.values()) & taken):
                raise CloudError("NameInUse", f"a machine named {clash[0]} exists")
            hosts = list(names)
            allowed, reason = self._room(len(hosts), gpus, tags["role"])
            if allowed < min_count:
                raise CloudError("QuotaExceeded", reason)
            now = time.time()
            records = [
                Record(
                    f"m-{secrets.token_hex(6)}", names[host], host, machine, gpus, {**tags, "node": host},
                    token, "pending", now, now,
                )
                for host in hosts[:allowed]
            ]  # fmt: skip
            refused = hosts[allowed:]
            failures = [{"nodes": refused, "code": "QuotaExceeded", "message": reason}] if refused else []
            self._machines.update({r.id: r for r in records})
            self._launches[token] = _Launch([r.id for r in records], failures)
            try:
                self._save()
            except OSError as error:
                # An agent that is started anew must know every machine: none without a word on the disk.
                del self._launches[token]
                for record in records:
                    del self._machines[record.id]
                raise CloudError("InsufficientCapacity", f"{self._file}: {error.strerror}") from None
            for record in records:
                self._boot_later(record.id, self.limits.boot_delay)
            return self._answer([r.id for r in records], failures)

    def terminate(self, ids: list[str]) -> dict[str, Any]:
        """End machines and wait for it; unknown and ended ids are no error."""
        with self._lock:
            mine = [self._machines[i] for i in ids if i in self._machines]
            mine = [r for r in mine if r.state != "terminated"]
            for record in mine:
                self._change(record, "stopping")
            self._try_to_save()
        threads = [threading.Thread(target=self._stop, args=(record,)) for record in mine]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"machines": [asdict(r) for r in mine]}

    def list(self, tags: Mapping[str, str]) -> dict[str, Any]:
        """Machines that carry all of `tags`, terminated ones for a minute."""
        self.watch()
        with self._lock:
            found = [r for r in self._machines.values() if tags.items() <= r.tags.items()]
            return {"machines": [asdict(r) for r in found]}

    def close(self, *, write: bool = True) -> None:
        """End every machine; later launches are refused.

        Args:
            write: False where the folder is not ours any more.
        """
        with self._lock:
            self._closed = True
            self._write = self._write and write
            ids = [r.id for r in self._machines.values()]
        self.terminate(ids)

    # --- machines ----------------------------------------------------------------------------------------

    def watch(self) -> None:
        """See which machines ended by themselves, and forget those that ended long ago."""
        died: builtins.list[Boot] = []
        with self._lock:
            changed = self._unsaved
            for record in list(self._machines.values()):
                dead = record.process is not None and not record.process.alive()
                if record.state == "running" and dead:
                    self._change(record, "terminated")
                    died.append(_boot_of(record))
                    changed = True
                if record.state == "terminated" and self._is_old(record):
                    del self._machines[record.id], self._ended[record.id]
                    self._launches.pop(record.token, None)
                    changed = True
            if changed:
                self._try_to_save()
        for boot in died:
            self._maker.clear(boot)

    def _is_old(self, record: Record) -> bool:
        now = time.monotonic()
        return now - self._ended.setdefault(record.id, now) > KEEP_TERMINATED_SECONDS

    def _boot_later(self, identity: str, delay: float) -> None:
        timer = threading.Timer(max(0.0, delay), self._boot, (identity,))
        timer.daemon = True
        timer.start()

    def _boot(self, identity: str) -> None:
        with self._lock:
            record = self._machines.get(identity)
            if record is None or record.state != "pending" or self._closed:
                return
            try:
                record.process = self._maker.start(_boot_of(record))
            except OSError as error:
                print(f"{record.node} cannot be started: {error}", flush=True)
                self._change(record, "terminated")
            else:
                self._change(record, "running")
            self._try_to_save()

    def _stop(self, record: Record) -> None:
        if record.process is not None and not record.process.alive():
            self._maker.clear(_boot_of(record))
        ended = record.process is None or self._maker.stop(record.process)
        with self._lock:
            if ended:
                self._change(record, "terminated")
            self._try_to_save()

    def _room(self, wanted: int, gpus: int, role: str) -> tuple[int, str]:
        """How many of `wanted` machines the quota allows, and the sentence for those it does not."""
        if role != "compute":
            return wanted, ""
        living = [
            r for r in self._machines.values() if r.state in ("pending", "running") and r.tags["role"] == role
        ]
        room, reason = wanted, ""
        if self.limits.quota_nodes is not None:
            room = max(0, min(room, self.limits.quota_nodes - len(living)))
            reason = (
                f"quota of {self.limits.quota_nodes} machines exceeded: {len(living)} run, {wanted} asked"
            )
        if self.limits.quota_gpus is not None and gpus:
            used = sum(r.gpus for r in living)
            by_gpus = max(0, (self.limits.quota_gpus - used) // gpus)
            if by_gpus < room:
                room = by_gpus
                reason = (
                    f"quota of {self.limits.quota_gpus} GPUs exceeded: {used} used, {wanted * gpus} asked"
                )
        return room, reason

    # --- memory ------------------------------------------------------------------------------------------

    def _answer(self, ids: builtins.list[str], failures: builtins.list[dict[str, Any]]) -> dict[str, Any]:
        known = [self._machines[i] for i in ids if i in self._machines]
        return {"machines": [asdict(r) for r in known], "failures": failures}

    @staticmethod
    def _change(record: Record, state: str) -> None:
        record.state = state
        record.changed = time.time()

    def _try_to_save(self) -> None:
        """A full disk must not keep machines from ending; `watch` writes it down later."""
        try:
            self._save()
        except OSError as error:
            if not self._unsaved:
                print(f"{self._file} cannot be written: {error.strerror}", flush=True)
            self._unsaved = True
        else:
            self._unsaved = False

    def _save(self) -> None:
        if not self._write:
            return
        content = {
            "machines": [asdict(r) for r in self._machines.values()],
            "launches": {token: asdict(launch) for token, launch in self._launches.items()},
        }
        draft = self._file.with_suffix(".new")
        # Where the folder is gone nobody will ever read it, and the machines must end all the same.
        with contextlib.suppress(FileNotFoundError):
            draft.write_text(json.dumps(content))
            draft.replace(self._file)

    def _load(self) -> None:
        """What an agent before this one has left; of a file that is damaged, nothing."""
        if not self._file.exists():
            return
        try:
            content = json.loads(self._file.read_text())
            records = [_record(item) for item in content["machines"]]
            launches = {token: _Launch(**launch) for token, launch in content["launches"].items()}
        except (ValueError, KeyError, TypeError) as error:
            print(f"{self._file} is damaged ({error!r}): what runs is ended, and made anew on request")
            self._maker.purge()
            return
        self._machines = {record.id: record for record in records}
        self._launches = launches
        for record in records:
            if record.state == "pending":
                # That agent may have been killed between starting the machine and writing it down.
                self._maker.clear(_boot_of(record))
                self._boot_later(record.id, self.limits.boot_delay)
            elif record.state == "stopping":
                threading.Thread(target=self._stop, args=(record,), daemon=True).start()


def _boot_of(record: Record) -> Boot:
    return Boot(record.id, record.tags["role"], record.node)


def _record(item: dict[str, Any]) -> Record:
    process = item.pop("process")
    return Record(**item, process=ProcessId(**process) if process else None)
