"""The cluster's bucket: what machines run and know lies there, and their boot reports come there."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pulumi
import pulumi_aws as aws

from infra.aws import policies
from infra.aws.tags import tags
from infra.clouds.bucket import Bundle
from infra.clouds.objects import Object
from infra.node.model import ClusterDesign


class AwsBucket(pulumi.ComponentResource):
    """A private, encrypted bucket, reached over TLS only, that goes with all its content.

    Attributes:
        bucket: its name.
        arn: its ARN.
        closed: what closes it: nothing belongs into it before.
    """

    def __init__(self, name: str, design: ClusterDesign, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("slurm-stacks:index:AwsBucket", name, None, opts)
        own = pulumi.ResourceOptions(parent=self)
        # Without versions, as by default: all of it can be made again, and old settings would stay for ever.
        store = aws.s3.Bucket(
            f"{name}-store", force_destroy=True, tags=tags(design, f"{design.name}-bucket"), opts=own
        )
        access = aws.s3.BucketPublicAccessBlock(
            f"{name}-access",
            bucket=store.id,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
            opts=own,
        )
        owner = aws.s3.BucketOwnershipControls(
            f"{name}-owner", bucket=store.id, rule={"object_ownership": "BucketOwnerEnforced"}, opts=own
        )
        encryption = aws.s3.BucketServerSideEncryptionConfiguration(
            f"{name}-encryption",
            bucket=store.id,
            rules=[{"apply_server_side_encryption_by_default": {"sse_algorithm": "AES256"}}],
            opts=own,
        )
        policy = aws.s3.BucketPolicy(
            f"{name}-policy",
            bucket=store.id,
            policy=store.arn.apply(lambda arn: json.dumps(policies.tls_only(arn))),
            # S3 refuses two changes of a bucket's access at once.
            opts=pulumi.ResourceOptions(parent=self, depends_on=[access]),
        )
        self.bucket: pulumi.Output[str] = store.id
        self.arn: pulumi.Output[str] = store.arn
        self.closed: list[pulumi.Resource] = [access, owner, encryption, policy]
        self.register_outputs({"bucket": self.bucket})


class AwsBundle(Bundle):
    """What machines run and know, as objects of S3's."""

    TYPE = "slurm-stacks:index:AwsBundle"

    def __init__(
        self,
        name: str,
        design: ClusterDesign,
        bucket: AwsBucket,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        self._bucket = bucket
        super().__init__(name, design, bucket.bucket, opts)

    def _object(self, one: Object, after: Sequence[pulumi.Resource] = ()) -> aws.s3.BucketObjectv2:
        return aws.s3.BucketObjectv2(
            f"{self._name}-{one.part}",
            bucket=self._bucket.bucket,
            key=one.key,
            content=one.content,
            source=one.source,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[*self._bucket.closed, *after]),
        )
