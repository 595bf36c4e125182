"""Checks that a cloud tells where the nodes of a partition with `topology` are."""

from __future__ import annotations

import fnmatch

from infra.config.checks.context import CLUSTER, Context
from infra.config.cluster import PartitionConfig

AWS = (
    "g6e.*", "g7e.*", "hpc6a.48xlarge", "hpc6id.32xlarge", "hpc7a.*", "hpc7g.*", "hpc8a.96xlarge",
    "p3dn.24xlarge", "p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge",
    "p6-b200.48xlarge", "p6-b300.48xlarge", "p6e-gb200.36xlarge", "trn1.2xlarge", "trn1.32xlarge",
    "trn1n.32xlarge", "trn2.48xlarge", "trn2u.48xlarge",
)  # fmt: skip
"""EC2's types with a topology (EC2 user guide, "Prerequisites for Amazon EC2 topology")."""
AWS_PAGE = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-topology-prerequisites.html"
GOOGLE = (
    "a3-highgpu-8g", "a3-megagpu-8g", "a3-ultragpu-8g", "a3-edgegpu-8g", "a4-*", "a4x-*", "h4d-*",
)  # fmt: skip
"""Google's types with a topology; others have one with a compact placement policy (Compute Engine's
documentation, "View the physical location of instances")."""
GOOGLE_PAGE = "https://docs.cloud.google.com/compute/docs/instances/view-instance-topology"


def check_topology(c: Context) -> None:
    for index, partition in enumerate(c.cluster.partitions):
        if not partition.topology:
            continue
        if reason := _reason(c, partition):
            allowed, advice = reason
            c.add((*CLUSTER, "partitions", index, "topology"), True, allowed, advice)


def _reason(c: Context, partition: PartitionConfig) -> tuple[str, str] | None:
    """Why nobody tells where its nodes are, and what to do; `None` if the cloud tells."""
    kind = partition.instance_type
    if c.provider == "local":
        return "false: all machines of the local stack are on one host", "remove topology"
    if c.provider == "aws" and not _one_of(kind, AWS):
        return f"false: EC2 does not tell where a {kind} is", f"types of which it tells: {AWS_PAGE}"
    own = partition.gcp.placement_policy if partition.gcp is not None else None
    close = partition.placement == "cluster" or own is not None
    if c.provider == "gcp" and not close and not _one_of(kind, GOOGLE):
        return (
            f"false: Compute Engine does not tell where a {kind} without a placement policy is",
            f"write placement: cluster, or take a type of which it tells: {GOOGLE_PAGE}",
        )
    return None


def _one_of(kind: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(kind, pattern) for pattern in patterns)
