"""A cluster on AWS on machines that boot: cloud-init's Ec2 datasource, moto for AWS, all else real."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.cloud_machines import CloudMachines
from tests.support.aws_land import REGION, AwsLand
from tests.support.cloud_land import opened
from tests.support.cloud_stack import Cluster, design


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    plan = design("aws", REGION, "efs")
    folder = tmp_path_factory.mktemp("aws")
    with opened(AwsLand(folder / "l", plan)) as land:
        yield Cluster(land, plan, folder / "project")


class TestAws(CloudMachines):
    datasource = "Ec2"

    def secret_of(self, cluster: Cluster) -> dict[str, str]:
        assert isinstance(cluster.land, AwsLand)
        return {"region": REGION, "secret": cluster.land.secret}
