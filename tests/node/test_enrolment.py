"""Who gets an account by the controller's boot, and by a login."""

from __future__ import annotations

import dataclasses
import os
import pwd
import re
import subprocess
from pathlib import Path, PurePath

import pytest

from node.accounting import enrolment
from node.accounting.sacctmgr import BATCH, Sacctmgr, can_name
from node.bootstrap.context import Context
from node.bootstrap.vm import login_enrolment
from node.design.model import SlurmSettings
from node.design.sharing import User
from tests.support.recorded import Recorder, machine

ON = SlurmSettings(accounting=True)
LIST = "sacctmgr --noheader --parsable2 list association"
SACCT = (
    "sacct --noheader --parsable2 --allusers --allocations --duplicates --format=User --starttime=now-365days"
)
NEW = "root|\nroot|root\n"
MADE = f"{NEW}users|\n"
USERS = {"root": 0, "slurm": 64030, "daemon": 1, "ada": 1000, "far": 70000, "nobody": 65534, "o'neill": 1001}
LISTED = ("root", "slurm", "daemon", "ada", "nobody", "o'neill")
"""A directory need not list its users, and does not list this one."""


def entry(name: str) -> pwd.struct_passwd:
    return pwd.struct_passwd((name, "x", USERS[name], 100, "", f"/home/{name}", "/bin/sh"))


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Context, Recorder]:
    monkeypatch.setattr(pwd, "getpwall", lambda: [entry(name) for name in LISTED])
    monkeypatch.setattr(pwd, "getpwnam", entry)
    users = (User("grace"), User("own", account="research"))
    return machine(tmp_path, "controller", "controller", slurm=ON, users=users)


def added(run: Recorder) -> list[str]:
    return run.having("add", "user")


def test_where_accounts_were_not_enforced_all_users_get_the_account(
    controller: tuple[Context, Recorder],
) -> None:
    context, run = controller
    run.answer(LIST, NEW)
    run.answer("sacct ", "ada\nfar\ngone\n\n")
    enrolment.enrol(context, is_new=False)
    assert run.calls == [
        f"{LIST} format=account,user cluster=t",
        "sacctmgr --immediate add account users cluster=t "
        "description=users without an account of their own organization=users",
        SACCT,
        # Not one who has an account of theirs, nor whom this machine does not know.
        "sacctmgr --immediate add user ada,far,grace,slurm cluster=t account=users",
    ]


def test_a_new_cluster_has_no_records_to_read(controller: tuple[Context, Recorder]) -> None:
    context, run = controller
    run.answer(LIST, NEW)
    enrolment.enrol(context, is_new=True)
    assert not run.having("sacct")
    assert added(run) == ["sacctmgr --immediate add user ada,grace,slurm cluster=t account=users"]


def test_a_second_boot_writes_nothing(controller: tuple[Context, Recorder]) -> None:
    context, run = controller
    run.answer(LIST, f"{MADE}users|ada\nresearch|grace\nusers|slurm\n")
    enrolment.enrol(context, is_new=False)
    assert len(run.calls) == 1


def test_the_boot_goes_on_without_the_records(controller: tuple[Context, Recorder]) -> None:
    context, run = controller
    run.answer(LIST, NEW)
    run.fail("sacct")
    enrolment.enrol(context, is_new=False)
    assert added(run) == ["sacctmgr --immediate add user ada,grace,slurm cluster=t account=users"]


def test_whose_job_waits_gets_an_account(controller: tuple[Context, Recorder]) -> None:
    context, run = controller
    enrolment.enrol_queued(context)
    assert run.calls == ["squeue --noheader --all --format=%u"], "without jobs it asks no more"
    run.answer(LIST, f"{MADE}users|ada\n")
    run.answer("squeue", "far\nada\nfar\n4711\n")
    enrolment.enrol_queued(context)
    assert added(run) == ["sacctmgr --immediate add user far cluster=t account=users"]


def test_on_process_machines_only_the_owner_submits(controller: tuple[Context, Recorder]) -> None:
    context, run = controller
    design = dataclasses.replace(context.settings.design, isolation="process")
    context.settings = dataclasses.replace(context.settings, design=design)
    context.folders = dataclasses.replace(context.folders, settings=context.settings)
    run.answer(LIST, MADE)
    enrolment.enrol(context, is_new=False)
    owner = pwd.getpwuid(os.getuid()).pw_name
    if owner != "root":  # slurmdbd has root's association from the beginning
        assert added(run) == [f"sacctmgr --immediate add user {owner} cluster=t account=users"]


def test_many_users_are_few_calls() -> None:
    calls: list[tuple[str, ...]] = []

    def run(*words: str) -> str:
        calls.append(words)
        return ""

    Sacctmgr(run, "t").add_users("users", [f"u{number}" for number in range(2 * BATCH + 1)])
    assert [len(words[3].split(",")) for words in calls] == [BATCH, BATCH, 1]


@pytest.mark.parametrize("name", ["ada", "Ada", "DOM\\ada", "ada@dom.example", "Ada Lovelace", "a.b-c"])
def test_names_for_sacctmgr(name: str) -> None:
    assert can_name(name)


@pytest.mark.parametrize("name", ["a,b", "a=b", "a|b", "a'b", 'a"b', "-a", "a\nb"])
def test_names_that_sacctmgr_would_read_otherwise(name: str) -> None:
    assert not can_name(name)


# --- the program that PAM calls ---------------------------------------------------------------------------


SACCTMGR = """\
#!/bin/sh
echo "$*" >>{calls}
[ ! -e {away} ] || exit 1
case "$*" in *list*) cat {listed} ;; esac
"""
GETENT = """\
#!/bin/sh
case $2 in
    ada | ADA) echo ada:x:1000:100::/home/ada:/bin/sh ;;
    root) echo root:x:0:0::/root:/bin/sh ;;
    nobody) echo nobody:x:65534:65534::/:/bin/sh ;;
    comma) echo 'a,b:x:1002:100::/:/bin/sh' ;;
    *) exit 2 ;;
esac
"""


class Login:
    """A login machine with a stand-in of sacctmgr."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.calls, self.away, self.listed = (folder / name for name in ("calls", "away", "listed"))
        self.listed.touch()
        places = {"calls": self.calls, "away": self.away, "listed": self.listed}
        for name, text in (("sacctmgr", SACCTMGR.format(**places)), ("getent", GETENT)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        text = login_enrolment.program_text("t", "users", PurePath("/etc/slurm/slurm.conf"))
        text = re.sub(r"PATH=/usr/sbin", f"PATH={folder}:/usr/sbin", text)
        self.marks = folder / "marks"
        self.program = folder / "enrol"
        self.program.write_text(text.replace(f"folder=/{login_enrolment.RUN}", f"folder={self.marks}"))
        self.program.chmod(0o755)

    def __call__(self, user: str, kind: str = "open_session") -> list[str]:
        """Log in, and return how sacctmgr was called."""
        self.calls.write_text("")
        env = {"PAM_USER": user, "PAM_TYPE": kind}
        done = subprocess.run(
            [self.program], env=env, capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        return self.calls.read_text().splitlines()


ASKS = "--noheader --parsable2 list association cluster=t user=ada format=account"
ADDS = "--immediate add user ada cluster=t account=users"


@pytest.fixture
def login(tmp_path: Path) -> Login:
    return Login(tmp_path)


def test_who_has_no_account_gets_one_once(login: Login) -> None:
    # PAM may know the user by another spelling.
    assert login("ADA") == [ASKS, ADDS]
    assert login("ada") == []


def test_who_has_an_account_keeps_it(login: Login) -> None:
    login.listed.write_text("research\n")
    assert login("ada") == [ASKS]


def test_an_account_that_was_forgotten_comes_back(login: Login) -> None:
    login("ada")
    an_hour = 60 * (login_enrolment.KNOWN_MINUTES + 1)
    mark = login.marks / "1000"
    os.utime(mark, (mark.stat().st_atime - an_hour, mark.stat().st_mtime - an_hour))
    login("ada")  # this one does not wait
    subprocess.run(["flock", login.marks / "1000.lock", "true"], check=True, timeout=60)
    assert login.calls.read_text().splitlines() == [ASKS, ADDS]


def test_a_login_succeeds_while_the_controller_is_away(login: Login) -> None:
    login.away.touch()
    assert login("ada") == [ASKS]
    assert not (login.marks / "1000").exists()
    login.away.unlink()
    assert login("ada") == [ASKS, ADDS]


def test_a_users_programs_are_one_at_a_time(login: Login) -> None:
    login("root")
    login.marks.mkdir()
    with (login.marks / "1000.lock").open("w") as lock:
        subprocess.run(["flock", str(lock.fileno())], pass_fds=[lock.fileno()], check=True, timeout=60)
        assert login("ada") == []


@pytest.mark.parametrize("user", ["root", "nobody", "stranger", "comma"])
def test_others_get_no_account(login: Login, user: str) -> None:
    assert login(user) == []


def test_the_end_of_a_session_asks_nothing(login: Login) -> None:
    assert login("ada", "close_session") == []


def test_pam_calls_it_while_there_is_accounting(tmp_path: Path) -> None:
    context, _ = machine(tmp_path, "login", "login-0", slurm=ON)
    pam = context.at(login_enrolment.PAM[0])
    pam.parent.mkdir(parents=True)
    before = "session required pam_unix.so\n# end of pam-auth-update config\n"
    pam.write_text(before)
    for _ in range(2):
        login_enrolment.prepare(context)
        assert pam.read_text().startswith(before)
        assert pam.read_text().count("pam_exec.so quiet seteuid /usr/local/lib/slurm-stacks/enrol\n") == 1
    assert not context.at(login_enrolment.PAM[1]).exists()
    off = dataclasses.replace(context.settings.design, slurm=SlurmSettings())
    context.settings = dataclasses.replace(context.settings, design=off)
    login_enrolment.prepare(context)
    assert pam.read_text() == before
