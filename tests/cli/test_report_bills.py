"""Who spent what, in the report: the bills of the clusters that are up."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cli.commands.report import bills, command, page
from cli.commands.report.bills import Bill, Row
from cli.commands.report.runs import published_runs
from cli.providers.interface import BillsJobs
from cli.providers.local.provider import LocalProvider
from infra.config import parse
from infra.errors import UserError
from infra.program import clusters
from infra.program.stack import Stack
from operations.access import StackUp
from tests.support.report_reader import draw_equal_charts_once
from tests.support.stack_values import values

AMOUNTS = {"node_hours": 1.5, "usd": 3.0, "at_least_usd": 3.0}
SHOWN = (
    Row("physics", 12, "1.50", "3.00"),
    Row("idle: boots, waits, free parts", 0, "1.50", "at least 3.00"),
    Row("sum", 0, "3.00", "at least 6.00"),
)


class Biller(BillsJobs):
    """A cluster with or without accounting, or one that does not answer."""

    def __init__(self, default: str) -> None:
        self.default = default

    def bill(self, up: StackUp, by: str | None, since: float | None, until: float | None) -> dict[str, Any]:
        if not self.default:
            raise UserError("the elastic daemon does not answer", code="tool.failed")
        return {
            "by": by or self.default,
            "rows": [
                {"kind": "jobs", "name": "physics", "jobs": 12, **AMOUNTS},
                {"kind": "idle", "name": "", "jobs": 0, **AMOUNTS, "usd": None},
            ],
            "total": {"node_hours": 3.0, "usd": None, "at_least_usd": 6.0},
        }


@pytest.fixture
def up(tmp_path: Path) -> StackUp:
    return StackUp.of(Stack(tmp_path, "test"), parse(values("local"), "test"))


def test_a_cluster_has_a_bill_by_account_and_one_by_user(up: StackUp) -> None:
    assert bills.of(up, Biller("user")) == [Bill("test", "account", SHOWN), Bill("test", "user", SHOWN)]


def test_without_accounting_there_is_one_by_partition(up: StackUp) -> None:
    assert bills.of(up, Biller("partition")) == [Bill("test", "partition", SHOWN)]


@pytest.mark.parametrize("biller", [Biller(""), Biller("\x1b")])
def test_a_report_is_made_without_one(
    up: StackUp, biller: Biller, capsys: pytest.CaptureFixture[str]
) -> None:
    found = bills.of(up, biller)
    assert "\x1b" not in str([bill.by for bill in found])
    if not biller.default:
        assert "does not say what stack test has cost: the elastic daemon" in capsys.readouterr().err


def test_the_page_shows_them_and_has_no_section_without(monkeypatch: pytest.MonkeyPatch) -> None:
    draw_equal_charts_once(monkeypatch)
    made = datetime(2026, 1, 1, tzinfo=UTC)
    bill = Bill("test", "account", (Row("<b>physics", 12, "1.50", "3.00"), *SHOWN[1:]))
    text = page.render(["test"], [], published_runs()[:1], [], made, bills=[bill])
    assert "Who spent what" in text
    assert "&lt;b&gt;physics" in text
    assert "test, by account" in text
    assert "Who spent what" not in page.render(["test"], [], published_runs()[:1], [], made)


def test_only_a_cluster_that_is_up_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Pulumi.local.yaml").write_text(
        "config:\n  slurm-stacks:cluster:\n    provider: local\n    partitions:\n"
        "      - {name: cpu, instance_type: local.small, nodes: {max: 1}, default: true}\n"
    )
    asked: list[object] = []
    given: list[object] = []

    def bill(_provider: object, up: StackUp, by: str | None, *_: object) -> dict[str, Any]:
        asked.append(up)
        return Biller("user").bill(up, by, None, None)

    monkeypatch.setattr(LocalProvider, "bill", bill)
    monkeypatch.setattr("cli.commands.report.make", lambda *_, bills, **__: given.append([*bills]))
    monkeypatch.setattr(clusters, "of", lambda _: None)
    command.make(["local"], None, tmp_path)
    assert (asked, given) == ([], [[]])
    monkeypatch.setattr(clusters, "of", lambda _: object())
    command.make(["local"], None, tmp_path)
    assert len(asked) == 2
    assert [bill.by for bill in given[1]] == ["account", "user"]  # type: ignore[attr-defined]
