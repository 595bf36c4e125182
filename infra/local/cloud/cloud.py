"""The local cloud: machines with names and tags, whole launches, quota, capacity, boot times."""

from __future__ import annotations

import builtins
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from infra.local.cloud import limits as rules
from infra.local.cloud.errors import CloudError
from infra.local.cloud.faults import Faults
from infra.local.cloud.limits import COMPUTE, Allowed, Limits, Living
from infra.local.cloud.machines import Maker
from infra.local.cloud.memory import Launch, Memory, Record

KEEP_TERMINATED_SECONDS = 60.0


class Cloud:
    """Thread-safe; every change is on disk before it is answered, unless the disk is full.

    Args:
        folder: holds machines.json; a cloud made on the same folder again knows its machines.

    Attributes:
        limits: may be replaced at any moment.
    """

    def __init__(self, folder: Path, maker: Maker, limits: Limits) -> None:
        self._file = folder / "machines.json"
        self._maker = maker
        self.limits = limits
        self._lock = threading.RLock()
        self._closed = False
        self._memory = Memory(self._file)
        self._faults = Faults(self._memory, maker, self._lock)
        # Moments on a clock that never jumps.
        self._launched: dict[str, float] = {}
        self._ended: dict[str, float] = {}
        """When terminated machines were first seen so."""
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
        zone: str | None = None,
    ) -> dict[str, Any]:
        """Launch machines; fewer than `min_count` possible: none.

        Args:
            names: host name in the cluster -> name in the cloud.
            tags: put on every machine; the host's name is added as `node`.
            zone: where; None leaves it to the cloud.

        Returns:
            {"machines": [{"id","node",…}], "failures": [{"nodes","code","message"}]}

        Raises:
            CloudError: nothing was launched.
        """
        with self._lock:
            self._refuse_if_closed()
            if not names or not 1 <= min_count <= len(names) or "cluster" not in tags or "role" not in tags:
                raise CloudError(
                    "InvalidRequest", "names, min_count and the tags cluster and role are needed"
                )
            if token in self._memory.launches:
                earlier = self._memory.launches[token]
                return self._answer(earlier)
            taken = {r.name for r in self._memory.machines.values() if r.state != "terminated"}
            if clash := sorted(set(names.values()) & taken):
                raise CloudError("NameInUse", f"a machine named {clash[0]} exists")
            hosts = list(names)
            found = Allowed(len(hosts))
            if tags["role"] == COMPUTE:
                found = self._allowed(len(hosts), gpus, tags.get("partition"), zone)
            if found.count < min_count:
                raise CloudError(str(found.code), str(found.message))
            now = time.time()
            records = [
                Record(
                    f"m-{secrets.token_hex(6)}", names[host], host, machine, gpus, {**tags, "node": host},
                    token, "pending", now, now, zone=zone,
                )
                for host in hosts[: found.count]
            ]  # fmt: skip
            refused = {"nodes": hosts[found.count :], "code": found.code, "message": found.message}
            return self._take_in(token, records, [refused] if refused["nodes"] else [])

    def terminate(self, ids: list[str]) -> dict[str, Any]:
        """End machines and wait for it; unknown and ended ids are no error."""
        with self._lock:
            machines = self._memory.machines
            mine = [machines[i] for i in ids if i in machines and machines[i].state != "terminated"]
            for record in mine:
                record.change("stopping")
            self._memory.try_to_save()
        threads = [threading.Thread(target=self._stop, args=(record,)) for record in mine]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"machines": [asdict(r) for r in mine]}

    def list(self, tags: Mapping[str, str]) -> dict[str, Any]:
        """Machines that carry all of `tags`, terminated ones for a minute, new ones once the lag is over."""
        self.watch()
        with self._lock:
            found = [r for r in self._memory.machines.values() if tags.items() <= r.tags.items()]
            return {"machines": [asdict(r) for r in found if not self._is_unseen(r)]}

    def room(self, partition: str, zone: str | None, machine: str, gpus: int, count: int) -> dict[str, Any]:
        """How many of `count` more machines could be launched right now. Launches nothing.

        Args:
            machine: their type; all types are alike here.
            gpus: devices of one machine.

        Returns:
            {"count", "code", "message"}: the latter two, where not all could be, say why; else None.
        """
        with self._lock:
            self._refuse_if_closed()
            if count < 0:
                raise CloudError("InvalidRequest", f"count: {count} is not 0 or more")
            return asdict(self._allowed(count, gpus, partition, zone))

    def fault(self, action: str, node: str, notice: float | None = None) -> dict[str, Any]:
        """See `Faults.do`."""
        return self._faults.do(action, node, notice)

    def inspect(self) -> dict[str, Any]:
        """Every machine that lives, for the person who tests: no fault hides any."""
        self.watch()
        with self._lock:
            return {"machines": [asdict(r) for r in self._memory.machines.values() if r.alive]}

    def close(self, *, write: bool = True) -> None:
        """End every machine; later launches are refused.

        Args:
            write: False where the folder is not ours any more.
        """
        with self._lock:
            self._closed = True
            if not write:
                self._memory.stop_writing()
            ids = [r.id for r in self._memory.machines.values()]
        self.terminate(ids)

    def roles(self, ids: builtins.list[str]) -> set[str]:
        """What the machines with these ids are for."""
        with self._lock:
            return {self._memory.machines[i].role for i in ids if i in self._memory.machines}

    # --- machines ----------------------------------------------------------------------------------------

    def watch(self) -> None:
        """See which machines ended by themselves, and forget those that ended long ago."""
        died: builtins.list[Record] = []
        with self._lock:
            changed = self._memory.unsaved
            for record in list(self._memory.machines.values()):
                dead = record.process is not None and not record.process.alive()
                if record.state == "running" and dead:
                    record.change("terminated")
                    died.append(record)
                    changed = True
                if record.state == "terminated" and self._is_old(record):
                    del self._memory.machines[record.id], self._ended[record.id]
                    self._launched.pop(record.id, None)
                    self._memory.launches.pop(record.token, None)
                    changed = True
            if changed:
                self._memory.try_to_save()
        for record in died:
            self._maker.clear(record.boot())

    def _is_old(self, record: Record) -> bool:
        now = time.monotonic()
        return now - self._ended.setdefault(record.id, now) > KEEP_TERMINATED_SECONDS

    def _is_unseen(self, record: Record) -> bool:
        """Whether the list does not show it yet. A cluster's head is never hidden: see `roles`."""
        if record.role != COMPUTE:
            return False
        # Of an earlier agent's machines only the wall clock knows the age.
        known_age = max(0.0, time.time() - record.launched)
        began = self._launched.setdefault(record.id, time.monotonic() - known_age)
        return time.monotonic() - began < self.limits.list_lag

    def _take_in(
        self, token: str, records: builtins.list[Record], failures: builtins.list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Have new machines: on the disk, and soon booted."""
        before = self._memory.count
        for number, record in enumerate(records, before):
            record.number = number
            record.registers = record.role != COMPUTE or rules.registers(self.limits, _seed(record))
        self._memory.count += len(records)
        self._memory.machines.update({r.id: r for r in records})
        self._memory.launches[token] = Launch([r.id for r in records], failures)
        try:
            self._memory.save()
        except OSError as error:
            # An agent that is started anew must know every machine: none without a word on the disk.
            self._memory.count = before
            del self._memory.launches[token]
            for record in records:
                del self._memory.machines[record.id]
            raise CloudError("InsufficientCapacity", f"{self._file}: {error.strerror}") from None
        for record in records:
            self._launched[record.id] = time.monotonic()
            self._boot_later(record)
        return self._answer(self._memory.launches[token])

    def _boot_later(self, record: Record) -> None:
        delay = rules.boot_seconds(self.limits, _seed(record)) if record.role == COMPUTE else 0.0
        timer = threading.Timer(delay, self._boot, (record.id,))
        timer.daemon = True
        timer.start()

    def _boot(self, identity: str) -> None:
        with self._lock:
            record = self._memory.machines.get(identity)
            if record is None or record.state != "pending" or self._closed:
                return
            try:
                record.process = self._maker.start(record.boot())
            except OSError as error:
                print(f"{record.node} cannot be started: {error}", flush=True)
                record.change("terminated")
            else:
                record.change("running")
            self._memory.try_to_save()

    def _stop(self, record: Record) -> None:
        if record.process is not None and not record.process.alive():
            self._maker.clear(record.boot())
        ended = record.process is None or self._maker.stop(record.boot(), record.process)
        with self._lock:
            if ended:
                record.change("terminated")
            self._memory.try_to_save()

    # --- rules and memory --------------------------------------------------------------------------------

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise CloudError("Unavailable", "the cloud is shutting down")

    def _allowed(self, wanted: int, gpus: int, partition: str | None, zone: str | None) -> Allowed:
        living = [Living(r.tags.get("partition"), r.zone, r.gpus) for r in self._memory.living(COMPUTE)]
        return rules.allowed(self.limits, living, wanted, gpus, partition, zone)

    def _answer(self, launch: Launch) -> dict[str, Any]:
        known = [self._memory.machines[i] for i in launch.ids if i in self._memory.machines]
        return {"machines": [asdict(r) for r in known], "failures": launch.failures}

    def _load(self) -> None:
        """What an agent before this one has left; of a file that is damaged, nothing."""
        if not self._memory.load():
            self._maker.purge()
            return
        for record in self._memory.machines.values():
            if record.state == "pending":
                # That agent may have been killed between starting the machine and writing it down.
                self._maker.clear(record.boot())
                self._boot_later(record)
            elif record.state == "stopping":
                threading.Thread(target=self._stop, args=(record,), daemon=True).start()
        self._faults.go_on()


def _seed(record: Record) -> str:
    """The same launches in the same order have the same fates."""
    return f"{record.number} {record.node}"
