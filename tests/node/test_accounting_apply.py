"""When the controller's boot asks sacctmgr, what it remembers, and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.accounting import apply, attributes, state, stops
from node.accounting.plan import Record
from node.accounting.sacctmgr import Sacctmgr
from node.bootstrap.context import Context
from node.design.model import SlurmSettings
from node.design.sharing import Account, Limits, User
from tests.support.recorded import Recorder, machine

ON = SlurmSettings(accounting=True)


def controller(folder: Path, *accounts: Account) -> tuple[Context, Recorder]:
    context, run = machine(folder, "controller", "controller", slurm=ON, accounts=accounts)
    context.path(context.folders.state).mkdir(parents=True, exist_ok=True)
    run.answer("sacctmgr --noheader --parsable2 list association", "root|||" + "|1|normal" + "|" * 8 + "\n")
    run.answer("sacctmgr --noheader --parsable2 list account", "root|default root account\n")
    run.answer("sacctmgr --noheader --parsable2 list tres", "cpu|\nmem|\n")
    return context, run


@pytest.fixture(autouse=True)
def own_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Context, "slurm_user", property(lambda _self: None))


def test_a_cluster_without_accounts_of_its_own_asks_nothing(tmp_path: Path) -> None:
    context, run = controller(tmp_path)
    apply.prepare(context)
    apply.finish(context)
    assert run.calls == []


def test_what_is_added_is_remembered_before(tmp_path: Path) -> None:
    context, run = controller(tmp_path, Account("research"))
    run.fail("sacctmgr --immediate", said="slurmdbd: no")
    with pytest.raises(RuntimeError, match=r"not those of the stack file.*\n.*no"):
        apply.prepare(context)
    assert apply.read_record(context).accounts == ("research", "users")


def test_a_design_without_accounts_still_takes_the_former_ones_away(tmp_path: Path) -> None:
    context, _ = controller(tmp_path)
    apply.write_record(context, Record(("research",)))
    assert apply.concerns(context)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"accounts": 7}', b"\xff"])
def test_a_record_that_cannot_be_read_takes_nothing_away(tmp_path: Path, content: bytes) -> None:
    context, _ = controller(tmp_path)
    context.path(context.folders.state / apply.FILE).write_bytes(content)
    assert apply.read_record(context) == Record()


def test_an_answer_of_another_form_is_refused() -> None:
    def run(*words: str) -> str:
        return "a|b|c\n" if "account" in words else ""

    with pytest.raises(state.AnswerError, match=r"2 columns are expected: a\|b\|c"):
        state.read(Sacctmgr(run, "t"))


def test_every_attribute_of_the_design_has_its_option() -> None:
    assert attributes.of_account(Account("a")).keys() == attributes.ACCOUNT.keys()
    assert attributes.of_user(User("u")).keys() == attributes.ASSOCIATION.keys()
    initial = {key: attribute.initial for key, attribute in attributes.ASSOCIATION.items()}
    assert attributes.of_user(User("u")) == initial


def test_accounts_that_have_used_their_budgets_stay_stopped(tmp_path: Path) -> None:
    context, run = controller(tmp_path, Account("research", limits=Limits(grp_jobs=9)))
    rows = ["root|||" + "|1|normal" + "|" * 8, "research|root||" + "|1||||0" + "|" * 5]
    run.answer("sacctmgr --noheader --parsable2 list association", "\n".join([*rows, ""]))
    folder = context.path(context.folders.state)
    stops.write(folder, {"research": "4"})
    apply.prepare(context)
    assert not any("grpjobs=" in call for call in run.calls)
    assert stops.read(folder) == {"research": "9"}, "the stack file's limit holds afterwards"
    (folder / stops.FILE).write_bytes(b"[]")
    apply.prepare(context)
    assert any("grpjobs=9" in call for call in run.calls)
