"""AWS for the tests of its components: designs, and a mock that answers like the cloud."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pulumi.runtime import mocks

from infra.aws import policies
from infra.aws.network import Zones
from node.design.model import Access, AwsPartition, ClusterDesign, Host, Network, Partition
from node.design.storage import Mount
from tests.support.recorder import Recorder, run

ACCOUNT = "123456789012"
SCOPE = policies.Scope(
    partition="aws",
    region="eu-west-1",
    account=ACCOUNT,
    bucket="arn:aws:s3:::store",
    secret="arn:aws:secretsmanager:eu-west-1:123456789012:secret:c-munge-x",
    log_group="arn:aws:logs:eu-west-1:123456789012:log-group:/slurm-stacks/c",
    compute_role="arn:aws:iam::123456789012:role/c-compute",
    subnets=("subnet-1", "subnet-2"),
    groups=("sg-1",),
)
REGION = "eu-west-1"
CPU = Partition("cpu", "m5.xlarge", 4, 15000, 0, 10, default=True, disk_gib=50)
GPU = Partition(
    "gpu", "p3dn.24xlarge", 96, 700000, 0, 4, placement="cluster", disk_gib=50, aws=AwsPartition(efa=1)
)
CONTROLLER = Host("controller", "controller", ("controller", "nfs", "login"), "m5.large", 50)
LOGIN = Host("login-0", "login", ("login",), "m5.large", 50)
NFS = (
    Mount("/home", "nfs", served_by="controller", size_gib=50),
    Mount("/apps", "nfs", served_by="controller", size_gib=60),
)
EFS = Mount("/home", "efs")
LUSTRE = Mount("/fsx", "fsx_lustre", size_gib=1200, deployment="SCRATCH_2", storage_type="SSD")
OWN = Network(cidr="10.0.0.0/16", public_cidr="10.0.0.0/17", private_cidr="10.0.128.0/17")
EXISTING = Network(vpc="vpc-1", public_subnet="subnet-p", private_subnets=("subnet-a", "subnet-b"))
ZONES = Zones("eu-west-1b", {"cpu": ("eu-west-1b", "eu-west-1a"), "gpu": ("eu-west-1b",)})
OFFERED = {
    "m5.xlarge": ["eu-west-1a", "eu-west-1b", "eu-west-1c", "eu-west-1-atl-1a"],
    "m5.large": ["eu-west-1a", "eu-west-1b", "eu-west-1c"],
    "p3dn.24xlarge": ["eu-west-1b", "eu-west-1c"],
}
SUBNETS = {"subnet-p": "eu-west-1a", "subnet-a": "eu-west-1a", "subnet-b": "eu-west-1b"}


PUBLIC = {"Name": "c-public", "slurm-stacks:cluster": "c", "slurm-stacks:stack": "test"}
"""The tags of the public subnet."""


def aws_design(**changes: Any) -> ClusterDesign:
    """A design with two partitions, one host that serves NFS, Session Manager, and its own VPC."""
    design = ClusterDesign(
        "c",
        "test",
        "aws",
        "vm",
        (CONTROLLER,),
        (CPU, GPU),
        NFS,
        region=REGION,
        access=Access("ssm", user="ubuntu"),
        network=OWN,
    )
    return dataclasses.replace(design, **changes)


def ssh_design(*cidrs: str, login: bool = False, **changes: Any) -> ClusterDesign:
    """Like `aws_design`, but reached over SSH."""
    public = (*(LOGIN if login else CONTROLLER).tags, "public")
    hosts = (
        (CONTROLLER, dataclasses.replace(LOGIN, tags=public))
        if login
        else (dataclasses.replace(CONTROLLER, tags=public),)
    )
    return aws_design(
        hosts=hosts, access=Access("ssh", cidrs or ("203.0.113.0/24",), "key", "ubuntu"), **changes
    )


class Aws(mocks.Mocks):
    """Answers with ids and ARNs. In a preview the answers are empty, like the engine's for new resources.

    Args:
        offered: instance type -> zones.
        subnets: subnet -> zone.
        kept: the cluster's public subnet, if it exists already.
    """

    def __init__(
        self,
        *,
        preview: bool = False,
        offered: Mapping[str, list[str]] | None = None,
        subnets: Mapping[str, str] | None = None,
        kept: Sequence[str] = (),
    ) -> None:
        self._preview = preview
        self._offered = OFFERED if offered is None else offered
        self._subnets = SUBNETS if subnets is None else subnets
        self._kept = list(kept)
        self.calls: list[str] = []

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        if self._preview:
            return "", args.inputs
        known = {
            "arn": f"arn:{args.name}",
            "name": args.name,
            "dnsName": f"{args.name}.dns",
            "key": args.name,
        }
        known |= {"mountName": "mounted", "allocationId": f"{args.name}-allocation"}
        return f"{args.name}-id", {**known, **args.inputs}

    def call(self, args: mocks.MockCallArgs) -> Any:
        self.calls.append(args.token)
        match args.token:
            case "aws:ec2/getInstanceTypeOfferings:getInstanceTypeOfferings":
                assert args.args["locationType"] == "availability-zone"
                (only,) = args.args["filters"]
                (machine,) = only["values"]
                return {"locations": self._offered[machine], "id": "x"}
            case "aws:ec2/getSubnet:getSubnet":
                return {"availabilityZone": self._subnets[args.args["id"]], "id": args.args["id"]}
            case "aws:ec2/getSubnets:getSubnets":
                asked = {f["name"].removeprefix("tag:"): f["values"] for f in args.args["filters"]}
                assert asked == {key: [value] for key, value in PUBLIC.items()}
                return {"ids": self._kept, "id": "x"}
            case "aws:index/getCallerIdentity:getCallerIdentity":
                return {"accountId": ACCOUNT, "id": "x"}
            case "aws:index/getPartition:getPartition":
                return {"partition": "aws", "id": "x"}
        raise AssertionError(args.token)


def declare(program: Callable[[], Any], *, preview: bool = False, aws: Aws | None = None) -> Recorder:
    """Run a program against AWS's mock."""
    recorder = Recorder(aws or Aws(preview=preview))
    run(recorder, program, preview=preview)
    return recorder
