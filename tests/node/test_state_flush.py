"""What slurmctld is made to save, so that killing it ends no job (`node.elastic.capacity`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from node.elastic.state_flush import StateFlush
from node.slurm.control import SlurmError
from node.slurm.states import JobState, NodeState
from tests.support.doubles import FakeControl, job, node
from tests.support.simulation import World

OFF, BOOTS, UP = ("IDLE", "POWERED_DOWN"), ("ALLOCATED", "POWERING_UP"), ("ALLOCATED",)


def reading(*states: tuple[str, ...]) -> dict[str, NodeState]:
    return {f"debug-{i}": node(f"debug-{i}", *state) for i, state in enumerate(states)}


def saved(*looks: tuple[dict[str, NodeState], list[JobState]]) -> list[list[str | int]]:
    """What each pass had saved: a node's name where only nodes are saved, a job's id where everything is."""
    control = FakeControl()
    saves, found = StateFlush(control), []
    for nodes, jobs in looks:
        saves.see(nodes, jobs)
        found.append(control.saves)
        control.saves = []
    return found


def test_nodes_that_came_up_or_went_off_are_saved_together_and_once() -> None:
    looks: list[tuple[tuple[str, ...], ...]] = [(OFF,) * 3, (BOOTS,) * 3, (UP, UP, BOOTS), (UP, UP, BOOTS)]
    looks += [(UP, UP, UP), (OFF, UP, OFF), (OFF, UP, OFF), (OFF, UP)]
    assert saved(*((reading(*states), []) for states in looks)) == [
        [], [], ["debug-0"], [], ["debug-2"], ["debug-0"], [], [],
    ]  # fmt: skip


def test_a_node_with_a_reason_is_left_alone_where_there_is_another() -> None:
    nodes = reading(UP, UP)
    nodes["debug-0"] = node("debug-0", *UP, reason="a person's")
    assert saved((nodes, [])) == [["debug-1"]]


def test_jobs_that_began_are_saved_together_with_their_nodes() -> None:
    waits = [job(1, "CONFIGURING"), job(2, "CONFIGURING"), job(3, "PENDING")]
    began = [job(1), job(2), job(3, "PENDING")]
    assert saved(
        (reading(BOOTS, BOOTS), waits),
        (reading(UP, UP), waits),
        (reading(UP, UP), began),
        (reading(UP, UP), began),
        # After a requeue it is another run.
        (reading(UP, UP), [job(1), job(2, restarts=1)]),
        (reading(UP, UP), [job(1, "COMPLETED"), job(2, restarts=1)]),
    ) == [[], ["debug-0"], [2], [], [2], []]


def test_a_save_that_was_refused_is_asked_for_again() -> None:
    control = FakeControl()
    saves = StateFlush(control)
    control.refuse_job_updates = True
    with pytest.raises(SlurmError):
        saves.see(reading(UP), [job(1)])
    control.refuse_job_updates = False
    saves.see(reading(UP), [job(1)])
    assert control.saves == [1]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path / "lib").running() as made:
        made.cloud.boot_delay = 10
        yield made
    assert made.wrongs == []


def kill_slurmctld(world: World) -> None:
    world.slurm.kill()
    world.step(5)
    world.slurm.start()


def test_a_job_goes_on_when_slurmctld_is_killed_soon_after_the_boot(world: World) -> None:
    job = world.slurm.submit(2, 200)
    assert world.until(lambda: job.state == "RUNNING", 60)
    world.step(5)
    kill_slurmctld(world)
    assert world.until(lambda: job.state == "COMPLETED", 400), world.story()
    assert job.restarts == 0
    assert world.until(lambda: not world.unrest(), 400), world.story()


def test_nodes_whose_job_was_cancelled_meanwhile_are_known_to_be_up(world: World) -> None:
    """Otherwise they would count as failed boots."""
    job = world.slurm.submit(1, 10)
    assert world.until(lambda: len(world.cloud.living()) == 1, 30)
    world.slurm.cancel([job.id])
    world.step(1)
    node = world.slurm.members["debug-0"]
    assert world.until(lambda: node.power == "up", 30)
    world.step(3)
    kill_slurmctld(world)
    assert node.power == "up"
    assert world.until(lambda: not world.unrest(), 400), world.story()
