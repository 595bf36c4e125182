"""What an account may have of what a design wants at most: EC2's vCPUs by family; and the key pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from infra.aws.tags import CLUSTER
from infra.doctor.finding import Finding, fine, stops, warns
from infra.machines import catalog
from infra.node.model import ClusterDesign

STANDARD = "Standard"
FAMILIES = {
    "dl": "DL", "f": "F", "g": "G and VT", "gr": "G and VT", "hpc": "HPC", "inf": "Inf", "p": "P",
    "trn": "Trn", "u": "High Memory", "vt": "G and VT", "x": "X",
}  # fmt: skip
"""How the names of machines begin -> the family whose vCPUs EC2 counts together; all others are Standard."""
ON_DEMAND = {
    STANDARD: "L-1216C47A", "DL": "L-6E869C2A", "F": "L-74FC7D96", "G and VT": "L-DB2E81BA",
    "HPC": "L-F7808C92", "High Memory": "L-43DA4232", "Inf": "L-1945791B", "P": "L-417A185B",
    "Trn": "L-2C3B7624", "X": "L-7295265B",
}  # fmt: skip
SPOT = {
    STANDARD: "L-34B43A08", "DL": "L-85EED4F7", "F": "L-88CF9481", "G and VT": "L-3819A6DF",
    "Inf": "L-B5D1601B", "P": "L-7212CCBC", "Trn": "L-6B0D517C", "X": "L-E3A00192",
}  # fmt: skip
"""Codes of the quotas (EC2's page of its limits, and Service Quotas' own list)."""
MISSING = {"NoSuchResourceException"}
LIVING = ["pending", "running"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """vCPUs of one quota.

    Attributes:
        always: as long as the cluster is up.
        most: with every node up.
    """

    always: int = 0
    most: int = 0

    def __add__(self, other: Wanted) -> Wanted:
        return Wanted(self.always + other.always, self.most + other.most)


Pool = tuple[str, bool]
"""A family, and whether it is spot."""


def family(machine: str) -> str:
    """`p3dn.24xlarge` -> P."""
    letters = machine.partition(".")[0].partition("-")[0]
    stem = letters[: next((i for i, letter in enumerate(letters) if letter.isdigit()), len(letters))]
    return FAMILIES.get(stem, STANDARD)


def code(pool: Pool) -> str | None:
    """The quota's; None: EC2 has none for it."""
    return (SPOT if pool[1] else ON_DEMAND).get(pool[0])


def wanted(design: ClusterDesign) -> dict[Pool, Wanted]:
    """What the cluster uses. A Capacity Block is no part of it: it is bought as a whole."""
    facts = catalog().machines
    found: dict[Pool, Wanted] = {}
    # A machine whose facts only the stack file gives is counted where the design has them: for nodes.
    for host in design.hosts:
        if host.machine in facts:
            vcpus = facts[host.machine].vcpus
            pool = (family(host.machine), False)
            found[pool] = found.get(pool, Wanted()) + Wanted(vcpus, vcpus)
    for p in design.partitions:
        if not p.capacity_block:
            pool = (family(p.machine), p.spot)
            found[pool] = found.get(pool, Wanted()) + Wanted(p.cpus * p.min, p.cpus * p.max)
    return found


def findings(quotas: Any, ec2: Any, design: ClusterDesign) -> Iterator[Finding]:
    """What is too small.

    Args:
        quotas: a client of Service Quotas in the cluster's region.
        ec2: likewise of EC2.

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
    """Whether the pair is there, and its private half with the user.

    Args:
        offered: the public keys that the user's agent holds.

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
    """The account's own, or what AWS gives at first; None: Service Quotas knows none in this region."""
    from botocore.exceptions import ClientError

    for ask in (quotas.get_service_quota, quotas.get_aws_default_service_quota):
        try:
            return float(ask(ServiceCode="ec2", QuotaCode=its)["Quota"]["Value"])
        except ClientError as error:
            if error.response["Error"]["Code"] not in MISSING:
                raise
    return None


def _used(ec2: Any, cluster: str) -> Counter[Pool]:
    """vCPUs of machines that run in the region and are not this cluster's."""
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
            facts = catalog().machine(kind)
            known = facts.vcpus if facts is not None else 0
            found[family(kind), spot] += cpus.get("CoreCount", 0) * cpus.get("ThreadsPerCore", 1) or known
    return found
