"""Jobs have nodes that EC2 says are close together: real Slurm, the real daemon and driver, a fake EC2."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.test_ec2_cluster import COMPUTE, Ec2Cluster
from tests.node.slurm_cluster import needs_slurm
from tests.support.checkout import until

pytestmark = [needs_slurm, pytest.mark.timeout(600)]
STEP = "srun sh -c 'echo $SLURMD_NODENAME'"


def completed(cluster: Ec2Cluster, job: str) -> bool:
    return cluster.job(job)["JobState"] == "COMPLETED"


def test_slurm_learns_where_machines_run_and_a_running_job_goes_on(tmp_path: Path) -> None:
    # Late, because every worker that collects the tests imports this file, and moto takes it a second.
    from tests.support.fake_ec2 import fake_ec2

    with fake_ec2() as fake, contextlib.ExitStack() as ends:
        s3 = fake.s3()
        s3.create_bucket(Bucket="t-bucket", CreateBucketConfiguration={"LocationConstraint": fake.region})
        ends.callback(s3.delete_bucket, Bucket="t-bucket")
        cluster = ends.enter_context(Ec2Cluster(fake, replace(COMPUTE, topology=True)))
        fake.network = lambda i: ("nn-1", f"nn-1{i.ami_launch_index % 2}")

        def switches() -> str:
            return cluster.run("scontrol", "show", "topology").stdout

        assert "SwitchName=unplaced.compute Level=0 LinkSpeed=1 Nodes=compute-[0-5]" in switches()
        out, go, near = tmp_path / "out", tmp_path / "go", tmp_path / "near"
        script = f"{STEP}; until [ -e {go} ]; do sleep 0.2; done; {STEP}"
        # On a busy host srun says in its errors that it repeats a request.
        first = cluster.submit("-N6", f"--output={out}", f"--error={tmp_path / 'err'}", script=script)
        until(lambda: "SwitchName=nn-11 " in switches(), 120, "the places")
        assert "SwitchName=nn-10 Level=0 LinkSpeed=1 Nodes=compute-[0,2,4]" in switches()
        assert "unplaced" not in switches()
        assert cluster.job(first)["JobState"] == "RUNNING"
        second = cluster.submit(
            "-N3", "--switches=1", f"--output={near}", script="scontrol show hostnames; env | grep TOPOLOGY"
        )
        go.touch()
        for job in (first, second):
            until(partial(completed, cluster, job), 120, "the jobs")
        assert sorted(out.read_text().split()) == sorted([f"compute-{n}" for n in range(6)] * 2)
        told = near.read_text().split()
        nodes = [line for line in told if line.startswith("compute-")]
        assert nodes in ([f"compute-{n}" for n in (0, 2, 4)], [f"compute-{n}" for n in (1, 3, 5)])
        assert f"SLURM_TOPOLOGY_ADDR=cluster.nn-1.nn-1{int(nodes[0][-1]) % 2}.{nodes[0]}" in told
