"""`./cluster cost`: what may be asked, and the table, the CSV and the JSON that answer."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path
from typing import Any

import pytest

from cli.commands import cost
from cli.commands.cost import Asked, csv_text, show
from cli.providers import login_machine, provider
from cli.providers.interface import BillsJobs
from infra.config import parse
from infra.errors import EXIT_REFUSED, EXIT_USAGE, UserError
from infra.program.stack import Stack
from operations.access import StackUp
from tests.support import sentences
from tests.support.stack_values import values

NOW = 1764367200.0
"""2025-11-28 22:00 UTC."""
AMOUNTS = {"node_hours": 1.5, "usd": 3.0, "at_least_usd": 3.0}
BILL: dict[str, Any] = {
    "by": "account",
    "since": NOW - 7 * 86400,
    "until": NOW,
    "recorded_since": NOW - 86400,
    "rows": [
        {"kind": "jobs", "name": "physics", "jobs": 12, **AMOUNTS},
        {"kind": "jobs", "name": "=cmd()[x]", "jobs": 1, **AMOUNTS, "usd": None},
        {"kind": "idle", "name": "", "jobs": 0, **AMOUNTS},
        {"kind": "failed boots", "name": "", "jobs": 0, **AMOUNTS},
        {"kind": "not recorded", "name": "", "jobs": 0, **AMOUNTS},
    ],
    "total": {"node_hours": 7.5, "usd": None, "at_least_usd": 15.0},
    "unknown": ["gpu"],
    "notes": ["ended machines are recorded since 2025-11-27 22:00:00 UTC; what ended before has one row"],
}


def up_of(provider_name: str, folder: Path, **changes: Any) -> StackUp:
    return StackUp.of(Stack(folder, "test"), parse(values(provider_name, **changes), "test"))


@pytest.fixture
def up(tmp_path: Path) -> StackUp:
    return up_of("local", tmp_path)


def test_the_table_has_all_rows_and_says_what_is_not_in_it(
    up: StackUp, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = {"max_usd": 4.0, "left_usd": 1.0, "max_hours": None, "used": 0.75, "running_jobs": "keep"}
    physics = {**budget, "account": "physics", "period": "month", "at": NOW}
    show(up, {**BILL, "budgets": [physics]}, as_csv=False, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "Cost by account, from 2025-11-21 22:00 UTC to 2025-11-28 22:00 UTC",
        "account                         jobs  node-hours  USD",
        "physics                         12    1.50        3.00",
        "=cmd()[x]                       1     1.50        at least 3.00",
        "idle: boots, waits, free parts  –     1.50        3.00",
        "boots that failed               –     1.50        3.00",
        "before the record began         –     1.50        3.00",
        "",
        "Sum: 7.50 node-hours, at least 15.00 USD, price of the nodes of gpu unknown",
        "Budget of account physics in 2025-11: 1.00 of 4.00 USD are left, 75% used",
        "Not in it: controller, login machines, file systems, disks and network; and traffic",
        "Note: ended machines are recorded since 2025-11-27 22:00:00 UTC; what ended before has one row",
    ]


def test_rows_of_partitions_say_what_they_are(up: StackUp, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"kind": kind, "name": "gpu", "jobs": 0, **AMOUNTS} for kind in ("jobs", "idle", "nodes")]
    show(up, {**BILL, "by": "partition", "rows": rows, "since": None}, as_csv=False, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Cost by partition, from the beginning to ")
    assert [line.split("  ")[0] for line in lines[2:5]] == [
        "gpu", "gpu (idle: boots, waits, free parts)", "gpu (nodes)",
    ]  # fmt: skip


def test_a_table_of_many_jobs_names_the_rest(up: StackUp, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"kind": "jobs", "jobs": 1, "user": "ann", "account": "physics", "partition": "gpu", **AMOUNTS}
    rows = [{**row, "name": str(number)} for number in range(60)]
    show(up, {**BILL, "by": "job", "rows": [*rows, BILL["rows"][2]]}, as_csv=False, as_json=False)
    out = capsys.readouterr().out
    assert "… and 10 more: `./cluster cost --stack test --by job --csv` has all of them" in out
    assert "idle" in out, "what no job had is shown all the same"


def test_csv_has_every_row_and_no_formula(up: StackUp, capsys: pytest.CaptureFixture[str]) -> None:
    show(up, BILL, as_csv=True, as_json=False)
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["name"] for row in rows] == ["physics", "'=cmd()[x]", "", "", ""]
    assert [row["usd"] for row in rows] == ["3.0", "", "3.0", "3.0", "3.0"]
    assert csv_text({**BILL, "by": "job", "rows": []}) == (
        "kind,name,user,account,partition,pool,jobs,node_hours,usd,at_least_usd\n"
    )


def test_json_is_the_clusters_answer(up: StackUp, capsys: pytest.CaptureFixture[str]) -> None:
    show(up, {"of a later version": 1}, as_csv=False, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"of a later version": 1}


def test_the_price_of_what_is_not_in_the_bill_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show(up_of("aws", tmp_path), BILL, as_csv=False, as_json=False)
    assert "disks and network, 0." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90m", NOW - 5400), ("12h", NOW - 12 * 3600), ("7d", NOW - 7 * 86400), ("4w", NOW - 28 * 86400),
        ("999999w", 0.0), ("1970-01-02", 86400.0), ("1970-01-02T08:00", 115200.0),
        ("1970-01-02 08:00:30", 115230.0), ("1970-01-02T08:00+01:00", 111600.0),
        ("1970-01-02T08:00Z", 115200.0),
    ],
)  # fmt: skip
def test_times(monkeypatch: pytest.MonkeyPatch, text: str, seconds: float) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    assert Asked.of("user", text, None) == ("user", seconds, None)


@pytest.mark.parametrize(
    "text", ["yesterday", "7", "7D", "-1d", "2026-13-01", "0001-01-01", "", "1e9d", "\x1b"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UserError) as caught:
        Asked.of(None, text, None)
    assert (caught.value.code, caught.value.exit_code) == ("cost.when", EXIT_USAGE)


def test_each_mistake_has_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    with sentences.raises("cost.when", "friday"):
        Asked.of(None, "friday", None)
    with sentences.raises("cost.by", "team") as caught:
        Asked.of("team", None, None)
    assert caught.value.exit_code == EXIT_USAGE
    with sentences.raises("cost.period", "--since 1d", "--until 2d"):
        Asked.of(None, "1d", "2d")
    with sentences.raises("cost.period", "now"):
        Asked.of(None, "2030-01-01", None)
    with sentences.raises("cost.two-forms"):
        Asked.of(None, None, None, csv=True, json=True)


def test_a_cluster_of_an_earlier_version_is_named(up: StackUp, monkeypatch: pytest.MonkeyPatch) -> None:
    def older(*_: object, **__: object) -> str:
        raise UserError(
            "slurm-stacks: error: invalid choice: 'cost' (choose from 'submit')", code="tool.failed"
        )

    monkeypatch.setattr(login_machine, "tool", older)
    with sentences.raises("cost.older"):
        provider.biller(up, "cost").bill(up, None, None, None)


def test_another_failure_of_the_tool_stays_what_it_is(up: StackUp, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object, **__: object) -> str:
        raise UserError("the accounting does not answer", code="tool.failed")

    monkeypatch.setattr(login_machine, "tool", silent)
    with pytest.raises(UserError, match="does not answer"):
        provider.biller(up, "cost").bill(up, None, None, None)


def test_the_tool_is_asked_for_what_was_asked(up: StackUp, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def tool(_machine: object, _up: object, *words: str, **_more: object) -> str:
        asked.extend(words)
        return "{}"

    monkeypatch.setattr(login_machine, "tool", tool)
    assert cost.ask(provider.machine(up, "cost"), up, "job", 5.0, None) == {}
    assert asked == ["cost", "--by=job", "--since=5.0"]


def test_an_answer_of_another_form_is_named(up: StackUp) -> None:
    with sentences.raises("cost.other-form"):
        show(up, {"rows": []}, as_csv=False, as_json=False)


def test_aws_batch_refuses_in_its_own_words(tmp_path: Path) -> None:
    up = StackUp(Stack(tmp_path, "test"), "aws")
    with sentences.raises("cost.batch") as caught:
        raise provider.load("aws", "batch").LACKS[BillsJobs](up, "cost")
    assert caught.value.exit_code == EXIT_REFUSED
