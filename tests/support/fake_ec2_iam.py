"""What IAM is asked when the driver's calls arrive: an action, a resource and the keys of conditions.

This follows the service authorization reference of EC2 (Actions, resources, and condition keys for Amazon
EC2, RunInstances): for a launch IAM is asked about each resource that it uses or makes. The placement group,
the key pair and the reservation come from the launch template.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support.fake_ec2 import ACCOUNT, Call, FakeEc2

ROLE_ARN = f"arn:aws:iam::{ACCOUNT}:role/t-compute"


@dataclass(frozen=True)
class Question:
    action: str
    resource: str
    context: dict[str, str] = field(default_factory=dict)


def questions(fake: FakeEc2, call: Call) -> Iterator[Question]:
    """Return what IAM is asked about one recorded call.

    Raises:
        ValueError: The driver has no reason for this action.
    """
    if call.action.startswith("Describe"):
        yield Question(f"ec2:{call.action}", "*")
    elif call.action == "TerminateInstances":
        tags = {i.id: {tag["key"]: tag["value"] for tag in i.get_tags()} for i in fake.instances()}
        for identity in call.listed("InstanceId"):
            context = {f"aws:ResourceTag/{key}": value for key, value in tags.get(identity, {}).items()}
            yield Question("ec2:TerminateInstances", _arn(fake, "instance", identity), context)
    elif call.action == "RunInstances":
        yield from _launch(fake, call)
    else:
        raise ValueError(f"the driver has called {call.action}")


def _launch(fake: FakeEc2, call: Call) -> Iterator[Question]:
    template = _arn(fake, "launch-template", call.params["LaunchTemplate.LaunchTemplateId"])
    of_template = {"ec2:LaunchTemplate": template}
    cluster = {"aws:ResourceTag/slurm-stacks:cluster": "t"}
    yield Question("ec2:RunInstances", template, {**of_template, **cluster})
    named = {**of_template, "ec2:IsLaunchTemplateResource": "false" if "ImageId" in call.params else "true"}
    yield Question("ec2:RunInstances", f"arn:aws:ec2:{fake.region}::image/ami-12345678", named)
    data = fake.template_data(call.params["LaunchTemplate.LaunchTemplateId"])
    if group := data.get("Placement", {}).get("GroupName"):
        tagged = {f"aws:ResourceTag/{key}": value for key, value in fake.groups.get(group, {}).items()}
        yield Question("ec2:RunInstances", _arn(fake, "placement-group", group), {**of_template, **tagged})
    if key_pair := data.get("KeyName"):
        yield Question("ec2:RunInstances", _arn(fake, "key-pair", key_pair), of_template)
    target = data.get("CapacityReservationSpecification", {}).get("CapacityReservationTarget", {})
    if reserved := target.get("CapacityReservationId"):
        yield Question("ec2:RunInstances", _arn(fake, "capacity-reservation", reserved), of_template)
    if pool := target.get("CapacityReservationResourceGroupArn"):
        # EC2 takes any reservation of the group's. The ARN of a newer group ends with an id.
        for arn in (pool, f"{pool}/{'a' * 26}", *fake.pools.get(pool, ())):
            yield Question("ec2:RunInstances", arn, of_template)
    for key, value in call.params.items():
        kind = {"SubnetId": "subnet", "SecurityGroupId": "security-group"}.get(
            next((part for part in key.split(".") if part in ("SubnetId", "SecurityGroupId")), "")
        )
        if kind:
            yield Question("ec2:RunInstances", _arn(fake, kind, value), of_template)
    kinds = ["instance", "volume", "network-interface"]
    if call.tags("spot-instances-request"):
        kinds.append("spot-instances-request")
    for kind in kinds:
        given = {f"aws:RequestTag/{key}": value for key, value in call.tags(kind).items()}
        yield Question("ec2:RunInstances", _arn(fake, kind, "*"), {**of_template, **given})
        if given:
            context = {**given, "ec2:CreateAction": "RunInstances"}
            yield Question("ec2:CreateTags", _arn(fake, kind, "*"), context)
    yield Question("iam:PassRole", ROLE_ARN, {"iam:PassedToService": "ec2.amazonaws.com"})


def _arn(fake: FakeEc2, kind: str, name: str) -> str:
    return f"arn:aws:ec2:{fake.region}:{ACCOUNT}:{kind}/{name}"
