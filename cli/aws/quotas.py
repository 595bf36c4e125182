"""Compares an account's quotas of EC2 vCPUs with what a design can use, and checks the key pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from cli.doctor.finding import Finding, fine, stops, warns
from infra.aws.tags import CLUSTER
from infra.instance_types.catalog import catalog
from node.model import ClusterDesign

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
MISSING = {"NoSuchResourceException"}
LIVING = ["pending", "running"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The vCPUs that a cluster uses of one quota.

    Attributes:
        always: The number while the cluster is up.
        most: The number with every node up.
    """

    always: int = 0
    most: int = 0

    def __add__(self, other: Wanted) -> Wanted:
        return Wanted(self.always + other.always, self.most + other.most)


Pool = tuple[str, bool]
"""A family, and whether its instances are spot."""


def family(machine: str) -> str:
    """The family of an instance type: `P` for `p3dn.24xlarge`."""
    letters = machine.partition(".")[0].partition("-")[0]
    stem = letters[: next((i for i, letter in enumerate(letters) if letter.isdigit()), len(letters))]
    return FAMILIES.get(stem, STANDARD)


def code(pool: Pool) -> str | None:
    """The code of the quota; `None` if EC2 has no quota for it."""
    return (SPOT if pool[1] else ON_DEMAND).get(pool[0])


def wanted(design: ClusterDesign) -> dict[Pool, Wanted]:
    """The vCPUs that the cluster uses, without Capacity Blocks, which are bought as a whole."""
    facts = catalog().machines
    found: dict[Pool, Wanted] = {}
    # Facts that only the stack file gives are in the design for nodes alone; such hosts are not counted.
    for host in design.hosts:
        if host.instance_type in facts:
            vcpus = facts[host.instance_type].vcpus
            pool = (family(host.instance_type), False)
            found[pool] = found.get(pool, Wanted()) + Wanted(vcpus, vcpus)
    for p in design.partitions:
        if not p.capacity_block:
            pool = (family(p.instance_type), p.spot)
            found[pool] = found.get(pool, Wanted()) + Wanted(p.cpus * p.min, p.cpus * p.max)
    return found


def findings(quotas: Any, ec2: Any, design: ClusterDesign) -> Iterator[Finding]:
    """The quotas that are too small.

    Args:
        quotas: The boto3 client of Service Quotas in the cluster's region.
        ec2: The boto3 client of EC2 in that region.

    Raises:
        ClientError, BotoCoreError: AWS refuses, or does not answer.
    """
    used = _used(ec2, design.name)
    short: list[Finding] = []
    for pool, wants in wanted(design).items():
        its = code(pool)
        limit = _limit(quotas, its) if its is not None else None
        if its is not None and limit is not None:
            short += _short(pool, its, limit, used[pool], wants, str(design.region))
    yield from short
    if not short:
        yield fine("quotas", "EC2's vCPUs are enough for every node")


def key_pair(ec2: Any, name: str, region: str, offered: Iterable[str]) -> Finding:
    """Whether the key pair exists, and whether the user has its private key.

    Args:
        offered: The public keys in the user's SSH agent.

    Raises:
        ClientError, BotoCoreError: AWS refuses, or does not answer.
    """
    from botocore.exceptions import ClientError

    try:
        answer = ec2.describe_key_pairs(KeyNames=[name], IncludePublicKey=True)
    except ClientError as error:
        if error.response["Error"]["Code"] != "InvalidKeyPair.NotFound":
            raise
        line = (
            f"aws ec2 import-key-pair --region {region} --key-name {name} "
            "--public-key-material fileb://~/.ssh/id_ed25519.pub"
        )
        found = f"there is no EC2 key pair {name} in {region}"
        return stops("key", found, f"Make it from a key of yours: `{line}`; or name another (access.key).")
    public = str(answer["KeyPairs"][0].get("PublicKey", "")).split()[:2]
    if public and public not in [line.split()[:2] for line in offered]:
        found = f"the private key of the EC2 key pair {name} is not in your SSH agent"
        return stops("key", found, "Add it: `ssh-add FILE`; or name a pair whose key you have (access.key).")
    return fine("key", f"there is an EC2 key pair {name} in {region}, and your SSH agent has its key")


def _short(pool: Pool, its: str, limit: float, used: int, wants: Wanted, region: str) -> Iterator[Finding]:
    free = limit - used
    if wants.most <= free:
        return
    kind = "spot" if pool[1] else "on demand"
    line = (
        f"aws service-quotas request-service-quota-increase --service-code ec2 --quota-code {its} "
        f"--desired-value {wants.most + used} --region {region}"
    )
    found = f"vCPUs {kind} of the family {pool[0]} in {region}: {limit:g} ({its}), {used} of them used"
    if wants.always > free:
        yield stops(
            "quotas", f"{found}; the cluster has {wants.always} all the time", f"Ask for more: `{line}`."
        )
    else:
        found = f"{found}; every node up needs {wants.most}"
        yield warns("quotas", found, f"Until you have more, jobs beyond it wait: `{line}`.")


def _limit(quotas: Any, its: str) -> float | None:
    """The account's quota, or AWS's default; `None` if Service Quotas knows none in this region."""
    from botocore.exceptions import ClientError

    for ask in (quotas.get_service_quota, quotas.get_aws_default_service_quota):
        try:
            return float(ask(ServiceCode="ec2", QuotaCode=its)["Quota"]["Value"])
        except ClientError as error:
            if error.response["Error"]["Code"] not in MISSING:
                raise
    return None


def _used(ec2: Any, cluster: str) -> Counter[Pool]:
    """The vCPUs of running instances in the region that are not this cluster's."""
    found: Counter[Pool] = Counter()
    pages = ec2.get_paginator("describe_instances").paginate(
        Filters=[{"Name": "instance-state-name", "Values": LIVING}]
    )
    for machine in (one for page in pages for group in page["Reservations"] for one in group["Instances"]):
        tags = {tag["Key"]: tag["Value"] for tag in machine.get("Tags", [])}
        cpus = machine.get("CpuOptions", {})
        if tags.get(CLUSTER) != cluster:
            spot = machine.get("InstanceLifecycle") == "spot"
            kind = machine["InstanceType"]
            facts = catalog().instance_type(kind)
            known = facts.vcpus if facts is not None else 0
            found[family(kind), spot] += cpus.get("CoreCount", 0) * cpus.get("ThreadsPerCore", 1) or known
    return found
