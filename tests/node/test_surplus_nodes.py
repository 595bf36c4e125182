"""Surplus nodes, which come up for a job that cannot run: another job uses them, or they are released."""

from __future__ import annotations

import pytest

from node.elastic.surplus_nodes import SURPLUS_SECONDS, Release, SurplusNodes
from node.slurm.states import NodeState
from tests.support.doubles import node

JOBS = {"a": 7, "b": 7, "c": 7, "x": 8}


@pytest.fixture
def surplus() -> SurplusNodes:
    """Job 7 has lost c; a is up and b powers up for it; x belongs to another job."""
    surplus_nodes = SurplusNodes()
    surplus_nodes.wanted(JOBS)
    surplus_nodes.lost(("c",), JOBS, 0.0)
    return surplus_nodes


def states(**changes: NodeState) -> dict[str, NodeState]:
    start = {
        "a": node("a"),
        "b": node("b", "IDLE", "POWERING_UP"),
        "c": node("c", "IDLE", "POWERING_DOWN"),
        "x": node("x"),
    }
    return {**start, **changes}


def test_what_nobody_needs_is_released_at_once_and_once(surplus: SurplusNodes) -> None:
    assert surplus.release(states(), lambda _: False, 1.0) == Release(("a",), ("b",))
    assert surplus.release(states(), lambda _: False, 99.0) == Release()


def test_what_somebody_may_take_waits_for_him_a_while(surplus: SurplusNodes) -> None:
    assert surplus.release(states(), lambda _: True, 1.0) == Release()
    assert surplus.release(states(), lambda _: True, SURPLUS_SECONDS) == Release(("a",), ("b",))


def test_what_was_lost_itself_is_no_stray_nor_is_what_had_no_job(surplus: SurplusNodes) -> None:
    surplus.lost(("static",), {}, 0.5)
    up = states(c=node("c"), static=node("static"))
    assert surplus.release(up, lambda _: False, 1.0) == Release(("a",), ("b",))


def test_patience_begins_with_the_loss() -> None:
    surplus = SurplusNodes()
    surplus.wanted(JOBS)
    surplus.lost(("c",), JOBS, 100.0)
    assert surplus.release(states(), lambda _: True, 100.0 + SURPLUS_SECONDS - 1) == Release()
    assert surplus.release(states(), lambda _: True, 100.0 + SURPLUS_SECONDS) == Release(("a",), ("b",))


def test_a_node_that_went_and_came_for_somebody_else_is_no_stray() -> None:
    """The node's launch for job 7 is over long before that job loses another node."""
    surplus = SurplusNodes()
    surplus.wanted(JOBS)
    assert surplus.release(states(a=node("a", "IDLE", "POWERED_DOWN")), lambda _: False, 1.0) == Release()
    surplus.lost(("c",), JOBS, 2.0)
    assert surplus.release(states(), lambda _: False, 3.0) == Release((), ("b",))


def test_a_node_that_slurm_is_about_to_ask_for_is_still_its_jobs() -> None:
    """The node is off and the job waits for it: Slurm calls ResumeProgram within a second."""
    surplus = SurplusNodes()
    surplus.wanted(JOBS)
    assert surplus.release(states(a=node("a", "MIXED", "POWERED_DOWN")), lambda _: False, 1.0) == Release()
    surplus.lost(("c",), JOBS, 2.0)
    assert surplus.release(states(), lambda _: False, 3.0) == Release(("a",), ("b",))


@pytest.mark.parametrize(
    "a",
    [
        node("a", "ALLOCATED"),
        node("a", "IDLE", "POWERING_DOWN"),
        node("a", "IDLE", "POWERED_DOWN"),
        node("a", "IDLE", "DRAIN", reason="bad fan"),
    ],
    ids=lambda state: "+".join(state.flags) or state.base,
)
def test_what_is_used_or_gone_or_a_persons_is_forgotten(surplus: SurplusNodes, a: NodeState) -> None:
    assert surplus.release(states(a=a), lambda _: False, 1.0) == Release((), ("b",))
    assert surplus.release(states(), lambda _: False, 2.0) == Release()


def test_a_node_that_slurm_forgot_is_no_stray(surplus: SurplusNodes) -> None:
    assert surplus.release({"b": states()["b"]}, lambda _: False, 1.0) == Release((), ("b",))


def test_the_jobs_next_try_makes_them_its_own_again(surplus: SurplusNodes) -> None:
    surplus.wanted({"a": 7, "b": 7, "d": 7})
    assert surplus.release(states(d=node("d", "MIXED", "POWERING_UP")), lambda _: False, 1.0) == Release()
