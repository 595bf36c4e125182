"""The fake EC2 is as strict as the real one where other tests rely on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.support import fake_ec2_limits
from tests.support.fake_ec2 import FakeEc2, fake_ec2
from tests.support.fake_ec2_xml import code

IDS = [f"i-{number:017x}" for number in range(1001)]
TAGS = [{"Key": f"key-{number}", "Value": "v"} for number in range(51)]


@pytest.fixture
def fake() -> Iterator[FakeEc2]:
    with fake_ec2() as made:
        yield made


@pytest.mark.parametrize(
    ("call", "options", "said"),
    [
        ("terminate_instances", {"InstanceIds": IDS}, "InvalidParameterValue"),
        ("describe_instances", {"InstanceIds": IDS[:1], "MaxResults": 10}, "InvalidParameterCombination"),
        ("describe_instances", {"MaxResults": 1001}, "InvalidParameterValue"),
        ("describe_instances", {"MaxResults": 4}, "InvalidParameterValue"),
        ("describe_instances", {"Filters": [{"Name": "instance-id", "Values": IDS[:201]}]}, "FilterLimit"),
        ("describe_instances", {"Filters": [{"Name": "node", "Values": ["x"]}]}, "InvalidParameterValue"),
        ("describe_instance_status", {"InstanceIds": IDS[:101]}, "InvalidParameterValue"),
        ("describe_instance_status", {"Filters": [{"Name": "event", "Values": ["x"]}]}, "InvalidParameter"),
        ("describe_instance_status", {"NextToken": "mine"}, "InvalidNextToken"),
        ("describe_instance_topology", {"InstanceIds": IDS[:101]}, "InvalidParameterValue"),
        ("describe_instance_topology", {"InstanceIds": IDS[:1], "MaxResults": 9}, "InvalidParameterCombi"),
        ("describe_instance_topology", {"InstanceIds": IDS[:2]}, "InvalidInstanceID.NotFound"),
        ("describe_launch_template_versions", {"MaxResults": 201}, "InvalidParameterValue"),
    ],
)
def test_what_ec2_does_not_take_is_refused(
    fake: FakeEc2, call: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ClientError, match=said):
        getattr(fake.connect(), call)(**options)


@pytest.mark.parametrize(
    ("kind", "tags", "said"),
    [
        ("instance", TAGS, "TagLimitExceeded"),
        ("instance", [{"Key": "aws:mine", "Value": "v"}], "InvalidParameterValue"),
        ("instance", [{"Key": "k", "Value": "v" * 257}], "InvalidParameterValue"),
        ("instance", [{"Key": "k", "Value": "v"}] * 2, "InvalidParameterValue"),
        ("subnet", TAGS[:1], "InvalidParameterValue"),
    ],
)
def test_tags_that_a_launch_cannot_give_are_refused(
    fake: FakeEc2, kind: str, tags: list[dict[str, str]], said: str
) -> None:
    with pytest.raises(ClientError, match=said):
        fake.connect().run_instances(
            MinCount=1, MaxCount=1, LaunchTemplate={"LaunchTemplateId": fake.templates["compute"]},
            TagSpecifications=[{"ResourceType": kind, "Tags": tags}],
        )  # fmt: skip
    assert fake.living() == []


def test_what_is_within_the_limits_is_answered() -> None:
    ids = {f"InstanceId.{number}": one for number, one in enumerate(IDS[:1000], 1)}
    assert fake_ec2_limits.refusal("TerminateInstances", ids) is None
    tags = {f"TagSpecification.1.Tag.{n}.Key": tag["Key"] for n, tag in enumerate(TAGS[:50], 1)}
    launch = {"TagSpecification.1.ResourceType": "instance", **tags}
    assert fake_ec2_limits.refusal("RunInstances", launch) is None
    refused = fake_ec2_limits.refusal("RunInstances", {**launch, "ClientToken": "t" * 65})
    assert refused is not None
    assert code(refused) == "InvalidParameterValue"
