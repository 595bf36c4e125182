"""Rules of the benchmark, the built-in training or a program of the user's."""

from __future__ import annotations

from infra.config.rules.benchmark_program import check_program
from infra.config.rules.context import BENCHMARK, CLUSTER, Context
from infra.instance_types.catalog import GRES
from node.design.model import KERAS_MNIST
from node.system import plurals


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
    names = [p.name for p in c.cluster.partitions]
    if benchmark.partition is not None and benchmark.partition not in names:
        whole = all(c.sound((*CLUSTER, "partitions", i, "name")) for i in range(len(names)))
        if whole and names:
            where = (*BENCHMARK, "partition")
            c.add(
                "benchmark.partition-unknown",
                where,
                benchmark.partition,
                f"one of the partitions: {', '.join(names)}",
            )
        return
    wanted = benchmark.partition
    partition = next((p for p in c.cluster.partitions if p.name == wanted), c.default_partition())
    if partition is None:
        return
    most = partition.nodes.max
    at = (*CLUSTER, "partitions", c.cluster.partitions.index(partition))
    if benchmark.nodes > most and c.sound((*at, "nodes", "max")):
        where = (*BENCHMARK, "nodes")
        c.add(
            "benchmark.too-many-nodes",
            where,
            benchmark.nodes,
            f"at most {most}: partition {partition.name} has no more",
        )
    quota = c.cluster.local.quota_nodes if c.cluster.local and c.provider == "local" else None
    if quota is not None and benchmark.nodes > quota:
        c.add(
            "benchmark.over-quota",
            (*BENCHMARK, "nodes"),
            benchmark.nodes,
            f"at most {quota}: local.quota_nodes",
        )
    machine = c.instance_type(partition.instance_type)
    if machine is not None and benchmark.tasks_per_node > machine.vcpus:
        # Slurm refuses such a job when it is submitted.
        of = f"{partition.name} ({partition.instance_type})"
        allowed = f"at most {machine.vcpus}, the CPUs of a node of {of}"
        c.add("benchmark.too-many-tasks", (*BENCHMARK, "tasks_per_node"), benchmark.tasks_per_node, allowed)
    chosen = partition.accelerator or (machine.accelerator if machine else None)
    computes = chosen is not None and GRES.get(chosen.type, "gpu") == "gpu"
    if chosen is not None and not computes and c.provider != "local" and benchmark.script == KERAS_MNIST:
        # The training's TensorFlow knows NVIDIA's GPUs only, and nodes like these cost as much.
        c.add(
            "benchmark.accelerator-unused",
            (*BENCHMARK, "partition"),
            benchmark.partition or f"nothing: the default partition, {partition.name}",
            f"a partition with GPUs or CPUs only: on {partition.instance_type} the training would run on "
            f"the CPUs, beside {plurals.count(chosen.count, 'idle device')} of type {chosen.type}",
            "name another partition, or write enabled: false and submit a job for Neuron: examples/neuron.sh",
        )
        return
    gpus = benchmark.gpus_per_node
    if machine is None or not gpus or not c.sound((*at, "accelerator")):
        return
    if c.provider == "local":
        allowed = "0: simulated devices are counted, but compute nothing"
        c.add("benchmark.gpus-simulated", (*BENCHMARK, "gpus_per_node"), gpus, allowed, "leave it out")
        return
    devices = chosen.count if chosen is not None and computes else 0
    if gpus > devices:
        allowed = f"at most {devices}, the GPUs of a node of {partition.name}"
        c.add("benchmark.too-many-gpus", (*BENCHMARK, "gpus_per_node"), gpus, allowed)
