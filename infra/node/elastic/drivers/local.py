"""The local cloud's driver: its agent's API on a Unix socket."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from pathlib import Path

from infra.node import rpc
from infra.node.bootstrap.report import failure
from infra.node.elastic.driver import LaunchGroup, LaunchResult, Machine, MachineState
from infra.node.elastic.errors import ErrorClass, Failure
from infra.node.model import Folders, Settings

_CODES = {
    "QuotaExceeded": ErrorClass.QUOTA,
    "InsufficientCapacity": ErrorClass.CAPACITY,
    "PlacementImpossible": ErrorClass.PLACEMENT,
    "AccessDenied": ErrorClass.PERMISSION,
    "RequestLimitExceeded": ErrorClass.THROTTLED,
    "Unavailable": ErrorClass.THROTTLED,
    # The node's last machine is still ending: the same call works a moment later.
    "NameInUse": ErrorClass.THROTTLED,
    "InvalidRequest": ErrorClass.CONFIG,
}


class LocalDriver:
    """Talks to the agent named in the site's `socket`."""

    def __init__(self, settings: Settings) -> None:
        self._socket = settings.site.driver["socket"]
        self._design = settings.design
        self._boots = Path(str(Folders(settings).lib)) / "boot"

    def launch(self, group: LaunchGroup) -> LaunchResult:
        partition = self._design.partition(group.partition)
        for node in group.nodes:  # what its last machine has left says nothing of the next
            (self._boots / f"{node}.json").unlink(missing_ok=True)
        try:
            answer = rpc.call(
                self._socket,
                "launch",
                60.0,
                token=group.token,
                names={node: f"{self._design.name}-{node}" for node in group.nodes},
                min_count=len(group.nodes) if group.all_or_nothing else 1,
                machine=partition.machine,
                gpus=partition.accelerator.count if partition.accelerator else 0,
                tags={"cluster": self._design.name, "role": "compute", "partition": partition.name},
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
        return [
            Machine(
                m["id"],
                m["tags"].get("node"),
                MachineState(m["state"]),
                m["launched"],
                failure(self._boots / f"{m['node']}.json") if m["state"] == "running" else None,
            )
            for m in answer["machines"]
        ]


def _failure(nodes: Sequence[str], code: str, message: str) -> Failure:
    return Failure(tuple(nodes), _CODES.get(code, ErrorClass.CONFIG), code, message)
