"""A whole cluster on Compute Engine, on one machine (`tests.cluster.cloud_cluster`)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from node.design.model import Partition
from node.elastic import programs
from node.elastic.drivers.gce.names import node_of
from tests.cluster.cloud_cluster import CloudCluster
from tests.support.checkout import until

if TYPE_CHECKING:
    from tests.support.fake_gce import FakeGce

COMPUTE = Partition("compute", "n1-standard-8", 2, 1000, 0, 6, default=True, price_hour=0.4)
ELSEWHERE = """
from node.elastic.drivers.gce import driver as gce
real = gce.Compute
gce.Compute = lambda project: real(project, lambda fresh: "nobody", {url!r} + "/compute/v1")
gce.GceBoots = lambda bucket: lambda running: {{}}
"""
"""Runs before the daemon: it makes the daemon's client ask the fake, and there is no bucket."""


class GceCluster(CloudCluster):
    """A cluster whose machines are the fake's instances."""

    def __init__(self, fake: FakeGce) -> None:
        super().__init__("gcp", COMPUTE, fake.site())
        self.fake = fake

    def daemon_command(self, file: Path) -> list[str]:
        *options, code = programs.daemon_service(self.settings, file).argv[1:]
        path, _, start = code.partition("; from ")
        begin = f"{path}\n{ELSEWHERE.format(url=self.fake.url)}\nfrom {start}"
        # This Python has the client. Slurm's programs need no package.
        return [sys.executable, *options, begin]

    def running(self) -> dict[str, str]:
        living = (i for i in self.fake.living() if i.status == "RUNNING")
        return {str(i.id): node_of("t", i.name) for i in living}


@pytest.fixture(scope="module")
def shared() -> Iterator[GceCluster]:
    # Late, because every worker that collects the tests imports this file, and the SDK takes it a second.
    from tests.support.fake_gce import fake_gce

    with fake_gce() as fake, GceCluster(fake) as gce_cluster:
        yield gce_cluster


@pytest.fixture
def cluster(shared: GceCluster) -> GceCluster:
    """The cluster, before each test without jobs, machines and faults."""
    shared.fake.cloud.quotas, shared.fake.faults = {}, []
    shared.run("scancel", "--user", shared.site.user, "--quiet", check=False)
    until(lambda: shared.fake.cloud.instances() == [], 120, "no machines")
    until(lambda: shared.states() == {"idle~"}, 120, "zero nodes")
    shared.fake.forget()
    return shared


def launches(cluster: GceCluster) -> list[Any]:
    return [call.request for call in cluster.fake.calls if call.name == "instances.bulk_insert"]


def test_a_job_of_four_nodes_runs_on_instances_that_are_deleted_after_it(
    cluster: GceCluster, tmp_path: Path
) -> None:
    assert cluster.fake.living() == []
    cluster.runs_on_four_nodes(tmp_path / "out")
    (launch,) = launches(cluster)
    body = launch.bulk_insert_instance_resource_resource
    assert (body.count, body.min_count) == (4, 4)
    until(lambda: cluster.fake.cloud.instances() == [], 120, "no machines")
    until(lambda: cluster.states() == {"idle~"}, 120, "zero nodes")
    assert {call.request.instance for call in cluster.fake.calls if call.name == "instances.delete"} == {
        f"t-compute-{n}" for n in range(4)
    }
    assert [call.reason for call in cluster.fake.calls if call.reason not in (None, "notFound")] == []


@pytest.mark.parametrize("ends", ["STOP", pytest.param("DELETE", marks=pytest.mark.wide)])
def test_a_machine_that_is_preempted_gives_its_job_another(
    cluster: GceCluster, tmp_path: Path, ends: str
) -> None:
    from google.cloud import compute_v1 as gce

    starts = tmp_path / "starts"
    job = cluster.starts_once(starts)
    with cluster.fake.lock:
        (machine,) = cluster.fake.living()
        machine.scheduling = gce.Scheduling(instance_termination_action=ends)
        cluster.fake.cloud.system_end(machine.name)
    cluster.starts_again(job, starts)


def test_a_refusal_is_what_the_user_reads(cluster: GceCluster) -> None:
    """This test is the last one, because the partition then stays closed for the error's back-off."""
    cluster.fake.cloud.quotas = {"CPUS": 16.0}
    job = cluster.submit("-N3", "--output=/dev/null", script="true")
    until(lambda: "QUOTA_EXCEEDED" in cluster.shown(job), 120, "the cause at the job")
    assert "quota: Quota 'CPUS' exceeded. Limit: 16.0 in region europe-west4." in cluster.shown(job)
    until(lambda: cluster.job(job)["JobState"] == "PENDING", 120, "a job that waits")
    assert cluster.fake.living() == []
    assert len(launches(cluster)) == 1
