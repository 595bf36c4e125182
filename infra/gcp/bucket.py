"""The cluster's bucket: what machines run and know lies there, and their boot reports come there."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
from pulumi_gcp import storage

from infra.clouds.bucket import Bundle
from infra.clouds.objects import Object
from infra.gcp.labels import labels
from infra.node.model import ClusterDesign


class GcpBucket(pulumi.ComponentResource):
    """A private bucket in the cluster's region that goes with all its content.

    Cloud Storage encrypts everything and answers over TLS only.

    Attributes:
        bucket: its name.
    """

    def __init__(self, name: str, design: ClusterDesign, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("slurm-stacks:index:GcpBucket", name, None, opts)
        store = storage.Bucket(
            f"{name}-store",
            project=design.project,
            location=str(design.region).upper(),
            force_destroy=True,
            # Who may do what is IAM's alone, and that is never everybody.
            uniform_bucket_level_access=True,
            public_access_prevention="enforced",
            # All of it can be made again; kept as they are by default, deleted objects cost for a week.
            versioning={"enabled": False},
            soft_delete_policy={"retention_duration_seconds": 0},
            labels=labels(design),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.bucket: pulumi.Output[str] = store.name
        self.register_outputs({"bucket": self.bucket})


class GcpBundle(Bundle):
    """What machines run and know, as objects of Cloud Storage's.

    Args:
        bucket: the bucket's name.
    """

    TYPE = "slurm-stacks:index:GcpBundle"

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        bucket: pulumi.Input[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        self._bucket = bucket
        super().__init__(name, design, bucket, opts)

    def _object(self, one: Object, after: Sequence[pulumi.Resource] = ()) -> storage.BucketObject:
        return storage.BucketObject(
            f"{self._name}-{one.part}",
            bucket=self._bucket,
            name=one.key,
            content=one.content,
            source=one.source,
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(after)),
        )
