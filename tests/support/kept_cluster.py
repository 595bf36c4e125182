"""A cluster of container machines that outlives its controller, and what its jobs and its accounting say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from localcloud import volumes
from localcloud.containers import leftovers
from operations.local import container_images
from operations.local.run_directory import RunDirectory
from tests.support.checkout import Checkout
from tests.support.containers import cluster_image

WAITS = (
    "echo began >>{name}; while [ ! -e go-{name} ]; do sleep 0.2; done; echo ended >>{name}; exit {status}"
)
"""The script of a job that ends when a file is there."""


@contextmanager
def up(tmp_path_factory: pytest.TempPathFactory, stack: str) -> Iterator[Checkout]:
    """A cluster of that stack, which leaves nothing behind."""
    cluster_image(stack)
    checkout = Checkout(tmp_path_factory.mktemp("kept") / "a checkout", stack)
    checkout.env["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    (Path(checkout.env["XDG_CACHE_HOME"]) / "slurm-stacks").mkdir()
    (Path(checkout.env["XDG_CACHE_HOME"]) / "slurm-stacks" / "images").symlink_to(
        container_images.image_folder()
    )
    try:
        checkout.cluster("up", check=True)
        yield checkout
    finally:
        left = checkout.close()
    assert left == []
    assert leftovers(checkout.run_directory) == []
    assert volumes.attached(checkout.run_directory) == []


def states(cluster: Checkout) -> dict[str, str]:
    """Return the state of each job that has not been forgotten, by its id as squeue writes it."""
    lines = cluster.execute("squeue", "--noheader", "--array", "--states=all", "--format=%i %T").splitlines()
    return dict(line.split(maxsplit=1) for line in lines)


def recorded(cluster: Checkout, job: str) -> list[tuple[str, str]]:
    """Return the states and exit codes of a job, or of each task of an array, according to sacct."""
    text = cluster.execute("sacct", "-X", "-n", "-P", "-D", "-j", job, "--format=State,ExitCode")
    return [(state, code) for state, code in (line.split("|") for line in text.splitlines())]


def submit(cluster: Checkout, *options: str, script: str) -> str:
    return cluster.execute("sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", script).strip()


def home(cluster: Checkout) -> Path:
    return cluster.run_directory / "shared" / "root"


def run_of(cluster: Checkout) -> RunDirectory:
    return RunDirectory(cluster.run_directory)
