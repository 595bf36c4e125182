"""The log group, and AWS's own budget."""

from __future__ import annotations

import pytest

from infra.aws.logs import AwsLogs
from node.design.model import Budget
from tests.support.aws_mocks import aws_design, declare
from tests.support.recorder import counts

GROUP, BUDGET = "aws:cloudwatch/logGroup:LogGroup", "aws:budgets/budget:Budget"


@pytest.mark.parametrize("preview", [False, True])
@pytest.mark.parametrize(
    ("budget", "budgets"), [(Budget(), 0), (Budget(max_hours=10.0), 0), (Budget(max_usd=250.5), 1)]
)
def test_the_logs_are_exactly_these_resources(budget: Budget, budgets: int, preview: bool) -> None:
    made = declare(lambda: AwsLogs("l", aws_design(budget=budget)), preview=preview)
    assert counts(made) == {
        "slurm-stacks:index:AwsLogs": 1,
        GROUP: 1,
        **({BUDGET: budgets} if budgets else {}),
    }
    assert {parent for name, parent in made.parents().items() if name != "l"} == {"l"}
    assert made.closed.count("l") == 1


def test_logs_end_with_the_cluster_or_after_a_month() -> None:
    made = declare(lambda: AwsLogs("l", aws_design()))
    group = made.inputs("l-group")
    assert (group["name"], group["retentionInDays"]) == ("/slurm-stacks/c", 30)
    assert not group.get("skipDestroy")


def test_the_budget_counts_this_cluster_and_writes_to_nobody() -> None:
    made = declare(lambda: AwsLogs("l", aws_design(budget=Budget(max_usd=250.5))))
    budget = made.inputs("l-budget")
    assert (budget["limitAmount"], budget["limitUnit"], budget["timeUnit"]) == ("250.50", "USD", "ANNUALLY")
    assert budget["costFilters"] == [{"name": "TagKeyValue", "values": ["user:slurm-stacks:cluster$c"]}]
    assert budget["name"] == "slurm-stacks-c-eu-west-1"
    assert "notifications" not in budget


@pytest.mark.parametrize(("usd", "text"), [(5.0, "5.00"), (1234567.0, "1234567.00"), (0.01, "0.01")])
def test_the_limit_is_a_plain_number(usd: float, text: str) -> None:
    made = declare(lambda: AwsLogs("l", aws_design(budget=Budget(max_usd=usd))))
    assert made.inputs("l-budget")["limitAmount"] == text
