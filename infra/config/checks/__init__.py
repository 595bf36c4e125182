"""Checks that find impossible combinations before any resource is made.

Pydantic checks single values. These checks compare several values, or a value with the facts of machine
types. Each check reports every mistake that it finds.
"""

from __future__ import annotations

from pathlib import Path

from infra.config.benchmark import BenchmarkConfig
from infra.config.checks.amazon import check_amazon
from infra.config.checks.batch import check_batch
from infra.config.checks.budget import check_budget
from infra.config.checks.containers import check_containers
from infra.config.checks.context import CLUSTER, CloudLocation, Context
from infra.config.checks.google import check_google
from infra.config.checks.health import check_health
from infra.config.checks.instance_types import check_instance_types
from infra.config.checks.jobs import check_benchmark, check_hooks, check_local
from infra.config.checks.local_cloud import check_local_cloud
from infra.config.checks.network import check_access, check_location, check_login, check_network
from infra.config.checks.partitions import check_image, check_own_image, check_partitions
from infra.config.checks.slurm_origin import check_slurm_origin
from infra.config.checks.storage import check_storage
from infra.config.checks.topology import check_topology
from infra.config.checks.writable_sources import check_writable_sources
from infra.config.cluster import ClusterConfig
from infra.config.mistakes import Location, Mistake
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
    """The mistakes in a cluster's combination of values.

    Args:
        broken: Locations whose values were wrong and were replaced; nothing more is reported about them.
        stack: its name, for the commands that an advice spells out.
        project: the project's folder, where hooks' scripts are looked for; None: they are not.
    """
    context = Context(cluster, benchmark, location, facts, broken, stack, project)
    provider_is_known = context.sound((*CLUSTER, "provider"))
    for name, override in cluster.instance_types.items():
        try:
            context.facts = context.facts.with_overrides({name: override}, cluster.provider)
        except ValueError:
            context.add(
                (*CLUSTER, "instance_types", name),
                override.model_dump(exclude_none=True),
                "vcpus and memory_mib for a machine that the snapshot does not know",
                "",
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
            check_local,
        ):
            step(context)
        for step in (check_local_cloud, check_hooks, check_batch, check_budget, check_benchmark):
            step(context)
        check_writable_sources(context)
        check_containers(context)
        check_slurm_origin(context)
        check_health(context)
        check_amazon(context)
        check_google(context)
        check_topology(context)
    return context.mistakes
