"""What is allowed in a stack file and still worth a second look: the warnings of a plan."""

from __future__ import annotations

from infra.config.load import StackConfig
from infra.machines import Catalog
from infra.node.model import ClusterDesign


def warnings(config: StackConfig, design: ClusterDesign, facts: Catalog) -> list[str]:
    """A line each, with the path it is about.

    Args:
        facts: the snapshot; the stack's own overrides are applied here.
    """
    facts = config.catalog(facts)
    found = [*_partitions(config, design, facts)]
    if config.cluster.access.allow_ssh_from_anywhere:
        found.append("cluster.access: SSH is open to the whole internet")
    if config.cluster.budget.max_usd is not None:
        unpriced = [p.name for p in design.partitions if p.price_hour is None]
        if unpriced:
            found.append(
                f"cluster.budget.max_usd: no price is known for {', '.join(unpriced)}, the budget does not "
                "count them: give one under cluster.machines"
            )
    for mount in design.mounts:
        if mount.deployment in ("SCRATCH_1", "SCRATCH_2"):
            found.append(
                f"{mount.path}: {mount.deployment} keeps one copy of the data, a failed server loses it"
            )
    return found


def _partitions(config: StackConfig, design: ClusterDesign, facts: Catalog) -> list[str]:
    found = []
    for partition in design.partitions:
        name, machine = f"partition {partition.name}", facts.machines[partition.machine]
        if partition.min:
            price = (
                ""
                if not partition.price_hour
                else f", {partition.price_hour * partition.min:.2f} USD an hour"
            )
            found.append(f"{name}: {partition.min} static nodes run as long as the cluster is up{price}")
        if partition.accelerator and partition.accelerator.simulated:
            kind = partition.accelerator.type
            found.append(
                f"{name}: its {kind} devices are simulated; Slurm counts them and no program can use them"
            )
        if machine.previous_generation:
            found.append(
                f"{name}: {partition.machine} is of a previous generation; newer ones cost less for more"
            )
        built_in, chosen = machine.accelerator, partition.accelerator
        if config.cluster.provider == "aws" and built_in and chosen and chosen.count < built_in.count:
            found.append(
                f"{name}: {partition.machine} always has {built_in.count} accelerators, all are paid for; "
                f"jobs may use {chosen.count}"
            )
        if partition.reservation and partition.placement == "cluster" and config.cluster.provider == "aws":
            found.append(
                f"{name}: a reservation that AWS made for you has a placement group of its own; asking for "
                "another one ends in InsufficientInstanceCapacity: write placement: none"
            )
    return found
