"""Which nodes get a capacity drain and which are undrained, also over random histories of a small cluster."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.elastic.capacity_drains import (
    DrainChange,
    drain_change,
    failure_of,
    is_capacity_drain,
    kind_of,
    may_power_up,
    missing_nodes,
)
from node.elastic.driver import AvailableCapacity
from node.elastic.failures import ErrorClass, Failure
from node.elastic.pools import Limit, Pool, Pools
from node.slurm.states import NodeState
from tests.support.doubles import design, node

QUOTA = Failure((), ErrorClass.QUOTA, "QuotaExceeded", "quota of 4 (of 8) exceeded")
REASON = f"slurm-stacks {QUOTA.sentence()}"
SPENT = f"slurm-stacks {Failure((), ErrorClass.BUDGET, '', '5.01 of 5.00 USD are spent').sentence()}"
NODES = [f"debug-{i}" for i in range(8)]


def drained(name: str, *flags: str) -> NodeState:
    return node(name, "IDLE", "DRAIN", *(flags or ("POWERED_DOWN",)), reason=REASON)


def off(name: str) -> NodeState:
    return node(name, "IDLE", "POWERED_DOWN")


def states(*given_states: NodeState) -> dict[str, NodeState]:
    return {state.name: state for state in given_states}


def test_a_reason_tells_the_failure_again() -> None:
    assert failure_of(REASON) == QUOTA
    boot = Failure((), ErrorClass.BOOTSTRAP, "boot", "step hooks: no device", "debug-3")
    assert boot.sentence().endswith("by `logs debug-3`")
    unknown = dataclasses.replace(boot, seen=None)
    for failed in (boot, unknown):
        assert failure_of(f"slurm-stacks {failed.sentence()}") == failed
    assert failure_of("slurm-stacks preempted: the machine is gone") is None
    assert failure_of("slurm-stacks the machine is gone") is None
    assert failure_of("quota: by a person") is None
    assert failure_of("slurm-stacks capacity: none") == Failure((), ErrorClass.CAPACITY, "", "none")
    assert [kind_of(t) for t in (REASON, QUOTA.sentence(), "quota", "disk: full", None)] == [
        ErrorClass.QUOTA, ErrorClass.QUOTA, None, None, None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "limit", "expected"),
    [
        # Nothing limits: capacity drains end in every state, an administrator's drain stays.
        (drained("n"), None, "undrain"),
        (drained("n", "POWERING_DOWN"), None, "undrain"),
        (node("n", "ALLOCATED", "DRAIN", "POWERING_UP", reason=REASON), None, "undrain"),
        (node("n", "IDLE", "DRAIN", "POWERED_DOWN", reason="bad fan"), None, ""),
        (node("n", "IDLE", "DRAIN", "POWERED_DOWN", reason="slurm-stacks preempted: x"), None, ""),
        (off("n"), None, ""),
        # The reason of an earlier drain stays on a node, and a drain may have no reason.
        (node("n", "IDLE", "POWERED_DOWN", reason=REASON), None, ""),
        (node("n", "IDLE", "DRAIN", "POWERED_DOWN"), None, ""),
        # A node that is up and drained for the budget is powered down after its job: it has no capacity
        # drain.
        (node("n", "ALLOCATED", "DRAIN", reason=SPENT), None, ""),
        (node("n", "IDLE", "DRAIN", reason=SPENT), None, ""),
        (node("n", "MIXED", "DRAIN", "NOT_RESPONDING", reason=SPENT), None, ""),
        (node("n", "ALLOCATED", "DRAIN", "POWERING_UP", reason=SPENT), None, "undrain"),
        (node("n", "IDLE", "DRAIN", "POWERED_DOWN", reason=SPENT), None, "undrain"),
        (node("n", "IDLE", "DRAIN", "POWERING_DOWN", reason=SPENT), None, "undrain"),
        (node("n", "ALLOCATED", "DRAIN", reason=REASON), None, "undrain"),
        # No capacity: nodes that are off or powering down are drained, nodes that are up or powering up are
        # not.
        (off("n"), 0, "drain"),
        (node("n", "IDLE", "POWERING_DOWN"), 0, "drain"),
        (node("n", "IDLE", "POWER_DOWN"), 0, ""),
        (node("n", "DOWN", "POWERED_DOWN"), 0, ""),
        (node("n", "IDLE"), 0, ""),
        (node("n", "ALLOCATED", "POWERING_UP"), 0, ""),
        (node("n", "ALLOCATED", "POWERED_DOWN"), 0, ""),
        (node("n", "IDLE", "DRAIN", "POWERED_DOWN", reason="bad fan"), 0, ""),
        (drained("n"), 0, ""),
        (drained("n", "POWERING_DOWN"), 0, ""),
        # The drain came too late: a job has the node, and its launch will show the result.
        (node("n", "ALLOCATED", "DRAIN", "POWERING_UP", reason=REASON), 0, "undrain"),
        (node("n", "MIXED", "DRAIN", reason=REASON), 0, "undrain"),
        # Slurm powers the node down when its job ends. Such a node is not ours to undrain.
        (node("n", "MIXED", "DRAIN", "POWER_DOWN", reason=REASON), 0, ""),
        (node("n", "MIXED", "DRAIN", "POWER_DOWN", reason=REASON), None, ""),
        # Capacity for one node.
        (drained("n"), 1, "undrain"),
        (drained("n", "POWERING_DOWN"), 1, ""),
        (off("n"), 1, ""),
    ],
)
def test_one_node(state: NodeState, limit: int | None, expected: str) -> None:
    found = drain_change({"n": state}, ["n"], (), None if limit is None else Limit(limit, QUOTA))
    assert found == DrainChange(**{expected: ("n",)} if expected else {})


def test_nodes_that_have_no_machine_yet_use_up_the_room() -> None:
    nodes = states(
        node("a", "MIXED", "POWERING_UP"),
        node("b", "MIXED", "POWERED_DOWN"),
        off("c"),
        drained("d"),
        off("e"),
    )
    assert drain_change(nodes, list(nodes), (), Limit(3, QUOTA)) == DrainChange(drain=("e",))
    assert drain_change(nodes, list(nodes), ("a",), Limit(3, QUOTA)) == DrainChange()
    assert drain_change(nodes, list(nodes), ("a", "b"), Limit(3, QUOTA)) == DrainChange(undrain=("d",))
    assert drain_change(nodes, list(nodes), ("a", "b"), Limit(2, QUOTA, booting=True)) == DrainChange(
        drain=("c", "e")
    )


def test_what_is_up_uses_up_no_room() -> None:
    """The capacity is what may still be launched."""
    nodes = states(node("a", "MIXED"), off("b"))
    assert drain_change(nodes, list(nodes), (), Limit(1, QUOTA)) == DrainChange()
    assert drain_change(nodes, list(nodes), (), Limit(1, QUOTA, booting=True)) == DrainChange()
    assert missing_nodes(nodes, list(nodes), ()) == 1, "a listing may be older than the machine"


@pytest.mark.parametrize(
    ("static", "machines", "booting", "drained_too"),
    [
        (node("static"), (), False, False),
        (node("static"), (), True, False),
        (off("static"), (), False, True),
        (node("static", "IDLE", "POWERING_UP"), ("static",), False, False),
        (node("static", "IDLE", "POWERING_UP"), ("static",), True, True),
    ],
)
def test_a_static_node_that_is_not_there_comes_first(
    static: NodeState, machines: tuple[str, ...], booting: bool, drained_too: bool
) -> None:
    nodes = states(static, off("dynamic"))
    found = drain_change(
        nodes, ["dynamic"], machines, Limit(1, QUOTA, booting=booting), ["static", "renamed"]
    )
    assert found == (DrainChange(drain=("dynamic",)) if drained_too else DrainChange())


def test_static_nodes_and_unknown_ones_are_left_out() -> None:
    nodes = states(off("static"), off("dynamic"))
    assert drain_change(nodes, ["dynamic", "renamed"], (), Limit(0, QUOTA)) == DrainChange(drain=("dynamic",))
    assert missing_nodes(nodes, ["static", "dynamic", "renamed"], {"static"}) == 1


class World:
    """Eight nodes, a quota, and an administrator who drains a node. Slurm reacts as a real one."""

    def __init__(self) -> None:
        self.nodes = {name: off(name) for name in NODES}
        self.machines: set[str] = set()
        self.quota = 8
        self.pools = Pools(design())
        self.now = 0.0
        self.person: set[str] = set()

    def _set(self, name: str, base: str, *flags: str, reason: str | None = None) -> None:
        self.nodes[name] = node(name, base, *flags, reason=reason)

    def job(self, wanted: int) -> None:
        """Slurm gives available nodes to a job, and the launch succeeds or fails."""
        free = [name for name, state in self.nodes.items() if may_power_up(state)]
        if len(free) < wanted:
            return
        names = free[:wanted]
        if self.pools.refusal(Pool("debug"), wanted, whole=True) or len(self.machines) + wanted > self.quota:
            failure = dataclasses.replace(QUOTA, nodes=tuple(names))
            self.pools.failed(Pool("debug"), failure, self.now, wanted=wanted)
            for name in names:
                self._set(name, "IDLE", "POWERING_DOWN", reason=REASON)
        else:
            self.machines |= set(names)
            self.pools.launched(Pool("debug"), wanted, whole=True)
            for name in names:
                self._set(name, "ALLOCATED")

    def idle(self, count: int) -> None:
        for name in sorted(self.machines)[:count]:
            self.machines.remove(name)
            self._set(name, "IDLE", "POWERING_DOWN")

    def settle(self) -> None:
        for name, state in self.nodes.items():
            if "POWERING_DOWN" in state.flags:
                flags = (state.flags - {"POWERING_DOWN"}) | {"POWERED_DOWN"}
                self.nodes[name] = dataclasses.replace(state, flags=flags)

    def drains(self, index: int) -> None:
        name = NODES[index]
        if self.nodes[name].is_powered_down:
            self.person.add(name)
            self._set(name, "IDLE", "POWERED_DOWN", "DRAIN", reason="bad fan")

    def restart(self) -> None:
        self.pools = Pools(design())
        for state in self.nodes.values():
            if is_capacity_drain(state) and (failure := failure_of(state.reason or "")):
                self.pools.adopt("debug", failure, self.now)

    def look(self) -> None:
        self.now += 2.0
        self.pools.tick(self.now)
        if Pool("debug") in self.pools.failures():
            wanted = missing_nodes(self.nodes, NODES, self.machines)
            there = max(0, min(wanted, self.quota - len(self.machines)))
            room = AvailableCapacity(wanted) if there == wanted else AvailableCapacity(there, QUOTA)
            self.pools.answered(Pool("debug"), room)
        limit = self.pools.limit("debug")
        todo = drain_change(self.nodes, NODES, self.machines, limit)
        assert not set(todo.drain) & set(todo.undrain)
        for name in todo.drain:
            self.nodes[name] = dataclasses.replace(
                self.nodes[name], flags=self.nodes[name].flags | {"DRAIN"}, reason=REASON
            )
        for name in todo.undrain:
            self.nodes[name] = dataclasses.replace(
                self.nodes[name], flags=self.nodes[name].flags - {"DRAIN"}, reason=None
            )
        if limit is not None:
            opened = sum(may_power_up(state) for state in self.nodes.values())
            assert opened <= max(0, self.quota - len(self.machines)), "more are open than can be had"
        assert all(self.nodes[name].reason == "bad fan" for name in self.person), "a person's drain"


STEPS = st.one_of(
    st.tuples(st.just("job"), st.integers(1, 8)),
    st.tuples(st.just("idle"), st.integers(1, 8)),
    st.tuples(st.just("drains"), st.integers(0, 7)),
    st.tuples(st.just("quota"), st.integers(0, 8)),
    st.tuples(st.sampled_from(["settle", "restart", "look"])),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_over_any_history_drains_end_with_the_obstacle_and_never_exceed_the_room(
    steps: list[tuple[str, int] | tuple[str]],
) -> None:
    world = World()
    for name, *arguments in steps:
        if name == "quota":
            world.quota = arguments[0]
        else:
            getattr(world, name)(*arguments)
    world.settle()
    world.quota = 100
    for _ in range(400):
        world.look()
    assert not any(is_capacity_drain(state) for state in world.nodes.values())
    assert {name for name, state in world.nodes.items() if state.is_drained} == world.person
