"""What is left of a running cluster's budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from infra.doctor.finding import Finding, warns

NEARLY = 0.8


def budget(cost: Mapping[str, Any], stack: str) -> Iterable[Finding]:
    """A finding where more than NEARLY of it is used.

    Args:
        cost: of the cluster's status.
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
