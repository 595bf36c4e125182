"""What doctor asks an AWS account: quotas of vCPUs by family, addresses, volumes; boto3 against moto."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto.servicequotas import models
from moto.servicequotas.exceptions import NoSuchResource

from cli.findings import Finding, Severity
from cli.providers.aws import diagnosis, quotas
from cli.providers.clouds.quotas import Wanted
from infra.aws.tags import CLUSTER
from node.design.model import AwsPartition, ClusterDesign
from tests.support import sentences
from tests.support.aws_account import REGION, Account, account, moto, nobody
from tests.support.aws_mocks import CPU, GPU, aws_design

__all__ = ["account", "moto", "nobody"]

DESIGN = aws_design(region=REGION, partitions=(CPU, dataclasses.replace(GPU, cpus=96, max=4)))


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The account's limits by quota. moto has only those of VPCs, so these are served on its HTTP level."""
    values: dict[str, float] = {"L-0263D0A3": 5, "L-7A658B76": 50}

    def get(_self: Any, service_code: str, quota_code: str) -> dict[str, Any]:
        assert service_code == ("ebs" if quota_code == "L-7A658B76" else "ec2")
        if quota_code not in values:
            raise NoSuchResource
        return {"QuotaCode": quota_code, "ServiceCode": "ec2", "Value": values[quota_code]}

    monkeypatch.setattr(models.ServiceQuotasBackend, "get_service_quota", get)
    return values


def found(design: ClusterDesign) -> list[Finding]:
    return list(diagnosis.limits(design))


@pytest.mark.parametrize(
    ("machine", "family"),
    [
        ("m5.large", "Standard"), ("c7i-flex.large", "Standard"), ("im4gn.large", "Standard"),
        ("t3.micro", "Standard"), ("d3.xlarge", "Standard"), ("p3dn.24xlarge", "P"), ("p5.48xlarge", "P"),
        ("g4dn.xlarge", "G and VT"), ("gr6.4xlarge", "G and VT"), ("vt1.3xlarge", "G and VT"),
        ("trn1n.32xlarge", "Trn"), ("inf2.xlarge", "Inf"), ("hpc7a.96xlarge", "HPC"), ("dl1.24xlarge", "DL"),
        ("f2.6xlarge", "F"), ("x2idn.16xlarge", "X"), ("u-6tb1.56xlarge", "High Memory"),
        ("u7i-12tb.224xlarge", "High Memory"),
    ],
)  # fmt: skip
def test_machines_are_of_the_family_that_ec2_counts(machine: str, family: str) -> None:
    assert quotas.family(machine) == family


def test_every_machine_of_the_snapshot_has_a_quota() -> None:
    from infra.instance_types.catalog import catalog

    assert [n for n in catalog().names("aws") if quotas.code_of((quotas.family(n), False)) is None] == []


def test_what_a_cluster_wants() -> None:
    spot = dataclasses.replace(CPU, name="s", spot=True, min=1)
    block = dataclasses.replace(GPU, name="b", cpus=96, aws=AwsPartition(efa=1, capacity_block=True))
    design = dataclasses.replace(DESIGN, partitions=(*DESIGN.partitions, spot, block))
    assert quotas.wanted(design) == {
        ("Standard", False): Wanted(2, 2 + 40),
        ("P", False): Wanted(0, 4 * 96),
        ("Standard", True): Wanted(4, 40),
    }


def test_enough_is_fine(account: Account, limits: dict[str, float]) -> None:
    limits |= {"L-1216C47A": 42, "L-417A185B": 384}
    (only,) = found(DESIGN)
    assert only.severity is Severity.FINE


def test_a_family_that_is_too_small_says_what_to_ask_for(account: Account, limits: dict[str, float]) -> None:
    limits |= {"L-1216C47A": 42, "L-417A185B": 96}
    (short,) = found(DESIGN)
    sentences.finding(short, "quotas", Severity.WARNS, REGION, "L-417A185B", "384")


def test_what_runs_already_counts_and_what_is_this_clusters_does_not(
    account: Account, limits: dict[str, float]
) -> None:
    """Start instances in moto: m5.large, with two vCPUs each."""
    account.run(2, "another")
    account.run(3, DESIGN.name)
    limits |= {"L-1216C47A": 42, "L-417A185B": 384}
    (short,) = found(DESIGN)
    sentences.finding(short, "quotas", Severity.WARNS, "L-1216C47A")


def test_a_head_that_could_not_start_stops(account: Account, limits: dict[str, float]) -> None:
    limits |= {"L-1216C47A": 1, "L-417A185B": 384}
    (short,) = found(DESIGN)
    assert (short.severity, short.found.partition("; ")[2]) == (
        Severity.STOPS, "the cluster has 2 all the time",
    )  # fmt: skip


def test_addresses_and_volumes_count_for_the_whole_stack_and_without_what_it_has_already(
    account: Account, limits: dict[str, float]
) -> None:
    limits |= {"L-1216C47A": 42, "L-417A185B": 384, "L-0263D0A3": 1, "L-7A658B76": 1}
    hosts = tuple(dataclasses.replace(host, tags=("public",)) for host in DESIGN.hosts)
    large = dataclasses.replace(CPU, disk_gib=500, min=1)
    design = dataclasses.replace(DESIGN, hosts=hosts, partitions=(large, *DESIGN.partitions[1:]))
    for cluster in (design.name, "another"):
        tags = [{"Key": CLUSTER, "Value": cluster}]
        made = account.ec2.create_volume(AvailabilityZone=f"{REGION}a", Size=400, VolumeType="gp3")
        account.ec2.create_tags(Resources=[made["VolumeId"]], Tags=tags)
        address = account.ec2.allocate_address(Domain="vpc")["AllocationId"]
        account.ec2.create_tags(Resources=[address], Tags=tags)
    hosts_and_nat = len(hosts) + 1
    addresses, volumes = found(design)
    assert addresses.severity is Severity.STOPS
    sentences.finding(
        addresses, "quotas", Severity.STOPS, REGION, hosts_and_nat, "L-0263D0A3", hosts_and_nat + 1, "ec2"
    )
    always = quotas.volumes(design).always
    nodes = 500 * (large.max - 1) + GPU.disk_gib * 4
    assert quotas.volumes(design) == Wanted(always, always + nodes)
    assert always >= 500 + sum(host.disk_gib for host in hosts)
    assert volumes.severity is (Severity.STOPS if always > 1024 - 400 else Severity.WARNS)
    sentences.finding(volumes, "quotas", Severity.STOPS, REGION, "gp3", "1024", "L-7A658B76", "400")


def test_a_quota_that_was_never_changed_is_awss_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Service Quotas then has no applied value."""

    class Quotas:
        def get_service_quota(self, **_asked: str) -> Any:
            raise ClientError({"Error": {"Code": "NoSuchResourceException"}}, "GetServiceQuota")

        def get_aws_default_service_quota(self, **asked: str) -> Any:
            return {"Quota": {"Value": 5.0, **asked}}

    class Ec2:
        def get_paginator(self, _name: str) -> Any:
            return self

        def paginate(self, **_asked: Any) -> Any:
            return []

        def describe_addresses(self) -> Any:
            return {"Addresses": []}

    clients: dict[str, Any] = {"service-quotas": Quotas(), "ec2": Ec2()}
    seen = list(quotas.findings(lambda service: clients[service], DESIGN))
    assert {finding.found.partition(": ")[2].partition(" ")[0] for finding in seen} == {"5"}


def test_who_may_not_ask_is_told_so_and_nothing_stops(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_args: Any) -> Any:
        raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "GetServiceQuota")

    monkeypatch.setattr(quotas, "_limit", denied)
    (only,) = found(DESIGN)
    assert only.severity is Severity.WARNS
    sentences.finding(only, "quotas", Severity.WARNS)


@pytest.mark.usefixtures("nobody")
def test_without_credentials_nobody_is_asked() -> None:
    assert found(DESIGN) == []
