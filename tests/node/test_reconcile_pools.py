"""Histories of a partition with a spot pool and one on demand: fallbacks, notices, restarts, by seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from node.design.model import Partition
from node.elastic.failures import ErrorClass
from tests.support.simulated_jobs import Job
from tests.support.simulation import World

POOLS = ("spot", "dear")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    pools = [
        Partition(f"debug-{pool}", "local.small", 1, 100, 0, 4, default=True, pool=pool, spot=pool == "spot")
        for pool in POOLS
    ]
    with World(tmp_path, *pools).running() as made:
        yield made
        assert made.wrongs == [], made.story()


def pool_of(world: World, job: Job, restarts: int = 0) -> set[str]:
    """Return the pools in which a job runs."""
    assert world.until(lambda: job.state == "RUNNING" and job.restarts >= restarts, 200), world.story()
    return {node.rpartition("-")[0] for node in job.nodes}


def test_a_job_goes_whole_to_the_next_pool_within_seconds(world: World) -> None:
    world.cloud.capacity["debug-spot"] = 3
    began = world.clock.now
    job = world.slurm.submit(4, 60)
    assert pool_of(world, job) == {"debug-dear"}
    assert world.clock.now - began < 15, "Slurm's pause after the requeue is not waited for"
    assert pool_of(world, world.slurm.submit(3, 5)) == {"debug-spot"}, "three are there"


def test_a_mistake_moves_no_job_and_a_daemon_that_was_killed_holds_it_too(world: World) -> None:
    world.cloud.errors["debug-spot"] = ErrorClass.CONFIG
    world.cloud.tells_room = False
    job = world.slurm.submit(2, 5)
    world.step(30)
    world.kill()
    world.step(60)
    assert (job.state, {r.partition for r in world.cloud.records.values()}) == ("PENDING", set())
    assert (job.comment or "").startswith("config: spot: refused "), job.comment
    world.cloud.errors.clear()
    assert world.until(lambda: job.state == "RUNNING", 700), world.story()
    assert {node.rpartition("-")[0] for node in job.nodes} == {"debug-spot"}


def test_spot_that_is_taken_back_twice_is_left_for_a_while_and_then_tried_again(world: World) -> None:
    job = world.slurm.submit(2, 5000)
    for restarts in range(2):
        assert pool_of(world, job, restarts) == {"debug-spot"}
        world.step(70)
        for record in world.cloud.living():
            record.taken_at = world.clock.now + 10
        world.step(15)
    assert pool_of(world, job, 2) == {"debug-dear"}
    other = world.slurm.submit(2, 5)
    assert pool_of(world, other) == {"debug-dear"}
    world.kill()
    world.step(660)
    assert job.state == "RUNNING"
    assert pool_of(world, world.slurm.submit(2, 5)) == {"debug-spot"}, "it is tried again"
