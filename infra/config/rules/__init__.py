"""Rules that find impossible combinations before any resource is made.

Pydantic checks single values. These checks compare several values, or a value with the facts of machine
types. Each check reports every mistake that it finds.
"""

from __future__ import annotations

from pathlib import Path

from infra.config.cluster import ClusterConfig
from infra.config.jobs import BenchmarkConfig
from infra.config.mistakes import Location, Mistake
from infra.config.partitions import PartitionConfig
from infra.config.rules.amazon import check_amazon
from infra.config.rules.backup import check_backup
from infra.config.rules.batch import check_batch
from infra.config.rules.benchmark import check_benchmark
from infra.config.rules.context import CLUSTER, CloudLocation, Context
from infra.config.rules.directory import check_directory
from infra.config.rules.google import check_google
from infra.config.rules.images import check_image, check_own_image
from infra.config.rules.instance_types import check_instance_types
from infra.config.rules.local import check_local, check_local_cloud
from infra.config.rules.network import check_access, check_location, check_login, check_network
from infra.config.rules.partitions import check_partitions
from infra.config.rules.platform import check_platform
from infra.config.rules.sharing import check_sharing
from infra.config.rules.slurm_options import check_slurm_options
from infra.config.rules.software import (
    check_containers,
    check_distribution,
    check_health,
    check_hooks,
    check_slurm_origin,
)
from infra.config.rules.storage import check_storage
from infra.config.rules.topology import check_topology
from infra.config.rules.users import check_users
from infra.config.rules.writable_sources import check_writable_sources
from infra.instance_types.catalog import Catalog

__all__ = ["CloudLocation", "check"]


def check(
    cluster: ClusterConfig,
    benchmark: BenchmarkConfig | None,
    location: CloudLocation,
    facts: Catalog,
    broken: set[Location],
    stack: str,
    project: Path | None = None,
) -> list[Mistake]:
    """Return the mistakes in a cluster's combination of values.

    Args:
        broken: Locations whose values were wrong and were replaced; nothing more is reported about them.
        stack: The stack's name, for the commands that an advice spells out.
        project: The project's folder, in which hooks' scripts must exist; `None` checks no scripts.
    """
    context = Context(cluster, benchmark, location, facts, broken, stack, project)
    provider_is_known = context.sound((*CLUSTER, "provider"))
    for name, override in cluster.instance_types.items():
        try:
            context.facts = context.facts.with_overrides({name: override}, cluster.provider)
        except ValueError:
            context.add(
                "instance-type.incomplete",
                (*CLUSTER, "instance_types", name),
                override.model_dump(exclude_none=True),
                "vcpus and memory_mib for a machine that the snapshot does not know",
            )
    if provider_is_known:
        check_location(context)
    check_partitions(context)
    if provider_is_known:
        check_image(context, cluster.image)
        check_own_image(context, cluster.controller.image, (*CLUSTER, "controller", "image"))
        for step in (
            check_instance_types,
            check_access,
            check_login,
            check_network,
            check_storage,
            check_backup,
            check_local,
        ):
            step(context)
        for step in (check_local_cloud, check_hooks, check_batch, check_budget, check_benchmark):
            step(context)
        check_writable_sources(context)
        check_containers(context)
        check_slurm_origin(context)
        check_slurm_options(context)
        check_health(context)
        check_amazon(context)
        check_google(context)
        check_platform(context)
        check_topology(context)
        check_users(context)
        check_directory(context)
        check_distribution(context)
        check_sharing(context)
    return context.mistakes


def check_budget(c: Context) -> None:
    limits = [((*CLUSTER, "budget", "max_usd"), c.cluster.budget.max_usd)]
    limits += [
        ((*CLUSTER, "accounts", index, "budget", "max_usd"), account.budget.max_usd)
        for index, account in enumerate(c.cluster.accounts)
    ]
    for where, most in limits:
        if most is not None:
            _check_limit(c, where, most)


def _check_limit(c: Context, where: Location, most: float) -> None:
    """Report a limit in USD where there are nodes without a price."""
    if c.provider == "local":
        return
    dynamic = [p for _, p in c.groups() if p.nodes.max > p.nodes.min]
    unknown = sorted(
        {p.instance_type for p in dynamic if c.instance_type(p.instance_type) and _price(c, p) is None}
    )
    if c.cluster.batch is not None and c.cluster.scheduler == "batch":
        types = c.cluster.batch.instance_types
        unknown = [name for name in types if c.instance_type(name) and c.facts.price(name, c.region) is None]
    if unknown:
        example = "{" + f"{unknown[0]}: {{price_hour: …}}" + "}"
        c.add(
            "budget.no-price",
            where,
            most,
            f"a limit in USD only where prices are known; there is none for {', '.join(unknown)}",
            f"write instance_types: {example}, or limit max_hours instead",
        )


def _price(c: Context, partition: PartitionConfig) -> float | None:
    machine = c.facts.machines[partition.instance_type]
    chosen = partition.accelerator or machine.accelerator
    attached = (chosen.type, chosen.count) if chosen else None
    return c.facts.price(partition.instance_type, c.region, accelerator=attached, spot=partition.spot)
