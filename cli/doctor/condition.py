"""The condition of a cluster that is up, from its status: its budget, and nodes whose devices failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cli.doctor.finding import Finding, warns
from node.health.programs import REASON
from node.slurm.hostlist import fold

NEARLY = 0.8
"""The share of a budget from which on the doctor warns."""


def budget(cost: Mapping[str, Any], stack: str) -> Iterable[Finding]:
    """Warn if more than `NEARLY` of the cluster's budget is used.

    Args:
        cost: from the cluster's status.
    """
    found = cost.get("budget")
    if found is None or found["used"] < NEARLY:
        return
    cure = (
        f"Raise slurm-stacks:cluster.budget in Pulumi.{stack}.yaml and run `./cluster up --stack {stack}`; "
        f"`./cluster down --stack {stack}` and `up` begin a new one."
    )
    if found["used"] >= 1:
        yield warns("cluster.budget", "the budget is used up: no new node starts", cure)
    else:
        yield warns("cluster.budget", f"{found['used']:.0%} of the budget is used", cure)


def health(nodes: Iterable[Mapping[str, Any]], stack: str) -> Iterable[Finding]:
    """Warn of nodes that are out of service because their devices failed.

    Args:
        nodes: from the cluster's status.
    """
    sick: dict[str, list[str]] = {}
    for node in nodes:
        if "DRAIN" in node["state"] and str(node["reason"]).startswith(REASON):
            sick.setdefault(node["reason"].removeprefix(REASON), []).append(node["name"])
    for why, names in sick.items():
        cure = (
            f"A new machine replaces a node by itself when its jobs are over. If that does not help: "
            f"`./cluster logs {names[0]} --stack {stack}`, and docs/health.md."
        )
        yield warns("cluster.health", f"out of service: {fold(names)}: {why}", cure)
