"""The benchmark over SSH with the real engine and the real command plugin."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from operations import login_lines
from tests.support import remote_scenarios as scenarios
from tests.support.drivers import Cli
from tests.support.login_machine import LoginMachine, login_machines
from tests.support.sshd import make_key, missing, public

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture
def make_machine(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], LoginMachine]]:
    """Makes login machines. The environment has the SSH agent of the first one, with its key."""
    with login_machines(tmp_path, monkeypatch) as make:
        yield make


@pytest.fixture
def machine(make_machine: Callable[[str], LoginMachine]) -> LoginMachine:
    return make_machine("machine")


@pytest.fixture
def driver(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def test_a_benchmarks_life(driver: Cli, machine: LoginMachine) -> None:
    scenarios.check_life(driver, machine)


def test_another_address_is_no_other_job_and_another_machine_gets_all(
    driver: Cli, make_machine: Callable[[str], LoginMachine]
) -> None:
    scenarios.check_moved(driver, make_machine("machine"), make_machine("successor"))


def test_another_host_key_is_refused_and_nothing_is_sent(
    driver: Cli, machine: LoginMachine, tmp_path: Path
) -> None:
    other = public(make_key(tmp_path / "other"))
    refused = scenarios.check_wrong_key(driver, machine, other)
    assert "another SSH host key than the one that the cluster published" in refused.text


def test_a_machine_that_is_gone(driver: Cli, machine: LoginMachine, tmp_path: Path) -> None:
    """A benchmark that was removed is deleted without the machine, and a destroy does not call it."""
    scenarios.succeeded(driver.up(scenarios.spec(machine)))
    state = next((tmp_path / "backend").rglob("t.json")).read_text()
    assert "PRIVATE KEY" not in state
    assert os.environ["SSH_AUTH_SOCK"] not in state
    machine.sshd.stop()
    assert scenarios.succeeded(driver.up(scenarios.spec(machine))).operations == {}
    removed = scenarios.succeeded(driver.up(scenarios.spec(machine, benchmark=False)))
    assert removed.operations["b-job"] == "deleted"
    assert login_lines.NOT_CANCELLED in removed.text
    scenarios.succeeded(driver.destroy())


def test_a_refusal_comes_back_as_it_was_said(driver: Cli, machine: LoginMachine) -> None:
    """One message is so long a line that the plugin would stop reading and its writer wait for ever."""
    machine.tool.write_text(
        "#!/bin/sh\nhead -c 100000 /dev/zero | tr '\\0' x >&2\necho no such partition >&2\nexit 1\n"
    )
    refused = driver.up(scenarios.spec(machine))
    assert refused.failed
    assert "no such partition" in refused.text
