"""The reconciler's table, cell by cell, and what must hold over any history."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.design.model import SlurmSettings
from node.elastic import plan as planning
from node.elastic import view as slurm_view
from node.elastic.driver import Machine, MachineState
from node.elastic.plan import BOOT_JITTER_SECONDS, Action, Memory, NodeView, Observation, Policy, clock, plan
from node.elastic.reconcile import policy_of
from node.elastic.rules import EMPTIED, REBOOT, RULES, VANISHED, MachinePhase, NodePhase, Verb
from node.slurm.answers import parse_nodes
from node.slurm.states import NodeState

POLICY = Policy(settle=5, launch=10, boot=60, silence=8, doubt=90, credit=1000)
PATIENT = replace(POLICY, credit=3)
N, M = NodePhase, MachinePhase
Cell = tuple[NodePhase, MachinePhase]
FAN: dict[str, Any] = {"reason": "bad fan", "admin_reason": True}
DRAINED: dict[str, Any] = {**FAN, "admin_disabled": True, "drained": True}
TIMEOUT: dict[str, Any] = {"reason": "ResumeTimeout reached"}

# (node, machine) -> (verb, seconds that the pair must last). Written independently of RULES, from what must
# happen.
NOTHING = (None, 0.0)
CELLS: dict[Cell, tuple[Verb | None, float]] = {
    (N.POWERED_DOWN, M.NONE): NOTHING,
    (N.POWERED_DOWN, M.GONE): NOTHING,
    (N.POWERED_DOWN, M.PENDING): (Verb.TERMINATE, 5),
    (N.POWERED_DOWN, M.RUNNING): (Verb.TERMINATE, 5),
    (N.POWERED_DOWN, M.FAILED): (Verb.TERMINATE, 5),
    (N.POWERED_DOWN, M.NOTICED): (Verb.TERMINATE, 5),
    (N.POWERED_DOWN, M.ANNOUNCED): (Verb.TERMINATE, 5),
    (N.POWERED_DOWN, M.SEVERAL): (Verb.TERMINATE, 5),
    (N.STUCK, M.NONE): (Verb.POWER_DOWN, 5),
    (N.STUCK, M.GONE): (Verb.POWER_DOWN, 5),
    (N.STUCK, M.PENDING): (Verb.TERMINATE, 5),
    (N.STUCK, M.RUNNING): (Verb.TERMINATE, 5),
    (N.STUCK, M.FAILED): (Verb.TERMINATE, 5),
    (N.STUCK, M.NOTICED): (Verb.TERMINATE, 5),
    (N.STUCK, M.ANNOUNCED): (Verb.TERMINATE, 5),
    (N.STUCK, M.SEVERAL): (Verb.TERMINATE, 5),
    (N.POWERING_UP, M.NONE): (Verb.LAUNCH, 10),
    (N.POWERING_UP, M.GONE): (Verb.LAUNCH, 0),
    (N.POWERING_UP, M.PENDING): (Verb.POWER_DOWN, 60),
    (N.POWERING_UP, M.RUNNING): (Verb.POWER_DOWN, 60),
    (N.POWERING_UP, M.FAILED): (Verb.POWER_DOWN, 0),
    (N.POWERING_UP, M.NOTICED): (Verb.POWER_DOWN, 0),
    (N.POWERING_UP, M.ANNOUNCED): (Verb.POWER_DOWN, 0),
    (N.POWERING_UP, M.SEVERAL): (Verb.POWER_DOWN, 60),
    (N.UP, M.NONE): NOTHING,
    (N.UP, M.GONE): (Verb.POWER_DOWN, 5),
    (N.UP, M.PENDING): NOTHING,
    (N.UP, M.RUNNING): NOTHING,
    (N.UP, M.FAILED): NOTHING,
    (N.UP, M.NOTICED): (Verb.EVACUATE, 0),
    (N.UP, M.ANNOUNCED): (Verb.DRAIN, 0),
    (N.UP, M.SEVERAL): (Verb.RETIRE, 5),
    (N.DRAINING, M.NONE): NOTHING,
    (N.DRAINING, M.GONE): (Verb.POWER_DOWN, 5),
    (N.DRAINING, M.PENDING): NOTHING,
    (N.DRAINING, M.RUNNING): NOTHING,
    (N.DRAINING, M.FAILED): NOTHING,
    (N.DRAINING, M.NOTICED): (Verb.EVACUATE, 0),
    (N.DRAINING, M.ANNOUNCED): NOTHING,
    (N.DRAINING, M.SEVERAL): NOTHING,
    (N.DRAINED, M.NONE): (Verb.POWER_DOWN, 5),
    (N.DRAINED, M.GONE): (Verb.POWER_DOWN, 0),
    (N.DRAINED, M.PENDING): (Verb.POWER_DOWN, 5),
    (N.DRAINED, M.RUNNING): (Verb.POWER_DOWN, 5),
    (N.DRAINED, M.FAILED): (Verb.POWER_DOWN, 5),
    (N.DRAINED, M.NOTICED): (Verb.POWER_DOWN, 0),
    (N.DRAINED, M.ANNOUNCED): (Verb.POWER_DOWN, 5),
    (N.DRAINED, M.SEVERAL): (Verb.POWER_DOWN, 5),
    (N.UNFIT, M.NONE): (Verb.POWER_DOWN, 5),
    (N.UNFIT, M.GONE): (Verb.POWER_DOWN, 0),
    (N.UNFIT, M.PENDING): (Verb.POWER_DOWN, 5),
    (N.UNFIT, M.RUNNING): (Verb.POWER_DOWN, 5),
    (N.UNFIT, M.FAILED): (Verb.POWER_DOWN, 5),
    (N.UNFIT, M.NOTICED): (Verb.POWER_DOWN, 0),
    (N.UNFIT, M.ANNOUNCED): (Verb.POWER_DOWN, 0),
    (N.UNFIT, M.SEVERAL): (Verb.POWER_DOWN, 5),
    (N.SILENT, M.NONE): NOTHING,
    (N.SILENT, M.GONE): (Verb.POWER_DOWN, 5),
    (N.SILENT, M.PENDING): NOTHING,
    (N.SILENT, M.RUNNING): NOTHING,
    (N.SILENT, M.FAILED): NOTHING,
    (N.SILENT, M.NOTICED): (Verb.EVACUATE, 0),
    (N.SILENT, M.ANNOUNCED): NOTHING,
    (N.SILENT, M.SEVERAL): NOTHING,
    (N.REBOOTING, M.NONE): (Verb.POWER_DOWN, 0),
    (N.REBOOTING, M.GONE): (Verb.POWER_DOWN, 0),
    (N.REBOOTING, M.PENDING): (Verb.POWER_DOWN, 0),
    (N.REBOOTING, M.RUNNING): (Verb.POWER_DOWN, 0),
    (N.REBOOTING, M.FAILED): (Verb.POWER_DOWN, 0),
    (N.REBOOTING, M.NOTICED): (Verb.POWER_DOWN, 0),
    (N.REBOOTING, M.ANNOUNCED): (Verb.POWER_DOWN, 0),
    (N.REBOOTING, M.SEVERAL): (Verb.POWER_DOWN, 0),
    (N.POWERING_DOWN, M.NONE): NOTHING,
    (N.POWERING_DOWN, M.GONE): NOTHING,
    (N.POWERING_DOWN, M.PENDING): (Verb.TERMINATE, 5),
    (N.POWERING_DOWN, M.RUNNING): (Verb.TERMINATE, 5),
    (N.POWERING_DOWN, M.FAILED): (Verb.TERMINATE, 5),
    (N.POWERING_DOWN, M.NOTICED): (Verb.TERMINATE, 5),
    (N.POWERING_DOWN, M.ANNOUNCED): (Verb.TERMINATE, 5),
    (N.POWERING_DOWN, M.SEVERAL): (Verb.TERMINATE, 5),
    (N.DOWN, M.NONE): (Verb.POWER_DOWN, 5),
    (N.DOWN, M.GONE): (Verb.POWER_DOWN, 0),
    (N.DOWN, M.PENDING): (Verb.POWER_DOWN, 8),
    (N.DOWN, M.RUNNING): (Verb.POWER_DOWN, 8),
    (N.DOWN, M.FAILED): (Verb.POWER_DOWN, 8),
    (N.DOWN, M.NOTICED): (Verb.POWER_DOWN, 0),
    (N.DOWN, M.ANNOUNCED): (Verb.POWER_DOWN, 0),
    (N.DOWN, M.SEVERAL): (Verb.POWER_DOWN, 8),
    (N.FORGOTTEN, M.NONE): NOTHING,
    (N.FORGOTTEN, M.GONE): NOTHING,
    (N.FORGOTTEN, M.PENDING): (Verb.TERMINATE, 90),
    (N.FORGOTTEN, M.RUNNING): (Verb.TERMINATE, 90),
    (N.FORGOTTEN, M.FAILED): (Verb.TERMINATE, 90),
    (N.FORGOTTEN, M.NOTICED): (Verb.TERMINATE, 90),
    (N.FORGOTTEN, M.ANNOUNCED): (Verb.TERMINATE, 90),
    (N.FORGOTTEN, M.SEVERAL): (Verb.TERMINATE, 90),
}
OTHER = NodeView("other-0", N.POWERED_DOWN)
"""Slurm always knows some node."""


def machine(node: str | None, state: MachineState, identity: str = "m-1", launched: float = 0.0) -> Machine:
    return Machine(identity, node, state, launched)


MACHINES: dict[MachinePhase, tuple[Machine, ...]] = {
    M.NONE: (),
    M.GONE: (machine("debug-0", MachineState.TERMINATED),),
    M.PENDING: (machine("debug-0", MachineState.PENDING),),
    M.RUNNING: (machine("debug-0", MachineState.RUNNING),),
    M.FAILED: (replace(machine("debug-0", MachineState.RUNNING), failure="step ready: port 1 is taken"),),
    M.NOTICED: (replace(machine("debug-0", MachineState.RUNNING), notice=3723.0),),
    M.ANNOUNCED: (replace(machine("debug-0", MachineState.RUNNING), notice=3723.0),),
    M.SEVERAL: (
        machine("debug-0", MachineState.RUNNING),
        machine("debug-0", MachineState.RUNNING, "m-2", 9.0),
    ),
}


def observe(node: NodePhase, seen: MachinePhase, **view: Any) -> Observation:
    nodes = (OTHER,) if node is N.FORGOTTEN else (OTHER, NodeView("debug-0", node, **view))
    # The machine is taken at 3723: the last five minutes have begun, or not.
    return Observation(nodes, MACHINES[seen], utc=3422.0 if seen is M.ANNOUNCED else 3423.0)


def before(pair: Cell) -> Memory:
    """A machine counts as gone only if it was seen alive since the node was last powered up."""
    if pair[1] is not M.GONE:
        return Memory()
    alive = N.UP if pair[0] in (N.DRAINED, N.DRAINING, N.UNFIT, N.DOWN, N.SILENT) else pair[0]
    return plan(observe(alive, M.RUNNING), Memory(), 99.0, POLICY)[1]


def test_every_pair_has_a_rule() -> None:
    pairs = set(itertools.product(NodePhase, MachinePhase))
    assert {(node, seen) for node, row in RULES.items() for seen in row} == pairs == set(CELLS)


@pytest.mark.parametrize(("pair", "expected"), CELLS.items(), ids=lambda v: "-".join(map(str, v)))
def test_cell(pair: Cell, expected: tuple[Verb | None, float]) -> None:
    verb, patience = expected
    seen = observe(*pair)
    actions, memory = plan(seen, before(pair), 100.0, POLICY)
    if verb is None:
        assert actions == []
        assert plan(seen, memory, 900.0, POLICY)[0] == []
        return
    if patience:
        assert actions == [], "nothing is done at first sight"
        early, memory = plan(seen, memory, 100.0 + patience - 0.01, POLICY)
        assert early == [], "the pair has not had its time"
        actions, memory = plan(seen, memory, 100.0 + patience, POLICY)
        again, _ = plan(seen, memory, 100.0 + patience + 0.1, POLICY)
        assert again == [], "what was just done is not done again"
    if verb is Verb.TERMINATE:
        assert [(a.verb, a.node, a.machine) for a in actions] == [
            (verb, "debug-0", m.id) for m in seen.machines
        ]
    else:
        assert [(a.verb, a.node, a.machine) for a in actions] == [(verb, "debug-0", None)]
    assert all(a.reason for a in actions)


def test_a_failed_boot_is_given_back_with_its_own_words() -> None:
    actions, _ = plan(observe(N.POWERING_UP, M.FAILED), Memory(), 0.0, POLICY)
    assert [a.reason for a in actions] == ["bootstrap: step ready: port 1 is taken"]


def test_a_machine_that_is_too_small_is_a_failed_boot_in_slurms_words() -> None:
    """Otherwise a static node would stay and cost money forever, and so would its successor."""
    seen = observe(N.UNFIT, M.RUNNING, static=True, reason="Low CPUs")
    _, memory = plan(seen, Memory(), 0.0, POLICY)
    (action,) = plan(seen, memory, 5.0, POLICY)[0]
    assert (action.verb, action.node) == (Verb.POWER_DOWN, "debug-0")
    assert action.reason == "bootstrap: the machine has less than slurm.conf says: Low CPUs"


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("slurm-stacks health: GPU 1: too hot", "health: GPU 1: too hot"),
        ("Prolog error", "health: Prolog error"),
        ("slurm-stacks preempted: the cloud may take this machine soon", EMPTIED),
    ],
)
def test_an_empty_node_keeps_the_cause_that_its_devices_or_prologs_gave(reason: str, said: str) -> None:
    seen = observe(N.DRAINED, M.RUNNING, reason=reason)
    _, memory = plan(seen, Memory(), 0.0, POLICY)
    (action,) = plan(seen, memory, 5.0, POLICY)[0]
    assert (action.verb, action.node, action.reason) == (Verb.POWER_DOWN, "debug-0", said)


def test_a_machine_that_the_stack_file_outgrew_is_no_failed_boot() -> None:
    old = replace(observe(N.UNFIT, M.RUNNING), machines=(replace(MACHINES[M.RUNNING][0], outdated=True),))
    _, memory = plan(old, Memory(), 0.0, POLICY)
    assert [a.verb for a in plan(old, memory, 5.0, POLICY)[0]] == [Verb.RETIRE]


def test_an_evacuation_says_until_when() -> None:
    actions, _ = plan(observe(N.UP, M.NOTICED), Memory(), 0.0, POLICY)
    assert [a.reason for a in actions] == ["preempted: the cloud takes this machine at 01:02:03 UTC"]


def test_a_machine_that_goes_later_takes_no_more_jobs_and_keeps_those_that_it_has() -> None:
    """Host maintenance of a machine with GPUs is announced an hour ahead."""
    actions, memory = plan(observe(N.UP, M.ANNOUNCED), Memory(), 0.0, POLICY)
    assert actions == [
        Action(Verb.DRAIN, "debug-0", None, "preempted: the cloud will take this machine at 01:02:03 UTC")
    ]
    actions, memory = plan(observe(N.DRAINING, M.ANNOUNCED), memory, 5.0, POLICY)
    assert actions == [], "its jobs go on"
    actions, _ = plan(observe(N.DRAINING, M.NOTICED), memory, 10.0, POLICY)
    assert [a.verb for a in actions] == [Verb.EVACUATE]


def test_a_changed_pair_starts_its_time_anew() -> None:
    _, memory = plan(observe(N.POWERED_DOWN, M.RUNNING), Memory(), 0.0, POLICY)
    _, memory = plan(observe(N.POWERING_UP, M.RUNNING), memory, 4.0, POLICY)
    actions, memory = plan(observe(N.POWERED_DOWN, M.RUNNING), memory, 6.0, POLICY)
    assert actions == []
    assert plan(observe(N.POWERED_DOWN, M.RUNNING), memory, 11.0, POLICY)[0] != []


def test_another_machine_starts_the_time_anew() -> None:
    _, memory = plan(observe(N.POWERED_DOWN, M.RUNNING), Memory(), 0.0, POLICY)
    second = Observation((OTHER, NodeView("debug-0", N.POWERED_DOWN)), MACHINES[M.SEVERAL][1:])
    actions, memory = plan(second, memory, 6.0, POLICY)
    assert actions == []
    assert [a.machine for a in plan(second, memory, 11.0, POLICY)[0]] == ["m-2"]


def test_nothing_ages_while_nothing_can_be_read() -> None:
    seen = observe(N.POWERED_DOWN, M.RUNNING)
    _, memory = plan(seen, Memory(), 0.0, PATIENT)
    actions, memory = plan(seen, memory, 600.0, PATIENT)
    assert actions == [], "of ten minutes without a reading, three seconds count"
    assert plan(seen, memory, 602.0, PATIENT)[0] != []


@pytest.mark.parametrize("interval", [0.05, 2.0, 30.0])
def test_one_reading_never_suffices_after_an_outage(interval: float) -> None:
    policy = policy_of(SlurmSettings(reconcile_interval=interval))
    shortest = min(policy.settle, policy.launch, policy.boot, policy.silence, policy.doubt)
    assert interval < policy.credit < shortest
    assert policy.boot < SlurmSettings().resume_timeout


def test_busy_nodes_are_left_alone_and_their_time_starts_when_they_are_free() -> None:
    seen = observe(N.POWERING_UP, M.NONE)
    busy = replace(seen, busy=frozenset({"debug-0"}))
    _, memory = plan(busy, Memory(), 0.0, POLICY)
    actions, memory = plan(busy, memory, 50.0, POLICY)
    assert actions == []
    actions, memory = plan(seen, memory, 55.0, POLICY)
    assert actions == []
    assert plan(seen, memory, 65.0, POLICY)[0] != []


@pytest.mark.parametrize("phase", [N.DOWN, N.UP, N.STUCK])
def test_a_person_who_took_a_node_out_is_not_overruled(phase: NodePhase) -> None:
    for seen in (observe(phase, M.NONE, **DRAINED), observe(N.UP, M.NOTICED, **DRAINED)):
        _, memory = plan(seen, Memory(), 0.0, POLICY)
        assert plan(seen, memory, 900.0, POLICY)[0] == []


def kept_out(*seen: tuple[NodePhase, dict[str, Any]], memory: Memory | None = None) -> list[list[str]]:
    """Return for each pass with which reasons it drains the node once more."""
    found, memory = [], Memory() if memory is None else memory
    for number, (node, view) in enumerate(seen):
        actions, memory = plan(observe(node, M.NONE, **view), memory, float(number), POLICY)
        found.append([a.reason for a in actions if a.verb is Verb.KEEP_OUT])
    return found


def test_a_node_that_slurm_puts_back_into_service_is_kept_out_until_its_administrator_resumes_it() -> None:
    """Slurm undrains each node that it powers down, and takes a DOWN one back when it answers."""
    off: tuple[NodePhase, dict[str, Any]] = (N.POWERING_DOWN, FAN)
    assert kept_out((N.UP, DRAINED), off, off, (N.POWERED_DOWN, DRAINED)) == [
        [],
        ["bad fan"],
        ["bad fan"],
        [],
    ]
    assert kept_out((N.DOWN, {**FAN, "admin_disabled": True}), (N.UP, DRAINED)) == [["bad fan"], []]
    assert kept_out((N.POWERED_DOWN, DRAINED), (N.POWERED_DOWN, FAN)) == [[], ["bad fan"]]
    assert kept_out((N.POWERING_UP, DRAINED), (N.STUCK, TIMEOUT)) == [[], ["bad fan"]]
    # RESUME removes the reason, and a node that is up needs no help.
    assert kept_out((N.UP, DRAINED), (N.UP, {}), (N.POWERING_DOWN, {})) == [[], [], []]
    assert kept_out((N.POWERED_DOWN, DRAINED), (N.POWERED_DOWN, {})) == [[], []]
    assert kept_out((N.UP, {}), (N.STUCK, TIMEOUT), (N.POWERING_DOWN, {"reason": "slurm-stacks x"})) == [
        [],
        [],
        [],
    ]


def test_a_reason_without_a_drain_keeps_a_node_out_only_where_nobody_saw_what_it_was_given_for() -> None:
    """Somebody may also say why he powers a node down."""
    assert kept_out((N.UP, {}), (N.POWERING_DOWN, FAN)) == [[], []]
    assert kept_out((N.POWERED_DOWN, FAN)) == [["bad fan"]], "the daemon was away"
    assert kept_out((N.UP, FAN)) == [[]]


def test_a_held_node_that_is_off_still_loses_its_orphan() -> None:
    seen = observe(N.POWERED_DOWN, M.RUNNING, **DRAINED)
    _, memory = plan(seen, Memory(), 0.0, POLICY)
    assert [a.verb for a in plan(seen, memory, 5.0, POLICY)[0]] == [Verb.TERMINATE]


@pytest.mark.parametrize("gone", [M.NONE, M.GONE])
def test_static_nodes_are_brought_up_unless_they_have_a_capacity_drain(gone: MachinePhase) -> None:
    seen = observe(N.POWERED_DOWN, gone, static=True)
    _, memory = plan(seen, before((N.POWERED_DOWN, gone)), 100.0, POLICY)
    assert plan(seen, memory, 105.0, POLICY)[0] == [Action(Verb.POWER_UP, "debug-0", None, "static node")]
    drained = observe(N.POWERED_DOWN, gone, static=True, capacity_drain=True)
    assert plan(drained, memory, 105.0, POLICY)[0] == []


def test_a_node_on_an_outdated_machine_goes_after_its_jobs_and_no_other_does() -> None:
    why = "its partition's new machines are made differently"

    def done(node: NodePhase, state: MachineState = MachineState.RUNNING, **view: Any) -> list[Action]:
        old = replace(machine("debug-0", state), outdated=True)
        seen = Observation((OTHER, NodeView("debug-0", node, **view)), (old,))
        _, memory = plan(seen, Memory(), 0.0, POLICY)
        return plan(seen, memory, 5.0, POLICY)[0]

    assert done(N.UP) == [Action(Verb.RETIRE, "debug-0", None, why)]
    assert done(N.UP, static=True) == done(N.UP)
    assert done(N.UP, **DRAINED) == []
    assert done(N.UP, MachineState.PENDING) == []
    for node in (N.POWERING_UP, N.DRAINING, N.SILENT):
        assert done(node) == [], "its job, or its boot, comes first"


# --- two sources -----------------------------------------------------------------------------------------


def test_a_list_that_does_not_mention_machines_ends_nothing() -> None:
    """The list is empty, or lacks half of the machines, for a minute and for an hour."""
    nodes = tuple(NodeView(f"debug-{i}", N.UP, boot=50.0) for i in range(6))
    machines = tuple(machine(n.name, MachineState.RUNNING, f"m-{n.name}") for n in nodes)
    _, memory = plan(Observation(nodes, machines), Memory(), 0.0, POLICY)
    for now in range(1, 4000, 60):
        for shown in ((), machines[:3]):
            actions, memory = plan(Observation(nodes, shown), memory, float(now), POLICY)
            assert actions == []


def test_nothing_is_launched_on_the_word_of_an_empty_list() -> None:
    nodes = (NodeView("debug-0", N.UP), NodeView("debug-1", N.POWERING_UP))
    _, memory = plan(Observation(nodes, ()), Memory(), 0.0, POLICY)
    assert plan(Observation(nodes, ()), memory, 500.0, POLICY)[0] == []
    shown = Observation(nodes, MACHINES[M.RUNNING])
    assert [a.verb for a in plan(shown, memory, 500.0, POLICY)[0]] == [Verb.LAUNCH]


def test_a_slurm_without_nodes_ends_nothing() -> None:
    seen = Observation((), MACHINES[M.RUNNING])
    _, memory = plan(seen, Memory(), 0.0, POLICY)
    assert plan(seen, memory, 900.0, POLICY)[0] == []


def test_what_ended_in_an_earlier_life_of_the_node_says_nothing_of_this_one() -> None:
    """The list still shows the end of the last machine, but not yet the new machine, which runs a job."""
    ended = (machine("debug-0", MachineState.TERMINATED, "m-old"),)

    def at(phase: NodePhase, boot: float, *machines: Machine) -> Observation:
        return Observation((NodeView("debug-0", phase, boot=boot),), machines)

    old = machine("debug-0", MachineState.RUNNING, "m-old")
    _, memory = plan(at(N.UP, 50.0, old), Memory(), 0.0, POLICY)
    _, unaware = plan(at(N.UP, 90.0, *ended), memory, 30.0, POLICY)
    assert plan(at(N.UP, 90.0, *ended), unaware, 90.0, POLICY)[0] == [], "the power cycle fell between passes"
    for phase in (N.POWERING_DOWN, N.POWERED_DOWN, N.POWERING_UP):
        _, memory = plan(at(phase, 50.0, *ended), memory, 40.0, POLICY)
    _, memory = plan(at(N.UP, 90.0, *ended), memory, 60.0, POLICY)
    assert plan(at(N.UP, 90.0, *ended), memory, 90.0, POLICY)[0] == []
    # Another registration reports the same boot, with a difference of a second.
    _, memory = plan(at(N.UP, 50.0, old), Memory(), 0.0, POLICY)
    _, memory = plan(at(N.UP, 51.0, *ended), memory, 2.0, POLICY)
    assert [a.verb for a in plan(at(N.UP, 50.0, *ended), memory, 7.0, POLICY)[0]] == [Verb.POWER_DOWN]


def test_a_machine_of_ours_that_ended_before_anybody_looked_is_known_to_be_gone() -> None:
    ended = (machine("debug-0", MachineState.TERMINATED),)
    node = NodeView("debug-0", N.UP, boot=5.0)
    for newest, expected in (({"debug-0": "m-1"}, M.GONE), ({"debug-0": "m-2"}, M.NONE), ({}, M.NONE)):
        _, memory = plan(Observation((OTHER, node), ended, newest=newest), Memory(), 0.0, POLICY)
        assert memory.nodes["debug-0"].pair == (N.UP, expected)


def test_a_machine_that_was_just_launched_may_be_missing_from_the_list() -> None:
    seen = Observation((OTHER, NodeView("debug-0", N.POWERING_UP)), (), launched={"debug-0": "m-1"})
    _, memory = plan(seen, Memory(), 0.0, POLICY)
    assert plan(seen, memory, 59.0, POLICY)[0] == [], "it is pending, and not lost"
    ended = replace(seen, machines=MACHINES[M.GONE])
    _, memory = plan(replace(seen, machines=MACHINES[M.PENDING]), memory, 60.0, POLICY)
    actions, memory = plan(ended, memory, 61.0, POLICY)
    assert [a.verb for a in actions] == [Verb.LAUNCH]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_list_without_a_machine_that_boots_is_doubted(restarted: bool) -> None:
    """A second machine of its name would register beside it. A daemon that has restarted has its ledger."""
    node = (OTHER, NodeView("debug-0", N.POWERING_UP))
    _, memory = plan(Observation(node, MACHINES[M.PENDING]), Memory(), 0.0, POLICY)
    seen = Observation(node, (), newest={"debug-0": "m-1"} if restarted else {})
    _, memory = plan(seen, Memory() if restarted else memory, 1.0, POLICY)
    assert plan(seen, memory, POLICY.doubt, POLICY)[0] == []
    actions, _ = plan(seen, memory, 1 + POLICY.doubt, POLICY)
    assert [(a.verb, a.reason) for a in actions] == [(Verb.LAUNCH, VANISHED.reason)]


def test_a_machine_that_ends_while_it_starts_is_replaced_once() -> None:
    nodes = (NodeView("debug-0", N.POWERING_UP),)

    def at(*machines: Machine) -> Observation:
        return Observation((OTHER, *nodes), machines)

    first, second = (machine("debug-0", MachineState.RUNNING, i) for i in ("m-1", "m-2"))
    dead = tuple(replace(m, state=MachineState.TERMINATED) for m in (first, second))
    _, memory = plan(at(first), Memory(), 0.0, POLICY)
    actions, memory = plan(at(dead[0]), memory, 2.0, POLICY)
    assert [a.verb for a in actions] == [Verb.LAUNCH]
    _, memory = plan(at(dead[0], second), memory, 4.0, POLICY)
    actions, memory = plan(at(*dead), memory, 6.0, POLICY)
    assert [(a.verb, a.reason) for a in actions] == [
        (Verb.POWER_DOWN, "bootstrap: its machines end while they start")
    ]


def test_a_machine_that_was_up_before_slurm_asked_for_another_one_is_replaced() -> None:
    """`--reboot` on a node that is up, before 23.02: Slurm waits for a boot after its request."""

    def at(*machines: Machine, node: NodePhase = N.POWERING_UP) -> Observation:
        return Observation((OTHER, NodeView("debug-0", node, boot=50.0)), machines)

    old, new = (machine("debug-0", MachineState.RUNNING, f"m-{at}", at) for at in (40.0, 60.0))
    _, memory = plan(at(old, node=N.UP), Memory(), 55.0, POLICY)
    # Even a daemon that has just started knows.
    for known in (memory, Memory()):
        for seen in (at(old), at(old, new), at(replace(old, notice=3.0)), at(replace(old, failure="no"))):
            actions, after = plan(seen, known, 57.0, POLICY)
            assert [(a.verb, a.machine) for a in actions] == [(Verb.TERMINATE, old.id)]
    # It was spared, because a job had come to its node: a list without it tells nothing of its end.
    assert plan(at(), after, 59.0, POLICY)[0] == []
    ended = replace(old, state=MachineState.TERMINATED)
    # Google Cloud does not list a machine that has ended.
    after = after.with_ended(actions)
    for seen in (at(), at(ended)):
        actions, memory = plan(seen, after, 59.0, POLICY)
        assert [a.verb for a in actions] == [Verb.LAUNCH]
    for now in range(61, 100, 3):
        actions, memory = plan(at(ended, new), memory, float(now), POLICY)
        assert actions == [], "it boots"


def test_a_clock_that_was_set_back_costs_one_machine_and_no_more() -> None:
    nodes = (OTHER, NodeView("debug-0", N.POWERING_UP, boot=3650.0))
    memory = Memory()
    verbs: list[Verb] = []
    machines: list[Machine] = [machine("debug-0", MachineState.RUNNING, "m-0", 60.0)]
    for now in range(60, 110, 2):
        actions, memory = plan(Observation(nodes, tuple(machines)), memory, float(now), POLICY)
        for action in actions:
            verbs.append(action.verb)
            if action.verb is Verb.TERMINATE:
                machines = [replace(machines[0], state=MachineState.TERMINATED)]
            else:
                machines.append(machine("debug-0", MachineState.RUNNING, "m-1", float(now)))
    assert verbs == [Verb.TERMINATE, Verb.LAUNCH]


def test_a_node_that_shall_be_down_after_its_reboot_is_kept_out_on_its_next_machine() -> None:
    reason = "bad fan : reboot issued"
    seen: dict[str, Any] = {"reason": reason, "admin_reason": True, "admin_disabled": True}
    for drained in (False, True):
        rebooting = observe(N.REBOOTING, M.RUNNING, drained=drained, **seen)
        actions, memory = plan(rebooting, Memory(), 0.0, POLICY)
        assert [(a.verb, a.reason) for a in actions] == [(Verb.POWER_DOWN, REBOOT)]
        # Slurm cancels the reboot, with its reason, and undrains the node.
        assert kept_out((N.POWERING_DOWN, {}), (N.POWERING_DOWN, DRAINED), memory=memory) == [["bad fan"], []]
    _, memory = plan(observe(N.REBOOTING, M.RUNNING), Memory(), 0.0, POLICY)
    assert kept_out((N.POWERING_DOWN, {}), memory=memory) == [[]]


def test_of_two_machines_under_one_node_none_is_taken_while_it_is_up() -> None:
    """Either machine may run the job. The node is powered down after the job, and then both machines end."""
    _, memory = plan(observe(N.UP, M.SEVERAL), Memory(), 0.0, POLICY)
    actions, memory = plan(observe(N.UP, M.SEVERAL), memory, 5.0, POLICY)
    assert [a.verb for a in actions] == [Verb.RETIRE]
    assert plan(observe(N.DRAINING, M.SEVERAL), memory, 900.0, POLICY)[0] == []
    _, memory = plan(observe(N.POWERED_DOWN, M.SEVERAL), memory, 901.0, POLICY)
    actions, _ = plan(observe(N.POWERED_DOWN, M.SEVERAL), memory, 906.0, POLICY)
    assert [a.machine for a in actions] == ["m-1", "m-2"]


def test_a_machine_without_a_name_is_an_orphan_by_its_id() -> None:
    seen = Observation((OTHER,), (machine(None, MachineState.RUNNING, "i-9"),))
    _, memory = plan(seen, Memory(), 0.0, POLICY)
    assert [(a.verb, a.machine) for a in plan(seen, memory, 90.0, POLICY)[0]] == [(Verb.TERMINATE, "i-9")]


# --- any history -----------------------------------------------------------------------------------------

_NAMES = [f"debug-{i}" for i in range(3)]
_VIEWS = st.builds(
    NodeView,
    st.sampled_from(_NAMES),
    st.sampled_from(list(NodePhase)),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    boot=st.sampled_from([None, 10.0, 11.0, 90.0]),
)
_MACHINES = st.builds(
    Machine,
    st.sampled_from([f"m-{i}" for i in range(5)]),
    st.sampled_from([*_NAMES, "ghost-7", None]),
    st.sampled_from(list(MachineState)),
    st.floats(0, 100),
    st.sampled_from([None, "step hooks: no driver"]),
    st.none(),
    st.sampled_from([None, None, 500.0]),
)
_OBSERVATIONS = st.builds(
    Observation,
    st.lists(_VIEWS, unique_by=lambda v: v.name, max_size=3).map(tuple),
    st.lists(_MACHINES, unique_by=lambda m: m.id, max_size=5).map(tuple),
    st.frozensets(st.sampled_from(_NAMES), max_size=2),
    st.dictionaries(st.sampled_from(_NAMES), st.sampled_from(["m-1", "m-9"]), max_size=1),
)
IN_USE = (N.UP, N.DRAINING, N.SILENT)


@given(st.lists(st.tuples(_OBSERVATIONS, st.floats(0, 30)), min_size=1, max_size=12))
def test_over_any_history(history: list[tuple[Observation, float]]) -> None:
    """No machine of a node in use, of a busy node or without life is ended, and no memory grows."""
    memory, now = Memory(), 0.0
    for seen, pause in history:
        now += pause
        actions, memory = plan(seen, memory, now, POLICY)
        assert not seen.nodes or len(memory.nodes) <= len(seen.nodes) + len(seen.machines)
        living = {m.id: m for m in seen.machines if m.state.alive}
        views = {view.name: view for view in seen.nodes}
        ended = [a.machine for a in actions if a.verb is Verb.TERMINATE]
        assert len(ended) == len(set(ended))
        for action in actions:
            assert action.node not in seen.busy
            mine = [m for m in seen.machines if m.node == action.node]
            view = views.get(action.node or "")
            if action.verb is Verb.TERMINATE:
                assert action.machine in living
                assert view is None or view.phase not in IN_USE
                if view is not None and view.phase is N.POWERING_UP:
                    booted = view.boot or 0.0
                    assert living[action.machine or ""].launched <= booted + BOOT_JITTER_SECONDS
                continue
            assert view is not None
            assert not view.admin_disabled or view.phase is N.REBOOTING, "who asked for it"
            if action.verb is Verb.LAUNCH:
                assert not any(m.state.alive for m in mine)
            if action.verb is Verb.POWER_DOWN and view.phase in IN_USE:
                assert [m for m in mine if not m.state.alive], (
                    "a job's node is given up on the cloud's own word"
                )
                assert not [m for m in mine if m.state.alive]


_MOSTLY_OFF = st.builds(
    NodeView,
    st.sampled_from(_NAMES),
    st.sampled_from([*[N.POWERED_DOWN] * len(NodePhase), *NodePhase]),
    admin_disabled=st.booleans(),
    drained=st.booleans(),
    static=st.booleans(),
    boot=st.sampled_from([None, 10.0]),
    reason=st.sampled_from([None, None, "bad fan", TIMEOUT["reason"]]),
)
_FEW_MACHINES = st.builds(
    Observation,
    st.lists(_MOSTLY_OFF, unique_by=lambda v: v.name, min_size=1, max_size=3).map(tuple),
    st.lists(_MACHINES, unique_by=lambda m: m.id, max_size=1).map(tuple),
    st.sampled_from([frozenset(), frozenset(), frozenset(_NAMES[:1])]),
    st.sampled_from([{}, {}, {_NAMES[0]: "m-9"}]),
    st.sampled_from([{}, {}, {_NAMES[1]: "m-1"}]),
)


@given(st.lists(st.tuples(_FEW_MACHINES, st.floats(0, 30)), min_size=2, max_size=12))
def test_nodes_that_rest_are_remembered_as_if_each_was_looked_at(
    history: list[tuple[Observation, float]],
) -> None:
    """What is shared by thousands of nodes is what each of them would have."""
    memory, now = Memory(), 0.0
    for seen, pause in history:
        now += pause
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(planning, "_rests", lambda _view, _before: False)
            looked_at = plan(seen, memory, now, POLICY)
        assert plan(seen, memory, now, POLICY) == looked_at
        _, memory = looked_at


def test_thousands_of_nodes_that_rest_share_what_is_remembered() -> None:
    seen = Observation(tuple(NodeView(f"debug-{i}", N.POWERED_DOWN) for i in range(1000)), ())
    _, memory = plan(seen, Memory(), 0.0, POLICY)
    _, memory = plan(seen, memory, 5.0, POLICY)
    assert len(memory.nodes) == 1000
    assert len({id(known) for known in memory.nodes.values()}) == 1
    assert memory.nodes["debug-7"].age == 5.0


_FLOATS = st.floats() | st.sampled_from([1e300, float(99999999999999999999), -1e18, 253402300800.0])


@given(
    st.lists(
        st.tuples(
            st.sampled_from(N), st.sampled_from(MachineState), _FLOATS, st.none() | _FLOATS,
            st.none() | _FLOATS, st.none() | st.text(max_size=9),
        ),
        max_size=4,
    ),
    _FLOATS,
)  # fmt: skip
def test_no_number_stops_a_pass(seen: list[Any], utc: float) -> None:
    """A time that is none says nothing, and the other nodes get what they need."""
    failed = NodeView("debug-99", N.POWERING_UP)
    views = [NodeView(f"debug-{i}", node, boot=boot) for i, (node, _, _, boot, _, _) in enumerate(seen)]
    machines = [
        Machine(f"m-{i}", f"debug-{i}", state, launched, failure, None, notice)
        for i, (_, state, launched, _, notice, failure) in enumerate(seen)
    ]
    machines.append(Machine("m-99", "debug-99", MachineState.RUNNING, 0.0, "no route"))
    observation = Observation((*views, failed), tuple(machines), utc=utc)
    actions, memory = plan(observation, Memory(), 0.0, POLICY)
    assert [a.reason for a in actions if a.node == "debug-99"] == ["bootstrap: no route"]
    for action in plan(observation, memory, 1000.0, POLICY)[0]:
        assert action.reason


@pytest.mark.parametrize("notice", [float("nan"), float("inf"), -float("inf")])
def test_a_notice_that_is_no_time_is_none(notice: float) -> None:
    seen = replace(machine("debug-0", MachineState.RUNNING), notice=notice)
    for node in (N.UP, N.POWERING_UP):
        observation = Observation((OTHER, NodeView("debug-0", node)), (seen,), utc=3600.0)
        assert plan(observation, Memory(), 0.0, POLICY)[0] == []


@given(_FLOATS)
def test_any_number_has_a_text(moment: float) -> None:
    assert clock(moment).endswith((" UTC", "an unknown time"))


# --- what Slurm says of a reboot ---------------------------------------------------------------------------

ISSUED, REQUESTED = "REBOOT_ISSUED", "REBOOT_REQUESTED"


@pytest.mark.parametrize(
    ("base", "flags", "next_state", "reason", "expected"),
    [
        # `scontrol reboot ASAP N`, on a busy and on a free node. The drain ends with the reboot.
        ("MIXED", ("DRAIN", REQUESTED), "RESUME", "Reboot ASAP", (N.UP, False)),
        ("DOWN", ("DRAIN", ISSUED), "RESUME", "Reboot ASAP : reboot issued", (N.REBOOTING, False)),
        # Without ASAP.
        ("MIXED", (REQUESTED,), None, "reboot requested", (N.UP, False)),
        ("DOWN", (ISSUED,), None, "reboot requested : reboot issued", (N.REBOOTING, False)),
        # Of a node that somebody had drained before.
        ("IDLE", ("DRAIN", REQUESTED), None, "bad fan", (N.UP, True)),
        ("DOWN", ("DRAIN", ISSUED), None, "bad fan : reboot issued", (N.REBOOTING, True)),
        # With nextstate=DOWN: the node takes jobs until its reboot, and none afterwards.
        ("MIXED", (REQUESTED,), "DOWN", "bad fan", (N.UP, False)),
        ("DOWN", (ISSUED,), "DOWN", "bad fan : reboot issued", (N.REBOOTING, True)),
        # Ours are nobody's wish.
        ("DOWN", ("DRAIN", ISSUED), None, "slurm-stacks health: x : reboot issued", (N.REBOOTING, False)),
        # Slurm gave a reboot up, or the node is powered down already.
        ("DOWN", (), None, "Reboot ASAP : reboot timed out", (N.DOWN, False)),
        ("IDLE", ("POWERING_DOWN", ISSUED), None, None, (N.POWERING_DOWN, False)),
    ],
)
def test_what_slurm_says_of_a_reboot(
    base: str,
    flags: tuple[str, ...],
    next_state: str | None,
    reason: str | None,
    expected: tuple[NodePhase, bool],
) -> None:
    state = NodeState("debug-0", base, frozenset({"CLOUD", *flags}), reason, next_state=next_state)
    assert (slurm_view.phase(state), slurm_view.is_admin_disabled(state)) == expected


def test_the_state_after_a_reboot_is_read_from_slurms_answer() -> None:
    line = (
        "NodeName=debug-3 State=DOWN+CLOUD+DRAIN+REBOOT_ISSUED Weight=10 NextState=RESUME Reason=x [root@1]"
    )
    assert parse_nodes(line)["debug-3"].next_state == "RESUME"
    assert parse_nodes("NodeName=debug-3 State=IDLE Weight=10")["debug-3"].next_state is None
