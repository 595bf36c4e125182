"""The roles of the cluster's machines. What they may do is written in `infra.aws.policies`."""

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
from infra.clouds.reach import kinds
from infra.node.model import ClusterDesign

DOCUMENTS: dict[str, Callable[[policies.Scope, ClusterDesign], policies.Document]] = {
    "controller": policies.controller,
    "login": policies.login,
    "compute": policies.compute,
    "image": policies.image,
}


@dataclass(frozen=True, slots=True)
class Reach:
    """What the machines' policies name: ARNs of the bucket, the secret and the log group; ids of the subnets
    and security groups of nodes."""

    bucket: pulumi.Input[str]
    secret: pulumi.Input[str]
    log_group: pulumi.Input[str]
    subnets: Sequence[pulumi.Input[str]]
    groups: Sequence[pulumi.Input[str]]


class AwsIdentity(pulumi.ComponentResource):
    """A role for each kind of machine, with the least that works.

    Attributes:
        profiles: controller | login | compute | image -> the instance profile's name; login only where there
            are login machines, image only where images are baked.
        roles: the same -> the role's ARN.
        granted: what a machine needs before it starts: a role without its policy is refused everything.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        reach: Reach,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:AwsIdentity", name, None, opts)
        self._name = name
        self._design = design
        made = {kind: self._role(kind) for kind in kinds(design)}
        self.roles = {kind: role.arn for kind, role in made.items()}
        scope = self._scope(reach)
        self.profiles: dict[str, pulumi.Output[str]] = {}
        self.granted: list[pulumi.Resource] = []
        for kind, role in made.items():
            profile = aws.iam.InstanceProfile(
                f"{name}-{kind}-profile",
                name=physical_name(design, kind),
                role=role.name,
                tags=tags(design, f"{design.name}-{kind}"),
                opts=pulumi.ResourceOptions(parent=self),
            )
            self.profiles[kind] = profile.name
            self.granted += [profile, self._policy(kind, role, scope)]
        self.register_outputs({"profiles": self.profiles, "roles": self.roles})

    def _role(self, kind: str) -> aws.iam.Role:
        design = self._design
        return aws.iam.Role(
            f"{self._name}-{kind}",
            name=physical_name(design, kind),
            description=f"{kind} of the cluster {design.name} in {design.region}",
            assume_role_policy=json.dumps(policies.trust()),
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

    def _scope(self, reach: Reach) -> pulumi.Output[policies.Scope]:
        invoke = pulumi.InvokeOptions(parent=self)
        known: pulumi.Output[dict[str, Any]] = pulumi.Output.all(
            partition=aws.get_partition_output(opts=invoke).partition,
            account=aws.get_caller_identity_output(opts=invoke).account_id,
            bucket=reach.bucket,
            secret=reach.secret,
            log_group=reach.log_group,
            compute_role=self.roles["compute"],
            subnets=list(reach.subnets),
            groups=list(reach.groups),
        )
        region = str(self._design.region)
        return known.apply(lambda values: policies.Scope(region=region, **values))


def physical_name(design: ClusterDesign, kind: str) -> str:
    """A role's name: they are the account's, so two regions' clusters of one name are told apart; at most 64
    characters."""
    region = hashlib.sha256(str(design.region).encode()).hexdigest()[:6]
    return f"{design.name}-{kind}-{region}"
