"""GPUs that break under a job, and prologs that fail, on a real Slurm with stand-ins for NVIDIA's tools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from node.health.nvidia import FIELDS
from node.health.programs import PRETENDED
from node.slurm.control import Control
from node.slurm.states import JobState, NodeState
from tests.support.checkout import Checkout, until

STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        partitions:
          - {name: gpu, instance_type: local.small, accelerator: {type: v100, count: 2}, nodes: {max: 3}}
        slurm:
          suspend_time: 60
          reconcile_interval: 1
          prolog: {source: prolog.sh, timeout: 30}
          epilog: {source: epilog.sh, timeout: 30}
        health: {enabled: true, interval_seconds: 5, skip: [dcgm, xid]}
"""
SMI = f"""#!/bin/sh
# A stand-in for nvidia-smi with the fields of `--query-gpu={",".join(FIELDS)}`.
errors=0
[ ! -e {{folder}}/sick-$SLURMD_NODENAME ] || errors=7
echo "0, 00000000:00:1B.0, 0, No, [N/A], No, Not Active"
echo "1, 00000000:00:1C.0, $errors, No, [N/A], No, Not Active"
"""
SCRIPT = """#!/bin/sh
echo "$SLURM_JOB_ID" >> {folder}/{name}-$SLURMD_NODENAME
if rm {folder}/refuse-{name} 2>/dev/null; then echo "no room in /local_scratch"; exit 3; fi
"""


class Cluster:
    """A real cluster. Slurm's commands run directly, because `./cluster exec` costs a second of CPU."""

    def __init__(self, checkout: Checkout, folder: Path) -> None:
        self.checkout = checkout
        self.folder = folder
        self.control = Control(checkout.run_directory / "etc" / "slurm.conf")

    def submit(self, script: str, *options: str) -> int:
        command = ("sbatch", "--parsable", "--output=/dev/null", "--chdir=/", *options, "--wrap", script)
        return int(self.control.run(*command))

    def job(self, number: int) -> JobState:
        return self.control.jobs()[number]

    def node(self, name: str) -> NodeState:
        return self.control.nodes()[name]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("health")
    checkout = Checkout(folder / "a checkout", STACK)
    for name in ("prolog", "epilog"):
        (checkout.folder / f"{name}.sh").write_text(SCRIPT.format(folder=folder, name=name))
    try:
        checkout.cluster("up", check=True)
        tools = checkout.run_directory / PRETENDED
        tools.mkdir()
        (tools / "nvidia-smi").write_text(SMI.format(folder=folder))
        (tools / "nvidia-smi").chmod(0o755)
        yield Cluster(checkout, folder)
    finally:
        left = checkout.close()
    assert left == []


def test_a_node_that_degrades_under_a_job_is_drained_and_replaced(cluster: Cluster) -> None:
    ends = cluster.folder / "ends"
    job = cluster.submit(f"while [ ! -e {ends} ]; do sleep 0.2; done", "--nodelist=gpu-0")
    until(lambda: cluster.job(job).state == "RUNNING", 180, "the job")
    # A job counts as running while its prolog runs.
    prolog = cluster.folder / "prolog-gpu-0"
    until(lambda: prolog.exists() and prolog.read_text().split() == [str(job)], 60, "the prolog")
    first = cluster.node("gpu-0").boot_time

    sick = cluster.folder / "sick-gpu-0"
    sick.touch()
    until(lambda: cluster.node("gpu-0").is_drained, 120, "the drain")
    cause = "GPU 1 (00000000:00:1C.0): 7 uncorrected memory errors (ECC)"
    assert cluster.node("gpu-0").reason == f"slurm-stacks health: {cause}"
    table = cluster.checkout.cluster("status", check=True).stdout
    assert "drained, its job goes on" in table
    assert "7 uncorrected memory errors" in " ".join(table.split())

    # The job continues to its end, and the next job does not wait for it.
    other = cluster.submit("true")
    until(lambda: cluster.job(other).state == "COMPLETED", 180, "the other job")
    assert cluster.job(other).nodes != ("gpu-0",)
    assert cluster.job(job).state == "RUNNING"
    ends.touch()
    until(lambda: cluster.job(job).state == "COMPLETED", 60, "the job's end")
    assert (cluster.job(job).restarts, cluster.job(job).exit_code) == (0, 0)
    assert (cluster.folder / "epilog-gpu-0").read_text().split() == [str(job)]
    until(lambda: cluster.node("gpu-0").is_powered_down, 120, "the end of its machine")
    assert cluster.node("gpu-0").reason == f"slurm-stacks health: {cause}"

    sick.unlink()
    again = cluster.submit("true", "--nodelist=gpu-0")
    until(lambda: cluster.job(again).state == "COMPLETED", 180, "a job on the new machine")
    node = cluster.node("gpu-0")
    assert not node.is_drained
    assert (node.boot_time or 0) > (first or 0)


def test_a_job_whose_prolog_fails_runs_on_another_node_and_is_not_held(cluster: Cluster) -> None:
    (cluster.folder / "refuse-prolog").touch()
    job = cluster.submit("true")
    until(lambda: not (cluster.folder / "refuse-prolog").exists(), 180, "the prolog")
    until(lambda: cluster.job(job).restarts == 1, 60, "the job is queued again")
    logs = cluster.checkout.run_directory.glob("log/prolog-*.log")
    (refused,) = [file for file in logs if "no room in /local_scratch" in file.read_text()]
    node = refused.stem.removeprefix("prolog-")
    output = cluster.checkout.cluster("logs", node, check=True).stdout
    assert f"job {job}: prolog.sh ended with status 3" in output
    until(lambda: cluster.job(job).state == "COMPLETED", 180, "the job")
    assert cluster.job(job).nodes != (node,)
    until(lambda: cluster.node(node).is_powered_down, 120, "the end of its machine")
    assert cluster.node(node).reason == "slurm-stacks health: the prolog prolog.sh ended with status 3"
