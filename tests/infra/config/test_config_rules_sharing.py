"""Impossible accounts, users, QOS and priorities: one mistake each."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.stack_parts import Refused, check_refusal, check_sentences, each_refusal
from tests.support.stack_values import mistakes, values

ON = {"slurm.accounting": True}
RESEARCH: dict[str, Any] = {"name": "research", "qos": ["normal", "high"]}
VISION: dict[str, Any] = {"name": "vision", "parent": "research"}
HIGH: dict[str, Any] = {"name": "high", "preempts": ["low"]}
LOW: dict[str, Any] = {"name": "low"}
TEAM = {**ON, "accounts": [RESEARCH, VISION], "qos": [HIGH, LOW]}


def team(**more: Any) -> dict[str, Any]:
    return {**TEAM, **more}


def user(**keys: Any) -> dict[str, Any]:
    return team(users=[{"name": "ada", **keys}])


def priority(**keys: str) -> dict[str, Any]:
    return {**ON, "slurm.priority": keys}


# stack, changes, path and code of the one mistake
REFUSED: list[Refused] = [
    ("local", {"slurm.accounting": False, "accounts": [LOW]}, "accounts", "sharing.no-accounting"),
    ("local", {"slurm.accounting": False, "users": [{"name": "ada", "account": "a"}]}, "users[0].account",
     "sharing.no-accounting"),
    ("local", {"slurm.accounting": False, "qos": [LOW]}, "qos", "sharing.no-accounting"),
    ("local", {"slurm.accounting": False, "slurm.priority": {}}, "slurm.priority", "sharing.no-accounting"),
    (
        "local",
        {"slurm.accounting": False, "partitions[0].allow_qos": ["normal"]},
        "partitions[0].allow_qos",
        "sharing.no-accounting",
    ),
    ("batch", {"accounts": [LOW]}, "accounts", "sharing.no-accounting"),
    ("local", team(accounts=[RESEARCH, RESEARCH]), "accounts[1].name", "sharing.name-twice"),
    ("local", team(qos=[HIGH, LOW, LOW]), "qos[2].name", "sharing.name-twice"),
    ("local", team(accounts=[RESEARCH, {"name": "root"}]), "accounts[1].name", "account.root"),
    ("local", team(accounts=[RESEARCH, {**VISION, "parent": "reserch"}]), "accounts[1].parent",
     "sharing.unknown-account"),
    ("local", user(account="visoin"), "users[0].account", "sharing.unknown-account"),
    ("local", user(accounts=["zzz"]), "users[0].accounts[0]", "sharing.unknown-account"),
    ("local", user(accounts=["users"]), "users[0].accounts[0]", "user.account-twice"),
    ("local", user(qos=["hihg"]), "users[0].qos[0]", "sharing.unknown-qos"),
    ("local", team(qos=[HIGH]), "qos[0].preempts[0]", "sharing.unknown-qos"),
    ("local", team(accounts=[RESEARCH | {"default_qos": "low"}]), "accounts[0].default_qos",
     "sharing.default-qos"),
    ("local", user(default_qos="high"), "users[0].default_qos", "sharing.default-qos"),
    ("local", team(accounts=[RESEARCH | {"parent": "vision"}, VISION]), "accounts[0].parent",
     "account.circle"),
    ("local", team(qos=[HIGH, LOW | {"preempts": ["high"]}]), "qos[0].preempts", "qos.circle"),
    ("local", team(qos=[HIGH, LOW | {"grace_seconds": 60}]), "qos[1].grace_seconds",
     "qos.grace-with-requeue"),
    ("local", team(**{"partitions[0].allow_accounts": ["reserch"]}), "partitions[0].allow_accounts[0]",
     "sharing.unknown-account"),
    ("local", team(**{"partitions[0].allow_qos": ["hi"]}), "partitions[0].allow_qos[0]",
     "sharing.unknown-qos"),
    ("local", team(**{"partitions[0].qos": "lo"}), "partitions[0].qos", "sharing.unknown-qos"),
    ("local", priority(calc_period="00:00:30"), "slurm.priority.calc_period", "priority.calc-period"),
    ("local", priority(decay_half_life="00:02:00"), "slurm.priority.decay_half_life",
     "priority.half-life"),
    ("local", priority(max_age="INFINITE"), "slurm.priority.max_age", "priority.max-age"),
    ("local", team(accounts=[RESEARCH | {"description": "a|b"}]), "accounts[0].description", "value.form"),
    ("local", team(qos=[HIGH | {"limits": {"grp_tres": {"license/matlab": 2}}}, LOW]),
     'qos[0].limits.grp_tres["license/matlab"]', "limits.license"),
    ("local", team(accounts=[RESEARCH | {"limits": {"max_tres_per_job": {"gres/gpu": 2}}}]),
     'accounts[0].limits.max_tres_per_job["gres/gpu"]', "limits.unknown-gres"),
    ("local", team(qos=[HIGH | {"limits": {"max_tres_per_user": {"gres/gpu:v10": 2}}}, LOW],
                   **{"partitions[0].accelerator": {"type": "v100", "count": 1}}),
     'slurm-stacks:cluster.qos[0].limits.max_tres_per_user["gres/gpu:v10"]', "limits.unknown-gres"),
]  # fmt: skip


@each_refusal(REFUSED)
def test_an_impossible_combination_is_one_mistake(
    stack: str, changes: dict[str, Any], path: str, code: str
) -> None:
    check_refusal(stack, changes, path, code)


def test_the_sentences(pytestconfig: pytest.Config) -> None:
    check_sentences(pytestconfig, __file__, REFUSED)


@pytest.mark.parametrize(
    "changes",
    [
        TEAM,
        user(account="vision", default_qos="high"),
        user(accounts=["research"]),
        team(qos=[HIGH, LOW | {"preempt_mode": "cancel", "grace_seconds": 60}]),
        team(accounts=[RESEARCH | {"parent": "root"}], users=[{"name": "ada", "account": "research"}]),
        team(qos=[HIGH, LOW, {"name": "normal", "priority": 5}]),
        priority(decay_half_life="INFINITE"),
    ],
)
def test_what_is_possible_is_accepted(changes: dict[str, Any]) -> None:
    assert mistakes(values("local", changes)) == []
