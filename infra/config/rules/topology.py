"""Rules of the network's topology: which instance types have one."""

from __future__ import annotations

import fnmatch

from infra.config.partitions import PartitionConfig
from infra.config.rules.context import Context

TOPOLOGY_OF_AWS = (
    "g6e.*", "g7e.*", "hpc6a.48xlarge", "hpc6id.32xlarge", "hpc7a.*", "hpc7g.*", "hpc8a.96xlarge",
    "p3dn.24xlarge", "p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge",
    "p6-b200.48xlarge", "p6-b300.48xlarge", "p6e-gb200.36xlarge", "trn1.2xlarge", "trn1.32xlarge",
    "trn1n.32xlarge", "trn2.48xlarge", "trn2u.48xlarge",
)  # fmt: skip
"""EC2's types with a topology (EC2 user guide, "Prerequisites for Amazon EC2 topology")."""
TOPOLOGY_PAGE_OF_AWS = (
    "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-topology-prerequisites.html"
)
TOPOLOGY_OF_GOOGLE = (
    "a3-highgpu-8g", "a3-megagpu-8g", "a3-ultragpu-8g", "a3-edgegpu-8g", "a4-*", "a4x-*", "h4d-*",
)  # fmt: skip
"""Google's types with a topology; others have one with a compact placement policy (Compute Engine's
documentation, "View the physical location of instances")."""
TOPOLOGY_PAGE_OF_GOOGLE = "https://docs.cloud.google.com/compute/docs/instances/view-instance-topology"


def check_topology(c: Context) -> None:
    for at, partition in c.groups():
        if not partition.topology:
            continue
        if reason := _no_topology(c, partition):
            allowed, advice = reason
            c.add("topology.unknown", (*at, "topology"), True, allowed, advice)


def _no_topology(c: Context, partition: PartitionConfig) -> tuple[str, str] | None:
    """Return why nobody tells where its nodes are, and what to do; `None` if the cloud tells."""
    kind = partition.instance_type
    if c.provider == "local":
        return "false: all machines of the local stack are on one host", "remove topology"
    if c.provider == "aws" and not _matches(kind, TOPOLOGY_OF_AWS):
        return (
            f"false: EC2 does not tell where a {kind} is",
            f"types of which it tells: {TOPOLOGY_PAGE_OF_AWS}",
        )
    policy = partition.gcp.placement_policy if partition.gcp is not None else None
    close = partition.placement == "cluster" or policy is not None
    if c.provider == "gcp" and not close and not _matches(kind, TOPOLOGY_OF_GOOGLE):
        return (
            f"false: Compute Engine does not tell where a {kind} without a placement policy is",
            f"write placement: cluster, or take a type of which it tells: {TOPOLOGY_PAGE_OF_GOOGLE}",
        )
    return None


def _matches(kind: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(kind, pattern) for pattern in patterns)
