"""The IAM roles of the cluster's machines, and the secret that only these may read.

`infra.aws.policies` says what the roles may do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.aws import policies
from infra.aws.tags import tags
from infra.clouds.firewall import identities
from infra.errors import EXIT_USAGE, UserError
from node.design.model import ClusterDesign

DOCUMENTS: dict[str, Callable[[policies.Scope, ClusterDesign], policies.Document]] = {
    "controller": policies.controller,
    "login": policies.login,
    "compute": policies.compute,
    "image": policies.image,
}


@dataclass(frozen=True, slots=True)
class AccessTargets:
    """What the machines' policies name.

    Attributes:
        bucket: The ARN of the bucket.
        secret: The ARN of the secret.
        log_group: The ARN of the log group.
        subnets: The ids of the subnets of nodes.
        groups: The ids of the security groups of nodes.
    """

    bucket: pulumi.Input[str]
    secret: pulumi.Input[str]
    log_group: pulumi.Input[str]
    subnets: Sequence[pulumi.Input[str]]
    groups: Sequence[pulumi.Input[str]]


LONGEST_POLICIES = 10_240
"""The characters of all inline policies of a role, without white space (IAM's quotas)."""


def check_sizes(design: ClusterDesign, subnets: int, groups: int) -> None:
    """Refuse a design whose policies IAM would refuse in the middle of `up`.

    Args:
        subnets: The number of subnets where nodes may start.
        groups: The number of security groups that nodes may have.

    Raises:
        UserError: A role's policy is longer than IAM allows; the message names it.
    """
    for kind in identities(design):
        size = policy_size(kind, design, subnets, groups)
        if size > LONGEST_POLICIES:
            raise UserError(
                f"slurm-stacks:cluster.partitions: the policy of the {kind}'s role would have {size:,} "
                f"characters, and IAM takes {LONGEST_POLICIES:,}. It names each partition's reservations, "
                "boot reports and logs: have fewer partitions or reservations in this cluster, and a second "
                "cluster for the others.",
                EXIT_USAGE,
                code="aws.policy-too-long",
            )


def policy_size(kind: str, design: ClusterDesign, subnets: int, groups: int) -> int:
    """Return the greatest number of characters that the policy of a role can have.

    The ids and ARNs of a stack are known at its deployment only, so the longest ones stand for them.
    """
    region, account = str(design.region), "1" * 12
    partition = "aws-cn" if region.startswith("cn-") else "aws-us-gov" if "-gov-" in region else "aws"
    start = f"arn:{partition}"
    scope = policies.Scope(
        partition=partition,
        region=region,
        account=account,
        bucket=f"{start}:s3:::{'b' * 63}",
        secret=f"{start}:secretsmanager:{region}:{account}:secret:{design.name}-munge-key-1234567-123456",
        log_group=f"{start}:logs:{region}:{account}:log-group:/slurm-stacks/{design.name}-1234567",
        compute_role=f"{start}:iam::{account}:role{design.aws.role_path or '/'}{'r' * 64}",
        subnets=[f"subnet-{number:017x}" for number in range(subnets)],
        groups=[f"sg-{number:017x}" for number in range(groups)],
    )
    return len(json.dumps(DOCUMENTS[kind](scope, design), separators=(",", ":")))


class AwsIdentity(pulumi.ComponentResource):
    """An IAM role for each kind of machine, with the fewest permissions that work.

    Attributes:
        profiles: controller | login | compute | image -> the name of its instance profile. Login is there
            only with login machines, and image only where images are baked.
        roles: The same keys -> the role's ARN.
        grants: What a machine needs before it starts: a role without its policy is refused everything.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        targets: AccessTargets,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:AwsIdentity", name, None, opts)
        self._name = name
        self._design = design
        check_sizes(design, len(targets.subnets), len(targets.groups))
        roles = {kind: self._role(kind) for kind in identities(design)}
        self.roles = {kind: role.arn for kind, role in roles.items()}
        scope = self._scope(targets)
        self.profiles: dict[str, pulumi.Output[str]] = {}
        self.grants: list[pulumi.Resource] = []
        for kind, role in roles.items():
            profile = aws.iam.InstanceProfile(
                f"{name}-{kind}-profile",
                name=physical_name(design, kind),
                role=role.name,
                path=design.aws.role_path,
                tags=tags(design, f"{design.name}-{kind}"),
                opts=pulumi.ResourceOptions(parent=self),
            )
            self.profiles[kind] = profile.name
            self.grants += [profile, self._policy(kind, role, scope)]
        self.register_outputs({"profiles": self.profiles, "roles": self.roles})

    def _role(self, kind: str) -> aws.iam.Role:
        design = self._design
        return aws.iam.Role(
            f"{self._name}-{kind}",
            name=physical_name(design, kind),
            description=f"{kind} of the cluster {design.name} in {design.region}",
            assume_role_policy=json.dumps(policies.trust(str(design.region))),
            path=design.aws.role_path,
            permissions_boundary=design.aws.permissions_boundary,
            tags=tags(design, f"{design.name}-{kind}"),
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _policy(
        self, kind: str, role: aws.iam.Role, scope: pulumi.Output[policies.Scope]
    ) -> aws.iam.RolePolicy:
        design, document = self._design, DOCUMENTS[kind]
        return aws.iam.RolePolicy(
            f"{self._name}-{kind}-policy",
            name="slurm-stacks",
            role=role.id,
            policy=scope.apply(lambda known: json.dumps(document(known, design))),
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _scope(self, targets: AccessTargets) -> pulumi.Output[policies.Scope]:
        invoke = pulumi.InvokeOptions(parent=self)
        known: pulumi.Output[dict[str, Any]] = pulumi.Output.all(
            partition=aws.get_partition_output(opts=invoke).partition,
            account=aws.get_caller_identity_output(opts=invoke).account_id,
            bucket=targets.bucket,
            secret=targets.secret,
            log_group=targets.log_group,
            compute_role=self.roles["compute"],
            subnets=list(targets.subnets),
            groups=list(targets.groups),
        )
        region = str(self._design.region)
        return known.apply(lambda values: policies.Scope(region=region, **values))


def physical_name(design: ClusterDesign, kind: str) -> str:
    """Return a role's name, of at most 64 characters.

    Roles belong to the account, so the name has a digest of the region: clusters of one name in two regions
    get different roles. A path is part of it, because a role at another path is another role, which must be
    there before machines give up the former one.
    """
    path = "" if design.aws.role_path == "/" else design.aws.role_path
    place = hashlib.sha256(f"{design.region}{path}".encode()).hexdigest()[:6]
    return f"{design.name}-{kind}-{place}"


class AwsSecrets(pulumi.ComponentResource):
    """An empty Secrets Manager secret, encrypted with the account's own key of that service.

    Its value is never in Pulumi's state or in user data. It is deleted with the cluster, at once and
    completely.

    Attributes:
        munge: The secret's ARN.
    """

    def __init__(self, name: str, design: ClusterDesign, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("slurm-stacks:index:AwsSecrets", name, None, opts)
        label = f"{design.name}-munge"
        secret = aws.secretsmanager.Secret(
            f"{name}-munge",
            name=label,
            description=f"Slurm's munge key of the cluster {design.name}; made by its controller",
            # By default a deleted secret waits for weeks, and the next cluster of that name could not be
            # made.
            recovery_window_in_days=0,
            tags=tags(design, label),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.munge: pulumi.Output[str] = secret.arn
        self.register_outputs({"munge": self.munge})
