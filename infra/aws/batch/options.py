"""What a Batch stack has on request: a budget, jobs that manifests start, a file system for each job."""

from __future__ import annotations

import json
from collections.abc import Callable

import pulumi
import pulumi_aws as aws

from infra.aws.batch import access, policies, states
from infra.aws.batch.identity import BatchIdentity, grant, role
from infra.aws.batch.states import budget_limits
from infra.aws.network import AwsNetwork
from infra.aws.policies import Document
from infra.aws.storage import AwsBucket
from infra.aws.tags import tags
from node.design.model import ClusterDesign

PATHS = {"bucket": "$.detail.bucket.name", "key": "$.detail.object.key"}
ADDRESS = "s3://<bucket>/<key>"
"""The parts of an S3 event that name the object, and the object's address made from them."""


class BatchBudget(pulumi.ComponentResource):
    """The budget: every few minutes a rule starts a state machine, which counts what is up.

    There is no controller to do it. When the budget is used up, the state machine closes the queue and may
    end what runs. The ledger is a table of one number, to which updates add atomically.

    Args:
        after: What must be there; it is deleted after this.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        identity: BatchIdentity,
        after: list[pulumi.Resource],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:BatchBudget", name, None, opts)
        child_opts = pulumi.ResourceOptions(parent=self, depends_on=after)
        ledger = access.ledger(design.name)
        aws.dynamodb.Table(
            f"{name}-ledger",
            name=ledger,
            attributes=[{"name": "Id", "type": "S"}],
            hash_key="Id",
            billing_mode="PAY_PER_REQUEST",
            server_side_encryption={"enabled": True},
            tags=tags(design, ledger),
            opts=child_opts,
        )
        most = min(budget_limits(design).values())
        machine = _machine(
            name,
            design,
            identity,
            access.budget_machine(design.name),
            lambda scope: states.text(states.budget_machine(design, scope.partition, most)),
            lambda scope: policies.budget(scope, design),
            child_opts,
        )
        rule = aws.cloudwatch.EventRule(
            f"{name}-schedule",
            name=access.budget_machine(design.name),
            description=f"counts what the cluster {design.name} spends",
            schedule_expression=f"rate({states.TICK_MINUTES} minutes)",
            tags=tags(design, access.budget_machine(design.name)),
            opts=child_opts,
        )
        _target(name, design, rule, machine, child_opts)
        self.register_outputs({})


class BatchFileSystems(pulumi.ComponentResource):
    """The state machine that makes a file system for a job, and deletes it after the job.

    Attributes:
        machine: The state machine.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        identity: BatchIdentity,
        network: AwsNetwork,
        after: list[pulumi.Resource],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:BatchFileSystems", name, None, opts)
        subnet = next(iter(network.subnets.values()))
        known = pulumi.Output.all(identity.scope, subnet, network.groups["storage"])
        self.machine = _machine(
            name,
            design,
            identity,
            access.state_machine(design.name),
            known.apply(
                lambda parts: states.text(
                    states.job_machine(design, parts[0].partition, parts[1], [parts[2]])
                )
            ),
            lambda scope: policies.file_systems(scope, design),
            pulumi.ResourceOptions(parent=self, depends_on=[*after, *network.rules["storage"]]),
        )
        self.register_outputs({})


class BatchManifests(pulumi.ComponentResource):
    """A rule that submits the job when an object appears below `manifests/` in the stack's bucket.

    Args:
        queue: The queue's ARN.
        definition: The job definition's ARN.
        machine: The state machine that runs a job with a file system of its own; `None` without one.
    """

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        identity: BatchIdentity,
        bucket: AwsBucket,
        queue: pulumi.Output[str],
        definition: pulumi.Output[str],
        machine: aws.sfn.StateMachine | None,
        after: list[pulumi.Resource],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-stacks:index:BatchManifests", name, None, opts)
        child_opts = pulumi.ResourceOptions(parent=self, depends_on=after)
        aws.s3.BucketNotification(
            f"{name}-notification", bucket=bucket.bucket, eventbridge=True, opts=child_opts
        )
        rule = aws.cloudwatch.EventRule(
            f"{name}-rule",
            name=f"{design.name}-manifests",
            description=f"a new manifest starts a job of {design.name}",
            event_pattern=bucket.bucket.apply(pattern),
            tags=tags(design, f"{design.name}-manifests"),
            opts=child_opts,
        )
        if machine is not None:
            batch = access.of(design)
            text = definition.apply(lambda arn: job_input(design.name, batch.queue, arn))
            _target(name, design, rule, machine, child_opts, text)
        else:
            starts = role(name, design, "start", "events", self)
            grant(name, "start", starts, identity.scope, lambda scope: policies.rule(scope, design), self)
            aws.cloudwatch.EventTarget(
                f"{name}-target",
                rule=rule.name,
                arn=queue,
                role_arn=starts.arn,
                batch_target={"job_definition": definition, "job_name": f"{design.name}-manifest"},
                input_transformer={
                    "input_paths": PATHS,
                    "input_template": json.dumps({"Parameters": {"manifest": ADDRESS}}),
                },
                opts=child_opts,
            )
        self.register_outputs({})


def pattern(bucket: str) -> str:
    """Return the events that start a job: new objects below `manifests/`."""
    detail = {"bucket": {"name": [bucket]}, "object": {"key": [{"prefix": access.MANIFESTS}]}}
    return json.dumps({"source": ["aws.s3"], "detail-type": ["Object Created"], "detail": detail})


def job_input(cluster: str, queue: str, definition: str) -> str:
    """Return what a rule gives the state machine.

    It is a request of SubmitJob, in which the rule puts the address.
    """
    request = {"JobName": f"{cluster}-manifest", "JobQueue": queue, "JobDefinition": definition}
    return json.dumps({**request, "Parameters": {"manifest": ADDRESS}})


def _machine(
    name: str,
    design: ClusterDesign,
    identity: BatchIdentity,
    called: str,
    definition: Callable[[policies.Scope], str] | pulumi.Output[str],
    may: Callable[[policies.Scope], Document],
    opts: pulumi.ResourceOptions,
) -> aws.sfn.StateMachine:
    parent = opts.parent
    assert parent is not None
    kind = called.removeprefix(f"{design.name}-") + "-steps"
    acts = role(name, design, kind, "states", parent)
    granted = grant(name, kind, acts, identity.scope, may, parent)
    text = definition if isinstance(definition, pulumi.Output) else identity.scope.apply(definition)
    return aws.sfn.StateMachine(
        f"{name}-state-machine",
        name=called,
        role_arn=acts.arn,
        definition=text,
        tags=tags(design, called),
        opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[granted])),
    )


def _target(
    name: str,
    design: ClusterDesign,
    rule: aws.cloudwatch.EventRule,
    machine: aws.sfn.StateMachine,
    opts: pulumi.ResourceOptions,
    template: pulumi.Output[str] | None = None,
) -> None:
    """Have a rule start a state machine.

    Args:
        template: The machine's input, with the placeholders of `PATHS`; by default the event itself.
    """
    parent = opts.parent
    assert parent is not None
    kind = f"{name.rpartition('-')[2]}-rule"
    starts = role(name, design, kind, "events", parent)
    aws.iam.RolePolicy(
        f"{name}-{kind}-policy",
        name="slurm-stacks",
        role=starts.id,
        policy=machine.arn.apply(lambda arn: json.dumps(policies.start(arn))),
        opts=pulumi.ResourceOptions(parent=parent),
    )
    aws.cloudwatch.EventTarget(
        f"{name}-target",
        rule=rule.name,
        arn=machine.arn,
        role_arn=starts.arn,
        input_transformer={"input_paths": PATHS, "input_template": template} if template else None,
        opts=opts,
    )
