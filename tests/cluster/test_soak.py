"""Random jobs, faults and killed daemons, for seconds and for two minutes; tests/bench/soak.py is longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.design.model import CONTAINER
from operations.local import system_packages
from tests.support.containers import cluster_image
from tests.support.soak import sharing
from tests.support.soak.cluster import stack
from tests.support.soak.commands import COMMANDS
from tests.support.soak.faults import KINDS
from tests.support.soak.harness import Options, soak
from tests.support.soak.journal import HEAD

SECONDS = 120.0
SHORT_SECONDS = 15.0
SHORT_KINDS = ("kill", "preempt", "quota_nodes", "elastic")
"""One fault of each sort: lost machines, a limit, a killed daemon.

Only the long soak kills slurmctld in the same seconds, because Slurm 22.05 itself sometimes loses a node then
(docs/internals/reliability.md). test_interruptions.py and test_lost_machines.py kill slurmctld by default.
"""
SEED = 5


@pytest.mark.timeout(900)
def test_a_short_soak_loses_no_job_and_leaves_nothing(tmp_path: Path) -> None:
    result = soak(Options(SHORT_SECONDS, SEED, kinds=SHORT_KINDS, logs=tmp_path / "logs"))
    assert result.findings == [], f"seed {SEED}, logs in {result.logs}"
    assert result.jobs["completed"] >= 1
    assert set(result.faults) == set(SHORT_KINDS)


@pytest.mark.wide
@pytest.mark.timeout(900)
@pytest.mark.parametrize("commands", [(), COMMANDS], ids=["faults", "and killed commands"])
def test_two_minutes_of_every_fault_lose_no_job_and_leave_nothing(
    tmp_path: Path, commands: tuple[str, ...]
) -> None:
    kinds = (*KINDS, *commands)
    result = soak(Options(SECONDS, SEED, kinds=kinds, logs=tmp_path / "logs"))
    assert result.findings == [], f"seed {SEED}, logs in {result.logs}"
    assert result.jobs["completed"] >= 10
    assert set(result.faults) == set(kinds)


@pytest.mark.wide
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    bool(system_packages.missing(system_packages.ACCOUNTING)), reason="packages of accounting are missing"
)
def test_two_minutes_in_which_jobs_make_way_lose_no_job(tmp_path: Path) -> None:
    kinds = ("kill", "preempt", "quota_nodes", "elastic", "slurmctld", *sharing.DAEMONS)
    result = soak(Options(SECONDS, SEED, kinds=kinds, logs=tmp_path / "logs", shares=True))
    assert result.findings == [], f"seed {SEED}, logs in {result.logs}"
    assert result.jobs["completed"] >= 10
    assert set(result.faults) == set(kinds)
    assert sharing.read(result.logs / "log" / "slurmctld.log"), "some made way"


@pytest.mark.wide
@pytest.mark.timeout(1500)
def test_two_minutes_in_which_the_controller_is_lost_each_minute_lose_no_job(tmp_path: Path) -> None:
    cluster_image(stack(CONTAINER))
    kinds = ("kill", "preempt", "elastic")
    options = Options(SECONDS, SEED, machines=CONTAINER, kinds=kinds, logs=tmp_path / "logs", lose_head=50.0)
    result = soak(options)
    assert result.findings == [], f"seed {SEED}, logs in {result.logs}"
    assert result.jobs["completed"] >= 1
    assert set(result.faults) == {*kinds, HEAD}
