"""The local cloud's machines: names, tags, all-or-nothing launches, quota, capacity and boot times."""

from __future__ import annotations

import builtins
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from localcloud import behaviour as rules
from localcloud import cores
from localcloud.behaviour import LaunchAllowance, RunningMachine
from localcloud.fault_injection import FaultInjector
from localcloud.machines import COMPUTE, CloudError, MachineRuntime
from localcloud.records import LaunchRecord, MachineRecord, MachineStore
from node.design.local_cloud import CloudBehaviour

NAME_IN_USE = "NameInUse"
KEEP_TERMINATED_SECONDS = 60.0
"""Seconds for which a terminated machine is still listed."""


class Cloud:
    """Launches, lists and terminates machines.

    It is thread-safe. Every change is on the disk before the call returns, unless the disk is full.

    Args:
        folder: Holds `machines.json`. A new cloud on the same folder knows the machines of the old one.

    Attributes:
        limits: The cloud's settings; they may be replaced at any time.
    """

    def __init__(self, folder: Path, runtime: MachineRuntime, limits: CloudBehaviour) -> None:
        self._file = folder / "machines.json"
        self._runtime = runtime
        self.limits = limits
        self._lock = threading.RLock()
        self._cores = cores.Cores(folder.parent.name)
        self._closed = False
        self._store = MachineStore(self._file)
        self._faults = FaultInjector(self._store, runtime, self._lock)
        # Times of the monotonic clock, by machine id.
        self._launched: dict[str, float] = {}
        self._ended: dict[str, float] = {}
        """When a machine was first seen as terminated."""
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
        """Launch machines, or none if fewer than `min_count` can be launched.

        Args:
            token: A call that repeats the token gets the answer of the first call.
            names: Host name in the cluster -> name in the cloud.
            tags: Put on every machine; the host name is added as `node`.
            zone: The zone; `None` leaves the choice to the cloud.

        Returns:
            {"machines": [{"id","node",…}], "failures": [{"nodes","code","message"}]}

        Raises:
            CloudError: Nothing was launched.
        """
        with self._lock:
            self._refuse_if_closed()
            if not names or not 1 <= min_count <= len(names) or "cluster" not in tags or "role" not in tags:
                raise CloudError(
                    "InvalidRequest", "names, min_count and the tags cluster and role are needed"
                )
            if token in self._store.launches:
                earlier = self._store.launches[token]
                return self._answer(earlier)
            taken = {r.name for r in self._store.machines.values() if r.state != "terminated"}
            hosts = [host for host, name in names.items() if name not in taken]
            clash = [host for host in names if host not in hosts]
            in_use = f"a machine named {names[clash[0]]} exists" if clash else ""
            if len(hosts) < min_count:
                raise CloudError(NAME_IN_USE, in_use)
            granted = LaunchAllowance(len(hosts))
            if tags["role"] == COMPUTE:
                granted = self._allowed(len(hosts), gpus, tags.get("partition"), zone)
            if granted.count < min_count:
                raise CloudError(str(granted.code), str(granted.message))
            now = time.time()
            records = [
                MachineRecord(
                    f"m-{secrets.token_hex(6)}", names[host], host, machine, gpus, {**tags, "node": host},
                    token, "pending", now, now, zone=zone,
                )
                for host in hosts[: granted.count]
            ]  # fmt: skip
            failures = [(clash, NAME_IN_USE, in_use), (hosts[granted.count :], granted.code, granted.message)]
            refused = [{"nodes": nodes, "code": code, "message": words} for nodes, code, words in failures]
            return self._take_in(token, records, [one for one in refused if one["nodes"]])

    def terminate(self, ids: list[str]) -> dict[str, Any]:
        """Terminate machines and wait until they have ended; unknown and terminated ids are no error."""
        with self._lock:
            machines = self._store.machines
            records = [machines[i] for i in ids if i in machines and machines[i].state != "terminated"]
            for record in records:
                record.change("stopping")
            self._store.try_to_save()
        threads = [threading.Thread(target=self._stop, args=(record,)) for record in records]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"machines": [asdict(r) for r in records]}

    def list(self, tags: Mapping[str, str]) -> dict[str, Any]:
        """List the machines that have all of `tags`.

        A terminated machine is listed for `KEEP_TERMINATED_SECONDS`; a new one is listed after the setting
        `list_lag`.
        """
        self.watch()
        with self._lock:
            tagged = [r for r in self._store.machines.values() if tags.items() <= r.tags.items()]
            return {"machines": [asdict(r) for r in tagged if not self._is_unseen(r)]}

    def available_capacity(
        self, partition: str, zone: str | None, machine: str, gpus: int, count: int
    ) -> dict[str, Any]:
        """Return how many of `count` more machines could be launched now. Nothing is launched.

        Args:
            machine: The instance type; all types have the same capacity here.
            gpus: GPUs of one machine.

        Returns:
            {"count", "code", "message"}: `code` and `message` say why `count` is lower than asked; both are
            `None` if it is not.
        """
        with self._lock:
            self._refuse_if_closed()
            if count < 0:
                raise CloudError("InvalidRequest", f"count: {count} is not 0 or more")
            return asdict(self._allowed(count, gpus, partition, zone))

    def fault(self, action: str, node: str, notice: float | None = None) -> dict[str, Any]:
        """Inject a fault; see `FaultInjector.inject`."""
        return self._faults.inject(action, node, notice)

    def inspect(self) -> dict[str, Any]:
        """List every machine that is pending or running; no setting hides one. This is for tests."""
        self.watch()
        with self._lock:
            return {"machines": [asdict(r) for r in self._store.machines.values() if r.alive]}

    def close(self, *, write: bool = True) -> None:
        """Terminate every machine and refuse later launches.

        Args:
            write: Whether to save the result; False if the folder is no longer this cloud's.
        """
        with self._lock:
            self._closed = True
            if not write:
                self._store.stop_writing()
            ids = [r.id for r in self._store.machines.values()]
        self.terminate(ids)

    def roles(self, ids: builtins.list[str]) -> set[str]:
        """Return the roles of the machines with these ids."""
        with self._lock:
            return {self._store.machines[i].role for i in ids if i in self._store.machines}

    # --- machines ----------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Note machines that ended by themselves, forget those that ended long ago, and share out cores."""
        died: builtins.list[MachineRecord] = []
        with self._lock:
            changed = self._store.unsaved
            for record in list(self._store.machines.values()):
                dead = record.process is not None and not record.process.alive()
                if record.state == "running" and dead:
                    self._terminated(record)
                    died.append(record)
                    changed = True
                if record.state == "terminated" and self._is_old(record):
                    del self._store.machines[record.id], self._ended[record.id]
                    self._launched.pop(record.id, None)
                    self._store.launches.pop(record.token, None)
                    changed = True
            changed = self._share_out_cores() or changed
            if changed:
                self._store.try_to_save()
        for record in died:
            self._runtime.clear(record.boot())

    def _share_out_cores(self) -> bool:
        """Give free cores to machines that share theirs, and return whether any record changed."""
        changed = False
        for record in self._store.machines.values():
            if record.state == "terminated" and record.cores:  # a fault has ended it
                self._cores.give_back(record.id)
                record.cores, changed = [], True
        for identity, new in self._cores.moves().items():
            record = self._store.machines[identity]
            # A machine that is ending stays where it is: its cores are free in a moment.
            if record.process is not None and record.state == "running":
                print(f"{record.node} moves to cores {cores.in_words(new)}", flush=True)
                try:
                    self._runtime.move(record.boot(), record.process, new)
                except OSError as error:  # it runs all the same
                    print(f"not all of {record.node} moves: {error}", flush=True)
            record.cores, changed = new, True
        return changed

    def _is_old(self, record: MachineRecord) -> bool:
        now = time.monotonic()
        return now - self._ended.setdefault(record.id, now) > KEEP_TERMINATED_SECONDS

    def _is_unseen(self, record: MachineRecord) -> bool:
        """Return whether `list` hides the machine for now.

        Machines of the cluster's head are never hidden.
        """
        if record.role != COMPUTE:
            return False
        # A machine of an earlier agent has no monotonic time here, so its age comes from the wall clock.
        known_age = max(0.0, time.time() - record.launched)
        began = self._launched.setdefault(record.id, time.monotonic() - known_age)
        return time.monotonic() - began < self.limits.list_lag

    def _take_in(
        self, token: str, records: builtins.list[MachineRecord], failures: builtins.list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Save new machines and start their boot."""
        before = self._store.count
        for number, record in enumerate(records, before):
            record.number = number
            record.registers = record.role != COMPUTE or rules.registers(self.limits, _seed(record))
        self._store.count += len(records)
        self._store.machines.update({r.id: r for r in records})
        self._store.launches[token] = LaunchRecord([r.id for r in records], failures)
        try:
            self._store.save()
        except OSError as error:
            # A restarted agent must know every machine, so a machine that cannot be saved is not launched.
            self._store.count = before
            del self._store.launches[token]
            for record in records:
                del self._store.machines[record.id]
            raise CloudError("InsufficientCapacity", f"{self._file}: {error.strerror}") from None
        for record in records:
            self._launched[record.id] = time.monotonic()
            self._boot_later(record)
        return self._answer(self._store.launches[token])

    def _boot_later(self, record: MachineRecord) -> None:
        delay = rules.boot_seconds(self.limits, _seed(record)) if record.role == COMPUTE else 0.0
        timer = threading.Timer(delay, self._boot, (record.id,))
        timer.daemon = True
        timer.start()

    def _boot(self, identity: str) -> None:
        with self._lock:
            record = self._store.machines.get(identity)
            if record is None or record.state != "pending" or self._closed:
                return
            if not record.cores and (count := cores.wanted(record.tags)):
                record.cores = self._cores.take(record.id, count, record.tags["cluster"])
            try:
                record.process = self._runtime.start(record.boot())
            except OSError as error:
                print(f"{record.node} cannot be started: {error}", flush=True)
                self._terminated(record)
            else:
                record.change("running")
            self._store.try_to_save()

    def _stop(self, record: MachineRecord) -> None:
        if record.process is not None and not record.process.alive():
            self._runtime.clear(record.boot())
        ended = record.process is None or self._runtime.stop(record.boot(), record.process)
        with self._lock:
            if ended:
                self._terminated(record)
            self._store.try_to_save()

    def _terminated(self, record: MachineRecord) -> None:
        record.change("terminated")
        self._cores.give_back(record.id)
        record.cores = []

    # --- rules and storage -------------------------------------------------------------------------------

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise CloudError("Unavailable", "the cloud is shutting down")

    def _allowed(self, wanted: int, gpus: int, partition: str | None, zone: str | None) -> LaunchAllowance:
        living = [
            RunningMachine(r.tags.get("partition"), r.zone, r.gpus) for r in self._store.living(COMPUTE)
        ]
        return rules.allowed(self.limits, living, wanted, gpus, partition, zone)

    def _answer(self, launch: LaunchRecord) -> dict[str, Any]:
        known = [self._store.machines[i] for i in launch.ids if i in self._store.machines]
        return {"machines": [asdict(r) for r in known], "failures": launch.failures}

    def _load(self) -> None:
        """Take over the machines of an earlier agent; if their file is damaged, end them all."""
        if not self._store.load():
            self._runtime.purge()
            return
        self._end_orphans()
        for record in self._store.machines.values():
            record.cores = self._cores.moved(record.process, record.cores)
            self._cores.keep(record.id, record.cores, record.tags["cluster"])
        for record in self._store.machines.values():
            if record.state == "pending":
                # The earlier agent may have been killed between the start of the machine and the save.
                self._runtime.clear(record.boot())
                self._boot_later(record)
            elif record.state == "stopping":
                threading.Thread(target=self._stop, args=(record,), daemon=True).start()
        self._faults.resume_preemptions()

    def _end_orphans(self) -> None:
        """End what is left of head machines whose end an earlier agent had only noted when it was killed.

        A slurmctld that lives on would keep the port that the next controller needs. Nodes are not looked at:
        there may be many, and a node that starts again waits for its port.
        """
        lives = {r.node for r in self._store.machines.values() if r.state != "terminated"}
        for record in self._store.machines.values():
            if record.role != COMPUTE and record.node not in lives:
                self._runtime.clear(record.boot())


def _seed(record: MachineRecord) -> str:
    """Return the seed of a machine's random values: equal launches in equal order have equal values."""
    return f"{record.number} {record.node}"
