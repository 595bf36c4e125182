"""The changes by sacctmgr that make slurmdbd's accounts those of the design."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.accounting import attributes, plan
from node.accounting.plan import QueuedJob, Record
from node.accounting.state import State
from node.design.model import ClusterDesign, SlurmSettings
from node.design.sharing import Account, Limits, Qos, User
from tests.support.doubles import design as some_design
from tests.support.slurmdbd import BASE, Slurmdbd

SLURM = SlurmSettings(accounting=True)
ACCOUNTS = (
    Account("research", "Research's half", shares=50, qos=("normal", "high"), limits=Limits({"mem": 2048})),
    Account("vision", parent="research", shares=2, limits=Limits(max_jobs=5, max_wall="2-12")),
)
USERS = (User("ada", "vision", ("users",)), User("bob", "vision"), User("eve", limits=Limits(max_submit=3)))
LEVELS = (Qos("high", priority=10, preempts=("low",)), Qos("low", usage_factor=0.5, preempt_mode="cancel"))


def made(
    accounts: Sequence[Account] = ACCOUNTS,
    users: Sequence[User] = USERS,
    qos: Sequence[Qos] = LEVELS,
    **slurm: Any,
) -> ClusterDesign:
    return dataclasses.replace(
        some_design(),
        accounts=tuple(accounts),
        users=tuple(users),
        qos=tuple(qos),
        slurm=dataclasses.replace(SLURM, **slurm),
    )


Plan = plan.Plan


class Cluster:
    """A slurmdbd and the record, to which designs are applied as the boot does."""

    def __init__(self, tres: frozenset[str] = BASE) -> None:
        self.database = Slurmdbd(tres, self._watch)
        self.record = Record()
        self.jobs: list[QueuedJob] = []
        self.must_submit: dict[str, set[str]] = {}

    def _watch(self, state: State) -> None:
        """No user loses all accounts at any moment who has one before and after."""
        for user, accounts in self.must_submit.items():
            assert any((account, user) in state.associations for account in accounts), user
            assert (state.users[user].account, user) in state.associations, user

    def plan(self, design: ClusterDesign, jobs: list[QueuedJob] | None) -> Plan:
        wanted = plan.wanted(design, "slurm")
        return plan.plan(wanted, self.database.state, self.record, jobs, "t")

    def apply(self, design: ClusterDesign) -> Plan:
        """Apply a design and return the last plan, whose changes are none."""
        self.record = self.record.with_design(plan.wanted(design, "slurm"))
        for _ in range(2):
            for words in self.plan(design, None).changes:
                self.database.obey(words)
        last = self.plan(design, self.jobs)
        assert last.changes == (), "a second run writes nothing"
        for one in last.removals:
            self.database.obey(one.words)
        self.record = self.record.without(last.removals)
        return last


def test_the_first_design_is_there_with_few_calls() -> None:
    cluster = Cluster()
    first = cluster.plan(made(), None)
    assert [" ".join(words) for words in first.changes] == [
        "add qos high,low",
        "modify qos where name=high set priority=10 preempt=low",
        "modify qos where name=low set preemptmode=cancel usagefactor=0.5",
        "add account research cluster=t description=research`s half parent=root fairshare=50 qos=high,normal "
        "grptres=mem=2048",
        "add account vision cluster=t description=vision parent=research fairshare=2 maxwall=3600 maxjobs=5",
        "add account users cluster=t description=users without an account of their own parent=root",
        "add user ada,bob cluster=t account=vision",
        "add user eve cluster=t account=users maxsubmitjobs=3",
        "add user ada cluster=t account=users",
    ]
    cluster.apply(made())
    state = cluster.database.state
    assert {name: known.account for name, known in state.users.items()} == {
        "root": "root", "ada": "vision", "bob": "vision", "eve": "users",
    }  # fmt: skip
    assert cluster.apply(made()) == plan.Plan()


def test_five_hundred_users_are_few_calls() -> None:
    users = [User(f"u{number}", "vision") for number in range(500)]
    changes = Cluster().plan(made(users=users), None).changes
    assert sum(words[:2] == ("add", "user") for words in changes) == 1


def test_what_people_have_added_stays_and_is_told() -> None:
    cluster = Cluster()
    cluster.apply(made())
    state = cluster.database.state
    for words in (
        ("add", "account", "theirs", "cluster=t"),
        ("add", "user", "dan", "cluster=t", "account=theirs"),
        ("add", "user", "eve", "cluster=t", "account=theirs"),
        ("add", "user", "fay", "cluster=t", "account=users"),
        ("add", "qos", "own"),
    ):
        cluster.database.obey(words)
    told = ("account theirs", "user dan in account theirs", "user eve in account theirs", "QOS own")
    assert cluster.apply(made()) == plan.Plan(by_hand=told)
    cluster.apply(made(exclusive_accounts=True))
    assert not {"theirs"} & state.accounts.keys()
    assert "own" not in state.qos
    assert ("users", "fay") in state.associations, "everybody may be in the default account"
    assert "dan" not in state.users


def test_what_goes_waits_for_its_jobs() -> None:
    cluster = Cluster()
    cluster.apply(made())
    cluster.jobs = [QueuedJob("7", "bob", "vision", "high"), QueuedJob("9", "ada", "users", "normal")]
    less = made(ACCOUNTS[:1], (User("ada", "research"), User("eve")), LEVELS[1:])
    last = cluster.apply(dataclasses.replace(less, accounts=(Account("research"),)))
    assert last.staying == (
        "user bob in account vision stays while it has jobs: 7",
        "user ada in account users stays while it has jobs: 9",
        "account vision stays while it has jobs: 7",
        "QOS high stays while it has jobs: 7",
    )
    cluster.jobs = []
    cluster.apply(dataclasses.replace(less, accounts=(Account("research"),)))
    assert cluster.database.state.accounts.keys() == {"root", "research", "users"}
    assert cluster.database.state.qos.keys() == {"normal", "low"}
    assert "bob" not in cluster.database.state.users


def test_what_is_changed_by_hand_is_changed_back_and_told() -> None:
    cluster = Cluster()
    cluster.apply(made())
    cluster.database.obey(("modify", "account", "where", "name=research", "cluster=t", "set", "grpjobs=7"))
    again = cluster.plan(made(), [])
    assert again.said == ("accounts changed: research: grpjobs=-1",)


def test_another_default_account_takes_its_users_along() -> None:
    cluster = Cluster()
    cluster.apply(made())
    cluster.database.obey(("add", "user", "fay", "cluster=t", "account=users"))
    cluster.must_submit = {"fay": {"users", "staff"}, "eve": {"users", "staff"}}
    cluster.apply(made(users=(User("eve"),), default_account="staff"))
    state = cluster.database.state
    assert state.users["fay"].account == state.users["eve"].account == "staff"
    assert "users" not in state.accounts


def test_limits_of_devices_that_slurm_does_not_count_yet_come_later() -> None:
    accounts = [Account("gpu", limits=Limits({"cpu": 4, "gres/gpu": 2}))]
    cluster = Cluster()
    last = cluster.apply(made(accounts, (), ()))
    assert last.later == ("gres/gpu",)
    assert cluster.database.state.accounts["gpu"]["grptres"] == "cpu=4"
    cluster.database.state = dataclasses.replace(cluster.database.state, tres=BASE | {"gres/gpu"})
    cluster.apply(made(accounts, (), ()))
    assert cluster.database.state.accounts["gpu"]["grptres"] == "cpu=4,gres/gpu=2"


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (attributes.tres, "mem=1.50G,cpu=10", "cpu=10,mem=1536"),
        (attributes.tres, "cpu=3,mem=5000M", "cpu=3,mem=5000"),
        (attributes.minutes, "2-00:00:00", "2880"),
        (attributes.minutes, "01:30:00", "90"),
        (attributes.minutes, "INFINITE", ""),
        (attributes.seconds, "00:01:10", "70"),
        (attributes.number, "0.250000", "0.25"),
        (attributes.words, 'The "A" Team', "the `a` team"),
        (attributes.names, "normal,high", "high,normal"),
    ],
)
def test_what_sacctmgr_prints_is_what_it_was_told(read: Any, text: str, value: str) -> None:
    assert read(text) == value


NAMES = ("a", "b", "c", "d")
LEVEL_NAMES = ("p", "q", "r")


@st.composite
def designs(draw: st.DrawFn) -> ClusterDesign:
    qos: list[Qos] = []
    for index, name in enumerate(draw(st.permutations(LEVEL_NAMES))[: draw(st.integers(0, 3))]):
        preempts = tuple(level.name for level in qos if draw(st.booleans()))
        qos.append(Qos(name, priority=index, preempts=preempts))
    levels = ("normal", *(level.name for level in qos))
    accounts: list[Account] = []
    for name in draw(st.permutations(NAMES))[: draw(st.integers(0, 4))]:
        parent = draw(st.sampled_from([None, *(account.name for account in accounts)]))
        own = tuple(draw(st.lists(st.sampled_from(levels), unique=True)))
        default = draw(st.sampled_from([None, *own]))
        limits = Limits({"cpu": 3} if draw(st.booleans()) else {}, max_jobs=draw(st.sampled_from([None, 5])))
        accounts.append(Account(name, None, parent, draw(st.integers(1, 3)), own, default, limits))
    known = ["users", *(account.name for account in accounts)]
    users = [
        User(name, draw(st.sampled_from([None, *known])), shares=draw(st.integers(1, 2)))
        for name in draw(st.lists(st.sampled_from(["u", "v", "w"]), unique=True))
    ]
    return made(accounts, users, qos, exclusive_accounts=draw(st.booleans()))


@settings(max_examples=60, deadline=None)
@given(first=designs(), second=designs())
def test_any_design_follows_any_other(first: ClusterDesign, second: ClusterDesign) -> None:
    """slurmdbd takes every change in its order, nobody is locked out meanwhile, and nothing is left to do."""
    cluster = Cluster()
    cluster.apply(first)
    both = {user.name for user in first.users} & {user.name for user in second.users}
    everything = {"users", *NAMES}
    cluster.must_submit = dict.fromkeys(sorted(both), everything)
    cluster.apply(second)
    state, wanted = cluster.database.state, plan.wanted(second, "slurm")
    assert {n: v for n, v in state.accounts.items() if n != "root"} == wanted.accounts
    assert {pair for pair in state.associations if pair[1] in wanted.users} == wanted.associations.keys()
    assert state.qos.keys() - {"normal"} == {level.name for level in second.qos}
