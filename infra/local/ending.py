"""The machines of a local cluster, as its agent knows them, and their end."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from infra.local.cloud.limits import COMPUTE
from infra.local.site import RunDirectory
from infra.local.upkeep import ANSWER_SECONDS, end_hung_agent, saying
from infra.node import rpc
from infra.node.model import Settings


def is_here(run: RunDirectory, cluster: str | None) -> bool:
    """Whether the cluster that is up has this name: another one's resources are not to end it."""
    other = run.cluster
    if cluster is None or other in (None, cluster):
        return True
    print(f"cluster {other} is up here, and not {cluster}: it stays", file=sys.stderr)
    return False


def end_former(run: RunDirectory, settings: Settings, revision: str) -> None:
    """End machines that the stack file does not ask for any more: of login, and nodes that are taken away.

    Before the controller that knows the new nodes: they may get the ports of those that go. After the former
    controller, which would launch them anew.
    """
    wanted = {host.name for host in settings.design.hosts}
    wanted |= {node for partition in settings.design.partitions for node in partition.nodes()}
    there = machines(run, {}, "pending", "running", "stopping")
    former = [m for m in there if m["node"] not in wanted]
    if not former:
        return
    heads = [m for m in there if m["tags"]["role"] == "controller" and m["tags"].get("revision") != revision]
    names = ", ".join(m["node"] for m in former)
    with saying(f"{names}: not in the stack file any more; the daemons are ending"):
        for ids in ([m["id"] for m in heads], [m["id"] for m in former]):
            if ids:
                rpc.call(str(run.agent_socket), "terminate", 60.0, ids=ids)


def terminate(run: RunDirectory, role: str) -> int:
    if not run.path.exists():
        return 0
    try:
        if role == COMPUTE:
            let_calls_through(run)
        there = machines(run, {"role": role}, "pending", "running", "stopping")
        names = ", ".join(m["node"] for m in there)
        with saying(f"{names}: the daemons are ending; those that hang are killed after 8 s"):
            rpc.call(str(run.agent_socket), "terminate", 60.0, ids=[m["id"] for m in there])
    except (rpc.RpcUnavailableError, rpc.RpcError) as error:
        # The last resource to go ends everything that is left, by its processes.
        print(f"the local cloud does not answer ({error}); its machines end with it", file=sys.stderr)
        end_hung_agent(run)
        return 0
    return len(there)


def let_calls_through(run: RunDirectory) -> None:
    """Refusals and slowness that somebody has set, to test with, must not be in the way."""
    with contextlib.suppress(rpc.RpcError):
        rpc.call(str(run.agent_socket), "limits", ANSWER_SECONDS, api_error=None, api_latency=None)


def machines(run: RunDirectory, tags: dict[str, str], *states: str) -> list[dict[str, Any]]:
    """The local cloud's machines with these tags in one of these states."""
    machines = rpc.call(str(run.agent_socket), "list", ANSWER_SECONDS, tags=tags)["machines"]
    return [m for m in machines if m["state"] in states]
