"""Rules of the benchmark, the built-in training or a program of the user's."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import PurePosixPath

from infra import environments
from infra.benchmark import program_files
from infra.config.jobs import BenchmarkConfig
from infra.config.mistakes import Location
from infra.config.rules.context import BENCHMARK, CLUSTER, Context
from infra.errors import UnusableFileError
from infra.instance_types.catalog import GRES
from node.design.model import KERAS_MNIST
from node.system import plurals

"""The most bytes in the name of an object in Cloud Storage."""


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


OF_KERAS = ("epochs", "profile", "data", "batch", "learning_rate", "seed", "average_every")
"""The keys that only the built-in training understands."""
OF_PROGRAMS = ("files", "arguments", "requirements", "tasks_per_node", "container")
LONGEST_ARGUMENT = 10_000


def check_program(c: Context, benchmark: BenchmarkConfig) -> None:
    """Refuse keys that the chosen training does not have, and files that cannot be staged."""
    given = benchmark.model_fields_set
    if not c.sound((*BENCHMARK, "script")):
        return
    if benchmark.script == KERAS_MNIST:
        for key in OF_PROGRAMS:
            if key in given:
                c.add(
                    "benchmark.program-only",
                    (*BENCHMARK, key),
                    getattr(benchmark, key),
                    f"left out: it is for a program of yours, and script is {KERAS_MNIST}",
                    "name your program, script: train.py",
                )
        return
    for key in OF_KERAS:
        if key in given:
            value = getattr(benchmark, key)
            advice = f'give it to the program: arguments: ["--{key.replace("_", "-")}", {value}]'
            c.add(
                "benchmark.built-in-only",
                (*BENCHMARK, key),
                value,
                f"left out: it is for {KERAS_MNIST}, not for {benchmark.script}",
                advice,
            )
    for index, argument in enumerate(benchmark.arguments):
        text = str(argument)
        if not text.isprintable() or len(text) > LONGEST_ARGUMENT:
            allowed = f"printable characters, at most {LONGEST_ARGUMENT}"
            c.add(
                "benchmark.argument",
                (*BENCHMARK, "arguments", index),
                text[:60],
                allowed,
                "write longer texts to a file in files",
            )
    if benchmark.container is not None:
        _container(c, benchmark, benchmark.container)
    paths = [((*BENCHMARK, "script"), benchmark.script)]
    paths += [((*BENCHMARK, "files", index), name) for index, name in enumerate(benchmark.files)]
    wrong = [where for where, name in paths if not _inside(c, where, name)]
    if not wrong:
        _shadowing(c, paths)
    if benchmark.requirements is not None and _inside(
        c, (*BENCHMARK, "requirements"), benchmark.requirements
    ):
        _requirements(c, benchmark.requirements)
    if wrong or c.project is None:
        return
    try:
        program_files(c.project, [name for _, name in paths])
    except UnusableFileError as error:
        where, name = paths[error.index]
        typed = error.index == 0 and not (c.project / name).exists()
        advice = f"{error.advice}; {KERAS_MNIST} is the built-in training" if typed else error.advice
        c.add("benchmark.file", where, name, error.allowed, advice)


OF_TRAINING = (
    "absl", "accelerate", "datasets", "deepspeed", "flax", "google", "grpc", "h5py", "jax", "keras",
    "lightning", "numpy", "scipy", "sklearn", "tensorboard", "tensorflow", "tf_keras", "torch", "torchvision",
    "transformers",
)  # fmt: skip
"""Packages that trainings import, or that these import themselves."""


def _shadowing(c: Context, paths: Sequence[tuple[Location, str]]) -> None:
    """Refuse files that Python would import in the place of a package, because they lie beside the script.

    TensorFlow, for example, imports `keras`, and a script of that name runs itself without end.
    """
    script = PurePosixPath(paths[0][1])
    if script.suffix != ".py":
        return
    for where, name in paths:
        path = PurePosixPath(name)
        # A folder without __init__.py comes after all packages.
        is_package = c.project is not None and (c.project / path / "__init__.py").is_file()
        if path.parent != script.parent or not (path.suffix == ".py" or is_package):
            continue
        module = path.name.removesuffix(".py")
        if module in OF_TRAINING or module in sys.stdlib_module_names:
            c.add(
                "benchmark.shadows-package",
                where,
                name,
                f"a name that no package has: Python would import this in the place of `{module}`",
                f"rename it, for example to my_{path.name}",
            )


def _container(c: Context, benchmark: BenchmarkConfig, bundle: str) -> None:
    """Refuse a container that nothing can run, and what has no meaning beside one."""
    where = (*BENCHMARK, "container")
    path = PurePosixPath(bundle)
    if c.cluster.containers is None:
        advice = "give the nodes a runtime, slurm-stacks:cluster.containers: {runtime: oci}"
        c.add(
            "benchmark.container-needs-runtime",
            where,
            bundle,
            "left out: the cluster runs no containers",
            advice,
        )
    elif c.cluster.containers.runtime != "oci":
        advice = (
            "jobs of your own take an image by its name, `srun --container-image=…`; or have runtime: oci"
        )
        c.add(
            "benchmark.container-needs-oci",
            where,
            bundle,
            "left out: the benchmark has no way into an image of Pyxis",
            advice,
        )
    elif (
        not path.is_absolute() or ".." in path.parts or not bundle.isprintable() or path == PurePosixPath("/")
    ):
        allowed = "the absolute path of an OCI bundle in a shared folder, like /home/ana/bundle"
        c.add(
            "benchmark.container-path",
            where,
            bundle,
            allowed,
            "make a bundle of an image with skopeo and umoci: docs/containers.md",
        )
    if benchmark.requirements is not None:
        c.add(
            "benchmark.container-requirements",
            (*BENCHMARK, "requirements"),
            benchmark.requirements,
            "left out: in a container the packages are those of the image",
            "put them into the image as it is built",
        )
    if benchmark.tasks_per_node > 1:
        c.add(
            "benchmark.container-tasks",
            (*BENCHMARK, "tasks_per_node"),
            benchmark.tasks_per_node,
            "1 with container: Slurm 22.05 starts one task on each node in containers",
            "start further processes from it, as torchrun does",
        )


def _requirements(c: Context, name: str) -> None:
    if c.project is None:
        return
    try:
        environments.read_requirements(c.project, name)
    except UnusableFileError as error:
        c.add("benchmark.requirements", (*BENCHMARK, "requirements"), name, error.allowed, error.advice)


def _inside(c: Context, where: Location, name: str) -> bool:
    """Return whether a path leads into the stack file's folder; if not, add a mistake."""
    path = PurePosixPath(name)
    if (
        name
        and name.isprintable()
        and not name.startswith(("-", "~"))
        and not path.is_absolute()
        and ".." not in path.parts
        and path.parts
        and "://" not in name
    ):
        return True
    advice = "copy the program there, or begin with ./ where its name begins with - or ~"
    c.add(
        "benchmark.path-outside",
        where,
        name,
        "a path inside the stack file's folder, like train.py or code/train.py",
        advice,
    )
    return False
