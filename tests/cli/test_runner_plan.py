"""The offline plan: all that a program declares, with readable placeholders and without an engine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cli.engine.plan import Plan, plan
from infra.program import mode
from infra.program.stack import Stack
from tests.support import sentences
from tests.support.tiny_project import ROOT, Tiny, make

CLOUDS = """
    import json
    import pulumi
    import pulumi_aws as aws
    import pulumi_gcp as gcp
    from infra.program import mode

    assert mode.current() == "plan"
    config = pulumi.Config()


    class Network(pulumi.ComponentResource):
        def __init__(self, name):
            super().__init__("slurm-stacks:index:AwsNetwork", name, {"some": "input"})
            own = pulumi.ResourceOptions(parent=self)
            self.vpc = aws.ec2.Vpc(f"{name}-vpc", cidr_block="10.0.0.0/16", tags={"Name": "n"}, opts=own)
            zones = aws.get_availability_zones()
            self.subnet = aws.ec2.Subnet(
                f"{name}-subnet", vpc_id=self.vpc.id, cidr_block="10.0.1.0/24",
                availability_zone=zones.names[0],
                opts=pulumi.ResourceOptions(parent=self, protect=True))
            self.register_outputs({})


    network = Network("net")
    scratch = aws.fsx.LustreFileSystem("scratch", subnet_ids=network.subnet.id, storage_capacity=1200)
    role = aws.iam.Role("role", assume_role_policy=pulumi.Output.json_dumps(
        {"Statement": [{"Resource": scratch.arn, "Principal": network.vpc.arn.apply(lambda a: a.upper())}]}))
    head = aws.ec2.Instance(
        "head", ami=aws.ec2.get_ami(most_recent=True, owners=["amazon"]).id, instance_type="m5.large",
        user_data=pulumi.Output.concat("mount ", scratch.dns_name, "@tcp:/", scratch.mount_name),
        opts=pulumi.ResourceOptions(depends_on=[role]))
    word = aws.secretsmanager.SecretVersion(
        "word", secret_id="s", secret_string=pulumi.Output.concat("x", config.require_secret("word")))
    node = gcp.compute.Instance(
        "node", machine_type="n1-standard-1", zone="europe-west4-a",
        boot_disk={"initialize_params": {"image": gcp.compute.get_image(family="f", project="p").self_link}},
        network_interfaces=[{"network": "default", "access_configs": [{}]}])
    apps = gcp.filestore.Instance(
        "apps", tier="BASIC_HDD", file_shares={"name": "apps", "capacity_gb": 1024},
        networks=[{"network": "default", "modes": ["MODE_IPV4"]}])
    pulumi.log.warn("look out")
    pulumi.export("addresses", {
        "head": head.private_ip.apply(lambda ip: "at " + ip),
        "node": node.network_interfaces[0].access_configs[0].nat_ip,
        "inner": node.network_interfaces.apply(lambda n: n[0].network_ip),
        "apps": apps.networks[0].ip_addresses[0],
        "device": head.root_block_device.volume_id,
    })
    pulumi.export("tags", network.vpc.tags_all)
    targets = aws.efs.FileSystem("home").number_of_mount_targets
    pulumi.export("targets", targets.apply(lambda number: number + 0))
    pulumi.export("account", aws.get_caller_identity().account_id)
    pulumi.export("password", word.secret_string)
"""
CONFIG = """
    config:
      aws:region: eu-west-1
      gcp:project: p
      tiny:word: {secure: v1:abc}
"""
PREFIX = "urn:pulumi:t::tiny::"


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    return make(tmp_path, monkeypatch)


@pytest.fixture
def clouds(tiny: Tiny) -> Plan:
    return plan(Stack(tiny.write(CLOUDS, CONFIG, prelude=False).path, "t"))


def named(found: Plan) -> dict[str, Any]:
    return {resource["name"]: resource for resource in found["resources"]}


def test_every_resource_is_listed_after_its_parent(clouds: Plan) -> None:
    assert [resource["urn"].removeprefix(PREFIX) for resource in clouds["resources"]] == [
        "pulumi:pulumi:Stack::tiny-t",
        "gcp:filestore/instance:Instance::apps",
        "aws:ec2/instance:Instance::head",
        "aws:efs/fileSystem:FileSystem::home",
        "slurm-stacks:index:AwsNetwork::net",
        "slurm-stacks:index:AwsNetwork$aws:ec2/subnet:Subnet::net-subnet",
        "slurm-stacks:index:AwsNetwork$aws:ec2/vpc:Vpc::net-vpc",
        "gcp:compute/instance:Instance::node",
        "aws:iam/role:Role::role",
        "aws:fsx/lustreFileSystem:LustreFileSystem::scratch",
        "aws:secretsmanager/secretVersion:SecretVersion::word",
    ]


def test_a_resource_has_the_keys_of_the_contract(clouds: Plan) -> None:
    assert clouds["stack"] == "t"
    assert set(clouds) == {
        "stack",
        "resources",
        "outputs",
        "additions",
        "slurm",
        "cost",
        "warnings",
        "changes",
    }
    assert named(clouds)["net-subnet"] == {
        "urn": f"{PREFIX}slurm-stacks:index:AwsNetwork$aws:ec2/subnet:Subnet::net-subnet",
        "type": "aws:ec2/subnet:Subnet",
        "name": "net-subnet",
        "parent": f"{PREFIX}slurm-stacks:index:AwsNetwork::net",
        "inputs": {
            "vpcId": "<net-vpc.id>",
            "availabilityZone": "<getAvailabilityZones.names[0]>",
            "cidrBlock": "10.0.1.0/24",
        },
        "dependencies": [f"{PREFIX}slurm-stacks:index:AwsNetwork$aws:ec2/vpc:Vpc::net-vpc"],
        "protect": True,
    }
    assert named(clouds)["net"]["inputs"] == {"some": "input"}
    assert named(clouds)["head"]["dependencies"] == sorted(
        named(clouds)[name]["urn"] for name in ("scratch", "role")
    )
    json.dumps(clouds)


def test_user_data_and_policies_are_text(clouds: Plan) -> None:
    resources = named(clouds)
    assert resources["head"]["inputs"] == {
        "ami": "<getAmi.id>",
        "instanceType": "m5.large",
        "userData": "mount <scratch.dnsName>@tcp:/<scratch.mountName>",
    }
    assert json.loads(resources["role"]["inputs"]["assumeRolePolicy"]) == {
        "Statement": [{"Resource": "<scratch.arn>", "Principal": "<NET-VPC.ARN>"}]
    }


def test_what_a_cloud_computes_inside_what_is_given_has_stand_ins_too(clouds: Plan) -> None:
    assert clouds["outputs"] == {
        "addresses": {
            "head": "at <head.privateIp>",
            "node": "<node.networkInterfaces[0].accessConfigs[0].natIp>",
            "inner": "<node.networkInterfaces[0].networkIp>",
            "apps": "<apps.networks[0].ipAddresses[0]>",
            "device": "<head.rootBlockDevice.volumeId>",
        },
        "tags": {"Name": "n"},
        "targets": 0,
        "account": "<getCallerIdentity.accountId>",
        "password": "[secret]",
    }
    assert named(clouds)["node"]["inputs"]["networkInterfaces"] == [
        {"network": "default", "accessConfigs": [{}]}
    ]


def test_secrets_are_shown_as_such(clouds: Plan) -> None:
    assert named(clouds)["word"]["inputs"] == {"secretId": "s", "secretString": "[secret]"}


def test_the_callers_part(tiny: Tiny) -> None:
    def canned(token: str, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return (
            {"names": ["eu-west-1b"]}
            if token == "aws:index/getAvailabilityZones:getAvailabilityZones"
            else None
        )

    made = plan(
        Stack(tiny.write(CLOUDS, CONFIG, prelude=False).path, "t"),
        annotate=lambda resources: ({"count": len(resources)}, ["dear"]),
        canned=canned,
    )
    assert made["cost"] == {"count": 11}
    assert made["warnings"] == ["look out", "dear"]
    assert named(made)["net-subnet"]["inputs"]["availabilityZone"] == "eu-west-1b"


def test_local_commands_are_planned_and_not_run(tiny: Tiny) -> None:
    made = plan(
        Stack(
            tiny.write("""
            a = command("a", create=say("a+"))
            command("b", environment={"A": a.stdout, "P": pulumi.Output.secret("hush")}, triggers=[a.id, 1])
            pulumi.export("a", a.stdout)
        """).path,
            "t",
        ),
    )
    assert tiny.words == []
    inputs = named(made)["b"]["inputs"]
    assert inputs["environment"] == {"A": "<a.stdout>", "P": "[secret]"}
    assert inputs["triggers"] == ["<a.id>", 1]
    assert made["outputs"] == {"a": "<a.stdout>"}
    assert not tiny.run_root.exists()
    assert not tiny.state_file.parent.exists()


def test_two_plans_are_equal(tiny: Tiny) -> None:
    path = tiny.write(CLOUDS, CONFIG, prelude=False).path
    assert json.dumps(plan(Stack(path, "t"))) == json.dumps(plan(Stack(path, "t")))


def test_assets_resources_and_lookups_are_readable(tiny: Tiny) -> None:
    made = plan(
        Stack(
            tiny.write(
                """
            import pulumi
            import pulumi_aws as aws
            bucket = aws.s3.Bucket.get("known", "bucket-1")
            aws.s3.BucketObject("file", bucket=bucket.id, source=pulumi.StringAsset("text"))
            aws.s3.BucketObject("files", bucket=bucket.bucket, source=pulumi.FileArchive("./x"))
            """,
                prelude=False,
            ).path,
            "t",
        ),
    )
    resources = named(made)
    assert resources["known"]["inputs"] == {"id": "bucket-1"}
    assert resources["file"]["inputs"]["source"]["text"] == "text"
    assert resources["files"]["inputs"]["source"]["path"] == "./x"
    assert resources["files"]["inputs"]["bucket"] == "<known.bucket>"


def test_mistakes_are_errors(tiny: Tiny) -> None:
    with sentences.raises("program.urn-twice"):
        plan(Stack(tiny.write("command('a'); command('a')").path, "t"))
    with sentences.raises("program.failed"):
        plan(
            Stack(
                tiny.write(
                    "command('a').stdout.apply(lambda text: (_ for _ in ()).throw(ValueError('no')))"
                ).path,
                "t",
            ),
        )
    assert mode.current() == "pulumi"


def test_a_plan_of_a_local_stack_needs_little(tiny: Tiny) -> None:
    """Neither the clouds' SDKs nor tensorflow are imported for it."""
    tiny.write("pulumi.export('a', command('a').stdout)")
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path\n"
        "from cli.engine.plan import plan\n"
        "from infra.program.stack import Stack\n"
        f"plan(Stack(Path({str(tiny.path)!r}), 't'))\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pulumi_command" in done.stdout.split()
    assert not {"pulumi_aws", "pulumi_gcp", "tensorflow", "keras", "numpy"} & set(done.stdout.split())
