"""Login machines behind a real sshd on loopback; without sshd the tests are skipped with that reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.login_machine import LoginMachine, login_machines
from tests.support.sshd import missing


@pytest.fixture
def make_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], LoginMachine]]:
    """Makes login machines; the SSH agent of the first one, with its key, is that of the environment."""
    if why := missing():
        pytest.skip(why)
    with login_machines(tmp_path, monkeypatch) as make:
        yield make


@pytest.fixture
def machine(make_machine: Callable[[str], LoginMachine]) -> LoginMachine:
    return make_machine("machine")
