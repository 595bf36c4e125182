"""A whole cluster on EC2, on one machine (`tests.cluster.cloud_cluster`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from node.design.model import Partition
from node.elastic import programs
from node.elastic.drivers.ec2.names import NODES, node_of
from tests.cluster.cloud_cluster import CloudCluster
from tests.support.checkout import until

if TYPE_CHECKING:
    from tests.support.fake_ec2 import FakeEc2

COMPUTE = Partition("compute", "c4.2xlarge", 2, 1000, 0, 6, default=True, price_hour=0.4)


class Ec2Cluster(CloudCluster):
    """A cluster whose machines are the fake's instances."""

    def __init__(self, fake: FakeEc2, compute: Partition = COMPUTE) -> None:
        super().__init__("aws", compute, fake.site())
        self.fake = fake

    def daemon_command(self, file: Path) -> list[str]:
        # The system's Python, which has no package of AWS, as on a controller.
        return [*programs.daemon_service(self.settings, file).argv]

    def environment(self) -> dict[str, str]:
        from tests.support.fake_ec2 import CREDENTIALS

        credentials = {key.upper(): value for key, value in CREDENTIALS.items()}
        cloud = {"AWS_ENDPOINT_URL": self.fake.url, "AWS_EC2_METADATA_DISABLED": "true"}
        return {**super().environment(), **credentials, **cloud}

    def running(self) -> dict[str, str]:
        found = {}
        for instance in self.fake.living():
            tags = {tag["key"]: tag["value"] for tag in instance.get_tags()}
            found[instance.id] = node_of(tags[NODES], instance.ami_launch_index)
        return found


@pytest.fixture(scope="module")
def shared() -> Iterator[Ec2Cluster]:
    # Late, because every worker that collects the tests imports this file, and moto takes it a second.
    from tests.support.fake_ec2 import fake_ec2

    with fake_ec2() as fake:
        s3 = fake.s3()
        s3.create_bucket(Bucket="t-bucket", CreateBucketConfiguration={"LocationConstraint": fake.region})
        with Ec2Cluster(fake) as ec2_cluster:
            yield ec2_cluster
        s3.delete_bucket(Bucket="t-bucket")


@pytest.fixture
def cluster(shared: Ec2Cluster) -> Ec2Cluster:
    """The cluster, before each test without jobs, machines and faults."""
    shared.fake.quota, shared.fake.faults = None, []
    shared.run("scancel", "--user", shared.site.user, "--quiet", check=False)
    until(lambda: shared.fake.living() == [], 120, "no machines")
    until(lambda: shared.states() == {"idle~"}, 120, "zero nodes")
    shared.fake.forget()
    return shared


def launches(cluster: Ec2Cluster) -> list[dict[str, str]]:
    return [call.params for call in cluster.fake.calls if call.action == "RunInstances"]


def test_a_job_of_four_nodes_runs_on_instances_that_are_ended_after_it(
    cluster: Ec2Cluster, tmp_path: Path
) -> None:
    assert cluster.fake.living() == []
    cluster.runs_on_four_nodes(tmp_path / "out")
    (run,) = launches(cluster)
    assert (run["MinCount"], run["MaxCount"]) == ("4", "4")
    until(lambda: cluster.fake.living() == [], 120, "no machines")
    assert len(cluster.fake.instances()) == 4
    until(lambda: cluster.states() == {"idle~"}, 120, "zero nodes")
    ended = [call for call in cluster.fake.calls if call.action == "TerminateInstances"]
    assert sum(len(call.listed("InstanceId")) for call in ended) == 4
    assert [call.code for call in cluster.fake.calls if call.code] == []


def test_a_machine_that_ec2_takes_gives_its_job_another(cluster: Ec2Cluster, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    job = cluster.starts_once(starts)
    (machine,) = cluster.fake.living()
    cluster.fake.connect().terminate_instances(InstanceIds=[machine.id])
    cluster.starts_again(job, starts)


def test_a_refusal_of_ec2s_is_what_the_user_reads(cluster: Ec2Cluster) -> None:
    """This test is the last one, because the partition then stays closed for the error's back-off."""
    cluster.fake.quota = 2
    job = cluster.submit("-N3", "--output=/dev/null", script="true")
    until(lambda: "VcpuLimitExceeded" in cluster.shown(job), 120, "the cause at the job")
    assert "quota: You have requested more vCPU capacity than your limit" in cluster.shown(job)
    until(lambda: cluster.job(job)["JobState"] == "PENDING", 120, "a job that waits")
    assert cluster.fake.living() == []
    assert len(launches(cluster)) == 1
