"""Lists and terminates the machines of a local cluster, through its agent."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from localcloud.machines import COMPUTE
from node.design.model import Settings
from node.system import rpc
from operations.local.agent import ANSWER_SECONDS, end_hung_agent, explain_wait
from operations.local.run_directory import RunDirectory


def is_this_cluster(run: RunDirectory, cluster: str | None) -> bool:
    """Whether the cluster that is up has this name: resources of another cluster must not end it."""
    other = run.cluster
    if cluster is None or other in (None, cluster):
        return True
    print(f"cluster {other} is up here, and not {cluster}: it stays", file=sys.stderr)
    return False


def end_removed_machines(run: RunDirectory, settings: Settings, revision: str) -> None:
    """End login machines and nodes that are no longer in the stack file.

    This happens before the new controller starts, because new nodes may get the ports of removed ones. The
    former controller ends first, because it would launch the nodes again.
    """
    wanted = {host.name for host in settings.design.hosts}
    wanted |= {node for partition in settings.design.partitions for node in partition.nodes()}
    up = machines(run, {}, "pending", "running", "stopping")
    former = [m for m in up if m["node"] not in wanted]
    if not former:
        return
    heads = [m for m in up if m["tags"]["role"] == "controller" and m["tags"].get("revision") != revision]
    names = ", ".join(m["node"] for m in former)
    with explain_wait(f"{names}: not in the stack file any more; the daemons are ending"):
        for ids in ([m["id"] for m in heads], [m["id"] for m in former]):
            if ids:
                run.call("terminate", 60.0, ids=ids)


def terminate(run: RunDirectory, role: str) -> int:
    """End all machines of a role, and return their number."""
    if not run.path.exists():
        return 0
    try:
        if role == COMPUTE:
            _reset_api_faults(run)
        up = machines(run, {"role": role}, "pending", "running", "stopping")
        names = ", ".join(m["node"] for m in up)
        with explain_wait(f"{names}: the daemons are ending; those that hang are killed after 8 s"):
            run.call("terminate", 60.0, ids=[m["id"] for m in up])
    except (rpc.RpcUnavailableError, rpc.RpcError) as error:
        # The deletion of the last resource ends everything that is left, by its processes.
        print(f"the local cloud does not answer ({error}); its machines end with it", file=sys.stderr)
        end_hung_agent(run)
        return 0
    return len(up)


def _reset_api_faults(run: RunDirectory) -> None:
    """Reset API errors and delays that were set for tests: they would prevent the termination."""
    with contextlib.suppress(rpc.RpcError):
        run.call("limits", ANSWER_SECONDS, api_error=None, api_latency=None)


def machines(run: RunDirectory, tags: dict[str, str], *states: str) -> list[dict[str, Any]]:
    """Return the local cloud's machines with these tags that are in one of these states."""
    machines = run.call("list", ANSWER_SECONDS, tags=tags)["machines"]
    return [m for m in machines if m["state"] in states]
