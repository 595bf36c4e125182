"""A cluster on AWS on machines that boot: cloud-init's Ec2 datasource and moto; all else is real."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pytest

from tests.cluster.cloud_machines import NO_POD, POD, CloudMachines, nodes
from tests.support.checkout import until
from tests.support.cloud_land import need_clouds, opened
from tests.support.cloud_stack import Cluster, design

if TYPE_CHECKING:
    from tests.support.aws_land import AwsLand

# The first test makes the machines' image where there is none.
pytestmark = pytest.mark.timeout(1500)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    need_clouds()
    # Late, because every worker that collects the tests imports this file, and moto takes it a second.
    from tests.support.aws_land import REGION, AwsLand

    plan = design("aws", REGION, "efs")
    folder = tmp_path_factory.mktemp("aws")
    with opened(AwsLand(folder / "l", plan)) as land:
        yield Cluster(land, plan, folder / "project")


def land_of(cluster: Cluster) -> AwsLand:
    """Return the simulated cloud with what only AWS has."""
    return cast("AwsLand", cluster.land)


TOKEN = """
import sys, urllib.error, urllib.request
base = "http://169.254.169.254/latest/"
life = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
try:
    urllib.request.urlopen(base + "meta-data/", timeout=float(sys.argv[1]))
except urllib.error.HTTPError as error:
    print(error.code)
except OSError as error:
    print(type(error).__name__)
try:
    print(len(urllib.request.urlopen(
        urllib.request.Request(base + "api/token", method="PUT", headers=life), timeout=float(sys.argv[1])
    ).read()))
except OSError as error:
    print(type(error).__name__)
"""


def test_a_token_goes_no_further_than_its_machine(cluster: Cluster) -> None:
    """A container with a network of its own, as Docker makes it, is one network hop further."""
    land = land_of(cluster)

    def gets(prefix: str, wanted: list[str]) -> None:
        """Wait for the statuses of a question without a token and of one for a token.

        On a busy host a packet of the machine's new network may get lost, so the questions are repeated.
        """
        line = f"{prefix} /usr/bin/python3 -c {shlex.quote(TOKEN)} 10"
        until(
            lambda: cluster.sh(line).split() == wanted, 180, f"{prefix or 'the machine'} gets {wanted}", 0.5
        )

    try:
        cluster.sh(POD)
        gets("", ["401", "16"])
        # As on a machine with open_metadata: this machine's own rules would refuse the container before.
        cluster.sh("nft flush chain inet slurm_stacks_metadata refuse_containers")
        gets("ip netns exec pod", ["401", "TimeoutError"])
        land.hops = 2
        # It was the limit, and nothing else.
        gets("ip netns exec pod", ["401", "16"])
    finally:
        land.hops = 1
        cluster.sh(f"{NO_POD}; nft -f /etc/slurm-stacks/metadata.nft")


class TestAws(CloudMachines):
    datasource = "Ec2"

    def after_a_notice_of(self, cluster: Cluster, node: str) -> None:
        """Nothing follows: EC2 itself tells the controller of its interruptions."""
        assert nodes(cluster)[node][0] == "State=IDLE+CLOUD"

    def secret_of(self, cluster: Cluster) -> dict[str, str]:
        return {"region": cluster.design.region or "", "secret": land_of(cluster).secret}
