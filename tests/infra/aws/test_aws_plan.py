"""`./cluster plan` of the AWS stacks works offline, has exact resources, and is readable."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cli.commands.operate import make_plan
from cli.console.plan import show_plan
from cli.engine.plan import Plan
from infra.aws.launch_templates import BOOT_SCRIPT
from infra.config import load_file
from infra.errors import UserError
from infra.program.stack import Stack
from tests.support import aws_plans, offline_plan, shipped
from tests.support.checkout import ROOT
from tests.support.replacing_rules import undecided
from tests.support.stack_values import installing

SLURM = sorted(
    stack
    for path in shipped.files("Pulumi.aws-")
    if (stack := path.name.removeprefix("Pulumi.").removesuffix(".yaml")) != "aws-batch"
)
GROUPS = {"ingress": "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"}
# These are the resources of any Slurm cluster on AWS in its own VPC. Security rules depend on the storage.
COMMON = {
    "pulumi:pulumi:Stack": 1,
    "slurm-stacks:index:SlurmCluster": 1,
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
    "slurm-stacks:index:Benchmark": 1,
    "aws:ec2/vpc:Vpc": 1,
    "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup": 1,
    "aws:ec2/internetGateway:InternetGateway": 1,
    "aws:ec2/natGateway:NatGateway": 1,
    "aws:ec2/subnet:Subnet": 3,
    "aws:ec2/routeTable:RouteTable": 3,
    "aws:ec2/route:Route": 3,
    "aws:ec2/routeTableAssociation:RouteTableAssociation": 3,
    "aws:ec2/vpcEndpoint:VpcEndpoint": 1,
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
}
GOLDEN = {
    "aws-cpu": {
        **COMMON,
        # The head has a public address.
        "aws:ec2/eip:Eip": 2,
        "aws:ec2/securityGroup:SecurityGroup": 2,
        # These are the termination, the wait, and three commands of `ssh`.
        "command:local:Command": 5,
    },
    "aws-gpu": {
        **COMMON,
        "aws:ec2/eip:Eip": 1,
        "aws:ec2/placementGroup:PlacementGroup": 1,
        "aws:fsx/lustreFileSystem:LustreFileSystem": 1,
        # Images are baked, for the controller and two kinds of nodes, by machines with a role of their own.
        "slurm-stacks:index:AwsImages": 1,
        "aws:imagebuilder/component:Component": 3,
        "aws:imagebuilder/distributionConfiguration:DistributionConfiguration": 3,
        "aws:imagebuilder/image:Image": 3,
        "aws:imagebuilder/imageRecipe:ImageRecipe": 3,
        "aws:imagebuilder/infrastructureConfiguration:InfrastructureConfiguration": 1,
        "aws:iam/role:Role": 3,
        "aws:iam/rolePolicy:RolePolicy": 3,
        "aws:iam/instanceProfile:InstanceProfile": 3,
        "aws:cloudwatch/logGroup:LogGroup": 2,
        "aws:ec2/securityGroup:SecurityGroup": 4,
        "aws:s3/bucketObjectv2:BucketObjectv2": 6,
        # The same as above, through Session Manager, and what removes each image.
        "command:local:Command": 8,
    },
}
RULES = re.compile(r"aws:vpc/securityGroup(In|E)gressRule:")


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    return {
        stack: make_plan(
            Stack(ROOT, stack),
            load_file(ROOT / f"Pulumi.{stack}.yaml"),
        )
        for stack in SLURM
    }


def named(plan: Plan, name: str) -> dict[str, Any]:
    (found,) = [r for r in plan["resources"] if r["name"] == f"{plan['stack']}-{name}"]
    return dict(found)


def test_the_stacks_are_there() -> None:
    assert set(SLURM) >= {"aws-cpu", "aws-gpu"}
    for stack in ("aws-cpu", "aws-gpu"):
        draft = load_file(ROOT / "tests" / "infra" / "stacks" / f"Pulumi.{stack}.yaml")
        shipped = installing(load_file(ROOT / f"Pulumi.{stack}.yaml"))
        assert shipped == installing(draft), "what the other tests know is what ships"


@pytest.mark.parametrize("stack", ["aws-cpu", "aws-gpu"])
def test_a_plan_is_exactly_these_resources(plans: dict[str, Plan], stack: str) -> None:
    found = Counter(r["type"] for r in plans[stack]["resources"] if not RULES.match(r["type"]))
    assert dict(found) == GOLDEN[stack]


@pytest.mark.parametrize(("stack", "cards"), [("aws-p4de", 4), ("aws-p4de-inference", 4), ("aws-trn1", 8)])
def test_every_network_card_of_a_large_machine_has_an_interface(
    plans: dict[str, Plan], stack: str, cards: int
) -> None:
    (template, *_) = [r for r in plans[stack]["resources"] if r["type"].endswith(":LaunchTemplate")]
    interfaces = template["inputs"]["networkInterfaces"]
    found = {
        interface["networkCardIndex"]
        for interface in interfaces
        if interface.get("interfaceType") == "efa-only"
    }
    assert found == set(range(cards))


@pytest.mark.parametrize("stack", SLURM)
def test_user_data_is_text_that_can_be_read_and_fits(plans: dict[str, Plan], stack: str) -> None:
    head = named(plans[stack], "head-controller")["inputs"]["userData"]
    templates = [r for r in plans[stack]["resources"] if r["type"].endswith(":LaunchTemplate")]
    texts = [head, *(base64.b64decode(r["inputs"]["userData"]).decode() for r in templates)]
    for text in texts:
        assert len(text.encode()) < BOOT_SCRIPT.limit / 2
        assert f"'<{stack}-bucket-store.id>'" in text, "a placeholder, and not an unknown"


@pytest.mark.parametrize("stack", SLURM)
def test_nothing_secret_is_planned_in_clear(plans: dict[str, Plan], stack: str) -> None:
    text = json.dumps(plans[stack])
    assert "BEGIN" not in text
    assert not [r for r in plans[stack]["resources"] if r["type"].endswith((":SecretVersion", ":PrivateKey"))]


def test_the_published_machines_cost_what_was_published(plans: dict[str, Plan]) -> None:
    """The prices of the seed: m4.large at 0.12 and c4.2xlarge at 0.454 USD an hour in eu-central-1."""
    partitions = plans["aws-cpu"]["outputs"]["cluster"]["partitions"]
    assert {p["name"]: (p["machine"], p["price_usd_per_hour"], p["min"], p["max"]) for p in partitions} == {
        "compute": ("m4.large", 0.12, 0, 10),
        "c4": ("c4.2xlarge", 0.454, 0, 10),
    }
    for stack, plan in plans.items():
        idle, most = plan["cost"]["idle_usd_per_hour"], plan["cost"]["max_usd_per_hour"]
        fixed = all(p["min"] == p["max"] for p in plan["outputs"]["cluster"]["partitions"])
        assert 0 < idle <= most, stack
        assert (idle == most) == fixed, stack


def test_a_head_is_public_only_where_the_stack_says_ssh(plans: dict[str, Plan]) -> None:
    for stack, way in (("aws-cpu", "gatewayId"), ("aws-gpu", "natGatewayId")):
        subnet = named(plans[stack], "addresses-controller")["inputs"]["subnetId"]
        assert subnet == f"<{stack}-network-head.id>"
        assert way in named(plans[stack], "network-head-route")["inputs"]
    opened = [
        r["inputs"]["cidrIpv4"]
        for stack in ("aws-cpu", "aws-gpu")
        for r in plans[stack]["resources"]
        if r["type"] == GROUPS["ingress"] and "cidrIpv4" in r["inputs"]
    ]
    assert opened == ["203.0.113.0/24"], "the network that aws-cpu names, and no other"


def test_the_outputs_fit_the_contract(plans: dict[str, Plan]) -> None:
    from infra import outputs

    for stack in ("aws-cpu", "aws-gpu"):
        found = outputs.load(plans[stack]["outputs"]["cluster"])
        assert found.provider == "aws"
        assert found.login is not None


def test_the_plan_reads_like_the_drawing(plans: dict[str, Plan], capsys: pytest.CaptureFixture[str]) -> None:
    """The plan has lines for the public head, the private nodes, what runs on which machine, and the cost."""
    show_plan(plans["aws-cpu"])
    text = capsys.readouterr().out
    for line in (
        r"aws-cpu: slurm on aws eu-central-1",
        r"controller +m4\.large +0\.12 USD an hour",
        r"partition compute +0–10 × m4\.large, each 2 CPUs, 7 GiB for jobs +0\.00 to 1\.20 USD an hour",
        r"partition c4 +0–10 × c4\.2xlarge, each 8 CPUs, 14 GiB for jobs +0\.00 to 4\.54 USD an hour",
        r"/home +nfs 50 GiB",
        r"log in +\S*cluster ssh --stack aws-cpu",
        r".*aws-cpu-head-controller aws:ec2/instance:Instance m4\.large",
        r".*aws-cpu-network-controller-in-203-0-113-0-24-22 .* SSH from 203\.0\.113\.0/24",
        r".*aws-cpu-storage-home aws:ebs/volume:Volume 50 GiB",
    ):
        assert re.search(f"^{line}", text, re.MULTILINE), line
    show_plan(plans["aws-gpu"])
    text = capsys.readouterr().out
    assert "p3dn.24xlarge, EFA, placement group aws-gpu-compute" in text
    assert "0–8 × p3dn.24xlarge, each 96 CPUs, 745 GiB, 8 × v100 for jobs" in text
    assert "LustreFileSystem SCRATCH_2, 1200 GiB" in text


def test_a_retired_machine_is_answered_with_what_replaced_it(tmp_path: Path) -> None:
    text = (
        (ROOT / "Pulumi.aws-gpu.yaml")
        .read_text()
        .replace("instance_type: p3dn.24xlarge", "instance_type: p3.2xlarge")
    )
    file = tmp_path / "Pulumi.aws-gpu.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        load_file(file)
    assert caught.value.exit_code == 2
    assert "p3dn.24xlarge (8 × V100, EFA)" in str(caught.value)
    assert "g4dn.xlarge" in str(caught.value)


def test_a_plan_needs_no_account_and_imports_nothing_in_vain(tmp_path: Path) -> None:
    offline_plan.check("aws-gpu", tmp_path, ["boto3", "botocore", "pulumi_gcp"])


@pytest.mark.parametrize("subject", aws_plans.SUBJECTS)
def test_of_every_resource_it_is_decided_whether_it_holds_data(subject: str, tmp_path: Path) -> None:
    """`up` refuses to replace what does; see tests/infra/data/replacing_properties.yaml."""
    made = aws_plans.planned(subject, tmp_path)
    assert undecided(str(resource["type"]) for resource in made.resources) == set()


def test_each_pool_has_a_template_and_one_spot_pool_is_enough_for_its_rights(tmp_path: Path) -> None:
    plan = aws_plans.planned(aws_plans.POOLED, tmp_path)
    made = {
        name: (inputs["instanceType"], (inputs.get("instanceMarketOptions") or {}).get("marketType"))
        for name, inputs in plan.of("LaunchTemplate")
    }
    assert made == {
        "aws-cpu-launch-templates-compute-spot": ("m4.large", "spot"),
        "aws-cpu-launch-templates-compute-ondemand": ("m5.large", None),
        "aws-cpu-launch-templates-c4": ("c4.2xlarge", None),
    }
    policies = {name: str(inputs) for name, inputs in plan.of("RolePolicy")}
    assert "spot-instances-request" in policies["aws-cpu-identity-controller-policy"]
