"""Two clusters in a network of their own, with a bucket that both mount."""

import pulumi
import pulumi_aws as aws
from pulumi_slurm_stacks import SlurmCluster

vpc = aws.ec2.Vpc("vpc", cidr_block="10.0.0.0/16")
public = aws.ec2.Subnet("public", vpc_id=vpc.id, cidr_block="10.0.0.0/20", availability_zone="eu-west-1b")
nodes = aws.ec2.Subnet("nodes", vpc_id=vpc.id, cidr_block="10.0.128.0/20", availability_zone="eu-west-1b")
data = aws.s3.Bucket("data")
for name, most in {"train": 4, "small": 2}.items():
    cluster = SlurmCluster(
        name,
        provider="aws",
        network={
            "zones": ["eu-west-1b"],
            "aws": {"vpc": vpc.id, "public_subnet": public.id, "private_subnets": [nodes.id]},
        },
        partitions=[{"name": "cpu", "instance_type": "m5.xlarge", "nodes": {"max": most}}],
        storage={"buckets": [{"bucket": pulumi.Output.concat("s3://", data.bucket), "path": "/data"}]},
    )
    pulumi.export(name, cluster.cluster)
