"""The cluster's bucket. It holds the code and the settings of the machines, and their boot reports."""

from __future__ import annotations

import pulumi
from pulumi_gcp import storage

from infra.clouds.publishing import BucketObject
from infra.gcp.labels import labels
from node.model import ClusterDesign


class GcpBucket(pulumi.ComponentResource):
    """A private bucket in the cluster's region that is deleted with all its content.

    Cloud Storage encrypts everything and answers over TLS only.

    Attributes:
        bucket: The bucket's name.
    """

    def __init__(self, name: str, design: ClusterDesign, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("slurm-stacks:index:GcpBucket", name, None, opts)
        store = storage.Bucket(
            f"{name}-store",
            project=design.project,
            location=str(design.region).upper(),
            force_destroy=True,
            # Only IAM says who may do what, and it never allows everybody.
            uniform_bucket_level_access=True,
            public_access_prevention="enforced",
            # All content can be made again. By default deleted objects are kept, and cost, for a week.
            versioning={"enabled": False},
            soft_delete_policy={"retention_duration_seconds": 0},
            labels=labels(design),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.bucket: pulumi.Output[str] = store.name
        self.register_outputs({"bucket": self.bucket})

    def put(self, name: str, item: BucketObject, opts: pulumi.ResourceOptions) -> pulumi.Resource:
        """Declares an object."""
        return storage.BucketObject(
            name, bucket=self.bucket, name=item.key, content=item.content, source=item.source, opts=opts
        )
