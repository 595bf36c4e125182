"""What the driver reads of EC2's answers and what it sends, held to botocore and its model of EC2."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.sax.saxutils import escape

import botocore.session
import pytest
from botocore.parsers import create_parser
from botocore.serialize import create_serializer
from hypothesis import given, settings
from hypothesis import strategies as st

from node.aws import xml_answers
from node.aws.xml_answers import AnswerError, Shape
from node.elastic.drivers.ec2 import answers
from node.elastic.drivers.ec2.answers import Event, Instance, SpotRequest, TemplateVersion
from node.elastic.drivers.ec2.client import VERSION, flat

NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
TEXTS = ("", "x", "a & b < c > 'd' \"e\"", "Zürich 𝛼", " two\nlines ", "]]>", "item", "t" * 300)


@functools.cache
def model() -> Any:
    return botocore.session.get_session().get_service_model("ec2")


# --- answers -----------------------------------------------------------------------------------------------


class Writer:
    """Writes answers in EC2's form with random fields, by botocore's model of them.

    Args:
        seed: of the choice.
        always: elements that are always there, because EC2 always sends them.
    """

    def __init__(self, seed: int, always: frozenset[str]) -> None:
        self._random = random.Random(seed)
        self._always = always

    def document(self, action: str, root: str) -> bytes:
        shape = model().operation_model(action).output_shape
        text = self._members(shape, 0)
        return f'<?xml version="1.0" encoding="UTF-8"?>\n<{root} xmlns="{NAMESPACE}">{text}</{root}>'.encode()

    def _members(self, shape: Any, depth: int) -> str:
        names = [(member.serialization.get("name", name), member) for name, member in shape.members.items()]
        # Few of the many fields that nobody reads, and none of them deep inside.
        chosen = [
            (name, member)
            for name, member in names
            if name in self._always or self._random.random() < (0.5 if name in WANTED else 0.2 / (1 + depth))
        ]
        self._random.shuffle(chosen)
        return "".join(f"<{name}>{self._content(member, depth + 1)}</{name}>\n" for name, member in chosen)

    def _content(self, shape: Any, depth: int) -> str:
        kind = shape.type_name
        if kind == "structure":
            return self._members(shape, depth)
        if kind == "list":
            name = shape.member.serialization.get("name", "item")
            parts = (self._content(shape.member, depth) for _ in range(self._random.choice((0, 1, 1, 2, 3))))
            return "\n  ".join(f"<{name}>{part}</{name}>" for part in parts)
        if kind == "timestamp":
            at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self._random.randrange(10**8))
            return at.strftime(self._random.choice(("%Y-%m-%dT%H:%M:%S.000Z", "%Y-%m-%dT%H:%M:%SZ")))
        plain = {"integer": "17", "long": "4", "boolean": "true", "double": "1.5", "float": "1.5"}
        if kind in plain:
            return self._random.choice((plain[kind], "0" if kind != "boolean" else "false"))
        return escape(self._random.choice(TEXTS))


def elements(shape: Shape) -> set[str]:
    """Return the names of all elements of a shape."""
    if isinstance(shape, list):
        return elements(shape[0])
    return {name for key, inner in (shape or {}).items() for name in (key, *elements(inner))}


READ: dict[str, tuple[Mapping[str, Shape], Callable[[Mapping[str, Any]], Any]]] = {
    "DescribeInstances": (answers.INSTANCES, answers.instances),
    "RunInstances": (answers.LAUNCH, answers.launched),
    "DescribeInstanceStatus": (answers.STATUSES, answers.events),
    "DescribeSpotInstanceRequests": (answers.SPOT_REQUESTS, answers.spot_requests),
    "DescribeInstanceTopology": (answers.TOPOLOGY, answers.network_nodes),
    "DescribeLaunchTemplateVersions": (answers.TEMPLATE_VERSIONS, answers.template_version),
}
"""The calls whose answers are read."""
WANTED = frozenset().union(*(elements(shape) for shape, _ in READ.values()))
ALWAYS = frozenset(
    {
        "code", "instanceId", "instanceSet", "instanceState", "instanceStatusSet", "instancesSet", "key",
        "launchTemplateData", "launchTemplateVersionSet", "launchTime", "name", "notBefore", "reservationSet",
        "spotInstanceRequestSet", "updateTime", "versionNumber",
    }
)  # fmt: skip


def of_botocore(action: str, content: bytes) -> dict[str, Any]:
    parser = create_parser("ec2")
    shape = model().operation_model(action).output_shape
    response = {"body": content, "status_code": 200, "headers": {}}
    found: dict[str, Any] = parser.parse(response, shape)
    return found


def instance(found: Mapping[str, Any]) -> Instance:
    reason = found.get("StateReason", {})
    first = [found["PrivateIpAddress"]] if found.get("PrivateIpAddress") else []
    others = [
        address["PrivateIpAddress"]
        for interface in found.get("NetworkInterfaces", [])
        for address in interface.get("PrivateIpAddresses", [])
        if address.get("PrivateIpAddress")
    ]
    return Instance(
        found["InstanceId"],
        found["State"]["Name"],
        found["LaunchTime"].timestamp(),
        found.get("AmiLaunchIndex"),
        reason.get("Code", ""),
        reason.get("Message", ""),
        found.get("Placement", {}).get("AvailabilityZone"),
        tuple(dict.fromkeys([*first, *others])),
        {tag["Key"]: tag.get("Value", "") for tag in found.get("Tags", [])},
    )


INTERFACE = (
    "AssociatePublicIpAddress", "DeleteOnTermination", "Description", "DeviceIndex", "Groups",
    "InterfaceType", "NetworkCardIndex",
)  # fmt: skip


def template_version(found: Mapping[str, Any]) -> TemplateVersion:
    (newest,) = found["LaunchTemplateVersions"]
    return TemplateVersion(
        str(newest["VersionNumber"]),
        tuple(
            {key: interface[key] for key in INTERFACE if key in interface}
            for interface in newest["LaunchTemplateData"].get("NetworkInterfaces", [])
        ),
    )


EXPECTED: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "DescribeInstances": lambda found: [
        instance(one) for reservation in found["Reservations"] for one in reservation["Instances"]
    ],
    "RunInstances": lambda found: [instance(one) for one in found["Instances"]],
    "DescribeInstanceStatus": lambda found: [
        Event(
            status["InstanceId"], event["Code"], event.get("Description", ""), event["NotBefore"].timestamp()
        )
        for status in found["InstanceStatuses"]
        for event in status.get("Events", [])
    ],
    "DescribeSpotInstanceRequests": lambda found: [
        SpotRequest(
            request["InstanceId"], request["Status"]["Code"], request["Status"]["UpdateTime"].timestamp()
        )
        for request in found["SpotInstanceRequests"]
        if "Status" in request
    ],
    "DescribeInstanceTopology": lambda found: {
        one["InstanceId"]: tuple(one.get("NetworkNodes", ())) for one in found["Instances"]
    },
    "DescribeLaunchTemplateVersions": template_version,
}
"""What the same answer is in botocore's reading."""


@pytest.mark.parametrize("action", READ)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_botocore_reads_the_same(action: str, seed: int) -> None:
    content = Writer(seed, ALWAYS).document(action, f"{action}Response")
    theirs = of_botocore(action, content)
    shape, read = READ[action]
    found = xml_answers.read(content, f"{action}Response", {**shape, "nextToken": None})
    assert found.get("nextToken") == theirs.get("NextToken")
    if action == "DescribeLaunchTemplateVersions" and len(theirs["LaunchTemplateVersions"]) != 1:
        with pytest.raises(AnswerError, match="in place of one"):
            read(found)
    else:
        assert read(found) == EXPECTED[action](theirs)


def test_every_element_that_is_read_is_one_of_the_models() -> None:
    def names(shape: Any) -> set[str]:
        if shape.type_name == "list":
            return names(shape.member)
        members = getattr(shape, "members", {})
        found = {member.serialization.get("name", name) for name, member in members.items()}
        return found.union(*(names(member) for member in members.values()))

    for action, (shape, _) in READ.items():
        known = names(model().operation_model(action).output_shape)
        assert elements(shape) - known == set(), action


# --- answers that are none ---------------------------------------------------------------------------------


def page() -> bytes:
    return Writer(7, ALWAYS | WANTED).document("DescribeInstances", "DescribeInstancesResponse")


def test_no_part_of_an_answer_counts_as_the_whole() -> None:
    """An instance that is not read would be taken for one that has ended, and its job with it."""
    content = page()
    assert answers.instances(xml_answers.read(content, "DescribeInstancesResponse", answers.INSTANCES))
    for end in range(len(content)):
        with pytest.raises(AnswerError, match="ends early"):
            xml_answers.read(content[:end], "DescribeInstancesResponse", answers.INSTANCES)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"<html><body>Welcome</body></html>", "the answer is a html, and no DescribeInstancesResponse"),
        (b"<DescribeInstancesResponse/>", "the answer lacks reservationSet"),
        (b"{}", "the answer is no XML"),
        (b"", "the answer is no XML"),
        (b"\xff\xfe\x00", "the answer is no XML"),
    ],
)
def test_another_answer_is_not_an_empty_list(content: bytes, says: str) -> None:
    with pytest.raises(AnswerError, match=says):
        answers.instances(xml_answers.read(content, "DescribeInstancesResponse", answers.INSTANCES))


@pytest.mark.parametrize("lost", ["instancesSet", "instanceId", "instanceState", "launchTime"])
def test_an_instance_that_lacks_what_each_has_is_not_left_out(lost: str) -> None:
    content = page().replace(f"<{lost}>".encode(), b"<other>").replace(f"</{lost}>".encode(), b"</other>")
    with pytest.raises(AnswerError, match=f"the answer lacks {lost}"):
        answers.instances(xml_answers.read(content, "DescribeInstancesResponse", answers.INSTANCES))


def test_a_time_that_is_none_is_said() -> None:
    answer = {"instancesSet": [{"instanceId": "i", "instanceState": {"name": "x"}, "launchTime": "soon"}]}
    with pytest.raises(AnswerError, match="the answer has a launchTime of 'soon'"):
        answers.launched(answer)


# --- requests ----------------------------------------------------------------------------------------------

TAGS = [{"Key": "slurm-stacks:nodes", "Value": "a-[0-3] & ü"}, {"Key": "env", "Value": ""}]
IDS = [f"i-{number:017x}" for number in range(12)]
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    (
        "RunInstances",
        {
            "MinCount": 1,
            "MaxCount": 500,
            "LaunchTemplate": {"LaunchTemplateId": "lt-1", "Version": "3"},
            "TagSpecifications": [{"ResourceType": kind, "Tags": TAGS} for kind in ("instance", "volume")],
            "NetworkInterfaces": [
                {
                    "AssociatePublicIpAddress": False,
                    "DeleteOnTermination": True,
                    "Description": "a b",
                    "DeviceIndex": 0,
                    "Groups": ["sg-1", "sg-2"],
                    "InterfaceType": "efa-only",
                    "NetworkCardIndex": 1,
                    "SubnetId": "subnet-1",
                },
                {"DeviceIndex": 1, "Groups": [], "SubnetId": "subnet-1"},
            ],
            "SubnetId": "subnet-1",
            "ClientToken": "t" * 64,
        },
    ),
    (
        "DescribeInstances",
        {
            "Filters": [{"Name": "tag:a", "Values": ["x y", "z"]}, {"Name": "tag:b", "Values": ["&="]}],
            "MaxResults": 1000,
            "NextToken": "a+/=",
        },
    ),
    ("DescribeInstanceTopology", {"InstanceIds": IDS}),
    ("TerminateInstances", {"InstanceIds": IDS}),
    ("DescribeLaunchTemplateVersions", {"LaunchTemplateId": "lt-1", "Versions": ["$Latest"]}),
]


@pytest.mark.parametrize(("action", "parameters"), REQUESTS)
def test_botocore_sends_the_same(action: str, parameters: dict[str, Any]) -> None:
    operation = model().operation_model(action)
    theirs = create_serializer("ec2", include_validation=True).serialize_to_request(parameters, operation)
    assert {"Action": action, "Version": VERSION, **dict(flat(parameters))} == {
        key: str(value) for key, value in theirs["body"].items()
    }
