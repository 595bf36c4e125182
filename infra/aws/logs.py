"""The log group that machines send their logs to, and AWS's own count of the cluster's cost."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra.aws.tags import log_group, tags
from node.design.model import ClusterDesign
from node.elastic.drivers.ec2.names import CLUSTER

RETENTION_DAYS = 30


class AwsLogs(pulumi.ComponentResource):
    """A log group and, with `budget.max_usd`, an AWS Budget of that amount.

    The elastic daemon's own budget stops launches. AWS's budget counts a day late and by calendar years, but
    it counts everything: the controller, disks, traffic. It sends no alert, because that takes an address. An
    alert can be added in the console. The budget sees the cluster only in an account where
    `slurm-stacks:cluster` is activated as a cost allocation tag.

    Attributes:
        group: The log group's name.
        arn: The log group's ARN.
    """

    def __init__(self, name: str, design: ClusterDesign, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("slurm-stacks:index:AwsLogs", name, None, opts)
        child_opts = pulumi.ResourceOptions(parent=self)
        group = aws.cloudwatch.LogGroup(
            f"{name}-group",
            name=log_group(design.name),
            retention_in_days=RETENTION_DAYS,
            tags=tags(design, design.name),
            opts=child_opts,
        )
        if design.budget.max_usd is not None:
            aws.budgets.Budget(
                f"{name}-budget",
                # Budgets belong to the account, not to a region.
                name=f"slurm-stacks-{design.name}-{design.region}",
                budget_type="COST",
                time_unit="ANNUALLY",
                limit_amount=f"{design.budget.max_usd:.2f}",
                limit_unit="USD",
                cost_filters=[{"name": "TagKeyValue", "values": [f"user:{CLUSTER}${design.name}"]}],
                tags=tags(design, design.name),
                opts=child_opts,
            )
        self.group: pulumi.Output[str] = group.name
        self.arn: pulumi.Output[str] = group.arn
        self.register_outputs({"group": self.group})
