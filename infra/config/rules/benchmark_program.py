"""Rules of the benchmark's keys for the built-in training or a program of the user's, and of its files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import PurePosixPath

from infra import environments
from infra.benchmark import program_files
from infra.config.jobs import BenchmarkConfig
from infra.config.mistakes import Location
from infra.config.rules.context import BENCHMARK, Context
from infra.errors import UnusableFileError
from node.design.model import KERAS_MNIST

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
