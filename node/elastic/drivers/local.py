"""The driver of the local cloud. It calls the agent's API on a Unix socket."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

from node.bootstrap.report import failure
from node.design.model import PROCESS, Partition, Settings
from node.design.sites import LocalSite
from node.elastic import drivers
from node.elastic.driver import (
    LAUNCH_THREADS,
    AvailableCapacity,
    LaunchGroup,
    LaunchResult,
    Machine,
    MachineState,
)
from node.elastic.drivers.boot_reports import BootReports, with_boots
from node.elastic.failures import ErrorClass, Failure
from node.slurm.topology import Place
from node.system import rpc

NAME_IN_USE = "NameInUse"
_CODES = {
    "QuotaExceeded": ErrorClass.QUOTA,
    "InsufficientCapacity": ErrorClass.CAPACITY,
    "PlacementImpossible": ErrorClass.PLACEMENT,
    "AccessDenied": ErrorClass.PERMISSION,
    "RequestLimitExceeded": ErrorClass.THROTTLED,
    "Unavailable": ErrorClass.UNAVAILABLE,
    # The node's last machine is still ending: the same call works when it has.
    NAME_IN_USE: ErrorClass.UNAVAILABLE,
    "InvalidRequest": ErrorClass.CONFIG,
}


class LocalDriver:
    """The driver that calls the agent on the site's `socket`."""

    launch_threads = LAUNCH_THREADS

    def __init__(self, settings: Settings) -> None:
        self._socket = settings.site.of(LocalSite).socket
        self._design = settings.design
        self._files = drivers.reports(settings)
        # The agent itself tells of the machines that it will take.
        self._boots = BootReports.of(settings, notices=False)

    def launch(self, group: LaunchGroup) -> LaunchResult:
        partition = self._design.partition(group.partition)
        try:
            answer = rpc.call(
                self._socket,
                "launch",
                60.0,
                token=group.token,
                names={node: f"{self._design.name}-{node}" for node in group.nodes},
                min_count=len(group.nodes) if group.all_or_nothing else 1,
                machine=partition.instance_type,
                gpus=_devices(partition),
                tags={
                    "cluster": self._design.name,
                    "role": "compute",
                    "partition": partition.label,
                    "cpus": str(partition.cpus),
                },
                zone=group.zone,
            )
        except rpc.RpcError as error:
            return LaunchResult({}, (_failure(group.nodes, error.code, str(error)),))
        except rpc.RpcUnavailableError as error:
            return LaunchResult({}, (_failure(group.nodes, "Unavailable", str(error)),))
        return LaunchResult(
            {machine["node"]: machine["id"] for machine in answer["machines"]},
            tuple(_failure(tuple(f["nodes"]), f["code"], f["message"]) for f in answer["failures"]),
        )

    def terminate(self, ids: Sequence[str]) -> None:
        if ids:
            rpc.call(self._socket, "terminate", 60.0, ids=list(ids))

    def list(self) -> builtins.list[Machine]:
        answer = rpc.call(self._socket, "list", 60.0, tags={"cluster": self._design.name, "role": "compute"})
        machines = [self._machine(record) for record in answer["machines"]]
        return machines if self._design.isolation == PROCESS else with_boots(machines, self._boots)

    def _machine(self, record: dict[str, Any]) -> Machine:
        launched = record["launched"]
        reports = record["state"] == "running" and self._design.isolation == PROCESS
        return Machine(
            record["id"],
            record["tags"].get("node"),
            MachineState(record["state"]),
            launched,
            failure(self._files / f"{record['node']}.json", since=launched) if reports else None,
            record["zone"],
            record["notice"],
            self._outdated(record),
            tuple(record.get("addresses", ())),
        )

    def _outdated(self, record: dict[str, Any]) -> bool:
        partition = self._design.partition_of(record["tags"].get("node") or "")
        if partition is None:
            return False
        return bool((record["machine"], record["gpus"]) != (partition.instance_type, _devices(partition)))

    def available_capacity(self, partition: str, zone: str | None, count: int) -> AvailableCapacity | None:
        wanted = self._design.partition(partition)
        try:
            answer = rpc.call(
                self._socket,
                "available_capacity",
                60.0,
                partition=wanted.label,
                zone=zone,
                machine=wanted.instance_type,
                gpus=_devices(wanted),
                count=count,
            )
        except rpc.RpcError as error:
            return AvailableCapacity(0, _failure((), error.code, str(error)))
        except rpc.RpcUnavailableError as error:
            return AvailableCapacity(0, _failure((), "Unavailable", str(error)))
        refused = answer["code"] is not None
        return AvailableCapacity(
            answer["count"], _failure((), answer["code"], answer["message"]) if refused else None
        )

    def places(self, machines: Sequence[Machine]) -> dict[str, Place]:
        """Return nothing: all machines of the local cloud are on one host."""
        return {}


def _devices(partition: Partition) -> int:
    """Return the number of GPUs of one machine."""
    return partition.accelerator.count if partition.accelerator else 0


def _failure(nodes: Sequence[str], code: str, message: str) -> Failure:
    kind = _CODES.get(code, ErrorClass.CONFIG)
    return Failure(tuple(nodes), kind, code, message, own=code == NAME_IN_USE)
