"""Checks of this stack's cluster: what is up or left of it, its folders, and its kind of machines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cli.engine import state
from cli.findings import Finding, fine, stops, warns
from cli.providers import condition
from cli.providers.local.clusters import other_owners
from infra.program import owner
from infra.program.stack import Stack
from node.design.model import ClusterDesign
from node.system import rpc
from operations.local import machine_access
from operations.local.run_directory import RunDirectory

if TYPE_CHECKING:
    from node.design.model import ClusterDesign

ANSWER_SECONDS = 6.0
"""Seconds to wait for an answer: not long for the user, but enough for a daemon on a busy machine."""
NAMED = 3


def present(stack: Stack, design: ClusterDesign | None = None) -> Iterable[Finding]:
    """Check this stack's cluster: it may be up, partly up, or have left something.

    Args:
        design: The stack file's design; `None` if the file has mistakes.
    """
    run = RunDirectory.of(stack)
    if design is not None and (name := run.cluster) not in (None, design.name):
        yield stops(
            "cluster.name",
            f"cluster {name} is up, and the stack file says {design.name}: that is another cluster",
            f"Put the old name back; or `./cluster up --stack {stack.name} --replace` destroys {name}, its "
            "files and its jobs first.",
        )
    up, down = (f"`./cluster {verb} --stack {stack.name}`" for verb in ("up", "down"))
    if not run.path.exists():
        if left := run.pids():
            yield warns(
                "cluster.leftovers",
                f"{run.path} is gone, and processes of the cluster in it are left: {_listed(left)}",
                f"{down} ends them.",
            )
        elif state.outputs(stack):
            yield warns(
                "cluster.state",
                f"was up, and {run.path} is gone: the machine was restarted, or the folder was removed",
                f"{up} makes a new cluster, {down} forgets it; the former jobs are lost.",
            )
        else:
            yield fine("cluster.state", f"not up yet{other_owners(stack)}")
    elif owner.read(stack) is None:
        left = run.pids()
        yield warns(
            "cluster.leftovers",
            f"{run.path} is there and nobody owns it"
            + (f"; processes in it: {_listed(left)}" if left else ""),
            f"{down} removes it.",
        )
    else:
        yield from _condition(run, up, stack.name)


def _listed(pids: list[int]) -> str:
    return ", ".join(map(str, pids[:NAMED])) + (f" and {len(pids) - NAMED} more" if len(pids) > NAMED else "")


def _condition(run: RunDirectory, up: str, stack: str) -> Iterable[Finding]:
    """Check a cluster that is up, or was up."""
    look = f"`./cluster logs --stack {stack}` shows its last messages."
    try:
        listed = run.call("list", ANSWER_SECONDS, tags={})["machines"]
    except (rpc.RpcUnavailableError, rpc.RpcError):
        yield warns(
            "cluster.agent",
            f"{run.path} is there, and the agent of its local cloud does not answer: no node can start",
            f"{up} starts it again. {look}",
        )
        return
    machines = [machine for machine in listed if machine["state"] in ("pending", "running")]
    head = [machine for machine in machines if machine["tags"]["role"] == "controller"]
    if not head:
        text = f"half up: its local cloud runs in {run.path}, its controller does not"
        yield warns("cluster.controller", text, f"{up} goes on where it stopped. {look}")
        return
    try:
        rpc.call(machine_access.daemon_socket(run), "ping", ANSWER_SECONDS)
    except (rpc.RpcUnavailableError, rpc.RpcError):
        text = "up, and its elastic daemon does not answer"
        yield warns("cluster.daemon", text, f"It is started again by itself when it dies. {look}")
        return
    with contextlib.suppress(rpc.RpcUnavailableError, rpc.RpcError):  # slurmctld may be slow to answer
        status = rpc.call(machine_access.daemon_socket(run), "status", ANSWER_SECONDS)
        yield from condition.disks(status, stack)
        yield from condition.budget(status["cost"], stack)
        yield from condition.health(status["nodes"], stack)
        yield from condition.service(status, stack)
        yield from condition.backups(status, stack)
    nodes = sum(machine["tags"]["role"] == "compute" for machine in machines)
    yield fine("cluster.state", f"is up, {nodes} {'node' if nodes == 1 else 'nodes'} running")
