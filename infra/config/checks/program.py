"""Checks of a benchmark that is a program of the user's, and of its files."""

from __future__ import annotations

from pathlib import PurePosixPath

from infra import environments, workload_files
from infra.config.benchmark import BenchmarkConfig
from infra.config.checks.context import BENCHMARK, Context
from infra.config.mistakes import Location
from infra.errors import UnusableFileError
from node.model import KERAS_MNIST

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
                (*BENCHMARK, "arguments", index), text[:60], allowed, "write longer texts to a file in files"
            )
    if benchmark.container is not None:
        _container(c, benchmark, benchmark.container)
    paths = [((*BENCHMARK, "script"), benchmark.script)]
    paths += [((*BENCHMARK, "files", index), name) for index, name in enumerate(benchmark.files)]
    wrong = [where for where, name in paths if not _inside(c, where, name)]
    if benchmark.requirements is not None and _inside(
        c, (*BENCHMARK, "requirements"), benchmark.requirements
    ):
        _requirements(c, benchmark.requirements)
    if wrong or c.project is None:
        return
    try:
        workload_files.read_own(c.project, [name for _, name in paths])
    except UnusableFileError as error:
        where, name = paths[error.index]
        typed = error.index == 0 and not (c.project / name).exists()
        advice = f"{error.advice}; {KERAS_MNIST} is the built-in training" if typed else error.advice
        c.add(where, name, error.allowed, advice)


def _container(c: Context, benchmark: BenchmarkConfig, bundle: str) -> None:
    """Refuse a container that nothing can run, and what has no meaning beside one."""
    where = (*BENCHMARK, "container")
    path = PurePosixPath(bundle)
    if c.cluster.containers is None:
        advice = "give the nodes a runtime, slurm-stacks:cluster.containers: {runtime: oci}"
        c.add(where, bundle, "left out: the cluster runs no containers", advice)
    elif c.cluster.containers.runtime != "oci":
        advice = (
            "jobs of your own take an image by its name, `srun --container-image=…`; or have runtime: oci"
        )
        c.add(where, bundle, "left out: the benchmark has no way into an image of Pyxis", advice)
    elif (
        not path.is_absolute() or ".." in path.parts or not bundle.isprintable() or path == PurePosixPath("/")
    ):
        allowed = "the absolute path of an OCI bundle in a shared folder, like /home/ana/bundle"
        c.add(where, bundle, allowed, "make a bundle of an image with skopeo and umoci: docs/containers.md")
    if benchmark.requirements is not None:
        c.add(
            (*BENCHMARK, "requirements"),
            benchmark.requirements,
            "left out: in a container the packages are those of the image",
            "put them into the image as it is built",
        )
    if benchmark.tasks_per_node > 1:
        c.add(
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
        c.add((*BENCHMARK, "requirements"), name, error.allowed, error.advice)


def _inside(c: Context, where: Location, name: str) -> bool:
    """Whether a path leads into the stack file's folder; if not, a mistake is added."""
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
    c.add(where, name, "a path inside the stack file's folder, like train.py or code/train.py", advice)
    return False
