"""Looks up the security groups and the permissions boundary that a stack file names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cli.doctor.finding import Finding, fine, stops
from infra.config import placeholders
from node.elastic.drivers.ec2.errors import code_of
from node.model import ClusterDesign
from operations.aws.account import explained

Client = Callable[[str], Any]
"""Gives a boto3 client of a service by its name."""
CHECK = "platform"
GONE = ("InvalidGroup.NotFound", "InvalidGroupId.Malformed", "NoSuchEntity")


def named(design: ClusterDesign) -> dict[str, list[str]]:
    """Return group -> the keys of the stack file that name it."""
    found: dict[str, list[str]] = {}
    for host in design.hosts:
        for group in host.security_groups:
            found.setdefault(group, []).append(f"{host.role}.security_groups")
    for number, partition in enumerate(design.partitions):
        for group in partition.security_groups:
            found.setdefault(group, []).append(f"partitions[{number}].aws.security_groups")
    return {group: list(dict.fromkeys(keys)) for group, keys in found.items()}


def findings(client: Client, design: ClusterDesign) -> Iterator[Finding]:
    """Check that groups are of the cluster's VPC and that the boundary exists.

    EC2 takes a launch template with a group that does not exist, and then refuses each launch.

    Raises:
        UserError: AWS refuses, or does not answer.
    """
    for group, keys in named(design).items():
        if not placeholders.is_placeholder(group):
            yield _group(client("ec2"), design, group, ", ".join(keys))
    boundary = design.permissions_boundary
    if boundary is not None and not placeholders.is_placeholder(boundary):
        yield _boundary(client("iam"), boundary)


def _group(ec2: Any, design: ClusterDesign, group: str, keys: str) -> Finding:
    found = _asked(ec2.describe_security_groups, GroupIds=[group])
    if found is None:
        cure = "Correct the id, or use the region and the account that have it."
        return stops(CHECK, f"{keys}: there is no security group {group} in {design.region}", cure)
    (there,) = found["SecurityGroups"]
    if there["VpcId"] != design.network.vpc:
        wrong = f"{keys}: {group} is of {there['VpcId']}, not of {design.network.vpc}"
        return stops(CHECK, wrong, "A machine has groups of its own VPC only: name one of these.")
    return fine(CHECK, f"{keys}: {group} is {there['GroupName']} of {there['VpcId']}")


def _boundary(iam: Any, boundary: str) -> Finding:
    if _asked(iam.get_policy, PolicyArn=boundary) is None:
        cure = "Correct the ARN, or make the policy: IAM makes no role with a boundary that does not exist."
        return stops(CHECK, f"aws.permissions_boundary: there is no policy {boundary}", cure)
    return fine(CHECK, f"aws.permissions_boundary: {boundary} bounds every role")


def _asked(call: Callable[..., Any], **which: Any) -> Any:
    """Return the answer; `None` if AWS says that there is no such thing."""
    from botocore.exceptions import ClientError

    with explained():
        try:
            return call(**which)
        except ClientError as error:
            if code_of(error) not in GONE:
                raise
            return None
