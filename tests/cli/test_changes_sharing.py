"""What `up` says of changed accounts, users and QOS, and what it refuses while there are jobs."""

from __future__ import annotations

import dataclasses

from cli.changes import table
from cli.changes.jobs import Job
from cli.changes.table import Rules
from infra.config.changes import table as rows
from infra.effects import Kind
from node.design.model import ClusterDesign
from node.design.sharing import Account, Limits, Qos, User
from tests.support.doubles import design

RULES = Rules(rows("local"))
TEAM = dataclasses.replace(
    design(),
    accounts=(Account("research", shares=50), Account("old")),
    users=(User("ada", "research", ("old",)), User("bob", "old"), User("eve")),
    qos=(Qos("high"), Qos("low")),
)


def changed(after: ClusterDesign, before: ClusterDesign = TEAM) -> list[str]:
    return [change.line() for change in table.compare(before, after, RULES)]


def job(user: str, account: str, qos: str = "normal", state: str = "RUNNING") -> Job:
    return Job("7", user, "debug", "debug-0", state, "", "train", account=account, qos=qos)


def test_changes_are_few_lines() -> None:
    many = tuple(User(f"u{number}", "research") for number in range(500))
    after = dataclasses.replace(
        TEAM,
        accounts=(
            Account("research", shares=60, limits=Limits({"gres/gpu": 4})),
            Account("old"),
            Account("n"),
        ),
        users=(*TEAM.users, *many),
        qos=(Qos("high", preempts=("low",)), Qos("low")),
    )
    live = "applied to the running cluster"
    assert changed(after) == [
        f"accounts added: n: {live}",
        f"accounts changed: research: shares 50 → 60; limits.grp_tres none → gres/gpu=4: {live}",
        f"users added: u0, u1, u2, u3, u4, u5, u6, u7 and 492 more: {live}",
        f"QOS changed: high: preempts none → low: {live}",
    ]
    assert changed(TEAM) == []


def test_what_goes_is_refused_while_it_has_jobs() -> None:
    after = dataclasses.replace(
        TEAM, accounts=TEAM.accounts[:1], users=(User("ada", "research"), User("eve")), qos=TEAM.qos[:1]
    )
    found = table.compare(TEAM, after, RULES)
    end = "applied to the running cluster, once they have no jobs"
    assert [change.line() for change in found] == [
        f"accounts removed: old: {end}",
        "users changed: ada: accounts old → none: applied to the running cluster",
        f"users removed: bob: {end}",
        f"QOS removed: low: {end}",
    ]
    assert [change.kind for change in found] == [Kind.ENDS, Kind.LIVE, Kind.ENDS, Kind.ENDS]
    for one in (
        job("ada", "old"),
        job("bob", "old"),
        job("eve", "users", "low"),
        job("x", "old", "", "PENDING"),
    ):
        refused = table.refusal(found, [one])
        assert refused is not None
        assert refused.code == "change.ends-jobs"
        assert f"job 7 train ({one.user}" in str(refused)
    assert table.refusal(found, [job("ada", "research"), job("eve", "users", "high")]) is None


def test_a_user_loses_an_account_that_stays() -> None:
    after = dataclasses.replace(TEAM, users=(User("ada", "research"), *TEAM.users[1:]))
    found = table.compare(TEAM, after, RULES)
    assert [change.said for change in found] == [
        "users changed: ada: accounts old → none",
        "users removed: ada from old",
    ]
    assert table.refusal(found, [job("ada", "old")]) is not None
    assert table.refusal(found, [job("bob", "old")]) is None


def test_a_job_that_is_over_keeps_nothing() -> None:
    change = table.compare(TEAM, dataclasses.replace(TEAM, qos=()), RULES)[0]
    assert change.costs(job("bob", "old", "high"))
    assert not change.costs(job("bob", "old", "high", "COMPLETING"))
