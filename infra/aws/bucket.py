"""The cluster's bucket. It holds the code and the settings of the machines, and their boot reports."""

from __future__ import annotations

import json

import pulumi
import pulumi_aws as aws

from infra.aws import policies
from infra.aws.tags import tags
from infra.clouds.publishing import BucketObject
from node.model import ClusterDesign


class AwsBucket(pulumi.ComponentResource):
    """A private, encrypted bucket that is reached over TLS only and deleted with all its content.

    Attributes:
        bucket: The bucket's name.
        arn: The bucket's ARN.
        closed: The resources that make the bucket private. Objects are made after them.
    """

    def __init__(self, name: str, design: ClusterDesign, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("slurm-stacks:index:AwsBucket", name, None, opts)
        own = pulumi.ResourceOptions(parent=self)
        # Versions stay off, as by default: all content can be made again, and old settings would stay for
        # ever.
        store = aws.s3.Bucket(
            f"{name}-store", force_destroy=True, tags=tags(design, f"{design.name}-bucket"), opts=own
        )
        access = aws.s3.BucketPublicAccessBlock(
            f"{name}-public-access-block",
            bucket=store.id,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
            opts=own,
        )
        owner = aws.s3.BucketOwnershipControls(
            f"{name}-ownership", bucket=store.id, rule={"object_ownership": "BucketOwnerEnforced"}, opts=own
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

    def put(self, name: str, item: BucketObject, opts: pulumi.ResourceOptions) -> pulumi.Resource:
        """Declares an object, which is made after the bucket is closed."""
        return aws.s3.BucketObjectv2(
            name,
            bucket=self.bucket,
            key=item.key,
            content=item.content,
            source=item.source,
            opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=self.closed)),
        )
