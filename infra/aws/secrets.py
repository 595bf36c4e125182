"""The secret that keeps the cluster's munge key. It is made empty: the controller makes the key itself."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra.aws.tags import tags
from node.model import ClusterDesign


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
