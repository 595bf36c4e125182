"""Where machines send their logs, and what AWS itself counts of the cluster's cost."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra.aws.tags import log_group, tags
from infra.node.elastic.drivers.ec2_names import CLUSTER
from infra.node.model import ClusterDesign

RETENTION_DAYS = 30


class AwsLogs(pulumi.ComponentResource):
    """A log group; with `budget.max_usd` also an AWS Budget of that height.

    The budget that stops launches is the elastic daemon's own. AWS's counts a day late, by calendar years,
    but counts everything: the controller, disks, traffic. It tells nobody, for that takes an address: whoever
    wants to be told adds an alert to it in the console. It sees the cluster only in an account where
    `slurm-stacks:cluster` is activated as a cost allocation tag.

    Attributes:
        group: the log group's name.
        arn: the log group's ARN.
    """

    def __init__(self, name: str, design: ClusterDesign, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("slurm-stacks:index:AwsLogs", name, None, opts)
        own = pulumi.ResourceOptions(parent=self)
        group = aws.cloudwatch.LogGroup(
            f"{name}-group",
            name=log_group(design.name),
            retention_in_days=RETENTION_DAYS,
            tags=tags(design, design.name),
            opts=own,
        )
        if design.budget.max_usd is not None:
            aws.budgets.Budget(
                f"{name}-budget",
                # Budgets are the account's, not a region's.
                name=f"slurm-stacks-{design.name}-{design.region}",
                budget_type="COST",
                time_unit="ANNUALLY",
                limit_amount=f"{design.budget.max_usd:.2f}",
                limit_unit="USD",
                cost_filters=[{"name": "TagKeyValue", "values": [f"user:{CLUSTER}${design.name}"]}],
                tags=tags(design, design.name),
                opts=own,
            )
        self.group: pulumi.Output[str] = group.name
        self.arn: pulumi.Output[str] = group.arn
        self.register_outputs({"group": self.group})
