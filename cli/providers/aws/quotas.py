"""Asks for an account's quotas of vCPUs, addresses and volumes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cli.findings import Finding
from cli.providers.clouds.quotas import Quota, Wanted
from cli.providers.clouds.quotas import quota_findings as compare
from infra.aws.tags import CLUSTER
from infra.config.provider_settings import shell_options
from infra.instance_types.catalog import catalog
from node.design.model import ClusterDesign

STANDARD = "Standard"
FAMILIES = {
    "dl": "DL", "f": "F", "g": "G and VT", "gr": "G and VT", "hpc": "HPC", "inf": "Inf", "p": "P",
    "trn": "Trn", "u": "High Memory", "vt": "G and VT", "x": "X",
}  # fmt: skip
"""The family whose vCPUs EC2 counts together, by the letters that instance types begin with. All other types
are in the family Standard."""
ON_DEMAND = {
    STANDARD: "L-1216C47A", "DL": "L-6E869C2A", "F": "L-74FC7D96", "G and VT": "L-DB2E81BA",
    "HPC": "L-F7808C92", "High Memory": "L-43DA4232", "Inf": "L-1945791B", "P": "L-417A185B",
    "Trn": "L-2C3B7624", "X": "L-7295265B",
}  # fmt: skip
SPOT = {
    STANDARD: "L-34B43A08", "DL": "L-85EED4F7", "F": "L-88CF9481", "G and VT": "L-3819A6DF",
    "Inf": "L-B5D1601B", "P": "L-7212CCBC", "Trn": "L-6B0D517C", "X": "L-E3A00192",
}  # fmt: skip
"""The codes of the quotas by family (source: EC2's page on its limits, and Service Quotas' own list)."""
ADDRESSES = "L-0263D0A3"
GP3 = "L-7A658B76"
MISSING = {"NoSuchResourceException"}
LIVING = ["pending", "running"]


Pool = tuple[str, bool]
"""A family, and whether its instances are spot."""


def family(machine: str) -> str:
    """Return the family of an instance type: `P` for `p3dn.24xlarge`."""
    letters = machine.partition(".")[0].partition("-")[0]
    stem = letters[: next((i for i, letter in enumerate(letters) if letter.isdigit()), len(letters))]
    return FAMILIES.get(stem, STANDARD)


def code_of(pool: Pool) -> str | None:
    """Return the code of the quota; `None` if EC2 has no quota for it."""
    return (SPOT if pool[1] else ON_DEMAND).get(pool[0])


def wanted(design: ClusterDesign) -> dict[Pool, Wanted]:
    """Return the vCPUs that the cluster uses, without Capacity Blocks, which are bought as a whole."""
    facts = catalog().machines
    by_pool: dict[Pool, Wanted] = {}
    # Facts that only the stack file gives are in the design for nodes alone; such hosts are not counted.
    for host in design.hosts:
        if host.instance_type in facts:
            vcpus = facts[host.instance_type].vcpus
            pool = (family(host.instance_type), False)
            by_pool[pool] = by_pool.get(pool, Wanted()) + Wanted(vcpus, vcpus)
    for p in design.partitions:
        if not p.aws.capacity_block:
            pool = (family(p.instance_type), p.spot)
            by_pool[pool] = by_pool.get(pool, Wanted()) + Wanted(p.cpus * p.min, p.cpus * p.max)
    return by_pool


def addresses(design: ClusterDesign) -> Wanted:
    """Return the Elastic IP addresses of the hosts and of the cluster's own NAT gateway."""
    nat = design.aws.nat
    hosts = sum("public" in host.tags or not nat for host in design.hosts)
    count = hosts + (nat and design.network.vpc is None)
    return Wanted(count, count)


def volumes(design: ClusterDesign) -> Wanted:
    """Return the GiB of gp3 volumes: the machines' disks, and the file systems that the controller serves."""
    mounts = [m for m in design.mounts if m.served_by == "controller" and m.existing is None]
    always = sum(host.disk_gib for host in design.hosts) + sum(mount.size_gib or 0 for mount in mounts)
    nodes = [Wanted(p.disk_gib, p.disk_gib).times(p.min, p.max) for p in design.partitions]
    return sum(nodes, Wanted(always, always))


def findings(client: Callable[[str], Any], design: ClusterDesign) -> Iterator[Finding]:
    """Find the quotas that are too small.

    Args:
        client: Gives the boto3 client of a service in the cluster's region.

    Raises:
        ClientError, BotoCoreError: AWS refuses, or does not answer.
    """
    yield from compare(
        _quotas(client, design), "EC2's vCPUs, addresses and volumes are enough for every node"
    )


def _quotas(client: Callable[[str], Any], design: ClusterDesign) -> Iterator[Quota]:
    quotas, ec2, region = client("service-quotas"), client("ec2"), str(design.region)
    more = shell_options(design.provider_settings)

    def quota(
        service: str, code: str, name: str, wanted: Wanted, used: Callable[[], int], unit: int = 1
    ) -> Iterator[Quota]:
        def increase(number: int) -> str:
            return (
                f"`aws service-quotas request-service-quota-increase --service-code {service} --quota-code "
                f"{code} --desired-value {math.ceil(number / unit)} --region {region}{more}`"
            )

        if wanted.most and (limit := _limit(quotas, service, code)) is not None:
            yield Quota(f"{name} in {region}", code, limit * unit, used(), wanted, increase)

    pools = wanted(design)
    others = _used(ec2, design.name) if pools else Counter()
    for pool, vcpus in pools.items():
        if code := code_of(pool):
            kind = "spot" if pool[1] else "on demand"
            name = f"vCPUs {kind} of the family {pool[0]}"
            yield from quota("ec2", code, name, vcpus, lambda pool=pool: others[pool])  # type: ignore[misc]
    yield from quota(
        "ec2",
        ADDRESSES,
        "Elastic IP addresses",
        addresses(design),
        lambda: sum(not _is_of(address, design.name) for address in ec2.describe_addresses()["Addresses"]),
    )
    pages = ec2.get_paginator("describe_volumes")
    gp3 = [{"Name": "volume-type", "Values": ["gp3"]}]
    yield from quota(
        "ebs",
        GP3,
        "GiB of gp3 volumes",
        volumes(design),
        lambda: sum(
            volume["Size"]
            for page in pages.paginate(Filters=gp3)
            for volume in page["Volumes"]
            if not _is_of(volume, design.name)
        ),
        unit=1024,
    )


def _limit(quotas: Any, service: str, code: str) -> float | None:
    """Return the account's quota, or AWS's default; `None` if Service Quotas knows none in this region."""
    from botocore.exceptions import ClientError

    for ask in (quotas.get_service_quota, quotas.get_aws_default_service_quota):
        try:
            return float(ask(ServiceCode=service, QuotaCode=code)["Quota"]["Value"])
        except ClientError as error:
            if error.response["Error"]["Code"] not in MISSING:
                raise
    return None


def _used(ec2: Any, cluster: str) -> Counter[Pool]:
    """Return the vCPUs of running instances in the region that are not this cluster's."""
    by_pool: Counter[Pool] = Counter()
    pages = ec2.get_paginator("describe_instances").paginate(
        Filters=[{"Name": "instance-state-name", "Values": LIVING}]
    )
    for machine in (
        instance for page in pages for group in page["Reservations"] for instance in group["Instances"]
    ):
        cpus = machine.get("CpuOptions", {})
        if not _is_of(machine, cluster):
            spot = machine.get("InstanceLifecycle") == "spot"
            kind = machine["InstanceType"]
            facts = catalog().instance_type(kind)
            known = facts.vcpus if facts is not None else 0
            by_pool[family(kind), spot] += cpus.get("CoreCount", 0) * cpus.get("ThreadsPerCore", 1) or known
    return by_pool


def _is_of(resource: Mapping[str, Any], cluster: str) -> bool:
    return any(tag["Key"] == CLUSTER and tag["Value"] == cluster for tag in resource.get("Tags", []))
