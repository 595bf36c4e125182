"""The reconciler's table, cell by cell, and what must hold over any history."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.node.elastic.driver import Machine, MachineState
from infra.node.elastic.plan import (
    RULES,
    Action,
    MachinePhase,
    Memory,
    NodePhase,
    NodeView,
    Observation,
    Policy,
    Verb,
    plan,
)

POLICY = Policy(settle=5, launch=10, boot=60, silence=8)
N, M = NodePhase, MachinePhase

# (node, machine) -> (verb, seconds that the pair must last). Written apart from RULES, from what must happen.
CELLS: dict[tuple[NodePhase, MachinePhase], tuple[Verb | None, float]] = {
    (N.POWERED_DOWN, M.NONE): (None, 0),
    (N.POWERED_DOWN, M.PENDING): (Verb.TERMINATE, 5),
    (N.POWERED_DOWN, M.RUNNING): (Verb.TERMINATE, 5),
    (N.POWERED_DOWN, M.FAILED): (Verb.TERMINATE, 5),
    (N.POWERING_UP, M.NONE): (Verb.LAUNCH, 10),
    (N.POWERING_UP, M.PENDING): (Verb.POWER_DOWN, 60),
    (N.POWERING_UP, M.RUNNING): (Verb.POWER_DOWN, 60),
    (N.POWERING_UP, M.FAILED): (Verb.POWER_DOWN, 0),
    (N.UP, M.NONE): (Verb.POWER_DOWN, 5),
    (N.UP, M.PENDING): (None, 0),
    (N.UP, M.RUNNING): (None, 0),
    (N.UP, M.FAILED): (None, 0),
    (N.POWERING_DOWN, M.NONE): (None, 0),
    (N.POWERING_DOWN, M.PENDING): (Verb.TERMINATE, 5),
    (N.POWERING_DOWN, M.RUNNING): (Verb.TERMINATE, 5),
    (N.POWERING_DOWN, M.FAILED): (Verb.TERMINATE, 5),
    (N.DOWN, M.NONE): (Verb.POWER_DOWN, 5),
    (N.DOWN, M.PENDING): (Verb.POWER_DOWN, 8),
    (N.DOWN, M.RUNNING): (Verb.POWER_DOWN, 8),
    (N.DOWN, M.FAILED): (Verb.POWER_DOWN, 8),
    (N.FORGOTTEN, M.NONE): (None, 0),
    (N.FORGOTTEN, M.PENDING): (Verb.TERMINATE, 5),
    (N.FORGOTTEN, M.RUNNING): (Verb.TERMINATE, 5),
    (N.FORGOTTEN, M.FAILED): (Verb.TERMINATE, 5),
}


def machine(node: str | None, state: MachineState, identity: str = "m-1", launched: float = 0.0) -> Machine:
    return Machine(identity, node, state, launched)


def observe(node: NodePhase, seen: MachinePhase, **view: bool) -> Observation:
    nodes = () if node is N.FORGOTTEN else (NodeView("debug-0", node, **view),)
    state = {M.PENDING: MachineState.PENDING, M.NONE: None}.get(seen, MachineState.RUNNING)
    if state is None:
        return Observation(nodes, ())
    failure = "step ready: port 1 is taken" if seen is M.FAILED else None
    return Observation(nodes, (replace(machine("debug-0", state), failure=failure),))


def test_every_pair_has_a_rule() -> None:
    assert set(RULES) == set(itertools.product(NodePhase, MachinePhase)) == set(CELLS)


@pytest.mark.parametrize(("pair", "expected"), CELLS.items(), ids=lambda v: "-".join(map(str, v)))
def test_cell(pair: tuple[NodePhase, MachinePhase], expected: tuple[Verb | None, float]) -> None:
    verb, patience = expected
    seen = observe(*pair)
    actions, memory = plan(seen, Memory(), 100.0, POLICY)
    if verb is not None and patience == 0:
        assert [(a.verb, a.node) for a in actions] == [(verb, "debug-0")]
        return
    assert actions == [], "nothing is done at first sight"
    if verb is None:
        assert plan(seen, memory, 100_000.0, POLICY)[0] == []
        return
    early, memory = plan(seen, memory, 100.0 + patience - 0.01, POLICY)
    assert early == [], "the pair has not had its time"
    due, memory = plan(seen, memory, 100.0 + patience, POLICY)
    wanted = "m-1" if verb is Verb.TERMINATE else None
    assert [(a.verb, a.node, a.machine) for a in due] == [(verb, "debug-0", wanted)]
    assert due[0].reason
    again, _ = plan(seen, memory, 100.0 + patience + 0.1, POLICY)
    assert again == [], "what was just done is not done again"


def test_a_failed_boot_is_given_back_with_its_own_words() -> None:
    actions, _ = plan(observe(N.POWERING_UP, M.FAILED), Memory(), 0.0, POLICY)
    assert [a.reason for a in actions] == ["bootstrap: step ready: port 1 is taken"]


def test_a_changed_pair_starts_its_time_anew() -> None:
    _, memory = plan(observe(N.POWERED_DOWN, M.RUNNING), Memory(), 0.0, POLICY)
    _, memory = plan(observe(N.POWERING_UP, M.RUNNING), memory, 4.0, POLICY)
    actions, memory = plan(observe(N.POWERED_DOWN, M.RUNNING), memory, 6.0, POLICY)
    assert actions == []
    assert plan(observe(N.POWERED_DOWN, M.RUNNING), memory, 11.0, POLICY)[0] != []


def test_busy_nodes_are_left_alone_and_their_time_starts_when_they_are_free() -> None:
    seen = observe(N.POWERING_UP, M.NONE)
    busy = Observation(seen.nodes, seen.machines, frozenset({"debug-0"}))
    _, memory = plan(busy, Memory(), 0.0, POLICY)
    actions, memory = plan(busy, memory, 50.0, POLICY)
    assert actions == []
    actions, memory = plan(seen, memory, 55.0, POLICY)
    assert actions == []
    assert plan(seen, memory, 60.0, POLICY)[0] != []


@pytest.mark.parametrize("phase", [N.DOWN, N.UP])
def test_a_person_who_took_a_node_out_is_not_overruled(phase: NodePhase) -> None:
    seen = observe(phase, M.NONE, held=True)
    _, memory = plan(seen, Memory(), 0.0, POLICY)
    assert plan(seen, memory, 10_000.0, POLICY)[0] == []


def test_a_held_node_that_is_off_still_loses_its_orphan() -> None:
    seen = observe(N.POWERED_DOWN, M.RUNNING, held=True)
    _, memory = plan(seen, Memory(), 0.0, POLICY)
    assert [a.verb for a in plan(seen, memory, 5.0, POLICY)[0]] == [Verb.TERMINATE]


def test_static_nodes_are_brought_up() -> None:
    seen = observe(N.POWERED_DOWN, M.NONE, static=True)
    _, memory = plan(seen, Memory(), 0.0, POLICY)
    assert plan(seen, memory, 5.0, POLICY)[0] == [Action(Verb.POWER_UP, "debug-0", None, "static node")]


def test_of_two_machines_the_older_running_one_stays() -> None:
    machines = (
        machine("debug-0", MachineState.RUNNING, "young", 20.0),
        machine("debug-0", MachineState.PENDING, "first", 5.0),
        machine("debug-0", MachineState.RUNNING, "old", 10.0),
    )
    seen = Observation((NodeView("debug-0", N.UP),), machines)
    actions, _ = plan(seen, Memory(), 0.0, POLICY)
    assert sorted(a.machine or "" for a in actions) == ["first", "young"]
    assert {a.verb for a in actions} == {Verb.TERMINATE}


def test_a_machine_without_a_name_is_an_orphan_by_its_id() -> None:
    seen = Observation((), (machine(None, MachineState.RUNNING, "i-9"),))
    _, memory = plan(seen, Memory(), 0.0, POLICY)
    assert [(a.verb, a.machine) for a in plan(seen, memory, 5.0, POLICY)[0]] == [(Verb.TERMINATE, "i-9")]


def test_terminated_machines_do_not_count() -> None:
    seen = Observation((NodeView("debug-0", N.UP),), (machine("debug-0", MachineState.TERMINATED),))
    _, memory = plan(seen, Memory(), 0.0, POLICY)
    assert [a.verb for a in plan(seen, memory, 5.0, POLICY)[0]] == [Verb.POWER_DOWN]


_NAMES = [f"debug-{i}" for i in range(3)]
_VIEWS = st.builds(
    NodeView, st.sampled_from(_NAMES), st.sampled_from(list(NodePhase)), st.booleans(), st.booleans()
)
_MACHINES = st.builds(
    Machine,
    st.sampled_from([f"m-{i}" for i in range(5)]),
    st.sampled_from([*_NAMES, "ghost-7", None]),
    st.sampled_from(list(MachineState)),
    st.floats(0, 100),
    st.sampled_from([None, "step hooks: no driver"]),
)
_OBSERVATIONS = st.builds(
    Observation,
    st.lists(_VIEWS, unique_by=lambda v: v.name, max_size=3).map(tuple),
    st.lists(_MACHINES, unique_by=lambda m: m.id, max_size=5).map(tuple),
    st.frozensets(st.sampled_from(_NAMES), max_size=2),
)


@given(st.lists(st.tuples(_OBSERVATIONS, st.floats(0, 30)), min_size=1, max_size=12))
def test_over_any_history(history: list[tuple[Observation, float]]) -> None:
    """Never the only machine of a node in use, never a busy node, never a dead machine; no state grows."""
    memory, now = Memory(), 0.0
    for seen, pause in history:
        now += pause
        actions, memory = plan(seen, memory, now, POLICY)
        assert len(memory.since) <= len(seen.nodes) + len(seen.machines)
        living = {m.id: m for m in seen.machines if m.state.alive}
        phases = {view.name: view for view in seen.nodes}
        ended = [a.machine for a in actions if a.verb is Verb.TERMINATE]
        assert len(ended) == len(set(ended))
        for action in actions:
            assert action.node not in seen.busy
            if action.verb is Verb.TERMINATE:
                assert action.machine in living
                view = phases.get(action.node or "")
                if view is not None and view.phase in (N.UP, N.POWERING_UP):
                    left = [m for m in living.values() if m.node == action.node and m.id not in ended]
                    assert left, "the last machine of a node in use was taken"
            elif action.verb is Verb.LAUNCH:
                assert not any(m.node == action.node for m in living.values())
            if action.verb in (Verb.POWER_DOWN, Verb.POWER_UP, Verb.LAUNCH):
                assert phases[action.node or ""].held is False
