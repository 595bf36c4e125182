"""The daemon in a simulated world: unusual states of jobs, steps that fail or come late, killed daemons."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from node.elastic.failures import ErrorClass
from node.elastic.plan import Action
from node.elastic.rules import AT_RISK, UNRESPONSIVE, USABLE, Verb
from node.elastic.view import REASON_PREFIX
from node.system.rpc import RpcUnavailableError
from tests.support.simulated_jobs import Job
from tests.support.simulated_world import machine, rest, run, seconds_until, world
from tests.support.simulation import World

__all__ = ["world"]


# --- suspended and held jobs, and arrays -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        # As when a new stack file asks for larger machines: the node changes after its jobs.
        ("POWER_DOWN_ASAP", REASON_PREFIX + "its partition's new machines are made differently"),
        ("DRAIN", REASON_PREFIX + AT_RISK),
        ("DRAIN", "Kill task failed"),
    ],
)
def test_a_suspended_job_is_not_over(world: World, state: str, reason: str) -> None:
    """Slurm shows its node as idle. A node that is to go down after its jobs waits for this one too."""
    job = run(world)
    record = machine(world, job)
    world.slurm.suspend(job.id)
    world.slurm.update_node(job.nodes, state=state, reason=reason)
    world.step(120)
    assert (job.state, record.lives) == ("SUSPENDED", True), world.story()
    world.slurm.resume(job.id)
    rest(world)
    assert (job.state, job.restarts) == ("COMPLETED", 0)


def test_a_suspended_job_keeps_its_machine_though_a_job_with_a_reboot_gets_none(world: World) -> None:
    """Slurm gives that job the node. The list leaves the machine out, and no other can be launched."""
    job = run(world, 1, 20)
    record = machine(world, job)
    world.slurm.suspend(job.id)
    world.cloud.empty, world.cloud.error = True, ErrorClass.QUOTA
    other = world.slurm.submit(1, 10, reboot=True)
    assert world.until(lambda: any("launched nothing" in line for line in world.lines), 20)
    assert other.nodes == job.nodes
    world.step(10)
    assert (job.state, record.lives) == ("SUSPENDED", True), world.story()
    world.cloud.calm()
    world.slurm.resume(job.id)
    rest(world)
    assert (job.state, job.restarts, other.state) == ("COMPLETED", 0, "COMPLETED"), world.story()


def test_a_suspended_job_keeps_its_machine(world: World) -> None:
    """Slurm calls its node idle, but neither a restart nor a pass of the daemon may end the machine."""
    job = run(world, 2, 60)
    world.step(10)
    world.slurm.suspend(job.id)
    assert {n.base for n in world.slurm.nodes().values()} == {"IDLE"}
    for _ in range(3):
        world.step(60)
        world.kill()
    world.slurm.resume(job.id)
    rest(world)
    assert (job.state, job.restarts) == ("COMPLETED", 0)


def test_an_outdated_machine_stays_under_a_suspended_job(world: World) -> None:
    """Slurm delays powering down the node, and shows POWER_DOWN until then."""
    job = run(world, 1, 60)
    record = machine(world, job)
    world.slurm.suspend(job.id)
    record.outdated = True
    world.step(120)
    assert "POWER_DOWN" in world.slurm.nodes()[record.node].flags
    assert record.lives
    world.slurm.resume(job.id)
    rest(world)
    assert (job.state, job.restarts, record.lives) == ("COMPLETED", 0, False)


@pytest.mark.parametrize("loss", ["notice", "death"])
def test_a_suspended_job_that_loses_its_machine_is_told_who_lets_it_go(world: World, loss: str) -> None:
    """Slurm holds the job, because an administrator had suspended it."""
    job = run(world, 1, 60)
    record = machine(world, job)
    world.slurm.suspend(job.id)
    if loss == "notice":
        record.taken_at = world.clock.now + 250
    else:
        world.cloud.kill(record)
    assert world.until(lambda: job.state == "PENDING", 60), world.story()
    world.step(60)
    assert job.comment is not None
    assert job.comment.startswith("preempted: the ")
    assert job.comment.endswith(f"({record.node}); it is held: `scontrol release {job.id}` lets it go")
    assert (job.state, job.held) == ("PENDING", "JobHeldAdmin")
    world.slurm.release(job.id)
    rest(world)
    assert (job.state, job.restarts) == ("COMPLETED", 1)


def test_a_job_that_a_node_refused_to_start_is_let_go(world: World) -> None:
    world.slurm.refused_starts = 1
    job = world.slurm.submit(1, 10)
    rest(world)
    assert (job.state, job.restarts) == ("COMPLETED", 1)


def test_a_job_that_no_node_can_start_is_left_to_a_person(world: World) -> None:
    world.slurm.refused_starts = 20
    job = world.slurm.submit(1, 10)
    world.step(900)
    assert (job.state, job.held, job.restarts) == ("PENDING", "launch failed requeued held", 4)
    world.slurm.cancel([job.id])
    rest(world)


def test_a_job_that_a_person_holds_stays_held(world: World) -> None:
    held, later = world.slurm.submit(1, 10, held=True), run(world, 1, 60)
    world.slurm.update_job(later.id, hold=True)
    machine(world, later).taken_at = world.clock.now + 250
    world.step(300)
    assert (held.state, held.held, later.state, later.held) == (
        "PENDING", "JobHeldUser", "PENDING", "JobHeldAdmin",
    )  # fmt: skip
    for job in (held, later):
        world.slurm.release(job.id)
    rest(world)
    assert (held.restarts, later.restarts) == (0, 1)


def test_a_task_of_an_array_starts_elsewhere_at_once_and_the_others_stay_as_they_are(world: World) -> None:
    array = world.slurm.submit_array(range(6), 1, 100, limit=2)

    def tasks(state: str) -> list[Job]:
        return [job for job in world.slurm.queue.values() if job.array == array.id and job.state == state]

    assert world.until(lambda: len(tasks("RUNNING")) == 2, 15)
    first, other = tasks("RUNNING")
    machine(world, first).taken_at = world.clock.now + 250
    assert seconds_until(world, lambda: first.restarts, 6) <= 6
    assert first.comment is not None
    assert first.comment.startswith("preempted: ")
    assert (array.comment, other.restarts, array.tasks) == (None, 0, (3, 4, 5))
    rest(world, 2000)
    assert {job.state for job in world.slurm.queue.values()} == {"COMPLETED"}
    assert sum(job.restarts for job in world.slurm.queue.values()) == 1


# --- acting ----------------------------------------------------------------------------------------------


def act(world: World, *actions: Action) -> None:
    assert world.daemon is not None
    world.daemon.reconciler.apply(list(actions), world.slurm.nodes())


@pytest.mark.parametrize("suspended", [False, True], ids=["running", "suspended"])
def test_a_machine_under_a_job_that_slurm_counts_as_running_stays(world: World, suspended: bool) -> None:
    """Whatever Slurm says of the node, the safer of its two statements counts."""
    job = run(world)
    if suspended:
        world.slurm.suspend(job.id)
    record = machine(world, job)
    act(world, Action(Verb.TERMINATE, record.node, record.id, "nobody uses this machine"))
    assert record.lives
    assert any(f"a job runs on {record.node}" in line for line in world.lines)


def test_what_fails_keeps_nothing_else_from_being_done(world: World) -> None:
    world.cloud.unreachable = True
    with pytest.raises(RpcUnavailableError):
        act(
            world,
            Action(Verb.TERMINATE, "debug-0", "m-0", "nobody uses this machine"),
            Action(Verb.POWER_UP, "debug-1", None, "static node"),
        )
    assert world.slurm.members["debug-1"].power == "asked"


def test_a_job_that_gets_a_silent_node_in_the_last_moment_keeps_it(world: World) -> None:
    world.slurm.members["debug-0"].silent = True
    before = world.slurm.nodes()
    job = world.slurm.submit(1, 60)
    world.pass_time(1.0)
    assert job.nodes == ("debug-0",)
    assert world.daemon is not None
    world.daemon.reconciler.apply([Action(Verb.POWER_DOWN, "debug-0", None, USABLE)], before)
    rest(world)
    assert (job.state, job.restarts) == ("COMPLETED", 0)


def test_a_node_that_gets_a_job_while_another_ones_machine_is_ended_keeps_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step may take as long as the cloud needs to answer."""
    first = run(world, 1, 1)
    (name,) = first.nodes
    assert world.until(lambda: first.state == "COMPLETED", 30)
    world.slurm.members[name].silent = world.slurm.members[name].down = True
    before = world.slurm.nodes()
    jobs: list[Job] = []

    def terminate(ids: object) -> None:
        node = world.slurm.members[name]
        node.silent = node.down = False
        jobs.append(run(world))

    actions = [
        Action(Verb.TERMINATE, None, "m-0", "no node has this name"),
        Action(Verb.POWER_DOWN, name, None, UNRESPONSIVE),
    ]
    assert world.daemon is not None
    reconciler = world.daemon.reconciler
    with monkeypatch.context() as slow:
        slow.setattr(reconciler._driver, "terminate", terminate)
        reconciler.apply(actions, before)
    rest(world)
    (job,) = jobs
    assert (job.state, job.restarts) == ("COMPLETED", 0)


# --- killed at any instruction ---------------------------------------------------------------------------


def _die(world: World, job: Job) -> None:
    world.cloud.kill(machine(world, job))


def _freeze(world: World, job: Job) -> None:
    machine(world, job).frozen = True


def _preempt(world: World, job: Job) -> None:
    machine(world, job).taken_at = world.clock.now + 60


def _quota(world: World, job: Job) -> None:
    world.cloud.quota = 3
    world.slurm.submit(2, 10)


def _orphan(world: World, job: Job) -> None:
    world.cloud._make("debug-4", "debug")


@pytest.mark.parametrize("mishap", [_die, _freeze, _preempt, _quota, _orphan])
def test_killed_between_any_two_calls_the_next_daemon_comes_to_the_same_end(
    tmp_path: Path, mishap: Callable[[World, Job], None]
) -> None:
    def calls(kill_at: int | None) -> list[str]:
        with World(tmp_path / str(kill_at)).running() as world:
            job = run(world, 2, 40)
            mishap(world, job)
            before = len(world.calls)
            world.kill_at = None if kill_at is None else before + kill_at
            world.step(60)
            made = world.calls[before:]
            world.cloud.quota = None
            rest(world, 500)
            assert {j.state for j in world.slurm.queue.values()} == {"COMPLETED"}
            assert world.wrongs == []
            return made

    # Each call after each other call, where they first come like that; later passes repeat these pairs.
    seen: set[tuple[str, str]] = set()
    for number, pair in enumerate(pairwise(["", *calls(None)]), 1):
        if pair not in seen:
            seen.add(pair)
            calls(number)
    assert len(seen) > 5, "more than the pairs of a pass that finds nothing to do"


@pytest.mark.parametrize("kill_at", range(1, 16))
def test_an_evacuation_that_is_cut_off_is_gone_on_with(world: World, kill_at: int) -> None:
    """It may stop between the drain and the requeue: the job must not wait until the machine is taken."""
    job = run(world, 2, 300)
    machine(world, job).taken_at = world.clock.now + 250
    world.kill_at = len(world.calls) + kill_at
    assert world.until(lambda: job.restarts, 12), world.story()
    assert world.until(lambda: job.state == "RUNNING", 40)
    rest(world)
    assert job.restarts == 1
