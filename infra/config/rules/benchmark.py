"""Rules of the benchmark: the partition that it runs on, and what a job of it may ask for."""

from __future__ import annotations

from infra.config.jobs import BenchmarkConfig
from infra.config.mistakes import Location
from infra.config.partitions import AcceleratorConfig, PartitionConfig
from infra.config.rules.benchmark_program import check_program
from infra.config.rules.context import BENCHMARK, CLUSTER, Context
from infra.instance_types.catalog import GRES, BuiltIn, InstanceType
from node.design.model import KERAS_MNIST
from node.system import plurals

AcceleratorType = AcceleratorConfig | BuiltIn


def check_benchmark(c: Context) -> None:
    benchmark = c.benchmark
    if benchmark is None or not benchmark.enabled:
        return
    if c.cluster.scheduler == "batch":
        c.add(
            "benchmark.not-with-batch",
            (*BENCHMARK, "enabled"),
            True,
            "false with scheduler batch: its job is the one under `batch`",
            "write enabled: false",
        )
        return
    check_program(c, benchmark)
    _quota(c, benchmark)
    partition = _partition(c, benchmark)
    if partition is None:
        return
    _nodes(c, benchmark, partition)
    for at, group in c.groups():
        if at[:3] == _location(c, partition):
            _on_nodes(c, benchmark, group, at)


def _on_nodes(c: Context, benchmark: BenchmarkConfig, partition: PartitionConfig, at: Location) -> None:
    """Check a training against the nodes of a partition without pools, or of a pool."""
    machine = c.instance_type(partition.instance_type)
    accelerator = partition.accelerator or (machine.accelerator if machine else None)
    if machine is not None:
        _tasks(c, benchmark, partition, machine)
    if accelerator is not None:
        _unused(c, benchmark, partition, accelerator)
    if machine is not None and c.sound((*at, "accelerator")):
        _gpus(c, benchmark, partition, accelerator)


def _location(c: Context, partition: PartitionConfig) -> Location:
    return (*CLUSTER, "partitions", c.cluster.partitions.index(partition))


def _quota(c: Context, benchmark: BenchmarkConfig) -> None:
    quota = c.cluster.local.quota_nodes if c.cluster.local and c.provider == "local" else None
    if quota is not None and benchmark.nodes > quota:
        c.add(
            "benchmark.over-quota",
            (*BENCHMARK, "nodes"),
            benchmark.nodes,
            f"at most {quota}: local.quota_nodes",
        )


def _partition(c: Context, benchmark: BenchmarkConfig) -> PartitionConfig | None:
    """Return the partition that the benchmark runs on; `None`, after a mistake is added, if there is none."""
    if benchmark.partition is None:
        partition = c.default_partition()
        return partition and c.with_machines(partition)
    partitions = {partition.name: partition for partition in c.cluster.partitions}
    if benchmark.partition in partitions:
        return c.with_machines(partitions[benchmark.partition])
    whole = all(c.sound((*CLUSTER, "partitions", i, "name")) for i in range(len(c.cluster.partitions)))
    if whole and partitions:
        c.add(
            "benchmark.partition-unknown",
            (*BENCHMARK, "partition"),
            benchmark.partition,
            f"one of the partitions: {', '.join(partitions)}",
        )
    return None


def _nodes(c: Context, benchmark: BenchmarkConfig, partition: PartitionConfig) -> None:
    groups = partition.by_pool()
    most = sum(g.nodes.max for g in groups) if partition.mixed else max(g.nodes.max for g in groups)
    if benchmark.nodes > most and c.sound((*_location(c, partition), "nodes", "max")):
        c.add(
            "benchmark.too-many-nodes",
            (*BENCHMARK, "nodes"),
            benchmark.nodes,
            f"at most {most}: {_whose(partition)} has no more",
        )


def _whose(partition: PartitionConfig) -> str:
    one = partition.pools and not partition.mixed
    return f"a pool of partition {partition.name}" if one else f"partition {partition.name}"


def _tasks(c: Context, benchmark: BenchmarkConfig, partition: PartitionConfig, machine: InstanceType) -> None:
    if benchmark.tasks_per_node <= machine.vcpus:
        return
    # Slurm refuses such a job when it is submitted.
    of = f"{partition.name} ({partition.instance_type})"
    allowed = f"at most {machine.vcpus}, the CPUs of a node of {of}"
    c.add("benchmark.too-many-tasks", (*BENCHMARK, "tasks_per_node"), benchmark.tasks_per_node, allowed)


def _computes(accelerator: AcceleratorType) -> bool:
    """Return whether the built-in training's TensorFlow can use it: it knows NVIDIA's GPUs only."""
    return GRES.get(accelerator.type, "gpu") == "gpu"


def _unused(
    c: Context, benchmark: BenchmarkConfig, partition: PartitionConfig, accelerator: AcceleratorType
) -> None:
    if _computes(accelerator) or c.provider == "local" or benchmark.script != KERAS_MNIST:
        return
    # Nodes with accelerators that the training does not use cost as much.
    c.add(
        "benchmark.accelerator-unused",
        (*BENCHMARK, "partition"),
        benchmark.partition or f"nothing: the default partition, {partition.name}",
        f"a partition with GPUs or CPUs only: on {partition.instance_type} the training would run on "
        f"the CPUs, beside {plurals.count(accelerator.count, 'idle device')} of type {accelerator.type}",
        "name another partition, or write enabled: false and submit a job for Neuron: examples/neuron.sh",
    )


def _gpus(
    c: Context,
    benchmark: BenchmarkConfig,
    partition: PartitionConfig,
    accelerator: AcceleratorType | None,
) -> None:
    gpus, where = benchmark.gpus_per_node, (*BENCHMARK, "gpus_per_node")
    if not gpus:
        return
    if c.provider == "local":
        allowed = "0: simulated devices are counted, but compute nothing"
        c.add("benchmark.gpus-simulated", where, gpus, allowed, "leave it out")
        return
    devices = accelerator.count if accelerator is not None and _computes(accelerator) else 0
    if gpus > devices:
        allowed = f"at most {devices}, the GPUs of a node of {partition.name}"
        c.add("benchmark.too-many-gpus", where, gpus, allowed)
