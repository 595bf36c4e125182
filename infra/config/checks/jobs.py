"""Checks of hooks, the local cloud and the benchmark."""

from __future__ import annotations

import re

from infra.config.checks.context import BENCHMARK, CLUSTER, MISSING, Context
from infra.config.checks.program import check_program
from infra.config.cluster import LONGEST_TIMEOUT
from infra.config.fields import gs_bucket
from infra.config.mistakes import Location
from infra.instance_types.catalog import GRES
from node import plurals
from node.model import KERAS_MNIST
from node.slurm.addressing import PORT_BLOCK

# The most ports of slurmds on this machine. Each partition has blocks of them (see cli.local.run_directory).
MOST_LOCAL_PORTS = 15_700

LONGEST_OBJECT = 1024
"""The most bytes in the name of an object in Cloud Storage."""
SCHEMES = {"s3": ("aws",), "gs": ("gcp",), "https": ("aws", "gcp")}


def check_hooks(c: Context) -> None:
    for index, hook in enumerate(c.cluster.hooks):
        at = (*CLUSTER, "hooks", index)
        if (hook.source is None) == (hook.script is None):
            if c.sound((*at, "source")) and c.sound((*at, "script")):
                given = MISSING if hook.source is None else "source and script"
                c.add(at, given, "either source or script", "source is a path or an address, script a text")
        elif hook.source is not None:
            check_source(c, hook.source, (*at, "source"))
        elif hook.script is not None and not hook.script.startswith("#!"):
            first = hook.script.partition("\n")[0]
            c.add((*at, "script"), first, "a first line that names the interpreter", "begin with #!/bin/bash")

    # Without slurm.resume_timeout in the file, the time to boot includes the hooks.
    longest = LONGEST_TIMEOUT - 5000
    if c.cluster.slurm.resume_timeout is None:
        total = sum(hook.timeout for hook in c.cluster.hooks if hook.role in ("compute", "all"))
        if total > longest:
            most = f"timeouts of {longest} seconds together, of those hooks that run on nodes"
            c.add((*CLUSTER, "hooks"), total, most, "lower timeout")


def check_source(c: Context, source: str, where: Location) -> None:
    """A script or package must be in the project, or lie where machines of this provider can fetch it."""
    scheme = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]*)://", source)
    if scheme is None:
        script_in_project(c, source, where)
    elif c.provider not in SCHEMES.get(scheme[1], ()):
        allowed = [f"{s}://" for s, providers in SCHEMES.items() if c.provider in providers]
        why = "it runs as root and http:// is not protected" if scheme[1] == "http" else ""
        c.add(where, source, " or ".join(["a path in this project", *allowed]), why)
    elif scheme[1] == "gs":
        _object(c, source, where)


def script_in_project(c: Context, source: str, where: Location) -> None:
    """A script that is not fetched must be a file of the project."""
    if source.startswith("/") or ".." in source.split("/"):
        c.add(where, source, "a path inside this project, like hooks/containers.sh", "")
    elif c.project is not None and not (c.project / source).is_file():
        c.add(where, source, "a file of this project", "the path is relative to Pulumi.yaml")


def _object(c: Context, source: str, where: Location) -> None:
    """A script in Cloud Storage must be one object of a bucket."""
    bucket, _, name = source.removeprefix("gs://").partition("/")
    if not gs_bucket(bucket):
        allowed = (
            "a bucket's name: 3 to 63 small letters, digits, '-', '_', '.'; a letter or digit at both ends"
        )
        c.add(where, source, allowed, f"Cloud Storage does not accept {bucket or 'an empty name'}")
    elif not name or name.endswith("/"):
        c.add(where, source, "one object: gs://bucket/path/script.sh", "this is a bucket or a folder in it")
    elif len(name.encode()) > LONGEST_OBJECT or re.search(r"[\x00-\x1f\x7f]", name):
        allowed = f"an object's name: {LONGEST_OBJECT} bytes at most, no line breaks or control characters"
        c.add(where, source, allowed, "")


def check_local(c: Context) -> None:
    cluster = c.cluster
    if c.provider != "local":
        if cluster.local is not None:
            c.add((*CLUSTER, "local"), "nothing that applies", f"settings of {c.provider}", "remove local:")
        return
    if cluster.local is not None and cluster.local.suite is not None and cluster.local.isolation == "process":
        c.add(
            (*CLUSTER, "local", "suite"),
            cluster.local.suite,
            "a release only for machines that boot: processes run this machine's",
            "remove suite:, or write isolation: container",
        )
    if cluster.local is not None and cluster.local.isolation == "container":
        # Each container machine has all ports of its own, and login machines are containers, too.
        return
    if cluster.login.count:
        c.add(
            (*CLUSTER, "login", "count"),
            cluster.login.count,
            "0: where machines are processes, the login machine is this machine",
            "remove login:, or write local: {isolation: container}",
        )
    wanted = sum(-(-p.nodes.max // PORT_BLOCK) * PORT_BLOCK for p in cluster.partitions)
    if wanted > MOST_LOCAL_PORTS:
        c.add(
            (*CLUSTER, "partitions"),
            wanted,
            f"{MOST_LOCAL_PORTS} ports for nodes on a machine; a partition takes a multiple of {PORT_BLOCK}",
            "lower nodes.max",
        )


def check_benchmark(c: Context) -> None:
    benchmark = c.benchmark
    if benchmark is None or not benchmark.enabled:
        return
    if c.cluster.scheduler == "batch":
        c.add(
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
            c.add(where, benchmark.partition, f"one of the partitions: {', '.join(names)}", "")
        return
    wanted = benchmark.partition
    partition = next((p for p in c.cluster.partitions if p.name == wanted), c.default_partition())
    if partition is None:
        return
    most = partition.nodes.max
    at = (*CLUSTER, "partitions", c.cluster.partitions.index(partition))
    if benchmark.nodes > most and c.sound((*at, "nodes", "max")):
        where = (*BENCHMARK, "nodes")
        c.add(where, benchmark.nodes, f"at most {most}: partition {partition.name} has no more", "")
    quota = c.cluster.local.quota_nodes if c.cluster.local and c.provider == "local" else None
    if quota is not None and benchmark.nodes > quota:
        c.add((*BENCHMARK, "nodes"), benchmark.nodes, f"at most {quota}: local.quota_nodes", "")
    machine = c.instance_type(partition.instance_type)
    if machine is not None and benchmark.tasks_per_node > machine.vcpus:
        # Slurm refuses such a job when it is submitted.
        of = f"{partition.name} ({partition.instance_type})"
        allowed = f"at most {machine.vcpus}, the CPUs of a node of {of}"
        c.add((*BENCHMARK, "tasks_per_node"), benchmark.tasks_per_node, allowed, "")
    chosen = partition.accelerator or (machine.accelerator if machine else None)
    computes = chosen is not None and GRES.get(chosen.type, "gpu") == "gpu"
    if chosen is not None and not computes and c.provider != "local" and benchmark.script == KERAS_MNIST:
        # The training's TensorFlow knows NVIDIA's GPUs only, and nodes like these cost as much.
        c.add(
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
        c.add((*BENCHMARK, "gpus_per_node"), gpus, allowed, "leave it out")
        return
    devices = chosen.count if chosen is not None and computes else 0
    if gpus > devices:
        allowed = f"at most {devices}, the GPUs of a node of {partition.name}"
        c.add((*BENCHMARK, "gpus_per_node"), gpus, allowed, "")
