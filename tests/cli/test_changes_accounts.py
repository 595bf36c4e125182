"""`up` refuses to enforce accounts that waiting jobs have not."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest

from cli.changes import accounts
from cli.changes.decision import ClusterControl
from infra.errors import EXIT_REFUSED
from node.design.model import SlurmSettings
from node.design.sharing import Account, User
from tests.support.doubles import design
from tests.support.job_lines import MARK, listing, record
from tests.support.sentences import raises

DESIGN = design(stack="test", slurm=SlurmSettings(accounting=True))
HELD = """\
root||normal
root|root|normal
physics||high,normal
physics|ada|high,normal
"""


def answer(*jobs: str, held: str = HELD) -> str:
    rows = "".join(f"association={line}\n" for line in held.splitlines())
    fields = ([*job.split("|"), ""][:5] for job in jobs)
    records = (f"{MARK}f".join(job) + f"{MARK}r\n" for job in fields)
    return f"accounts-are-free\n{rows}{listing(*records)}"


@pytest.mark.parametrize(
    "job",
    [
        "1|bob|(null)|normal",
        # Slurm shows no QOS for one that does not exist, and gives the job the default one later.
        "1|bob||",
        "1|bob|users|normal",
        "1|ada|physics|high",
        "1|ada|(null)|high",
        "1|root|root|normal",
        "1|DOM\\bob|(null)|normal",
        # It has been taken with these names, and runs.
        "1|bob|nosuch|nosuch|debug-0",
    ],
)
def test_jobs_that_go_on(job: str) -> None:
    assert accounts.locked_out(answer(job), DESIGN) == []


@pytest.mark.parametrize(
    ("job", "why"),
    [
        ("1|bob|nosuch|normal", "the user has no account nosuch"),
        ("1|bob|physics|normal", "the user has no account physics"),
        ("1|ada|users|normal", "the user has no account users"),
        ("1|bob|(null)|high", "the user has no QOS high"),
        ("1|root|(null)|high", "the user has no QOS high"),
        ("1|o'neill|(null)|normal", "Slurm's accounting cannot hold this name of a user"),
    ],
)
def test_jobs_that_would_wait_for_ever(job: str, why: str) -> None:
    assert accounts.locked_out(answer(job), DESIGN) == [f"  job 1 ({job.split('|')[1]}): {why}"]


def test_what_the_stack_file_gives_counts() -> None:
    shared = dataclasses.replace(
        DESIGN,
        accounts=(Account("chem", qos=("night",)),),
        users=(User("bob", account="chem"), User("ada", accounts=("chem",), qos=("day",))),
    )
    jobs = ("1|bob|chem|night", "2|ada|chem|day", "3|ada|physics|high", "4|ada|users|normal")
    assert accounts.locked_out(answer(*jobs), shared) == []
    assert len(accounts.locked_out(answer("1|bob|users|normal", "2|bob|chem|day"), shared)) == 2


def test_qos_that_an_account_has_from_the_one_above_it_count() -> None:
    below = (Account("chem", qos=("night",)), Account("lab", parent="chem"), Account("bench", parent="lab"))
    shared = dataclasses.replace(DESIGN, accounts=below, users=(User("bob", account="bench"),))
    assert accounts.locked_out(answer("1|bob|bench|night"), shared) == []
    assert len(accounts.locked_out(answer("1|bob|bench|day"), shared)) == 1
    # Who is not named is in the default account, which the stack file may have, too.
    users = dataclasses.replace(shared, accounts=(*below, Account("users", parent="lab")), users=())
    assert accounts.locked_out(answer("1|eve|users|night"), users) == []


def test_without_accounting_so_far_there_is_the_default_account_only() -> None:
    jobs = ("1|ada|(null)|normal", "2|ada|users|normal", "3|ada|physics|normal")
    assert accounts.locked_out(answer(*jobs, held=""), DESIGN) == [
        "  job 3 (ada): the user has no account physics"
    ]


def test_what_was_before_accounting_was_turned_off_cannot_be_asked() -> None:
    text = answer("1|ada|physics|normal", held="")
    assert accounts.locked_out(f"accounts-of-before\n{text}", DESIGN) == []
    assert accounts.locked_out(answer("1|root|root|normal", held=""), DESIGN) == []


def test_no_question_is_answered_where_accounts_are_enforced() -> None:
    assert accounts.locked_out("some words of ~/.bashrc\n", DESIGN) == []


def control(text: str) -> ClusterControl:
    return ClusterControl(lambda _line, _seconds: text)


def test_up_names_the_jobs_and_what_to_do() -> None:
    many = [f"{number}|bob|nosuch|normal" for number in range(1, 30)]
    with raises("jobs.locked-out", "job 1 (bob)", "and 9 more", "sacctmgr") as caught:
        control(answer(*many)).check_accounts(DESIGN)
    assert caught.value.exit_code == EXIT_REFUSED
    control(answer(many[0].replace("nosuch", "users"))).check_accounts(DESIGN)


def test_an_answer_that_is_cut_is_none() -> None:
    whole = answer("1|bob|(null)|normal")
    with raises("jobs.unsure"):
        control(whole.partition("mark=")[0]).check_accounts(DESIGN)
    with raises("jobs.unsure"):
        control(whole + record("12", "ann", "cpu", "cpu-1", "RUNNING", "", "x")).check_accounts(DESIGN)


STAND_INS = {
    "scontrol": '[ "$*" = "show config" ] && echo "AccountingStorageEnforce = $ENFORCED"\n',
    "sacctmgr": 'printf "root||normal\\nroot|root|normal\\n"\n',
    "squeue": 'printf "%s" "$SQUEUE_FORMAT"\n',
}


@pytest.mark.parametrize("enforced", ["none", "associations,limits,qos"])
def test_the_shell_line(tmp_path: Path, enforced: str) -> None:
    for name, text in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "ENFORCED": enforced}
    (state := tmp_path / "the state").mkdir()

    def asked() -> list[str]:
        line = accounts.question("t", str(state), "")
        done = subprocess.run(
            ["/bin/sh", "-c", line], env=env, capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    if enforced != "none":
        assert asked() == []
        return
    *said, mark, listed = asked()
    assert said == ["accounts-are-free", "association=root||normal", "association=root|root|normal"]
    mark = mark.removeprefix("mark=")
    assert listed == f"%i{mark}f%u{mark}f%a{mark}f%q{mark}f%N{mark}r"
    (state / "assoc_mgr_state").touch()
    assert asked()[3] == "accounts-of-before"
