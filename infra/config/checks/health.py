"""Checks of the health of nodes, and of users' prologs and epilogs."""

from __future__ import annotations

from infra.config.checks.context import CLUSTER, Context
from infra.config.checks.jobs import script_in_project
from infra.config.cluster import PartitionConfig


def check_health(c: Context) -> None:
    said, at = c.cluster.health, (*CLUSTER, "health")
    given = said.model_fields_set
    batch = c.cluster.scheduler == "batch"
    if batch and given:
        c.add(at, "nothing that applies", "no health: with scheduler batch, which runs no Slurm", "remove it")
    elif said.enabled is False:
        for key in sorted(given - {"enabled"}):
            where = (*at, key)
            c.add(where, getattr(said, key), "nothing while health.enabled is false", "remove one of them")
    elif said.enabled and not any(_has_devices(c, p) for p in c.cluster.partitions):
        c.add(
            (*at, "enabled"),
            True,
            "true only where a partition has GPUs, Neuron devices or EFA",
            "remove it: there is nothing to check",
        )
    for key in ("prolog", "epilog"):
        # With scheduler batch the whole section is refused.
        if batch or (script := getattr(c.cluster.slurm, key)) is None:
            continue
        where = (*CLUSTER, "slurm", key)
        if "://" in script.source:
            advice = "it comes with the nodes' code, so that a node has it before a job"
            c.add((*where, "source"), script.source, "a path in this project", advice)
        else:
            script_in_project(c, script.source, (*where, "source"))


def _has_devices(c: Context, partition: PartitionConfig) -> bool:
    machine = c.instance_type(partition.instance_type)
    built_in = machine is not None and machine.accelerator is not None
    return built_in or partition.accelerator is not None or bool(partition.aws and partition.aws.efa)
