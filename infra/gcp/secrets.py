"""The secret that keeps the cluster's munge key. It is made empty: the controller makes the key itself."""

from __future__ import annotations

import pulumi
from pulumi_gcp import secretmanager

from infra.gcp.labels import labels
from node.model import ClusterDesign


class GcpSecrets(pulumi.ComponentResource):
    """An empty Secret Manager secret, kept in the cluster's region and nowhere else.

    Its value is never in Pulumi's state or in metadata. It is deleted with the cluster, at once and
    completely.

    Attributes:
        munge: The secret as `projects/<project>/secrets/<cluster>-munge`.
    """

    def __init__(self, name: str, design: ClusterDesign, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("slurm-stacks:index:GcpSecrets", name, None, opts)
        secret = secretmanager.Secret(
            f"{name}-munge",
            secret_id=f"{design.name}-munge",
            project=design.project,
            # The secret is in the cluster's region, so that the cluster does not depend on other regions.
            # Some organizations allow no other replication.
            replication={"user_managed": {"replicas": [{"location": str(design.region)}]}},
            deletion_protection=False,
            labels=labels(design),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.munge: pulumi.Output[str] = secret.id
        self.register_outputs({"munge": self.munge})
