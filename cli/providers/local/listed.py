"""What `./cluster list` says of a local cluster, without a word from slurmctld, which may be slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.program.clusters import Cluster
from node.system import foreign, rpc
from operations.local import agent, machine_access
from operations.local.run_directory import RunDirectory

if TYPE_CHECKING:
    from cli.providers.clouds.listing import Listed


ANSWER_SECONDS = 0.5
"""Seconds for which the daemon may take to say what the cluster has cost."""


def listed(cluster: Cluster) -> Listed:
    """Return the state of a recorded cluster."""
    from cli.providers.clouds.listing import Listed

    run = RunDirectory(cluster.run_dir)
    name = run.cluster
    if agent.controller_is_dead(run):
        return Listed("local", name, cluster.stack, cluster.since, "off")
    nodes = _nodes(run)
    try:
        cost = rpc.call(machine_access.daemon_socket(run), "cost", ANSWER_SECONDS)
    except (rpc.RpcUnavailableError, rpc.RpcError):
        return Listed("local", name, cluster.stack, cluster.since, "silent", nodes)
    hours, usd = cost["node_hours"], cost["usd"]
    return Listed("local", name, cluster.stack, cluster.since, "up", nodes, hours, usd)


def _nodes(run: RunDirectory) -> int:
    """Return the number of nodes that are up, from the local cloud's file: its agent need not answer."""
    try:
        machines = foreign.record(run.cloud / "machines.json")["machines"]
        return sum(
            machine["tags"]["role"] == "compute" and machine["state"] == "running" for machine in machines
        )
    except (OSError, ValueError, KeyError, TypeError):
        return 0
