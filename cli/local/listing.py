"""What `./cluster list` says of a local cluster, without a word from slurmctld, which may be slow."""

from __future__ import annotations

import json

from cli.clouds.listing import Listed
from cli.local import agent_lifecycle, machine_access
from cli.local.run_directory import RunDirectory
from infra.program.clusters import Cluster
from node import rpc

ANSWER_SECONDS = 0.5
"""Seconds for which the daemon may take to say what the cluster has cost."""


def listed(cluster: Cluster) -> Listed:
    """Return the state of a recorded cluster."""
    run = RunDirectory(cluster.run_dir)
    name = run.cluster
    if agent_lifecycle.controller_is_dead(run):
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
        machines = json.loads((run.cloud / "machines.json").read_text())["machines"]
        return sum(one["tags"]["role"] == "compute" and one["state"] == "running" for one in machines)
    except (OSError, ValueError, KeyError, TypeError):
        return 0
