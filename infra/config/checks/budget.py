"""Checks of the budget: what it limits must have a price, and the daemon must enforce it."""

from __future__ import annotations

from infra.config.checks.context import CLUSTER, Context
from infra.config.cluster import PartitionConfig

BUDGET = (*CLUSTER, "budget")


def check_budget(c: Context) -> None:
    budget = c.cluster.budget
    if budget.max_usd is None or c.provider == "local":
        return
    dynamic = [p for p in c.cluster.partitions if p.nodes.max > p.nodes.min]
    unknown = sorted(
        {p.instance_type for p in dynamic if c.instance_type(p.instance_type) and _price(c, p) is None}
    )
    if c.cluster.batch is not None and c.cluster.scheduler == "batch":
        types = c.cluster.batch.instance_types
        unknown = [name for name in types if c.instance_type(name) and c.facts.price(name, c.region) is None]
    if unknown:
        example = "{" + f"{unknown[0]}: {{price_hour: …}}" + "}"
        c.add(
            (*BUDGET, "max_usd"),
            budget.max_usd,
            f"a limit in USD only where prices are known; there is none for {', '.join(unknown)}",
            f"write instance_types: {example}, or limit max_hours instead",
        )


def _price(c: Context, partition: PartitionConfig) -> float | None:
    machine = c.facts.machines[partition.instance_type]
    chosen = partition.accelerator or machine.accelerator
    attached = (chosen.type, chosen.count) if chosen else None
    return c.facts.price(partition.instance_type, c.region, accelerator=attached, spot=partition.spot)
