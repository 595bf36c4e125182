"""The benchmark over SSH on a real cluster: real sbatch, squeue and scancel behind a real sshd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from operations.local import system_packages
from operations.local.run_directory import RunDirectory
from tests.support import remote_scenarios as scenarios
from tests.support.checkout import SMALL, Checkout, running, until
from tests.support.drivers import Embedded
from tests.support.login_machine import LoginMachine
from tests.support.sshd import missing

# By default test_remote_lifecycle.py takes the same steps behind a real sshd, and
# tests/cluster/test_benchmark_training.py submits to the real Slurm by the same command of the cluster.
pytestmark = [
    pytest.mark.wide,
    pytest.mark.cluster,
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.skipif(
        bool(system_packages.missing()), reason=f"missing packages: {', '.join(system_packages.missing())}"
    ),
]

LASTING = "#!/bin/bash\n#SBATCH -N1\nsleep 600\n"
SHORT = "#!/bin/bash\n#SBATCH -N2 -o out-it.txt\nsrun hostname\necho '{\"loss\": 1}' >result.json\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    with running(tmp_path_factory.mktemp("remote") / "a checkout", SMALL) as checkout:
        yield checkout


def queue(cluster: Checkout) -> dict[str, str]:
    lines = cluster.ask("squeue", "-h", "-t", "all", "-o", "%i %T").splitlines()
    return dict(line.split() for line in lines)


def test_a_job_of_a_real_cluster(cluster: Checkout, machine: LoginMachine, tmp_path: Path) -> None:
    run = RunDirectory(cluster.run_directory)
    driver = Embedded(tmp_path)

    def wish(script: str) -> dict[str, Any]:
        place = {**machine.place, "shared": str(run.shared), "tool": str(run.tool)}
        return scenarios.spec(machine, place=place, script=script)

    first = scenarios.succeeded(driver.up(wish(LASTING))).outputs["job"]
    assert queue(cluster)[first] in ("PENDING", "CONFIGURING", "RUNNING")
    assert scenarios.succeeded(driver.up(wish(LASTING))).operations == {}

    second = scenarios.succeeded(driver.up(wish(SHORT))).outputs["job"]
    assert second != first
    until(lambda: queue(cluster)[first] == "CANCELLED", 120, "the first job's end")
    until(lambda: queue(cluster)[second] == "COMPLETED", 120, "the second job's end")
    (result,) = run.shared.glob("bench/*/*/result.json")
    assert result.read_text() == '{"loss": 1}\n'
    assert len((result.parent / "out-it.txt").read_text().split()) == 2
    assert (result.parent.parent / "workload" / "train.py").exists()
    result.unlink()
