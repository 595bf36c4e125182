"""How programs are started: with the environment that was named, in a session of their own, to their end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from node.system import subprocesses
from node.system.processes import ProcessId
from node.system.subprocesses import Ran
from node.system.waiting import wait_until

ENV = {"PATH": subprocesses.SEARCH}


def sh(script: str, seconds: float | None = 60.0, **options: str) -> Ran:
    return subprocesses.run(["sh", "-c", script], {**ENV, **options}, seconds)


def test_a_program_has_the_named_environment_alone_and_a_session_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SQUEUE_USERS", "nobody")
    ran = sh("env; pwd; ps -o sid= -p $$; echo told >&2; exit 3", MINE="1")
    *variables, folder, session = ran.output.splitlines()
    assert {"MINE=1", f"PATH={subprocesses.SEARCH}"} <= set(variables)
    assert not any(line.startswith("SQUEUE") for line in variables)
    assert (folder, ran.status, ran.errors, ran.last_line()) == ("/", 3, "told\n", "told")
    assert int(session) != os.getsid(0)


def test_standard_input_is_the_given_text_or_empty() -> None:
    assert subprocesses.run(["cat"], ENV, 60.0, stdin="given").output == "given"
    assert subprocesses.run(["cat"], ENV, 60.0) == Ran(0)


def test_output_that_is_no_text_is_read_all_the_same() -> None:
    assert sh(r"printf 'a\377b'").output == "a\N{REPLACEMENT CHARACTER}b"


def test_what_a_program_leaves_behind_keeps_nobody_waiting() -> None:
    ran = sh("sleep 600 & echo $!")
    os.kill(int(ran.output), signal.SIGKILL)
    assert ran.status == 0


def test_a_program_whose_time_is_over_ends_with_all_that_it_started(tmp_path: Path) -> None:
    ran = sh(f"sleep 600 & echo $! > {tmp_path}/pid; echo so far; wait", 1.0)
    assert (ran.status, ran.output) == (None, "so far\n")
    child = ProcessId.of(int((tmp_path / "pid").read_text()))
    wait_until(lambda: child is None or not child.alive(), 60, "the child lives")


def test_an_error_meanwhile_ends_the_program_too(tmp_path: Path) -> None:
    def expired(*_: object) -> None:
        raise KeyError("the step's time")

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        with pytest.raises(KeyError):
            sh(f"echo $$ > {tmp_path}/pid; exec sleep 600")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_output_goes_to_a_file_in_order(tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab") as log:
        ran = subprocesses.run(["sh", "-c", "echo a; echo b >&2"], ENV, 60.0, output=log)
    assert ran == Ran(0)
    assert (tmp_path / "log").read_text() == "a\nb\n"


def test_a_program_that_is_not_installed_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        subprocesses.run(["no-such-program"], ENV, 60.0)
