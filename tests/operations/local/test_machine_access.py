"""What commands on a local cluster's machines have in their environment."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from operations.local import machine_access
from operations.local.run_directory import RunDirectory

ME = pwd.getpwuid(os.getuid())
LOGIN = {"USER": ME.pw_name, "LOGNAME": ME.pw_name, "HOME": ME.pw_dir, "SHELL": ME.pw_shell or "/bin/sh"}
"""What login(1) sets of a user, by its manual page, besides PATH."""


def environment(tmp_path: Path, isolation: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables that a command has, besides those of the caller where machines are processes."""
    monkeypatch.setattr(RunDirectory, "containers", property(lambda _: isolation == "container"))
    command = machine_access.command(RunDirectory(tmp_path), ["env"])
    return command.env | dict(word.split("=", 1) for word in command.argv if "=" in word)


@pytest.mark.parametrize("isolation", ["process", "container"])
@pytest.mark.parametrize("value", [None, ""])
def test_a_command_knows_whose_it_is(
    isolation: str, value: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a login by sshd, also where the caller has nothing of it, as in a container or in CI."""
    for name in LOGIN:
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    found = environment(tmp_path, isolation, monkeypatch)
    # A machine that boots has a home folder of its own, and perhaps not this host's shells.
    its_own = {"HOME": f"/home/{ME.pw_name}", "SHELL": "/bin/sh"} if isolation == "container" else {}
    assert {name: found[name] for name in LOGIN} == LOGIN | its_own


def test_what_the_caller_has_stays_on_machines_that_are_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in LOGIN:
        monkeypatch.setenv(name, "/mine")
    assert not LOGIN.keys() & environment(tmp_path, "process", monkeypatch).keys()


def test_a_user_without_a_name_gets_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_uid: int) -> None:
        raise KeyError

    monkeypatch.delenv("USER", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert "USER" not in environment(tmp_path, "process", monkeypatch)
