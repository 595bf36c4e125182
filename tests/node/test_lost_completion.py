"""A node that is off and ends a job of which Slurm knows nothing is freed; every other one is left alone.

The states are those of slurmctld 22.05.8 after a soak that was stuck.
"""

from __future__ import annotations

import pytest

from node.elastic.lost_completion import DOUBT_SECONDS, REASON, LostCompletion
from node.slurm.states import JobState, NodeState
from tests.support.doubles import FakeControl, job, node

STUCK = ("IDLE", "CLOUD", "COMPLETING", "POWERED_DOWN", "PLANNED")


def looked(
    state: NodeState, jobs: list[JobState], seconds: float, later: NodeState | None = None
) -> list[str]:
    """Look twice, some seconds apart, and return the states that the node was given."""
    control, now = FakeControl([state], jobs), [0.0]
    search = LostCompletion(control, control.nodes, lambda: now[0])
    search.once()
    now[0] = seconds
    if later is not None:
        control.state[later.name] = later
    search.once()
    return [
        call[0] if call[0] == "down" else str(call[2])
        for call in control.calls
        if call[0] in ("node", "down")
    ]


def test_a_node_whose_job_is_gone_is_freed_after_a_while() -> None:
    assert looked(node("a-0", *STUCK), [], DOUBT_SECONDS) == ["DOWN", "down"]
    assert looked(node("a-0", *STUCK), [], DOUBT_SECONDS - 1) == []
    other = job(3, "COMPLETING", nodes=("a-1",))
    assert looked(node("a-0", *STUCK), [other, job(4, "PENDING")], DOUBT_SECONDS) == ["DOWN", "down"]


@pytest.mark.parametrize("state", ["COMPLETING", "RUNNING", "SUSPENDED", "CONFIGURING"])
def test_a_node_that_a_job_holds_stays(state: str) -> None:
    assert looked(node("a-0", *STUCK), [job(3, state, nodes=("a-0", "a-1"))], DOUBT_SECONDS) == []


@pytest.mark.parametrize(
    "flags",
    [
        ("IDLE", "CLOUD", "COMPLETING"),
        ("ALLOCATED", "CLOUD", "COMPLETING", "POWERED_DOWN"),
        ("IDLE", "CLOUD", "POWERED_DOWN"),
        ("IDLE", "CLOUD", "COMPLETING", "POWERED_DOWN", "POWERING_UP"),
        ("DOWN", "CLOUD", "COMPLETING", "POWERED_DOWN"),
    ],
)
def test_another_state_is_left_alone(flags: tuple[str, ...]) -> None:
    assert looked(node("a-0", *flags), [], DOUBT_SECONDS) == []


def test_a_job_that_came_back_meanwhile_keeps_its_node() -> None:
    taken = node("a-0", "ALLOCATED", "CLOUD", "POWERING_UP")
    assert looked(node("a-0", *STUCK), [], DOUBT_SECONDS, taken) == []


def test_the_reason_is_one_of_ours() -> None:
    assert REASON.startswith("slurm-stacks")
