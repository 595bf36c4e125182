"""Security rules over the planned resources of every AWS stack file: none fires, and each one can."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import shipped
from tests.support.aws_plans import ANYWHERE, FILES, SUBJECTS, planned
from tests.support.aws_rules import RULES, Plan

Resources = list[dict[str, Any]]
Change = Callable[[Resources], None]


@pytest.fixture(params=SUBJECTS)
def plan(request: pytest.FixtureRequest, tmp_path: Path) -> Plan:
    return planned(request.param, tmp_path)


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_finds_anything(plan: Plan, rule: str) -> None:
    assert list(RULES[rule](plan)) == []


# --- each rule can fire -----------------------------------------------------------------------------------


def edit(kind: str, *path: str | int, to: Any) -> Change:
    """Changes the value at a path of the inputs of the first resource of a type. `...` removes the value."""

    def change(resources: Resources) -> None:
        place: Any = next(r for r in resources if r["type"].endswith(f":{kind}"))["inputs"]
        for key in path[:-1]:
            place = place[key]
        if to is ...:
            del place[path[-1]]
        else:
            place[path[-1]] = to

    return change


def without(kind: str) -> Change:
    def change(resources: Resources) -> None:
        resources[:] = [r for r in resources if not r["type"].endswith(f":{kind}")]

    return change


def another(kind: str, **inputs: Any) -> Change:
    return lambda resources: resources.append({"type": kind, "name": "x-new", "inputs": inputs})


def policy(role: str, **changes: Any) -> Change:
    """Changes the first statement in a role's policy. A value of None removes its key."""

    def change(resources: Resources) -> None:
        (found,) = [
            r for r in resources if r["name"].endswith(f"-{role}-policy") and "RolePolicy" in r["type"]
        ]
        document = json.loads(found["inputs"]["policy"])
        statement = {**document["Statement"][0], **changes}
        document["Statement"][0] = {key: value for key, value in statement.items() if value is not None}
        found["inputs"]["policy"] = json.dumps(document)

    return change


def unconditioned(sid: str) -> Change:
    def change(resources: Resources) -> None:
        (found,) = [r for r in resources if r["name"].endswith("-controller-policy")]
        document = json.loads(found["inputs"]["policy"])
        (statement,) = [one for one in document["Statement"] if one["Sid"] == sid]
        del statement["Condition"]
        found["inputs"]["policy"] = json.dumps(document)

    return change


def nodes_in_public(resources: Resources) -> None:
    (found,) = [r for r in resources if r["name"].endswith("-bundle-settings")]
    settings = json.loads(found["inputs"]["content"])
    public = next(r["inputs"]["subnetId"] for r in resources if r["name"].endswith("-public-a-routes"))
    zone = next(iter(settings["site"]["cloud"]["subnets"]))
    settings["site"]["cloud"]["subnets"] = {zone: public}
    found["inputs"]["content"] = json.dumps(settings)


def builder(**changes: Any) -> Change:
    """The image build's configuration, correct except for these changes."""
    sound = {
        "subnetId": "<x.id>",
        "securityGroupIds": ["<y.id>"],
        "terminateInstanceOnFailure": True,
        "instanceMetadataOptions": {"httpTokens": "required", "httpPutResponseHopLimit": 1},
    }
    return another(f"{BUILDER}:InfrastructureConfiguration", **{**sound, **changes})


BUILDER = "aws:imagebuilder/x"
INGRESS, TEMPLATE, INSTANCE = "SecurityGroupIngressRule", "LaunchTemplate", "Instance"
ENCRYPTED = "BucketServerSideEncryptionConfiguration"
INTERFACE = ("networkInterfaces", 0, "associatePublicIpAddress")
EC2 = "arn:aws:ec2:eu-west-1:123456789012"
FIRES: list[tuple[str, str, Change]] = [
    ("tables", "key", another("aws:dynamodb/x:Table", serverSideEncryption={"enabled": False})),
    ("repositories", "tags", another("aws:ecr/x:Repository", imageTagMutability="MUTABLE")),
    ("ingress", "all", edit(INGRESS, "cidrIpv4", to="0.0.0.0/0")),
    ("ingress", "half", edit(INGRESS, "cidrIpv4", to="128.0.0.0/1")),
    ("ingress", "ipv6", edit(INGRESS, "cidrIpv6", to="::/0")),
    ("ingress", "inline", edit("SecurityGroup", "ingress", to=[{}])),
    ("ingress", "default", edit("DefaultSecurityGroup", "egress", to=[{}])),
    ("metadata", "tokens", edit(INSTANCE, "metadataOptions", "httpTokens", to="optional")),
    ("metadata", "hops", edit(TEMPLATE, "metadataOptions", "httpPutResponseHopLimit", to=2)),
    ("metadata", "unsaid", edit(TEMPLATE, "metadataOptions", to=...)),
    ("metadata", "image", builder(instanceMetadataOptions={"httpTokens": "optional"})),
    ("images", "public", builder(subnetId="<aws-gpu-network-public.id>")),
    ("images", "anywhere", builder(subnetId=None)),
    ("images", "key", builder(keyPair="mine")),
    ("images", "stays", builder(terminateInstanceOnFailure=False)),
    (
        "images",
        "shared",
        another(
            f"{BUILDER}:DistributionConfiguration",
            distributions=[{"amiDistributionConfiguration": {"launchPermission": {"userGroups": ["all"]}}}],
        ),
    ),
    ("addresses", "subnet", edit("Subnet", "mapPublicIpOnLaunch", to=True)),
    ("addresses", "instance", edit(INSTANCE, "associatePublicIpAddress", to=True)),
    ("addresses", "template", edit(TEMPLATE, *INTERFACE, to="true")),
    ("addresses", "unsaid", edit(TEMPLATE, *INTERFACE, to=...)),
    ("addresses", "no-interface", edit(TEMPLATE, "networkInterfaces", to=[])),
    ("addresses", "groups", edit(TEMPLATE, "vpcSecurityGroupIds", to=["sg-1"])),
    ("elastic_addresses", "machine", another("aws:ec2/eip:Eip", instance="<x.id>")),
    ("elastic_addresses", "node", another("aws:ec2/eip:Eip", networkInterface="<x-compute-0.id>")),
    ("elastic_addresses", "loose", another("aws:ec2/eip:Eip", domain="vpc")),
    ("subnets", "public", nodes_in_public),
    ("encryption", "root", edit(INSTANCE, "rootBlockDevice", "encrypted", to=False)),
    ("encryption", "root-unsaid", edit(INSTANCE, "rootBlockDevice", "encrypted", to=...)),
    ("encryption", "more-disks", edit(INSTANCE, "ebsBlockDevices", to=[{"volumeSize": 9}])),
    ("encryption", "node", edit(TEMPLATE, "blockDeviceMappings", 0, "ebs", "encrypted", to="false")),
    ("encryption", "node-unsaid", edit(TEMPLATE, "blockDeviceMappings", to=...)),
    ("encryption", "volume", edit("Volume", "encrypted", to=...)),
    ("encryption", "efs", another("aws:efs/fileSystem:FileSystem", creationToken="x")),
    ("encryption", "image", another(f"{BUILDER}:ImageRecipe", name="x")),
    ("encryption", "bucket", without(ENCRYPTED)),
    ("encryption", "other-bucket", edit(ENCRYPTED, "bucket", to="<other.id>")),
    ("buckets", "block", without("BucketPublicAccessBlock")),
    ("buckets", "half-a-block", edit("BucketPublicAccessBlock", "ignorePublicAcls", to=False)),
    ("buckets", "owner", edit("BucketOwnershipControls", "rule", "objectOwnership", to="ObjectWriter")),
    ("buckets", "clear", without("BucketPolicy")),
    ("actions", "all", policy("compute", Action=["*"])),
    ("actions", "service", policy("compute", Action=["s3:*"])),
    ("actions", "some", policy("compute", Action="s3:Get*")),
    ("actions", "not", policy("compute", Action=None, NotAction=["iam:*"])),
    ("resources", "all", policy("compute", Resource="*")),
    ("resources", "in-a-list", policy("compute", Resource=["arn:aws:s3:::b/x", "*"])),
    ("resources", "kind", policy("controller", Action=["ec2:StopInstances"], Resource=f"{EC2}:instance/*")),
    ("resources", "account", policy("compute", Resource="arn:aws:secretsmanager:*:*:secret:x")),
    ("resources", "terminate", unconditioned("End")),
    ("resources", "launch", unconditioned("LaunchFrom")),
    ("resources", "make", unconditioned("LaunchMachine")),
    ("resources", "image", unconditioned("LaunchImage")),
    ("resources", "tag", unconditioned("TagAtLaunch")),
    ("resources", "metrics", unconditioned("Metrics")),
    ("trust", "anybody", edit("Role", "assumeRolePolicy", to='{"Statement": [{"Principal": "*"}]}')),
    ("trust", "inline", edit("Role", "inlinePolicies", to=[{"policy": "{}"}])),
    ("trust", "managed", another("aws:iam/rolePolicyAttachment:RolePolicyAttachment", role="x")),
    ("keys", "node", policy("compute", Action=["secretsmanager:GetSecretValue"])),
    ("secrets", "key", edit("BucketObjectv2", "content", to="-----BEGIN OPENSSH PRIVATE KEY-----")),
    ("seen", "user", another("aws:iam/user:User", name="x")),
    ("seen", "version", another("aws:secretsmanager/secretVersion:SecretVersion", secretString="x")),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "change"), [pytest.param(r, c, id=f"{r}-{n}") for r, n, c in FIRES])
def test_each_rule_fires_at_what_it_forbids(rule: str, change: Change, tmp_path: Path) -> None:
    """Only that rule fires: a rule that fires at everything says nothing."""
    spoilt = copy.deepcopy([dict(r) for r in planned("aws-gpu", tmp_path).resources])
    change(spoilt)
    fired = {name for name, one in RULES.items() if name != "seen" and list(one(Plan(spoilt)))}
    if rule == "seen":
        assert fired == set()
        assert len(list(RULES["seen"](Plan(spoilt)))) == 1
    elif rule == "secrets":
        assert rule in fired
    else:
        assert fired == {rule}


def test_every_rule_has_been_seen_to_fire() -> None:
    assert {rule for rule, _, _ in FIRES} == set(RULES)


def test_every_stack_file_is_looked_at() -> None:
    assert set(FILES) >= {
        "aws-batch",
        "aws-cpu",
        "aws-gpu",
        "aws-p4de",
        "aws-p4de-containers",
        "aws-p4de-inference",
        "aws-trn1",
    }
    assert all(FILES[path.name[7:-5]] == path for path in shipped.files("Pulumi.aws-"))


def test_what_is_said_once_is_not_open(tmp_path: Path) -> None:
    """The rule allows SSH from everywhere only if the stack file confirms it, and allows nothing but SSH."""
    said = planned(ANYWHERE, tmp_path)
    (finding,) = RULES["ingress"](Plan(said.resources))
    assert "open to 0.0.0.0/0" in finding
    wider = copy.deepcopy([dict(r) for r in said.resources])
    (rule,) = [
        r for r in wider if r["inputs"].get("cidrIpv4") == "0.0.0.0/0" and r["type"].endswith(f":{INGRESS}")
    ]
    rule["inputs"]["toPort"] = 65535
    assert list(RULES["ingress"](Plan(wider, anywhere=True)))
