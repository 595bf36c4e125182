"""What is there already: this stack's cluster, what an earlier one has left, and others of this user's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from infra.doctor.budget import budget
from infra.doctor.finding import Finding, fine, stops, warns
from infra.local import abandoned, upkeep, way_in
from infra.local.operations import processes
from infra.local.site import RunDirectory
from infra.node import rpc
from infra.node.model import ClusterDesign
from infra.runner import embedded, locations, owner

ANSWER_SECONDS = 6.0
"""A person waits; but a daemon of a busy machine must not be called dead, nor its budget be left out."""
NAMED = 3


def present(project: Path, stack: str, design: ClusterDesign | None = None) -> Iterable[Finding]:
    """The cluster of this stack: up, half up, or what is left of one.

    Args:
        design: the stack file's; None where it has mistakes.
    """
    run = RunDirectory.of(project, stack)
    if design is not None and (name := run.cluster) not in (None, design.name):
        yield stops(
            "cluster.name",
            f"cluster {name} is up, and the stack file says {design.name}: that is another cluster",
            f"Put the old name back; or `./cluster up --stack {stack} --replace` destroys {name}, its files "
            "and its jobs first.",
        )
    up, down = (f"`./cluster {verb} --stack {stack}`" for verb in ("up", "down"))
    if not run.path.exists():
        if left := processes(run):
            yield warns(
                "cluster.leftovers",
                f"{run.path} is gone, and processes of the cluster in it are left: {_listed(left)}",
                f"{down} ends them.",
            )
        elif embedded.outputs(project, stack):
            yield warns(
                "cluster.state",
                f"was up, and {run.path} is gone: the machine was restarted, or the folder was removed",
                f"{up} makes all of it anew, {down} forgets it; the jobs of then are lost.",
            )
        else:
            yield fine("cluster.state", f"not up yet{abandoned.others(project, stack)}")
    elif owner.read(project, stack) is None:
        left = processes(run)
        yield warns(
            "cluster.leftovers",
            f"{run.path} is there and nobody owns it"
            + (f"; processes in it: {_listed(left)}" if left else ""),
            f"{down} removes it.",
        )
    else:
        yield from _condition(run, up, stack)


def _listed(pids: list[int]) -> str:
    return ", ".join(map(str, pids[:NAMED])) + (f" and {len(pids) - NAMED} more" if len(pids) > NAMED else "")


def _condition(run: RunDirectory, up: str, stack: str) -> Iterable[Finding]:
    """Of a cluster that is up, or was."""
    look = f"`./cluster logs --stack {stack}` shows what it said last."
    try:
        found = rpc.call(str(run.agent_socket), "list", ANSWER_SECONDS, tags={})["machines"]
    except (rpc.RpcUnavailableError, rpc.RpcError):
        yield warns(
            "cluster.agent",
            f"{run.path} is there, and the agent of its local cloud does not answer: no node can start",
            f"{up} starts it again. {look}",
        )
        return
    machines = [machine for machine in found if machine["state"] in ("pending", "running")]
    head = [machine for machine in machines if machine["tags"]["role"] == "controller"]
    if not head:
        text = f"half up: its local cloud runs in {run.path}, its controller does not"
        yield warns("cluster.controller", text, f"{up} goes on where it stopped. {look}")
        return
    try:
        rpc.call(way_in.daemon_socket(run), "ping", ANSWER_SECONDS)
    except (rpc.RpcUnavailableError, rpc.RpcError):
        text = "up, and its elastic daemon does not answer"
        yield warns("cluster.daemon", text, f"It is started again by itself when it dies. {look}")
        return
    with contextlib.suppress(rpc.RpcUnavailableError, rpc.RpcError):  # slurmctld may be slow to answer
        status = rpc.call(way_in.daemon_socket(run), "status", ANSWER_SECONDS)
        yield from budget(status["cost"], stack)
    nodes = sum(machine["tags"]["role"] == "compute" for machine in machines)
    yield fine("cluster.state", f"is up, {nodes} {'node' if nodes == 1 else 'nodes'} running")


def others(project: Path, stack: str) -> Iterable[Finding]:
    """Clusters of this user's that are not this one: they take memory, ports and processes."""
    for sentence in abandoned.sentences(project):
        what, _, cure = sentence.partition(". ")
        yield warns("others.abandoned", what, cure)
    mine = locations.run_dir(project, stack)
    up = [
        f"{note.stack} of {note.checkout}"
        for run, note in locations.notes()
        if run != mine and not note.gone and not upkeep.fallen(RunDirectory(run))
    ]
    if up:
        more = f" and {len(up) - NAMED} more" if len(up) > NAMED else ""
        yield fine("others.clusters", f"also up: {', '.join(up[:NAMED])}{more}")
