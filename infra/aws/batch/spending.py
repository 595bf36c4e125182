"""The budget of a Batch stack in the unit that it is counted in. It needs no Pulumi: `status` reads it."""

from __future__ import annotations

from infra.aws.batch import access
from infra.instance_types.catalog import catalog
from node.model import ClusterDesign

MINUTES = 60


def vcpu_minutes(design: ClusterDesign) -> int:
    """The budget as vCPU-minutes of machines that are up: the dearest of the environment's types counts."""
    batch, facts = access.of(design), catalog()
    limits = []
    if design.budget.max_usd is not None:
        prices = [
            (facts.price(name, design.region) or 0.0) / facts.machines[name].vcpus for name in batch.machines
        ]
        limits.append(design.budget.max_usd / max(prices))
    if design.budget.max_hours is not None:
        limits.append(design.budget.max_hours * facts.machines[batch.machines[0]].vcpus)
    return int(min(limits) * MINUTES)
