"""The daemon in a simulated world: lost machines are found, and no machine is ended under a running job."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from node.design.model import Partition
from node.elastic import machine_record, plan, rules
from node.elastic.driver import MachineState
from node.elastic.failures import ErrorClass
from node.elastic.rules import AT_RISK, TAKEN
from node.elastic.view import REASON_PREFIX
from node.slurm.control import SlurmError
from tests.support.simulated_world import machine, rest, run, seconds_until, world
from tests.support.simulation import TIMERS, World

__all__ = ["world"]


def test_a_job_runs_and_its_nodes_go(world: World) -> None:
    job = run(world, 2, 10)
    rest(world, 60)
    assert (job.state, job.restarts) == ("COMPLETED", 0)


# --- machines that are spared ----------------------------------------------------------------------------


def test_a_machine_that_was_spared_is_not_taken_for_ended_by_a_list_without_it(world: World) -> None:
    """A job is suspended on a node, and one with `--reboot` gets it before the cloud's lists are empty."""
    suspended = run(world, 1, 1)
    record = machine(world, suspended)
    world.slurm.suspend(str(suspended.id))
    world.slurm.submit(2, 1, reboot=True)
    world.step(2)
    assert "the machine stays" in world.story()
    world.cloud.empty = True
    world.step(120)
    world.cloud.empty = False
    assert "launch debug-0" not in world.story()
    assert record in world.cloud.living()


# --- machines that are lost ------------------------------------------------------------------------------


def test_a_machine_that_dies_is_replaced_and_its_job_runs_again(world: World) -> None:
    job = run(world, 2)
    world.step(40)
    world.cloud.kill(machine(world, job, 1))
    assert seconds_until(world, lambda: job.restarts, 12) <= 12
    assert job.comment == ("preempted: the machine is gone (debug-1); the job is queued again by itself")
    assert seconds_until(world, lambda: job.state == "RUNNING", 20) <= 20, "not after Slurm's pause of 31 s"
    rest(world)
    assert job.state == "COMPLETED"


def test_a_machine_that_dies_while_the_daemon_is_dead_is_replaced_as_soon(world: World) -> None:
    job = run(world)
    world.kill()
    world.cloud.kill(machine(world, job))
    assert seconds_until(world, lambda: job.restarts, 12) <= 12, "long before Slurm loses its patience"
    rest(world)
    assert job.state == "COMPLETED"


def test_a_job_whose_script_could_not_be_delivered_loses_no_later_run_to_that(world: World) -> None:
    """Slurm gives a job to a node whose machine has just died, and tries for 11 s to start it there."""
    first = run(world, 1, 10)
    record = machine(world, first)
    assert world.until(lambda: first.state == "COMPLETED", 30)
    world.cloud.kill(record)
    job = world.slurm.submit(1, 60)
    assert world.until(lambda: job.state == "COMPLETED", 200), world.story()
    assert job.restarts == 1


def test_a_machine_that_vanishes_from_the_list_is_lost_when_slurm_misses_it_too(world: World) -> None:
    job = run(world)
    record = machine(world, job)
    world.cloud.kill(record)
    del world.cloud.records[record.id]
    assert seconds_until(world, lambda: job.restarts, 60) >= 30, "Slurm's own patience"
    rest(world)


def test_a_frozen_machine_is_replaced(world: World) -> None:
    job = run(world)
    record = machine(world, job)
    record.frozen = True
    seconds = seconds_until(world, lambda: job.restarts, 75)
    world.step(2)
    assert job.comment == (
        f"preempted: the machine does not respond ({record.node}); the job is queued again by itself"
    )
    seconds += seconds_until(world, lambda: job.state == "RUNNING", 40)
    assert not record.lives
    assert seconds <= 31 + 30 + 13, "Slurm's patience, and not its pause too"
    rest(world)


def test_a_machine_that_is_slow_to_answer_keeps_its_job(world: World) -> None:
    job = run(world)
    machine(world, job).frozen = True
    assert world.until(lambda: world.slurm.members[job.nodes[0]].silent, 40)
    world.step(9)
    machine(world, job).frozen = False
    rest(world)
    assert (job.state, job.restarts) == ("COMPLETED", 0)


@pytest.mark.parametrize("listings", range(1, 7))
def test_a_machine_that_answers_again_while_the_cloud_is_asked_keeps_its_next_job(
    world: World, listings: int
) -> None:
    """While the cloud is slow to list, Slurm's states get old."""
    job = run(world, 1, 200)
    record = machine(world, job)
    for other in set(world.slurm.members) - {record.node}:
        world.slurm.update_node([other], state="DRAIN", reason="a person's")
    record.frozen = True
    assert world.until(lambda: world.slurm.members[record.node].down, 60)
    world.slurm.update_job(job.id, start_now=True)
    left = [listings]

    def listing(_: float) -> None:
        left[0] -= 1
        record.frozen = record.frozen and left[0] > 0
        world.clock.sleep(15)

    world.cloud.sleep = listing
    world.step(20)
    world.cloud.sleep = lambda _: None
    rest_of = world.until(lambda: job.state == "COMPLETED", 400)
    assert (rest_of, job.restarts) == (True, 1), world.story()


def test_a_machine_that_dies_while_it_boots_is_replaced_under_its_job(world: World) -> None:
    world.cloud.boot_delay = 10
    job = world.slurm.submit(2, 10)
    assert world.until(lambda: len(world.cloud.living()) == 2, 5)
    world.step(3)
    world.cloud.kill(world.cloud.living()[0])
    assert seconds_until(world, lambda: len(world.cloud.living()) == 2, 6) <= 6
    rest(world)
    assert (job.state, job.restarts) == ("COMPLETED", 0)


def test_a_machine_that_never_registers_is_given_back_before_slurm_gives_up(world: World) -> None:
    world.cloud.mute = 1
    job = world.slurm.submit(1, 10)
    rest(world)
    assert (job.state, job.restarts) == ("COMPLETED", 1)
    assert not [line for line in world.lines if "resume-fail" in line]
    ended = machine_record.read(world.folder).lives.values()
    assert [life.registered for life in ended] == [False, True], "a bill tells them apart"


def test_what_slurm_gave_up_while_the_daemon_was_dead_is_usable_again(world: World) -> None:
    world.cloud.mute = 1
    job = world.slurm.submit(1, 10)
    world.step(4)
    world.kill()
    world.pass_time(1)
    for _ in range(70):
        world.pass_time(1)
    assert world.slurm.members["debug-0"].down
    rest(world)
    assert job.state == "COMPLETED"


def test_orphans_of_a_controller_that_lost_its_state_are_ended(world: World) -> None:
    run(world, 3, 1000)
    world.slurm.stop()
    world.step(20)
    assert len(world.cloud.living()) == 3
    world.slurm.start(lost=True)
    assert seconds_until(world, lambda: not world.cloud.living(), 20) <= 20
    rest(world)


def test_a_controllers_restart_in_mid_job_changes_nothing(world: World) -> None:
    job = run(world, 3, 100)
    world.slurm.stop()
    world.step(40)
    world.slurm.start()
    rest(world)
    assert (job.state, job.restarts) == ("COMPLETED", 0)


def test_static_nodes_are_there_again(tmp_path: Path) -> None:
    partition = Partition("debug", "local.small", 1, 100, 2, 4, default=True)
    with World(tmp_path / "lib", partition).running() as world:
        rest(world, 30)
        world.cloud.kill(world.cloud.living()[0])
        world.step(10)
        assert world.unrest()
        rest(world, 60)
        assert world.wrongs == []


# --- readings that are not to be believed ----------------------------------------------------------------


@pytest.mark.parametrize("fault", ["empty", "halved", "unreachable"])
@pytest.mark.parametrize("restarts", [False, True])
def test_no_job_ends_because_of_what_the_cloud_does_not_say(world: World, fault: str, restarts: bool) -> None:
    job = run(world, 5, 400)
    setattr(world.cloud, fault, True)
    for _ in range(5):
        world.step(60)
        if restarts:
            world.kill()
    setattr(world.cloud, fault, False)
    rest(world, 600)
    assert (job.state, job.restarts) == ("COMPLETED", 0)


@pytest.mark.parametrize("unique", [True, False], ids=["unique names", "names twice"])
def test_a_lagging_list_ends_nothing_though_the_daemon_starts_anew(tmp_path: Path, unique: bool) -> None:
    with World(tmp_path / "lib", unique=unique).running() as world:
        world.cloud.lag, world.cloud.boot_delay = 60, 20
        job = world.slurm.submit(3, 100)
        world.step(5)
        world.kill()
        rest(world, 900)
        assert (job.state, world.wrongs) == ("COMPLETED", [])


# What becomes of a launch that is repeated because the lists have left a node's machine out.
REPEATED: dict[str, Callable[[World], object]] = {
    "its name is in use": lambda world: None,
    "the cloud refuses": lambda world: setattr(world.cloud, "error", ErrorClass.UNAVAILABLE),
    "the cloud does not answer": lambda world: setattr(world.cloud, "unreachable", True),
    "the daemon is killed as it begins": lambda world: setattr(world, "kill_at", len(world.calls) + 1),
}


@pytest.mark.parametrize("fails", REPEATED)
@pytest.mark.parametrize("latency", [0.0, 15.0])
def test_a_machine_that_lists_left_out_while_it_booted_keeps_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, latency: float
) -> None:
    """The launch counts as lost and is repeated. Then the machine registers, and is in the list again."""
    monkeypatch.setattr(plan, "VANISHED", dataclasses.replace(rules.VANISHED, grace=rules.GracePeriod.LAUNCH))
    with World(tmp_path / "lib").running() as world:
        world.cloud.boot_delay = 25.0
        job = world.slurm.submit(1, 60, requeue=False)
        assert world.until(lambda: job.state == "CONFIGURING" and world.cloud.living(), 10)
        world.step(3)
        world.cloud.empty, world.latency = True, latency
        assert world.until(lambda: any(rules.VANISHED.reason in line for line in world.lines), 20)
        REPEATED[fails](world)
        world.until(lambda: job.state == "RUNNING", 30)
        world.cloud.calm()
        world.step(20)
        world.latency = 0.0
        rest(world)
        assert (job.state, world.wrongs) == ("COMPLETED", []), world.story()


@pytest.mark.parametrize("unique", [True, False], ids=["unique names", "names twice"])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_list_that_leaves_a_booting_machine_out_leads_to_no_second_one(
    tmp_path: Path, unique: bool, restarts: bool
) -> None:
    """When the second one registered, Slurm would take the node for rebooted, and end its job."""
    with World(tmp_path / "lib", unique=unique).running() as world:
        world.cloud.boot_delay = 25.0
        job = world.slurm.submit(2, 60, requeue=False)
        assert world.until(lambda: job.state == "CONFIGURING" and world.cloud.living(), 10)
        world.step(3)
        if restarts:
            world.kill()
        world.cloud.empty = True
        assert world.until(lambda: job.state == "RUNNING", 40)
        world.cloud.calm()
        assert len(world.cloud.records) == 2, world.story()
        rest(world)
        assert (job.state, world.wrongs) == ("COMPLETED", []), world.story()


def test_lists_that_begin_to_lag_leave_out_new_machines_alone(world: World) -> None:
    """The simulation hid others too. The ledger took them for ended, and the budget for unspent."""
    run(world)
    world.cloud.lag = 50.0
    world.step(3)
    world.slurm.submit(1, 10)
    world.step(3)
    listed, living = world.cloud.list(), world.cloud.living()
    assert [machine.id for machine in listed] == [record.id for record in living[:1]]
    assert len(living) == 2


# --- preemption ------------------------------------------------------------------------------------------


def test_a_notice_empties_the_node_and_the_job_starts_elsewhere_at_once(world: World) -> None:
    job, other = run(world, 2), run(world)
    record = machine(world, job, 1)
    record.taken_at = world.clock.now + 100
    node = world.slurm.members[record.node]
    assert seconds_until(world, lambda: job.restarts, 6) <= 6
    assert node.drained
    assert node.reason is not None
    assert node.reason.startswith("slurm-stacks preempted: the cloud takes this machine at ")
    assert job.comment is not None
    assert job.comment.endswith(f" UTC ({record.node}); the job is queued again by itself")
    assert seconds_until(world, lambda: job.state == "RUNNING", 15) <= 15
    assert record.node not in job.nodes
    assert seconds_until(world, lambda: not record.lives, 15) <= 15, "not kept until it is taken"
    rest(world)
    assert (job.state, job.restarts, other.restarts) == ("COMPLETED", 1, 0)


def test_a_job_that_must_not_be_queued_again_runs_to_its_end(world: World) -> None:
    job = run(world, 1, 50, requeue=False)
    machine(world, job).taken_at = world.clock.now + 100
    world.step(40)
    assert job.state == "RUNNING"
    rest(world)
    assert job.state == "COMPLETED"


def test_a_job_that_must_not_be_queued_again_ends_with_its_machine(world: World) -> None:
    job = run(world, 1, 500, requeue=False)
    machine(world, job).taken_at = world.clock.now + 30
    rest(world)
    assert job.state == "NODE_FAIL"


def test_a_notice_while_a_machine_boots(world: World) -> None:
    world.cloud.boot_delay = 10
    job = world.slurm.submit(1, 10)
    assert world.until(world.cloud.living, 5)
    world.cloud.living()[0].taken_at = world.clock.now + 60
    rest(world, 120)
    assert (job.state, job.restarts) == ("COMPLETED", 1)


def test_a_job_that_slurm_does_not_queue_again_is_asked_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interactive jobs (`salloc`, `srun`) cannot be requeued."""
    asked: list[int] = []

    def refuse(number: int) -> None:
        asked.append(number)
        raise SlurmError(["scontrol", "requeue"], 1, "Only batch jobs are accepted or processed")

    monkeypatch.setattr(world.slurm, "requeue", refuse)
    job = run(world, 1, 40)
    machine(world, job).taken_at = world.clock.now + 100
    rest(world)
    assert asked == [job.id]
    assert (job.state, job.restarts) == ("COMPLETED", 0)


def test_a_job_that_could_not_be_queued_again_while_it_began_is_asked_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of its nodes is up and will be taken, another one boots: the refusal holds for now only."""
    first = run(world, 1, 1)
    assert world.until(lambda: first.state == "COMPLETED", 10)
    world.cloud.boot_delay = 10
    job = world.slurm.submit(2, 200)
    assert world.until(lambda: len(world.cloud.living()) == 2, 10), world.story()
    assert job.state == "CONFIGURING"
    requeue = world.slurm.requeue
    asked: list[str] = []

    def refuse_at_first(number: int) -> None:
        asked.append(job.state)
        if job.state == "CONFIGURING":
            raise SlurmError(["scontrol", "requeue"], 1, "Job is in transition, please retry")
        requeue(number)

    monkeypatch.setattr(world.slurm, "requeue", refuse_at_first)
    record = next(r for r in world.cloud.living() if world.slurm.members[r.node].power == "up")
    record.taken_at = world.clock.now + 100
    assert seconds_until(world, lambda: job.restarts, 30) <= 30, "before its machine is taken"
    assert (asked[0], asked[-1]) == ("CONFIGURING", "RUNNING")
    rest(world)
    assert (job.state, job.restarts) == ("COMPLETED", 1)


# --- nodes that slurmctld would forget -------------------------------------------------------------------


def _all_run(world: World) -> None:
    """Start a job on every node."""
    job = world.slurm.submit(len(world.slurm.members), 5)
    assert world.until(lambda: job.state == "COMPLETED", 120), world.story()


def test_nodes_with_a_capacity_drain_can_be_used_after_slurmctld_starts_anew(world: World) -> None:
    """Slurm shows NOT_RESPONDING on an undrained node, and after its next start never uses the node."""
    world.cloud.quota = 1
    job = world.slurm.submit(3, 5)
    assert world.until(lambda: any(n.drained for n in world.slurm.members.values()), 60), world.story()
    world.cloud.quota = None
    assert world.until(lambda: not any(n.drained for n in world.slurm.members.values()), 60), world.story()
    assert not any(n.silent and n.power == "down" for n in world.slurm.members.values())
    assert world.until(lambda: job.state == "COMPLETED", 200), world.story()
    rest(world)
    world.slurm.stop()
    world.step(5)
    world.slurm.start()
    _all_run(world)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("state", ["DRAIN", "DOWN"])
def test_a_node_that_a_person_took_out_is_kept_out_while_slurm_powers_it_down(
    world: World, state: str, restarts: bool
) -> None:
    job = run(world, 1, 10)
    assert world.until(lambda: job.state == "COMPLETED", 60)
    world.slurm.update_node(["debug-0"], state=state, reason="bad fan")
    # Slurm takes a DOWN node back as soon as it hears it, so here it does not hear it for a while.
    world.cloud.living()[0].frozen = state == "DOWN"
    assert world.until(lambda: world.slurm.members["debug-0"].drained, 10), world.story()
    world.until(lambda: world.slurm.members["debug-0"].power == "falling", 60)
    if restarts:
        world.kill()
    assert world.until(lambda: world.slurm.members["debug-0"].power == "down", 60), world.story()
    node = world.slurm.nodes()["debug-0"]
    assert (node.is_drained, node.reason) == (True, "bad fan"), world.story()
    later = world.slurm.submit(len(world.slurm.members), 10)
    world.step(60)
    assert later.state == "PENDING", "nothing starts there"
    world.slurm.update_node(["debug-0"], state="RESUME")
    assert world.until(lambda: later.state == "COMPLETED", 120), world.story()
    rest(world)


def test_nodes_that_a_person_resumed_can_be_used_after_slurmctld_starts_anew(world: World) -> None:
    names = list(world.slurm.members)
    world.slurm.update_node(names, state="DRAIN", reason="disk swap")
    world.step(20)
    world.slurm.update_node(names, state="RESUME")
    world.slurm.stop()
    world.step(5)
    world.slurm.start()
    rest(world)
    _all_run(world)


def test_nodes_that_never_registered_can_be_used_after_slurmctld_starts_anew(world: World) -> None:
    world.slurm.members["debug-2"].down, world.slurm.members["debug-2"].silent = True, True
    world.slurm.members["debug-2"].reason = "ResumeTimeout reached"
    rest(world)
    world.slurm.stop()
    world.step(5)
    world.slurm.start()
    _all_run(world)


# --- machines that may be taken --------------------------------------------------------------------------


def test_a_node_at_risk_finishes_its_job_and_comes_back_on_another_machine(world: World) -> None:
    """The node's own watch drains it: the job continues, then the machine ends and the node is free."""
    job = run(world, 1, 100)
    (name,), record = job.nodes, machine(world, job)
    world.slurm.update_node([name], state="DRAIN", reason=REASON_PREFIX + AT_RISK)
    assert world.until(lambda: job.state == "COMPLETED", 120), world.story()
    assert (job.restarts, record.lives) == (0, True)
    assert seconds_until(world, lambda: not record.lives, 60) >= 5, "no haste: nobody takes it now"
    rest(world)
    assert not world.slurm.members[name].drained
    again = run(world, 2)
    assert name in again.nodes
    assert machine(world, again, again.nodes.index(name)).id != record.id
    rest(world)


def test_a_node_at_risk_that_is_taken_lets_its_job_go(world: World) -> None:
    job = run(world, 1, 300)
    (name,) = job.nodes
    world.slurm.update_node([name], state="DRAIN", reason=REASON_PREFIX + AT_RISK)
    world.step(60)
    assert (job.state, job.restarts) == ("RUNNING", 0)
    machine(world, job).taken_at = world.clock.now + 100
    assert world.until(lambda: job.restarts, 12), world.story()
    assert any(line.endswith(" UTC") and f"evacuates {name}: {TAKEN} at" in line for line in world.lines)
    rest(world)
    assert (job.state, job.restarts) == ("COMPLETED", 1)


# --- machines that will be taken, and not soon -----------------------------------------------------------


def test_a_job_goes_on_until_shortly_before_its_machine_is_taken(tmp_path: Path) -> None:
    """Compute Engine announces host maintenance of machines with GPUs an hour ahead."""
    # Two hours of a daemon that looks every ten seconds: a cloud's looks every thirty.
    slurm = dataclasses.replace(TIMERS, reconcile_interval=10.0)
    with World(tmp_path / "lib", slurm=slurm).running() as world:
        _an_hour_ahead(world)
        assert world.wrongs == []


def _an_hour_ahead(world: World) -> None:
    long, short = run(world, 1, 5000), run(world, 1, 600)
    records = machine(world, long), machine(world, short)
    for record in records:
        record.taken_at = world.clock.now + 3600
    world.step(10)
    assert all(world.slurm.members[record.node].drained for record in records)
    other = run(world, 2, 5)
    assert not {record.node for record in records} & set(other.nodes), "no other job starts there"
    world.step(700)
    assert (short.state, short.restarts, records[1].lives) == ("COMPLETED", 0, False), world.story()
    again = run(world, 4, 5)
    assert records[1].node in again.nodes, "its node is back on another machine"
    world.step(2500)
    assert (long.state, long.restarts) == ("RUNNING", 0), "the hour is its own"
    assert world.until(lambda: long.restarts, 120), world.story()
    assert records[0].lives, "queued again while it can still save its work"
    rest(world, 6000)
    assert (long.state, long.restarts) == ("COMPLETED", 1)


# --- reboots ---------------------------------------------------------------------------------------------


def machines_of(world: World, node: str) -> list[str]:
    return [record.id for record in world.cloud.records.values() if record.node == node]


@pytest.mark.parametrize("unique", [True, False])
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("requeue", [True, False])
def test_a_job_that_asks_for_a_reboot_gets_another_machine(
    tmp_path: Path, unique: bool, killed: bool, requeue: bool
) -> None:
    """Before 23.02 Slurm calls ResumeProgram for nodes that are up. All of them boot for the job."""
    with World(tmp_path / "lib", unique=unique).running() as world:
        first = run(world, 2, 5)
        nodes = first.nodes
        assert world.until(lambda: first.state == "COMPLETED", 30)
        before = {node: machines_of(world, node) for node in nodes}
        job = world.slurm.submit(3, 10, requeue, reboot=True)
        if killed:
            assert world.until(lambda: job.state == "CONFIGURING", 5)
            world.step()
            world.kill()
        assert world.until(lambda: job.state == "COMPLETED", 60), world.story()
        assert job.restarts == 0
        assert set(nodes) <= before.keys()
        assert all(len(machines_of(world, node)) == len(before[node]) + 1 for node in nodes)
        assert not [line for line in world.lines if "unavailable" in line], "no node is given back or drained"
        rest(world)
        assert world.wrongs == []


@pytest.mark.parametrize("asap", [True, False])
def test_a_reboot_waits_for_the_job_and_ends_with_another_machine(world: World, asap: bool) -> None:
    job = run(world, 1, 30)
    (node,) = job.nodes
    world.slurm.reboot(node, asap=asap)
    world.step(10)
    assert job.state == "RUNNING"
    assert world.until(lambda: not world.cloud.living(), 40), world.story()
    assert job.state == "COMPLETED"
    rest(world, 30)
    second = world.slurm.submit(5, 1)
    assert world.until(lambda: second.state == "COMPLETED", 60), "the node takes jobs again"
    assert len(machines_of(world, node)) == 2


def test_a_reboot_that_the_daemon_missed_is_done_when_it_is_back(world: World) -> None:
    (node,) = run(world, 1, 5).nodes
    world.step(10)
    world.kill()
    world.slurm.reboot(node, asap=True)
    for _ in range(5):
        world.pass_time(1.0)
    assert world.slurm.nodes()[node].is_rebooting
    world.step(5)
    assert not world.cloud.living()
    rest(world)


def test_a_node_that_shall_be_down_after_its_reboot_stays_out(world: World) -> None:
    (node,) = run(world, 1, 5).nodes
    world.step(10)
    world.slurm.update_node([node], reason="bad fan")
    world.slurm.reboot(node, next_state="DOWN")
    assert world.until(lambda: world.slurm.members[node].power == "down", 60)
    world.step(20)
    state = world.slurm.nodes()[node]
    assert (state.is_drained, state.reason) == (True, "bad fan")
    assert not world.cloud.living()


def test_a_machine_that_ends_slowly_delays_its_own_nodes_launch_alone(world: World) -> None:
    """Its name is in use, as on Google Cloud until the machine is deleted."""
    first = run(world, 1, 5)
    record = machine(world, first)
    assert world.until(lambda: first.state == "COMPLETED", 20)
    assert world.until(lambda: world.slurm.members[record.node].power == "falling", 60)
    assert world.until(lambda: record.state is MachineState.STOPPING, 10)
    record.ends_at = world.clock.now + 25
    assert world.until(lambda: world.slurm.members[record.node].power == "down", 20)
    job = world.slurm.submit(5, 10, requeue=False)
    single = [line for line in world.lines if "the launch waits for its end" in line]
    assert single == []
    assert world.until(lambda: job.state == "COMPLETED", 80), world.story()
    assert [line for line in world.lines if "the launch waits for its end" in line]
    assert not [line for line in world.lines if "unavailable" in line]


def test_a_repeated_request_launches_nothing_beside_a_machine_that_boots(tmp_path: Path) -> None:
    """On EC2 a name may be given twice."""
    with World(tmp_path / "lib", unique=False).running() as world:
        world.cloud.boot_delay = 20.0
        job = world.slurm.submit(1, 10)
        assert world.until(lambda: job.state == "CONFIGURING" and world.cloud.living(), 10)
        for _ in range(3):
            world._program({"program": "resume", "nodes": job.nodes[0], "jobs": []})
            world.step(3)
        assert world.until(lambda: job.state == "COMPLETED", 60), world.story()
        assert len(world.cloud.records) == 1
        rest(world)
