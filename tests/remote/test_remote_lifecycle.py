"""The benchmark over SSH from up to destroy, against a real sshd.

`OpenSshShell` runs as it ships, under the embedded runner; the real engine has tests/engine.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from operations import login_lines
from tests.support import remote_scenarios as scenarios
from tests.support.drivers import Driver, Embedded
from tests.support.login_machine import LoginMachine
from tests.support.sshd import Agent, make_key, public


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Embedded(tmp_path)


def test_a_benchmarks_life(driver: Driver, machine: LoginMachine) -> None:
    scenarios.check_life(driver, machine)


def test_another_address_is_no_other_job_and_another_machine_gets_all(
    driver: Driver, make_machine: Callable[[str], LoginMachine]
) -> None:
    scenarios.check_moved(driver, make_machine("machine"), make_machine("successor"))


def test_another_host_key_is_refused(driver: Driver, machine: LoginMachine, tmp_path: Path) -> None:
    refused = scenarios.check_wrong_key(driver, machine, public(make_key(tmp_path / "other")))
    assert "another SSH host key than the one that the cluster published" in refused.text


def test_a_cluster_that_is_gone_is_destroyed_without_it(driver: Driver, machine: LoginMachine) -> None:
    scenarios.check_gone(driver, machine)


def test_an_unwanted_benchmark_of_a_machine_that_is_gone(tmp_path: Path, machine: LoginMachine) -> None:
    driver = Embedded(tmp_path)
    scenarios.succeeded(driver.up(scenarios.spec(machine)))
    machine.sshd.stop()
    removed = scenarios.succeeded(driver.up(scenarios.spec(machine, benchmark=False)))
    assert removed.operations["b-job"] == "deleted"
    assert login_lines.NOT_CANCELLED in removed.text


def test_without_an_accepted_key_nothing_runs(
    driver: Driver, machine: LoginMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = Agent(tmp_path / "stranger", make_key(tmp_path / "its key"))
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(stranger.socket))
        refused = driver.up(scenarios.spec(machine))
    finally:
        stranger.stop()
    assert refused.failed
    assert "accepts no key of yours" in refused.text
    assert (machine.staged(), machine.calls()) == ({}, [])


def test_an_environment_that_is_not_made_in_time_is_said(driver: Driver, machine: LoginMachine) -> None:
    place = {**machine.place, "environment": "never", "wait": 1}
    late = driver.up(scenarios.spec(machine, place=place))
    assert late.failed
    assert f"the training environment {machine.apps}/envs/never is not there after 1 s" in late.text
    assert machine.queue() == {}, "no job is queued that could not run"


def test_a_refusal_of_the_clusters_command_is_its_own(driver: Driver, machine: LoginMachine) -> None:
    machine.tool.write_text("#!/bin/sh\necho 'sbatch: invalid partition: gpu' >&2\nexit 1\n")
    refused = driver.up(scenarios.spec(machine))
    assert refused.failed
    assert "sbatch: invalid partition: gpu" in refused.text
