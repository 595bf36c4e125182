"""Login machines behind a real sshd on loopback; skipped, saying so, where sshd is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.login_machine import LoginMachine
from tests.support.sshd import missing

pytest.register_assert_rewrite("tests.support.remote_scenarios")


@pytest.fixture
def make_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], LoginMachine]]:
    """Makes login machines; the first one's agent, with its key, is the environment's."""
    if why := missing():
        pytest.skip(why)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made: list[LoginMachine] = []

    def make(name: str = "machine") -> LoginMachine:
        made.append(LoginMachine(tmp_path / name))
        monkeypatch.setenv("SSH_AUTH_SOCK", str(made[0].agent.socket))
        return made[-1]

    yield make
    for machine in made:
        machine.close()


@pytest.fixture
def machine(make_machine: Callable[[str], LoginMachine]) -> LoginMachine:
    return make_machine("machine")
