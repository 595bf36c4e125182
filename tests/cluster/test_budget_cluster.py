"""A budget on a real cluster: jobs beyond it wait and say why; if so configured, it ends running jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import Checkout, until

PRICE = 720
"""USD an hour: 0.20 a second. A launch counts as 4 seconds at least."""
STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        partitions:
          - {{name: debug, instance_type: local.small, nodes: {{max: 2}}, default: true}}
        slurm: {{suspend_time: 2}}
        local: {{price_hour: {price}}}
        budget: {{max_usd: {most}, running_jobs: {running_jobs}}}
"""
WHY = re.compile(
    r"budget: \d+\.\d\d of 1\.20 USD are spent.* \(budget\.max_usd in Pulumi\.test\.yaml\); "
    r"raise it and run up again"
)


def stack(most: float, running_jobs: str = "keep") -> str:
    return STACK.format(price=PRICE, most=round(most, 2), running_jobs=running_jobs)


@pytest.fixture(scope="module")
def budgeted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    checkout = Checkout(tmp_path_factory.mktemp("budget") / "a checkout", stack(1.2))
    try:
        checkout.cluster("up", check=True)
        yield checkout
    finally:
        left = checkout.close()
    assert left == []


def submit(checkout: Checkout, output: Path, script: str) -> int:
    return int(checkout.execute("sbatch", "--parsable", f"--output={output}", "--wrap", script))


def known(checkout: Checkout, job: int) -> dict[str, str]:
    """Return Slurm's fields of a job, with the whole AdminComment, which has spaces."""
    text = checkout.ask("scontrol", "show", "job", str(job))
    fields = dict(pair.split("=", 1) for pair in text.split() if "=" in pair)
    comment = re.search(r"AdminComment=(.*)", text)
    return {**fields, "AdminComment": comment[1].strip() if comment else ""}


def is_off(checkout: Checkout) -> dict[str, Any] | None:
    """Return the status once no machine runs and the ledger has recorded that; otherwise `None`."""
    status = checkout.status()
    off = status["machines"] == {"running": 0, "pending": 0}
    return status if off and checkout.status()["cost"] == status["cost"] else None


def test_a_job_that_the_budget_does_not_cover_waits_until_it_is_raised(
    budgeted: Checkout, tmp_path: Path
) -> None:
    first = submit(budgeted, tmp_path / "first", "echo done")
    until(lambda: known(budgeted, first)["JobState"] == "COMPLETED", 120, "the first job")
    spent = until(lambda: is_off(budgeted), 120, "zero machines")["cost"]
    assert spent["usd"] > 1.2 - 0.8, "no launch fits into what is left"

    second = submit(budgeted, tmp_path / "second", "echo done")

    def cause() -> str:
        (job,) = [job for job in budgeted.status()["jobs"] if job["id"] == second]
        return str(job["cause"]) if job["state"] == "PENDING" else ""

    until(lambda: WHY.fullmatch(cause()), 120, "the cause")
    status = until(lambda: is_off(budgeted), 120, "no machine for it")
    assert any(WHY.search(node["reason"] or "") for node in status["nodes"])
    assert status["cost"]["usd"] == spent["usd"], "the job that waits costs nothing"
    budget = status["cost"]["budget"]
    assert budget["left_usd"] == pytest.approx(max(0.0, 1.2 - spent["usd"]), abs=0.001)
    assert "of 1.20 USD are left" in budgeted.cluster("status", check=True).stdout
    restarts = known(budgeted, second)["Restarts"]
    assert int(restarts) <= 1, "it does not go to and fro"

    budgeted.write_stack(stack(100))
    budgeted.cluster("up", check=True)
    until(lambda: known(budgeted, second)["JobState"] == "COMPLETED", 120, "the second job")
    cost = budgeted.status()["cost"]
    assert cost["usd"] > spent["usd"], "what was spent before counts on"
    assert cost["budget"]["max_usd"] == 100


@pytest.mark.wide
def test_a_running_job_ends_with_the_budget_where_that_is_said(budgeted: Checkout, tmp_path: Path) -> None:
    output = tmp_path / "endless"
    # The loop keeps the shell running if the sleep gets its SIGTERM before the shell does.
    stays = "while :; do sleep 600 & wait; done"
    job = submit(budgeted, output, f"trap 'echo got TERM; exit 1' TERM; echo runs; {stays}")
    until(lambda: output.exists() and "runs" in output.read_text(), 120, "the job")
    # A budget from the start might be used up before the job's script begins.
    most = budgeted.status()["cost"]["usd"] + 1.0
    budgeted.write_stack(stack(most, "cancel"))
    budgeted.cluster("up", check=True)
    until(lambda: known(budgeted, job)["JobState"] == "CANCELLED", 120, "the end of the budget")
    assert known(budgeted, job)["AdminComment"].startswith("budget: ")
    until(lambda: output.exists() and "got TERM" in output.read_text(), 120, "the job's own end")
    assert "slurm-stacks: budget: " in output.read_text(), "its owner looks there first"
    status = until(lambda: is_off(budgeted), 120, "zero machines")
    assert status["cost"]["budget"]["used"] >= 1.0
    told = json.loads(budgeted.cluster("doctor", "--json").stdout)["findings"]
    assert "used up" in {f["check"]: f["found"] for f in told}["cluster.budget"]
