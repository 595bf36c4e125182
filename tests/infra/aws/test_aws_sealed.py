"""The exact number of resources for each shape of a cluster on AWS, which is the same in a preview."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pulumi
import pytest

from infra.aws.cluster import AwsCluster
from infra.clouds.cluster import terminate_on_destroy
from node.design.model import Budget, ClusterDesign, SlurmSettings
from tests.support.aws_machines import Machines
from tests.support.aws_mocks import CPU, EFS, EXISTING, LUSTRE, NFS, aws_design, declare, ssh_design
from tests.support.recorder import Recorder, counts, needs

COMMAND = "command:local:Command"
# This is a cluster of two partitions behind Session Manager, in its own VPC with three zones.
PLAIN = {
    "slurm-stacks:index:AwsCluster": 1,
    "slurm-stacks:index:AwsNetwork": 1,
    "slurm-stacks:index:AwsIdentity": 1,
    "slurm-stacks:index:AwsSecrets": 1,
    "slurm-stacks:index:AwsBucket": 1,
    "slurm-stacks:index:Bundle": 1,
    "slurm-stacks:index:AwsStorage": 1,
    "slurm-stacks:index:AwsDisks": 1,
    "slurm-stacks:index:AwsLogs": 1,
    "slurm-stacks:index:AwsAddresses": 1,
    "slurm-stacks:index:AwsLaunchTemplates": 1,
    "slurm-stacks:index:AwsHead": 1,
    COMMAND: 2,
    "aws:ec2/vpc:Vpc": 1,
    "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup": 1,
    "aws:ec2/internetGateway:InternetGateway": 1,
    "aws:ec2/natGateway:NatGateway": 1,
    "aws:ec2/eip:Eip": 1,
    "aws:ec2/subnet:Subnet": 5,
    "aws:ec2/routeTable:RouteTable": 3,
    "aws:ec2/route:Route": 3,
    "aws:ec2/routeTableAssociation:RouteTableAssociation": 5,
    "aws:ec2/vpcEndpoint:VpcEndpoint": 1,
    "aws:ec2/securityGroup:SecurityGroup": 2,
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": 10,
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": 3,
    "aws:iam/role:Role": 2,
    "aws:iam/rolePolicy:RolePolicy": 2,
    "aws:iam/instanceProfile:InstanceProfile": 2,
    "aws:secretsmanager/secret:Secret": 1,
    "aws:s3/bucket:Bucket": 1,
    "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock": 1,
    "aws:s3/bucketOwnershipControls:BucketOwnershipControls": 1,
    "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration": 1,
    "aws:s3/bucketPolicy:BucketPolicy": 1,
    "aws:s3/bucketObjectv2:BucketObjectv2": 4,
    "aws:ebs/volume:Volume": 2,
    "aws:ec2/volumeAttachment:VolumeAttachment": 2,
    "aws:cloudwatch/logGroup:LogGroup": 1,
    "aws:ec2/networkInterface:NetworkInterface": 1,
    "aws:ec2/instance:Instance": 1,
    "aws:ec2/launchTemplate:LaunchTemplate": 2,
    "aws:ec2/placementGroup:PlacementGroup": 1,
}
INGRESS, EGRESS = (f"aws:vpc/securityGroup{way}Rule:SecurityGroup{way}Rule" for way in ("Ingress", "Egress"))
INTERFACE = "aws:ec2/networkInterface:NetworkInterface"
SHOW = "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation"
EIP, GROUP = "aws:ec2/eip:Eip", "aws:ec2/securityGroup:SecurityGroup"
LOGIN_MACHINE = {
    EIP: 1, GROUP: 1, EGRESS: 1, "aws:ec2/instance:Instance": 1, INTERFACE: 1, "aws:iam/role:Role": 1,
    "aws:iam/rolePolicy:RolePolicy": 1, "aws:iam/instanceProfile:InstanceProfile": 1,
}  # fmt: skip
OF_A_VPC = (
    "vpc:Vpc", "defaultSecurityGroup:DefaultSecurityGroup", "internetGateway:InternetGateway",
    "natGateway:NatGateway", "eip:Eip", "subnet:Subnet", "routeTable:RouteTable", "route:Route",
    "routeTableAssociation:RouteTableAssociation", "vpcEndpoint:VpcEndpoint",
)  # fmt: skip
FSX = "aws:fsx/lustreFileSystem:LustreFileSystem"
SHOWN = dataclasses.replace(LUSTRE, s3_import="s3://b/p")
# The number of resources that each shape has more, or below 0 less, than the plain one.
VARIANTS: dict[str, tuple[ClusterDesign, dict[str, int]]] = {
    "ssm": (aws_design(), {}),
    "ssh": (ssh_design(), {EIP: 1, INGRESS: 1}),
    "login": (ssh_design(login=True), {**LOGIN_MACHINE, INGRESS: 11}),
    "accounting": (
        ssh_design(login=True, slurm=SlurmSettings(accounting=True)), {**LOGIN_MACHINE, INGRESS: 13}
    ),
    "one-partition": (
        aws_design(partitions=(CPU,)),
        {"aws:ec2/launchTemplate:LaunchTemplate": -1, "aws:ec2/placementGroup:PlacementGroup": -1},
    ),
    "budget": (aws_design(budget=Budget(max_usd=10.0)), {"aws:budgets/budget:Budget": 1}),
    "lustre": (
        aws_design(mounts=(*NFS, SHOWN)),
        {GROUP: 1, FSX: 1, SHOW: 1, INGRESS: 10, EGRESS: 6},
    ),
    "efs-lustre": (
        aws_design(mounts=(EFS, LUSTRE)),
        {
            GROUP: 1, FSX: 1, "aws:efs/fileSystem:FileSystem": 1, "aws:efs/mountTarget:MountTarget": 3,
            "aws:ebs/volume:Volume": -2, "aws:ec2/volumeAttachment:VolumeAttachment": -2, INGRESS: 11,
            EGRESS: 6,
        },
    ),
    "existing": (
        aws_design(network=EXISTING),
        {kind: -PLAIN[kind] for kind in PLAIN if kind.removeprefix("aws:ec2/") in OF_A_VPC},
    ),
}  # fmt: skip


@functools.cache
def cluster(variant: str, preview: bool) -> Recorder:
    """The resources of one of the `VARIANTS`, declared once for all tests."""

    def program() -> Any:
        aws_cluster = AwsCluster("c", VARIANTS[variant][0])
        return pulumi.Output.all(**aws_cluster.inventory)

    return declare(program, preview=preview, aws=Machines(preview=preview))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_cluster_is_exactly_these_resources(variant: str) -> None:
    _, more = VARIANTS[variant]
    made = cluster(variant, preview=False)
    wanted = {kind: PLAIN.get(kind, 0) + more.get(kind, 0) for kind in {*PLAIN, *more}}
    assert counts(made) == {kind: number for kind, number in wanted.items() if number}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_preview_names_what_will_be_made(variant: str) -> None:
    """Unknown ids and addresses hide no resource, and change no name, parent or order of deletion.

    So the counts in the tests of the parts hold in a preview as well.
    """
    real, preview = (cluster(variant, preview) for preview in (False, True))
    assert preview.types() == real.types()
    assert needs(preview) == needs(real)
    assert preview.parents() == real.parents()
    assert sorted(preview.closed) == sorted(real.closed)


@pytest.mark.parametrize("preview", [False, True])
def test_a_termination_is_one_command_that_does_nothing_until_the_end(preview: bool) -> None:
    def program() -> None:
        parent = pulumi.ComponentResource("t:index:Parent", "p")
        dependency = pulumi.ComponentResource("t:index:Ground", "g")
        terminate_on_destroy("s", "operations.aws", aws_design(), [], [dependency], parent)

    made = declare(program, preview=preview)
    assert counts(made) == {"t:index:Parent": 1, "t:index:Ground": 1, COMMAND: 1}
    assert made.parents()["s"] == "p"
    # There is no `create` or `update`: whatever changes, nodes are ended only by a destroy.
    assert set(made.inputs("s")) == {"delete", "interpreter", "triggers"}
