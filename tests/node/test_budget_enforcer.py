"""The budget is used up: which nodes are powered down, which jobs end, and that nothing is done twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.design.model import Budget as Said
from node.design.model import Partition
from node.elastic.budget import Budget
from node.elastic.budget_enforcer import BudgetEnforcer
from node.elastic.driver import Machine, MachineState
from node.elastic.ledger import Ledger
from tests.support.doubles import FakeControl, design, job, node

DEBUG = Partition("debug", "local.small", 2, 1000, 1, 7, default=True, price_hour=1.0)
WHY = "budget: 3.00 of 2.00 USD are spent (budget.max_usd in Pulumi.test.yaml); raise it and run up again"


def overspent(tmp_path: Path, running_jobs: str, hours: float = 3.0) -> tuple[BudgetEnforcer, FakeControl]:
    """A cluster that has used 3 of 2 USD, with nodes and jobs of all kinds."""
    of = design(DEBUG, budget=Said(2.0, None, running_jobs))
    ledger = Ledger(tmp_path / "ledger.json", of)
    ledger.see([Machine("m", "debug-1", MachineState.RUNNING, 0.0)], hours * 3600)
    ledger.see([], hours * 3600)
    nodes = (
        node("debug-0", "ALLOCATED", "CLOUD"),
        node("debug-1", "ALLOCATED", "CLOUD"),
        node("debug-2", "IDLE", "CLOUD"),
        node("debug-3", "IDLE", "CLOUD", "DRAIN", reason="a person's"),
        node("debug-4", "ALLOCATED", "CLOUD", "DRAIN", "POWER_DOWN"),
        node("debug-5", "ALLOCATED", "CLOUD", "POWERING_UP"),
        node("debug-6", "IDLE", "CLOUD", "POWERED_DOWN"),
        node("stranger", "IDLE"),
    )
    jobs = (
        job(10, nodes=("debug-0",)),
        job(11, nodes=("debug-0", "debug-1")),
        job(12, "PENDING"),
        job(13, "COMPLETING", nodes=("debug-1",)),
        job(14, "SUSPENDED", nodes=("debug-4",)),
        job(15, "CONFIGURING", nodes=("debug-5",)),
        job(16, "COMPLETED", nodes=("debug-1",)),
    )
    control = FakeControl(nodes, jobs)
    control.refuse_commands = {"14"}
    return BudgetEnforcer(of, control, Budget(of, ledger, lambda: hours * 3600)), control


@pytest.mark.parametrize("running_jobs", ["keep", "cancel"])
def test_while_something_is_left_nothing_happens(tmp_path: Path, running_jobs: str) -> None:
    enforcer, control = overspent(tmp_path, running_jobs, hours=1.9)
    enforcer.enforce()
    assert control.calls == []


def test_kept_jobs_end_by_themselves_and_nothing_begins_behind_them(tmp_path: Path) -> None:
    enforcer, control = overspent(tmp_path, "keep")
    enforcer.enforce()
    assert control.calls == [("node", ("debug-1", "debug-2"), "POWER_DOWN_ASAP", f"slurm-stacks {WHY}")]


def test_cancelled_jobs_are_told_why_and_those_on_static_nodes_go_on(tmp_path: Path) -> None:
    enforcer, control = overspent(tmp_path, "cancel")
    enforcer.enforce()
    drained, down, *rest = control.calls
    # This comes first, so that no other job takes the nodes. Nodes with a job are drained, so that it can
    # save its work.
    assert drained[:3] == ("node", ("debug-1",), "DRAIN")
    assert down[:3] == ("node", ("debug-2",), "POWER_DOWN_ASAP")
    assert rest == [
        ("comment", 11, WHY),
        ("scontrol", "notify", "11", f"slurm-stacks: {WHY}"),
        ("comment", 14, WHY),
        ("scontrol", "notify", "14", f"slurm-stacks: {WHY}"),
        ("cancel", 11, 14),
        ("down", ("debug-5",), f"slurm-stacks {WHY}"),
    ]


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    enforcer, control = overspent(tmp_path, "cancel")
    for name in ("debug-1", "debug-2"):
        control.state[name] = node(name, "ALLOCATED", "CLOUD", "DRAIN", "POWER_DOWN")
    control.state["debug-5"] = node("debug-5", "ALLOCATED", "CLOUD", "POWERING_DOWN")
    for number in (11, 14):
        control.queue[number] = job(number, "COMPLETING", nodes=("debug-1",))
    enforcer.enforce()
    assert control.calls == [("cancel",)]
