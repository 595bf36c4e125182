"""The condition of a cluster that is up, from its status: its budget, and what of it is out of service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cli.disks import troubles
from cli.findings import Finding, warns
from node.backup import record
from node.elastic.view import is_admin_disabled
from node.health.programs import REASON
from node.logs.text import printable
from node.slurm.hostlist import fold
from node.slurm.states import NodeState
from node.system import plurals

NEARLY = 0.8
"""The share of a budget from which on the doctor warns."""


def budget(cost: Mapping[str, Any], stack: str) -> Iterable[Finding]:
    """Warn if more than `NEARLY` of the cluster's budget, or of an account's, is used.

    Args:
        cost: From the cluster's status.
    """
    for account in cost.get("accounts", ()):
        yield from _account_budget(account, stack)
    limits = cost.get("budget")
    if limits is None or limits["used"] < NEARLY:
        return
    cure = (
        f"Raise slurm-stacks:cluster.budget in Pulumi.{stack}.yaml and run `./cluster up --stack {stack}`; "
        f"`./cluster down --stack {stack}` and `up` begin a new one."
    )
    if limits["used"] >= 1:
        yield warns("cluster.budget", "the budget is used up: no new node starts", cure)
    else:
        yield warns("cluster.budget", f"{limits['used']:.0%} of the budget is used", cure)


def _account_budget(budget: Mapping[str, Any], stack: str) -> Iterable[Finding]:
    name, again = printable(budget["account"]), f"Pulumi.{stack}.yaml and run `./cluster up --stack {stack}`"
    cure = f"Raise the budget of {name} under slurm-stacks:cluster.accounts in {again}."
    if budget["used"] >= 1:
        yield warns("account.budget", f"the budget of account {name} is used up: no job of it starts", cure)
    elif budget["used"] >= NEARLY:
        yield warns("account.budget", f"{budget['used']:.0%} of the budget of account {name} is used", cure)


def health(nodes: Iterable[Mapping[str, Any]], stack: str) -> Iterable[Finding]:
    """Warn of nodes that are out of service because their devices failed.

    Args:
        nodes: From the cluster's status.
    """
    sick: dict[str, list[str]] = {}
    for node in nodes:
        state = NodeState.parse(node["name"], node["state"])
        if state.is_drained and str(node["reason"]).startswith(REASON):
            sick.setdefault(node["reason"].removeprefix(REASON), []).append(node["name"])
    for why, names in sick.items():
        cure = (
            f"A new machine replaces a node by itself when its jobs are over. If that does not help: "
            f"`./cluster logs {names[0]} --stack {stack}`, and docs/failures.md."
        )
        yield warns("cluster.health", f"out of service: {fold(names)}: {why}", cure)


def backups(status: Mapping[str, Any], stack: str) -> Iterable[Finding]:
    """Warn of scheduled backups that fail or are late.

    Args:
        status: The cluster's.
    """
    kept = status.get("backup")
    if kept is None or kept["bucket"] is None:
        return
    cure = f"`./cluster backup --bucket --stack {stack}` tries again now, and says what is wrong."
    if kept["failure"] is not None:
        yield warns(
            "cluster.backup", f"the last backup failed: {printable(kept['failure']['message'])}", cure
        )
    elif kept["late"]:
        hours = plurals.count(record.LATE * kept["every_hours"], "hour")
        yield warns("cluster.backup", f"no backup for more than {hours}", cure)


def disks(status: Mapping[str, Any], stack: str) -> Iterable[Finding]:
    """Warn of disks of the controller that are nearly full, and of a state that Slurm cannot save.

    Args:
        status: The cluster's.
    """
    for trouble, cure in troubles(status, stack):
        yield warns("cluster.disk", trouble, cure)


def service(status: Mapping[str, Any], stack: str) -> Iterable[Finding]:
    """Warn of partitions and nodes that somebody has taken out of service, and of nodes that Slurm has lost.

    Args:
        status: The cluster's.
    """
    run = f"./cluster exec --stack {stack} -- scontrol"
    for partition in status["partitions"]:
        if partition["state"] != "UP":
            name, state = partition["name"], partition["state"].lower()
            yield warns(
                "cluster.service",
                f"partition {name} is {state}, by hand or while `up` changes it",
                f"`{run} update partitionname={name} state=up` opens it.",
            )
    out: dict[str, list[str]] = {}
    missing = []
    for node in status["nodes"]:
        state = NodeState.parse(node["name"], node["state"], node["reason"], node.get("next_state"))
        if state.is_missing:
            missing.append(state.name)
        elif is_admin_disabled(state):
            out.setdefault(printable(node["reason"]), []).append(state.name)
    for why, names in out.items():
        cure = f"`{run} update nodename={fold(names)} state=resume` brings them back."
        yield warns("cluster.service", f"out of service, by hand: {fold(names)}: {why}", cure)
    if missing:
        yield warns(
            "cluster.service",
            f"Slurm does not list {fold(missing)}: set to FUTURE by hand, or slurm.conf was changed",
            f"`{run} reconfigure` brings back what slurm.conf has; `up` writes it again.",
        )
    for reservation in status["reservations"]:
        if "MAINT" in reservation["flags"]:
            yield warns(
                "cluster.service",
                f"reservation {printable(reservation['name'])} keeps "
                f"{reservation['nodes'] or 'no node'} for maintenance",
                f"`{run} delete reservation={printable(reservation['name'])}` ends it.",
            )
