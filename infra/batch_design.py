"""The part of a design that describes AWS Batch: pure functions of the stack's configuration."""

from __future__ import annotations

from infra.config import StackConfig
from infra.instance_types.catalog import Catalog
from node import model
from node.model import Batch


def batch(config: StackConfig, facts: Catalog) -> Batch | None:
    """The job definition and its environment; `None` for a Slurm cluster."""
    cluster, said = config.cluster, config.cluster.batch
    if said is None or cluster.scheduler != "batch":
        return None
    machine = facts.machines[said.instance_types[0]]
    devices = machine.accelerator.count if machine.accelerator else 0
    container = said.container
    return Batch(
        compute_environment=said.compute_environment or f"{cluster.name}-ce",
        queue=said.queue or f"{cluster.name}-queue",
        job_definition=said.job_definition or f"{cluster.name}-job",
        nodes=said.nodes,
        machines=tuple(said.instance_types),
        min_vcpus=said.vcpus.min,
        desired_vcpus=said.vcpus.desired,
        max_vcpus=said.vcpus.max,
        container_image=container.image,
        container_vcpus=container.vcpus,
        container_memory_mib=container.memory_mib,
        container_gpus=devices if container.gpus is None else container.gpus,
        command=tuple(container.command),
        job_role=container.job_role,
        environment=dict(container.environment),
        volumes={v.source: v.path or v.source for v in container.volumes},
        placement_group=said.placement_group,
        attempts=said.attempts,
        parameters=dict(said.parameters),
        repository=None if container.image else container.repository or cluster.name,
        cached=container.cached,
        shared_memory_mib=container.shared_memory_mib or max(64, container.memory_mib // 8),
        efa=machine.efa if said.efa else 0,
        file_system=said.file_system,
        start_on_manifest=said.start_on_manifest,
        timeout=said.timeout,
        tags=dict(said.tags),
        vcpu_price_hour=_vcpu_price(config, said.instance_types, facts),
    )


def _vcpu_price(config: StackConfig, types: list[str], facts: Catalog) -> float | None:
    """The price of a vCPU of the dearest type; `None` if the price of one is not known."""
    prices = [(facts.price(name, config.region), facts.machines[name].vcpus) for name in types]
    known = [price / vcpus for price, vcpus in prices if price is not None]
    return max(known) if len(known) == len(prices) else None


def queue(config: StackConfig, batch: Batch, facts: Catalog, memory_mib: int) -> model.Partition:
    """The queue as a partition, so that costs and outputs can treat it like any other."""
    machine, said = facts.machines[batch.machines[0]], config.cluster.batch
    built_in = machine.accelerator
    return model.Partition(
        name=batch.queue,
        instance_type=batch.machines[0],
        cpus=machine.vcpus,
        memory_mib=memory_mib,
        min=-(-batch.min_vcpus // machine.vcpus),
        max=batch.max_vcpus // machine.vcpus,
        accelerator=model.Accelerator(type=built_in.type, count=built_in.count) if built_in else None,
        placement="cluster" if batch.placement_group else "none",
        efa=batch.efa,
        exclusive=True,
        default=True,
        price_hour=facts.price(batch.machines[0], config.region),
        disk_gib=said.disk_gib if said else 0,
    )
