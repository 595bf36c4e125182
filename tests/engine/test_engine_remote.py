"""The benchmark over SSH with the real engine, the real command plugin and its own SSH client."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.ssh import shells
from tests.support import remote_scenarios as scenarios
from tests.support.drivers import Cli
from tests.support.login_machine import LoginMachine, login_machines
from tests.support.sshd import make_key, missing, public

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture
def make_machine(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], LoginMachine]]:
    """Makes login machines; the first one's agent, with its key, is the environment's."""
    with login_machines(tmp_path, monkeypatch) as make:
        yield make


@pytest.fixture
def machine(make_machine: Callable[[str], LoginMachine]) -> LoginMachine:
    return make_machine("machine")


@pytest.fixture
def driver(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.mark.parametrize("shell", ["openssh", "remote"])
def test_a_benchmarks_life(driver: Cli, machine: LoginMachine, shell: str) -> None:
    scenarios.check_life(driver, machine, shell)


def test_another_address_is_no_other_job_and_another_machine_gets_all(
    driver: Cli, make_machine: Callable[[str], LoginMachine]
) -> None:
    scenarios.check_moved(driver, make_machine("machine"), make_machine("successor"), "remote")


def test_pulumis_client_refuses_another_host_key_and_sends_nothing(
    driver: Cli, machine: LoginMachine, tmp_path: Path
) -> None:
    other = public(make_key(tmp_path / "other"))
    refused = scenarios.check_wrong_key(driver, machine, "remote", other)
    assert "host key mismatch" in refused.text


def test_a_machine_that_is_gone(
    driver: Cli, machine: LoginMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pulumi's client needs it to cancel a job, and gives up soon; to destroy all it is not asked."""
    scenarios.succeeded(driver.up(scenarios.spec(machine, "remote")))
    state = next((tmp_path / "backend").rglob("t.json")).read_text()
    assert "PRIVATE KEY" not in state
    assert os.environ["SSH_AUTH_SOCK"] not in state
    # The archive's place on this machine is no part of the wish.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another cache"))
    machine.sshd.stop()
    assert scenarios.succeeded(driver.up(scenarios.spec(machine, "remote"))).operations == {}
    failed = driver.up(scenarios.spec(machine, "remote", benchmark=False))
    assert failed.failed
    assert f"after {shells.DIAL_ERRORS} failed attempts" in failed.text
    assert "connection refused" in failed.text
    # It would fail again if it were asked.
    assert scenarios.succeeded(driver.destroy()).operations["b-job"] == "deleted"


def test_a_refusal_comes_back_as_it_was_said(driver: Cli, machine: LoginMachine) -> None:
    """Also one of a single line that would hang the provider if it were logged."""
    machine.tool.write_text(
        "#!/bin/sh\nhead -c 100000 /dev/zero | tr '\\0' x >&2\necho no such partition >&2\nexit 1\n"
    )
    refused = driver.up(scenarios.spec(machine, "remote"))
    assert refused.failed
    assert "no such partition" in refused.text


def test_without_an_agent_pulumi_says_so_without_a_traceback(
    driver: Cli, machine: LoginMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK")
    refused = driver.up(scenarios.spec(machine, "remote"))
    assert refused.failed
    assert "there is no SSH agent here" in refused.text
    assert "Traceback" not in refused.text
