"""Budgets of accounts: who is stopped and goes on, which limits come back, and what jobs are told."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.accounting import attributes, plan, stops
from node.accounting.stops import Change, KnownAccount
from node.billing import spending
from node.billing.spending import Amounts, ByAccount, Spent
from node.design.folders import Folders
from node.design.model import Partition, Settings, SlurmSettings
from node.design.sharing import Account, AccountBudget, Limits
from node.elastic import account_budgets
from node.elastic.account_budgets import AccountBudgets, uses
from node.elastic.budget import has_account_budgets
from node.elastic.driver import Machine, MachineState
from node.elastic.failures import Failure
from node.elastic.ledger import Ledger
from node.elastic.pending_jobs import STOPPED, PartitionCapacity, job_changes
from node.elastic.steps import NOT_TRIED
from node.slurm.control import SlurmError
from tests.support.doubles import FakeControl, design, job, settings

DEBUG = Partition("debug", "local.small", 2, 1000, 0, 8, default=True, price_hour=1.0)
RESEARCH = Account("research", budget=AccountBudget(max_usd=10.0))
VISION = Account("vision", parent="research", budget=AccountBudget(max_hours=4.0, running_jobs="cancel"))
OTHER = Account("other")
DAY = 86400.0
NOON = 1_764_590_400.0
"""2025-12-01 12:00 UTC."""
WHY = (
    "budget: 10.00 of 10.00 USD are spent by research "
    "(accounts.research.budget.max_usd in Pulumi.test.yaml); raise it and run up again"
)


class Accounting(FakeControl):
    """slurmctld and slurmdbd, with accounts and their limits."""

    def __init__(self, **limits: str) -> None:
        super().__init__()
        self.parents = {"root": "", "research": "root", "vision": "research", "other": "root"}
        self.limits = limits
        self.silent = False
        self.requeued: list[object] = []

    def run(self, *command: str) -> str:
        super().run(*command)
        if command[0] == "sacctmgr" and self.silent:
            raise SlurmError(command, 1, "slurmdbd does not answer")
        if "list" in command:
            assert command[-1] == "wopl"
            rows = [f"{name}|{above}||{self.limits.get(name, '')}" for name, above in self.parents.items()]
            return "\n".join([*rows, "research|research|ada|7", ""])
        if command[:3] == ("sacctmgr", "--immediate", "modify"):
            name, limit = command[5].removeprefix("name="), command[-1].removeprefix("grpjobs=")
            assert command[6] == "cluster=t"
            self.limits[name] = "" if limit == "-1" else limit
        return ""

    def requeue(self, job: int | str) -> None:
        self.requeued.append(job)


class Cluster:
    """The budgets of a cluster whose clock, ledger and bill a test sets."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, *accounts: Account, **limits: str
    ) -> None:
        self.settings = self._settings(folder, *accounts)
        folders = Folders(self.settings)
        for path in (folders.state, folders.elastic):
            Path(str(path)).mkdir(parents=True, exist_ok=True)
        self.state = Path(str(folders.state))
        self.elastic = Path(str(folders.elastic))
        self.control = Accounting(**limits)
        self.now = NOON
        self.bills = 0
        self.spent: dict[str, Amounts] = {}
        monkeypatch.setattr(time, "time", lambda: self.now)
        monkeypatch.setattr(spending, "spent", lambda *_: self._bill())
        self.ledger = Ledger(self.elastic / "ledger.json", self.settings.design)
        self.budgets = self.daemon()

    @staticmethod
    def _settings(folder: Path, *accounts: Account) -> Settings:
        return settings(folder, design(DEBUG, slurm=SlurmSettings(accounting=True), accounts=accounts))

    def _bill(self) -> Spent:
        self.bills += 1
        return Spent(self.spent, {name: Amounts(1.0, 1.0) for name in self.spent})

    def daemon(self, *accounts: Account) -> AccountBudgets:
        """Start the daemon, with other accounts if they are given."""
        if accounts:
            self.settings = self._settings(Path(str(self.settings.site.root)), *accounts)
        self.budgets = AccountBudgets(self.settings, self.control, self.ledger)
        return self.budgets

    def told(self) -> list[str]:
        """Return what Slurm has been told of limits."""
        calls = [" ".join(call) for call in self.control.calls if call[:2] == ("sacctmgr", "--immediate")]
        self.control.calls.clear()
        return [call.partition("name=")[2].replace(" cluster=t set", "") for call in calls]


def test_who_has_used_a_budget_starts_no_jobs_until_it_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, RESEARCH, VISION, OTHER, research="5")
    cluster.spent = {"research": Amounts(6.0, 1.0), "vision": Amounts(4.0, 3.9), "other": Amounts(99.0, 99.0)}
    cluster.budgets.once()
    assert cluster.told() == ["research grpjobs=0"], "a parent's budget counts its children"
    cluster.daemon().once()
    assert cluster.told() == [], "nothing is done twice, nor after a restart"
    assert cluster.control.limits == {"research": "0"}
    raised = replace(RESEARCH, budget=AccountBudget(max_usd=10.5))
    cluster.daemon(raised, VISION, OTHER).once()
    assert cluster.told() == ["research grpjobs=5"], "its own limit holds again"
    assert stops.read(cluster.state) == {}
    cluster.daemon(raised, VISION, OTHER).once()
    assert cluster.told() == []


@pytest.mark.parametrize("accounts", [(OTHER,), (replace(RESEARCH, budget=AccountBudget()), OTHER)])
def test_without_its_budget_an_account_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accounts: tuple[Account, ...]
) -> None:
    """The account may have left the stack file, and stay while it has jobs."""
    cluster = Cluster(tmp_path, monkeypatch, RESEARCH, OTHER)
    cluster.spent = {"research": Amounts(10.0)}
    cluster.budgets.once()
    cluster.told()
    cluster.daemon(*accounts)
    assert has_account_budgets(cluster.settings)
    cluster.budgets.once()
    assert cluster.told() == ["research grpjobs=-1"]
    assert not has_account_budgets(cluster.settings)
    assert cluster.bills == 1, "nobody has a budget, so there is no bill"


def test_a_limit_that_somebody_sets_meanwhile_counts_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, RESEARCH)
    cluster.spent = {"research": Amounts(10.0)}
    cluster.budgets.once()
    cluster.control.limits["research"] = "3"
    cluster.daemon().once()
    assert cluster.told() == ["research grpjobs=0", "research grpjobs=0"]
    cluster.spent = {}
    cluster.daemon().once()
    assert cluster.told() == ["research grpjobs=3"]


def test_a_month_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monthly = replace(RESEARCH, budget=AccountBudget(max_usd=1.0, max_hours=50.0, period="month"))
    cluster = Cluster(tmp_path, monkeypatch, monthly)
    cluster.spent = {"research": Amounts(1000.0, 1000.0)}
    cluster.budgets.once()
    (told,) = cluster.budgets.summaries()
    assert (told["left_usd"], told["left_hours"], told["used"], told["at"]) == (0.0, 49.0, 1.0, NOON)
    failure = cluster.budgets._look.used_up["research"] if cluster.budgets._look else None
    assert failure is not None
    assert failure.message == "1.00 of 1.00 USD are spent by research in 2025-12"
    cluster.spent = {}
    cluster.now += 31 * DAY
    cluster.budgets.once()
    assert cluster.told() == ["research grpjobs=0", "research grpjobs=-1"]


def test_a_bill_is_made_only_when_a_budget_may_have_been_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, RESEARCH, VISION)
    cluster.spent = {"research": Amounts(9.9, 0.0)}
    machine = Machine("m", "debug-1", MachineState.RUNNING, NOON)
    cluster.ledger.see([machine], NOON)
    assert cluster.budgets.once() is None
    cluster.now += 300
    assert cluster.budgets.once() is NOT_TRIED, "the cluster has spent 0.08 USD since"
    assert cluster.bills == 1
    cluster.now += 100
    assert cluster.budgets.once() is None
    cluster.now += account_budgets.FRESH_SECONDS
    assert cluster.budgets.once() is None
    assert cluster.bills == 3
    cluster.now -= DAY
    assert cluster.budgets.once() is None, "the clock was set back"


def test_nothing_is_told_while_slurmctld_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path, monkeypatch, RESEARCH)
    cluster.spent = {"research": Amounts(10.0)}
    cluster.control.error = SlurmError(("scontrol",), 1, "it starts")
    assert cluster.budgets.once() is NOT_TRIED
    assert (cluster.told(), cluster.bills) == ([], 0)
    cluster.control.error = None
    cluster.budgets.once()
    assert cluster.told() == ["research grpjobs=0"]


def test_what_does_not_answer_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path, monkeypatch, RESEARCH)
    cluster.control.silent = True
    cluster.budgets.step.run()
    assert cluster.budgets.step.error is not None
    waits = job(1, "PENDING", reason=STOPPED, admin_comment=WHY)
    assert cluster.budgets.causes([waits]) is None
    assert job_changes([waits], {"debug": [PartitionCapacity(9)]}, {}, 0.0, None) == [], (
        "it keeps its comment"
    )
    assert not (cluster.state / stops.FILE).exists()
    monkeypatch.setattr(spending, "spent", lambda *_: 1 / 0)
    cluster.control.silent = False
    cluster.budgets.step.run()
    assert cluster.told() == []


def _comments(jobs: list[Any], stopped: Mapping[int, Failure] | None) -> list[tuple[object, str | None]]:
    changes = job_changes(jobs, {"debug": [PartitionCapacity(9)]}, {}, 0.0, stopped)
    return [(change.job, change.comment) for change in changes]


def test_jobs_that_wait_for_it_are_told_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, RESEARCH, VISION, OTHER)
    cluster.spent = {"research": Amounts(10.0)}
    accounts = {1: "research", 2: "vision", 3: "other", 4: "research", 5: "research"}
    cluster.control.booked = {number: {"account": name} for number, name in accounts.items()}
    jobs = [job(number, "PENDING", reason=STOPPED) for number in (1, 2, 3)]
    jobs += [job(4, "PENDING", reason="Priority"), job(5, nodes=("debug-1",))]
    cluster.budgets.once()
    stopped = cluster.budgets.causes(jobs)
    assert _comments(jobs, stopped) == [(1, WHY), (2, WHY)]
    told = [replace(one, admin_comment=WHY) for one in jobs[:2]]
    assert _comments(told, stopped) == []
    cluster.spent = {}
    cluster.daemon().once()
    assert _comments(told, cluster.budgets.causes(told)) == [(1, ""), (2, "")]


def test_with_cancel_jobs_that_run_end_and_those_that_start_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, RESEARCH, VISION, OTHER)
    cluster.spent = {"vision": Amounts(1.0, 4.0)}
    accounts = {1: "research", 2: "vision", 3: "vision", 4: "vision"}
    cluster.control.booked = {number: {"account": name} for number, name in accounts.items()}
    cluster.control.queue = {
        one.id: one
        for one in (
            job(1, nodes=("debug-1",)),
            job(2, nodes=("debug-2",)),
            job(3, "CONFIGURING", nodes=("debug-3",)),
            job(4, "PENDING"),
        )
    }
    cluster.budgets.once()
    assert cluster.control.requeued == [3]
    assert [call for call in cluster.control.calls if call[0] == "cancel"] == [("cancel", 2)]


# The record, and `up`


@pytest.mark.parametrize(
    ("used_up", "limit", "record", "will", "told"),
    [
        (True, "", {}, {"a": ""}, "0"),
        (True, "4", {}, {"a": "4"}, "0"),
        (True, "0", {"a": "4"}, {"a": "4"}, None),
        (True, "0", {}, {"a": "0"}, None),
        (True, "6", {"a": "4"}, {"a": "6"}, "0"),
        (False, "0", {"a": "4"}, {"a": "4"}, "4"),
        (False, "0", {"a": ""}, {"a": ""}, ""),
        (False, "0", {"a": "0"}, {"a": "0"}, None),
        (False, "7", {"a": "4"}, {"a": "4"}, None),
        (False, "7", {}, {}, None),
        (False, "", {"gone": "4"}, {}, None),
    ],
)
def test_changes(
    used_up: bool, limit: str, record: dict[str, str], will: dict[str, str], told: str | None
) -> None:
    known = {"a": KnownAccount("root", limit)}
    changes = [] if told is None else [Change("a", told)]
    assert stops.changes(["a"] if used_up else [], known, record) == (will, changes)


@pytest.mark.parametrize("limit", ["0", "4"])
def test_an_up_leaves_stopped_accounts_alone(limit: str) -> None:
    """The daemon may have let one go since the record was read."""
    research = Account("research", limits=Limits(grp_jobs=9))
    wanted = plan.wanted(design(DEBUG, accounts=(research, OTHER)), "slurm")
    limits = {"root": "", "research": limit, "other": ""}
    during, record = stops.stopped(wanted, {"research": "4", "theirs": "2", "other": ""}, limits)
    kept = {**attributes.of_account(research), "grpjobs": limit}
    assert during.accounts == {**wanted.accounts, "research": kept}
    assert record == {"research": "9", "theirs": "2", "other": ""}, "the stack file's limit holds afterwards"
    assert stops.stopped(wanted, {"research": "4"}, {})[0] == wanted, "it is new"


@pytest.mark.parametrize("content", [b"[]", b"{", b'{"a": 1}'])
def test_a_record_that_cannot_be_read_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / stops.FILE).write_bytes(content)
    with pytest.raises(ValueError, match=r"."):
        stops.read(tmp_path)


def test_nobody_is_stopped_for_ever_by_a_circle_of_accounts() -> None:
    parents = {"a": "b", "b": "a"}
    of = design(DEBUG, accounts=(Account("a", budget=AccountBudget(max_usd=1.0)),))
    (use,) = uses(of, Spent({"b": Amounts(2.0)}), parents, NOON)
    assert use.spent == Amounts(2.0)


# What was spent


class Bills:
    """Bills of a cluster in which one account spends a USD a second, from `begin` on."""

    def __init__(self, begin: float) -> None:
        self.begin = begin
        self.asked: list[tuple[float | None, float]] = []

    def __call__(self, since: float | None, until: float) -> ByAccount:
        self.asked.append((since, until))
        seconds = until - max(self.begin, -1e12 if since is None else since)
        return {"research": Amounts(max(0.0, seconds), max(0.0, seconds / 3600))}


@pytest.mark.parametrize(
    "hours", [[0, 1, 2], [0, 30, 31, 80], [0, 24 * 40, 24 * 40 + 1], [24 * 20, 24 * 29 + 3]]
)
def test_sums_are_those_of_one_bill(tmp_path: Path, hours: list[int]) -> None:
    bills = Bills(NOON - 3 * DAY)
    for hour in hours:
        now = NOON + hour * 3600
        found = spending.spent(tmp_path, bills, now)
        assert found.life["research"].usd == pytest.approx(now - bills.begin)
        month = max(bills.begin, spending.month_of(now))
        assert found.month["research"].usd == pytest.approx(now - month)


def test_days_that_are_over_are_asked_for_once(tmp_path: Path) -> None:
    bills = Bills(NOON - 400 * DAY)
    spending.spent(tmp_path, bills, NOON + 10 * DAY)
    bills.asked.clear()
    spending.spent(tmp_path, bills, NOON + 10 * DAY + 600)
    assert bills.asked == [(NOON + 8.5 * DAY, NOON + 10 * DAY + 600)]


@pytest.mark.parametrize("how", ["damaged", "clock", "restored"])
def test_what_does_not_fit_is_counted_anew(tmp_path: Path, how: str) -> None:
    bills, now = Bills(NOON - 400 * DAY), NOON
    spending.spent(tmp_path, bills, now + (800 * DAY if how == "clock" else 0))
    if how == "damaged":
        (tmp_path / spending.FILE).write_text('{"until": "x"}')
    if how == "restored":
        record = tmp_path / "machines"
        record.mkdir()
        (record / "restored-2025-11-30.jsonl.gz").touch()
    assert spending.spent(tmp_path, bills, now).life["research"].usd == pytest.approx(400 * DAY)


def test_a_bill_by_account_is_read() -> None:
    def row(kind: str, name: str) -> dict[str, Any]:
        return {"kind": kind, "name": name, "node_hours": 2.0, "usd": None, "at_least_usd": 1.5}

    bill = {"rows": [row("jobs", "research"), row("idle", ""), row("failed boots", "")]}
    assert spending.of_bill(bill) == {"research": Amounts(1.5, 2.0)}


def test_the_clusters_own_command_makes_bills(tmp_path: Path) -> None:
    program = tmp_path / "tool"
    program.write_text(
        "#!/bin/sh\ntest \"$1 $2\" = 'cost --by=account' || exit 2\n"
        'test $# = 3 && { echo "no answer" >&2; exit 1; }\necho "{\\"rows\\": []}"\n'
    )
    program.chmod(0o755)
    ask = account_budgets._Asker(str(program))
    assert ask(1.0, 2.0) == {}
    with pytest.raises(SlurmError, match="no answer"):
        ask(None, 2.0)
    with pytest.raises(SlurmError):
        account_budgets._Asker(str(tmp_path / "none"))(None, 2.0)
