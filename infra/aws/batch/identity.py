"""The IAM roles of a Batch stack's machines and jobs. `infra.aws.batch.policies` says what they may do."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.aws.batch import access, policies
from infra.aws.identity import physical_name
from infra.aws.policies import Document
from infra.aws.tags import tags
from node.design.model import ClusterDesign

Text = Callable[[policies.Scope], Document]


class BatchIdentity(pulumi.ComponentResource):
    """A role for the machines, and one for the jobs unless the stack file names one.

    Batch itself acts with its service-linked role, which AWS makes in the account with the first environment
    and whose policy AWS maintains. The published role AWSBatchServiceRole allowed as much in every region.

    Attributes:
        profile: The ARN of the machines' instance profile.
        job: The ARN of the jobs' role.
        grants: What a machine needs before it starts: a role without its policy is refused everything.
        scope: What the documents name.

    Args:
        log_group: The log group's ARN.
        repository: The ARN of the stack's repository; `None` if it has none.
        bucket: The ARN of the bucket with manifests; `None` without one.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        log_group: pulumi.Input[str],
        repository: pulumi.Input[str] | None,
        bucket: pulumi.Input[str] | None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:BatchIdentity", name, None, opts)
        self._name = name
        self._design = design
        self.scope = self._scope(log_group, repository, bucket)
        batch = access.of(design)
        machine = role(name, design, "machine", "ec2", self)
        self.grants: list[pulumi.Resource] = [
            grant(name, "machine", machine, self.scope, lambda scope: policies.machine(scope, design), self)
        ]
        profile = aws.iam.InstanceProfile(
            f"{name}-machine-profile",
            name=physical_name(design, "machine"),
            role=machine.name,
            path=design.aws.role_path,
            tags=tags(design, f"{design.name}-machine"),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.grants.append(profile)
        self.profile: pulumi.Output[str] = profile.arn
        self.job: pulumi.Output[str]
        if batch.job_role is not None:
            self.job = pulumi.Output.from_input(batch.job_role)
        else:
            job_role = role(name, design, "job", "ecs-tasks", self)
            self.job = job_role.arn
            if bucket is not None:
                grant(name, "job", job_role, self.scope, lambda scope: policies.job(scope) or {}, self)
        self.register_outputs({"profile": self.profile, "job": self.job})

    def _scope(
        self,
        log_group: pulumi.Input[str],
        repository: pulumi.Input[str] | None,
        bucket: pulumi.Input[str] | None,
    ) -> pulumi.Output[policies.Scope]:
        invoke = pulumi.InvokeOptions(parent=self)
        named = {"repository": repository, "bucket": bucket}
        known: pulumi.Output[dict[str, Any]] = pulumi.Output.all(
            partition=aws.get_partition_output(opts=invoke).partition,
            account=aws.get_caller_identity_output(opts=invoke).account_id,
            log_group=log_group,
            **{key: value for key, value in named.items() if value is not None},
        )
        region = str(self._design.region)
        return known.apply(lambda values: policies.Scope(region=region, **values))


def role(name: str, design: ClusterDesign, kind: str, service: str, parent: pulumi.Resource) -> aws.iam.Role:
    """Declare a role that a service of AWS takes for this stack."""
    return aws.iam.Role(
        f"{name}-{kind}",
        name=physical_name(design, kind),
        description=f"{kind} of the cluster {design.name} in {design.region}",
        assume_role_policy=json.dumps(policies.trust(service)),
        path=design.aws.role_path,
        permissions_boundary=design.aws.permissions_boundary,
        tags=tags(design, f"{design.name}-{kind}"),
        opts=pulumi.ResourceOptions(parent=parent),
    )


def grant(
    name: str,
    kind: str,
    to: aws.iam.Role,
    scope: pulumi.Output[policies.Scope],
    text: Text,
    parent: pulumi.Resource,
) -> aws.iam.RolePolicy:
    """Declare what a role may do, once the names are known."""
    return aws.iam.RolePolicy(
        f"{name}-{kind}-policy",
        name="slurm-stacks",
        role=to.id,
        policy=scope.apply(lambda known: json.dumps(text(known))),
        opts=pulumi.ResourceOptions(parent=parent),
    )
