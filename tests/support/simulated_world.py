"""The fixture `world`, and short ways to run jobs in it (`tests.support.simulation`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.simulated_cloud import Record
from tests.support.simulated_jobs import Job
from tests.support.simulation import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path / "lib").running() as made:
        yield made
    assert made.wrongs == []


def rest(world: World, seconds: int = 400) -> None:
    world.until(lambda: not world.unrest(), seconds)
    assert world.unrest() == [], world.story()


def run(world: World, count: int = 1, work: float = 60, **options: Any) -> Job:
    """Start a job that runs."""
    job = world.slurm.submit(count, work, **options)
    assert world.until(lambda: job.state == "RUNNING", 15)
    return job


def machine(world: World, job: Job, index: int = 0) -> Record:
    return world.cloud.records[job.machines[job.nodes[index]]]


def seconds_until(world: World, there: Callable[[], object], most: int) -> float:
    began = world.clock.now
    assert world.until(there, most), world.story()
    return world.clock.now - began
