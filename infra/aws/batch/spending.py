"""The budget of a Batch stack in the unit that it is counted in. It needs no Pulumi: `status` reads it."""

from __future__ import annotations

from infra.aws.batch import access
from node.model import ClusterDesign

MINUTES = 60


def limits(design: ClusterDesign) -> dict[str, int]:
    """The budget's limits as vCPU-minutes of machines that are up: `usd` and `hours`, as far as they are set.

    Of several machine types the dearest counts for USD, and the first for machine-hours. A limit in USD on
    machines that cost nothing is none.
    """
    batch, (queue,), budget = access.of(design), design.partitions, design.budget
    found = {}
    if budget.max_usd is not None and batch.vcpu_price_hour:
        found["usd"] = int(budget.max_usd / batch.vcpu_price_hour * MINUTES)
    if budget.max_hours is not None:
        found["hours"] = int(budget.max_hours * queue.cpus * MINUTES)
    return found
