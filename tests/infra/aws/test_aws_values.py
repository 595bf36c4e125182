"""The words, names and lengths that AWS accepts, by botocore's models of its services."""

from __future__ import annotations

import html
import re
import string
from collections.abc import Iterator
from functools import cache
from typing import Any

import botocore.session
import pytest

from infra.config.fields import CLUSTER_NAME_LENGTH
from infra.config.rules import platform
from infra.config.rules.network import REGION
from infra.config.rules.partitions import RESERVATION_GROUP
from infra.instance_types.catalog import catalog
from node.bootstrap.vm.clouds import cloudwatch
from node.elastic.drivers.ec2 import driver as ec2
from node.elastic.drivers.ec2 import names as ec2_names
from node.elastic.drivers.ec2 import notices as ec2_notices
from tests.support.aws_plans import LONGEST, SUBJECTS, planned
from tests.support.aws_rules import Plan

ROW = tuple[str, str, str, str]
TAGS_STATE = "LaunchTemplateInstanceMetadataTagsState"
ROWS: list[ROW] = [
    # A row has the type of the planned resource, the path of its inputs, the service and the shape.
    ("LaunchTemplate", "name", "ec2", "LaunchTemplateName"),
    ("LaunchTemplate", "instanceType", "ec2", "InstanceType"),
    ("LaunchTemplate", "instanceInitiatedShutdownBehavior", "ec2", "ShutdownBehavior"),
    ("LaunchTemplate", "description", "ec2", "VersionDescription"),
    ("LaunchTemplate", "metadataOptions.httpTokens", "ec2", "LaunchTemplateHttpTokensState"),
    ("LaunchTemplate", "metadataOptions.httpEndpoint", "ec2", "LaunchTemplateInstanceMetadataEndpointState"),
    ("LaunchTemplate", "metadataOptions.instanceMetadataTags", "ec2", TAGS_STATE),
    ("LaunchTemplate", "blockDeviceMappings.ebs.volumeType", "ec2", "VolumeType"),
    ("LaunchTemplate", "tagSpecifications.resourceType", "ec2", "ResourceType"),
    ("LaunchTemplate", "iamInstanceProfile.name", "iam", "instanceProfileNameType"),
    (
        "LaunchTemplate", "capacityReservationSpecification.capacityReservationPreference", "ec2",
        "CapacityReservationPreference",
    ),
    ("Instance", "instanceType", "ec2", "InstanceType"),
    ("Instance", "instanceInitiatedShutdownBehavior", "ec2", "ShutdownBehavior"),
    ("Instance", "metadataOptions.httpTokens", "ec2", "HttpTokensState"),
    ("Instance", "rootBlockDevice.volumeType", "ec2", "VolumeType"),
    ("Volume", "type", "ec2", "VolumeType"),
    ("PlacementGroup", "strategy", "ec2", "PlacementStrategy"),
    ("VpcEndpoint", "vpcEndpointType", "ec2", "VpcEndpointType"),
    ("Eip", "domain", "ec2", "DomainType"),
    ("Role", "name", "iam", "roleNameType"),
    ("Role", "description", "iam", "roleDescriptionType"),
    ("RolePolicy", "name", "iam", "policyNameType"),
    ("RolePolicy", "policy", "iam", "policyDocumentType"),
    ("InstanceProfile", "name", "iam", "instanceProfileNameType"),
    ("Secret", "name", "secretsmanager", "NameType"),
    ("Secret", "description", "secretsmanager", "DescriptionType"),
    ("LogGroup", "name", "logs", "LogGroupName"),
    ("BucketOwnershipControls", "rule.objectOwnership", "s3", "ObjectOwnership"),
    (
        "BucketServerSideEncryptionConfiguration", "rules.applyServerSideEncryptionByDefault.sseAlgorithm",
        "s3", "ServerSideEncryption",
    ),
    ("ImageRecipe", "name", "imagebuilder", "ResourceName"),
    ("ImageRecipe", "version", "imagebuilder", "VersionNumber"),
    ("ImageRecipe", "blockDeviceMappings.ebs.volumeType", "imagebuilder", "EbsVolumeType"),
    ("Component", "name", "imagebuilder", "ResourceName"),
    ("Component", "version", "imagebuilder", "VersionNumber"),
    ("Component", "platform", "imagebuilder", "Platform"),
    ("DistributionConfiguration", "name", "imagebuilder", "ResourceName"),
    ("InfrastructureConfiguration", "name", "imagebuilder", "ResourceName"),
    ("InfrastructureConfiguration", "instanceTypes", "ec2", "InstanceType"),
    ("LustreFileSystem", "deploymentType", "fsx", "LustreDeploymentType"),
    ("LustreFileSystem", "storageType", "fsx", "StorageType"),
    ("LustreFileSystem", "fileSystemTypeVersion", "fsx", "FileSystemTypeVersion"),
    ("ComputeEnvironment", "type", "batch", "CEType"),
    ("ComputeEnvironment", "state", "batch", "CEState"),
    ("ComputeEnvironment", "computeResources.type", "batch", "CRType"),
    ("ComputeEnvironment", "computeResources.allocationStrategy", "batch", "CRAllocationStrategy"),
    ("JobQueue", "state", "batch", "JQState"),
    ("JobDefinition", "type", "batch", "JobDefinitionType"),
    ("EventRule", "name", "events", "RuleName"),
    ("EventRule", "scheduleExpression", "events", "ScheduleExpression"),
    ("EventRule", "eventPattern", "events", "EventPattern"),
    ("EventTarget", "inputTransformer.inputTemplate", "events", "TransformerInput"),
    ("StateMachine", "name", "stepfunctions", "Name"),
    ("StateMachine", "definition", "stepfunctions", "Definition"),
    ("Table", "name", "dynamodb", "TableName"),
    ("Table", "billingMode", "dynamodb", "BillingMode"),
    ("Repository", "name", "ecr", "RepositoryName"),
    ("Repository", "imageTagMutability", "ecr", "ImageTagMutability"),
    ("Repository", "encryptionConfigurations.encryptionType", "ecr", "EncryptionType"),
]  # fmt: skip


@cache
def model(service: str) -> Any:
    return botocore.session.get_session().get_service_model(service)


def refused(service: str, name: str, value: str) -> str | None:
    """The reason why a service would refuse a value, as far as its model says."""
    shape = model(service).shape_for(name)
    limits = shape.metadata
    if limits.get("enum") and value not in limits["enum"]:
        return f"{value} is none of {', '.join(limits['enum'][:9])}, …"
    if not limits.get("min", 0) <= len(value) <= limits.get("max", len(value)):
        return f"{value} has {len(value)} characters: {limits.get('min')} to {limits.get('max')}"
    # Python does not know \p{…}.
    pattern = limits.get("pattern", "").replace(r"\p{L}\p{Z}\p{N}", r"\w ")
    if pattern and not re.fullmatch(pattern, value):
        return f"{value} does not match {pattern}"
    return None


def values(plan: Plan, kind: str, path: str) -> Iterator[str]:
    for _, inputs in plan.of(kind):
        found: list[Any] = [inputs]
        for word in path.split("."):
            found = [one for each in found for one in (each if isinstance(each, list) else [each])]
            found = [one[word] for one in found if isinstance(one, dict) and one.get(word) is not None]
        found = [one for each in found for one in (each if isinstance(each, list) else [each])]
        # A placeholder within a name is as long as the value that takes its place.
        yield from (re.sub(r"<[^>]*>", 16 * "0", str(one)) for one in found if not str(one).startswith("<"))


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Plan]:
    return {subject: planned(subject, tmp_path_factory.mktemp("plan")) for subject in SUBJECTS}


@pytest.mark.parametrize("row", [pytest.param(row, id=f"{row[0]}-{row[1]}") for row in ROWS])
def test_planned_values_are_ones_that_the_service_takes(plans: dict[str, Plan], row: ROW) -> None:
    kind, path, service, shape = row
    found = {value for plan in plans.values() for value in values(plan, kind, path)}
    assert found, "no stack plans any: this row proves nothing"
    assert [why for value in sorted(found) if (why := refused(service, shape, value))] == []


def test_the_models_refuse() -> None:
    """Checks what the test above relies on."""
    assert refused("ec2", "VolumeType", "gp4")
    assert refused("iam", "roleNameType", "r" * 65)
    assert refused("iam", "roleNameType", "a role")
    assert refused("logs", "LogGroupName", "a b")
    assert refused("ec2", "VolumeType", "gp3") is None


def described(shape: str) -> str:
    """The characters, beside letters and digits, that EC2 accepts in a description.

    Its model has no pattern for them but a sentence.
    """
    words = html.unescape(model("ec2").shape_for(shape).members["Description"].documentation)
    found = re.search(r"a-z, A-Z, 0-9, spaces, and (\S+?)</p>", words)
    assert found, words
    return found[1]


def test_descriptions_of_rules_and_groups_have_ec2s_letters(plans: dict[str, Plan]) -> None:
    """EC2 refuses an apostrophe, and the whole network with it."""
    marks = set(described("IpRange")) & set(described("UserIdGroupPair"))
    assert {".", "-", "/", ","} <= marks
    assert "'" not in marks
    for kind in ("SecurityGroup", "SecurityGroupIngressRule", "SecurityGroupEgressRule"):
        said = {text for plan in plans.values() for text in values(plan, kind, "description")}
        assert said, kind
        bad = {text for text in said if set(re.sub(r"[A-Za-z0-9 ]", "", text)) - marks or len(text) > 255}
        assert not bad, kind


def test_interfaces_are_of_kinds_that_ec2_knows(plans: dict[str, Plan]) -> None:
    """A template says nothing about a plain partition."""
    kinds = {
        v
        for plan in plans.values()
        for v in values(plan, "LaunchTemplate", "networkInterfaces.interfaceType")
    }
    assert kinds >= {"efa", "efa-only"}
    known = set(model("ec2").shape_for("NetworkInterfaceCreationType").enum)
    assert kinds <= known | {"interface"}


def test_tags_are_ones_that_instance_metadata_can_show(plans: dict[str, Plan]) -> None:
    """EC2 refuses a launch whose tags the metadata service cannot name."""
    keys = {ec2_names.CLUSTER, ec2_names.STACK, ec2_names.ROLE, ec2_names.PARTITION, ec2_names.NODES}
    for plan in plans.values():
        for kind in ("Instance", "LaunchTemplate"):
            for _, inputs in plan.of(kind):
                tags = [inputs.get("tags") or {}, *(s["tags"] for s in inputs.get("tagSpecifications") or [])]
                keys |= {key for tag in tags for key in tag}
                assert all(len(str(value)) <= 256 for tag in tags for value in tag.values())
                assert all(len(tag) <= 50 for tag in tags)
    assert all(re.fullmatch(r"[A-Za-z0-9+\-=.,_:@]{1,128}", key) for key in keys), keys


def test_the_longest_names_are_in_the_plans(plans: dict[str, Plan]) -> None:
    """The longest names are what the rows above must allow."""
    names = {name for name, _ in plans[LONGEST].of("Role")}
    assert all(name.startswith("c" * CLUSTER_NAME_LENGTH) for name in names)
    assert names


# --- the words that code compares with --------------------------------------------------------------------


def enum(service: str, shape: str) -> set[str]:
    return set(model(service).shape_for(shape).enum)


def test_states_and_events_are_ec2s() -> None:
    assert set(ec2._STATES) <= enum("ec2", "InstanceStateName")
    assert enum("ec2", "InstanceStateName") - set(ec2._STATES) == {"shutting-down"} - set(ec2._STATES)
    assert set(ec2_notices.EVENTS) == enum("ec2", "EventCode") - {"system-maintenance"}, (
        "that ends no machine"
    )


def test_resources_that_a_launch_tags_are_ec2s() -> None:
    from infra.aws import policies

    assert {*policies.MADE, "spot-instances-request"} <= enum("ec2", "ResourceType")


def test_machines_are_ec2s_and_those_that_are_gone_were() -> None:
    facts = catalog()
    known = enum("ec2", "InstanceType")
    assert set(facts.names("aws")) <= known
    assert {name for name, old in facts.retired.items() if old.provider == "aws"} <= known


def test_a_namespace_of_metrics_is_cloudwatchs() -> None:
    assert refused("cloudwatch", "Namespace", cloudwatch.namespace("c" * CLUSTER_NAME_LENGTH)) is None
    assert not cloudwatch.namespace("c").startswith("AWS/"), "CloudWatch keeps that for itself"


@pytest.mark.parametrize(
    "group",
    ["G", "our.v100s_-1", "g" * 300, f"{'g' * 150}/{'a' * 26}", "g" * 301, "a b", "g/short", ""],
)
def test_a_reservations_group_is_one_that_resource_groups_names(group: str) -> None:
    arn = f"arn:aws:resource-groups:eu-west-1:123456789012:group/{group}"
    taken = refused("resource-groups", "GroupArnV2", arn) is None
    assert (RESERVATION_GROUP.fullmatch(arn) is not None) == taken


def test_the_endpoint_is_one_of_the_regions(plans: dict[str, Plan]) -> None:
    names = {v for plan in plans.values() for v in values(plan, "VpcEndpoint", "serviceName")}
    assert names
    assert all(re.fullmatch(r"com\.amazonaws\.[a-z]{2}(-[a-z]+)+-\d\.s3", name) for name in names)


def test_every_type_with_words_has_its_rows(plans: dict[str, Plan]) -> None:
    """Somebody looks at a new type of resource before it ships."""
    rows = {row[0] for row in ROWS}
    without = {
        "Vpc", "Subnet", "InternetGateway", "NatGateway", "RouteTable", "Route", "RouteTableAssociation",
        "SecurityGroup", "DefaultSecurityGroup", "SecurityGroupIngressRule", "SecurityGroupEgressRule",
        "Bucket", "BucketObjectv2", "BucketPolicy", "BucketPublicAccessBlock", "NetworkInterface",
        "VolumeAttachment", "DataRepositoryAssociation", "MountTarget", "Image", "FileSystem", "Budget",
        "BucketNotification",
    }  # fmt: skip
    types = {
        resource["type"].rpartition(":")[2]
        for plan in plans.values()
        for resource in plan.resources
        if resource["type"].startswith("aws:")
    }
    assert types <= rows | without


def test_every_region_of_ec2_may_be_named_in_a_stack_file() -> None:
    session = botocore.session.get_session()
    names = [
        name
        for partition in ("aws", "aws-us-gov", "aws-cn")
        for name in session.get_available_regions("ec2", partition)
    ]
    assert len(names) > 30
    assert [name for name in names if not re.fullmatch(REGION, name)] == []


TAG_SHAPES = {
    "batch": ("TagKey", "TagValue"), "budgets": ("ResourceTagKey", "ResourceTagValue"),
    "logs": ("TagKey", "TagValue"), "dynamodb": ("TagKeyString", "TagValueString"),
    "ec2": ("TagKey", "String"), "ecr": ("TagKey", "TagValue"), "efs": ("TagKey", "TagValue"),
    "events": ("TagKey", "TagValue"), "fsx": ("TagKey", "TagValue"), "iam": ("tagKeyType", "tagValueType"),
    "imagebuilder": ("TagKey", "TagValue"), "resource-groups": ("TagKey", "TagValue"),
    "secretsmanager": ("TagKeyType", "TagValueType"), "stepfunctions": ("TagKey", "TagValue"),
}  # fmt: skip
"""Service -> the shapes of a tag's key and value."""


@pytest.mark.parametrize("service", TAG_SHAPES)
def test_a_tag_that_the_rule_accepts_is_accepted_by_every_service(service: str) -> None:
    """Each character is tried, and the longest key and value."""
    for name, rule in zip(TAG_SHAPES[service], (platform.AWS_KEY, platform.AWS_VALUE), strict=True):
        tried = [character for character in string.printable if rule.fullmatch(character)]
        assert len(tried) > len(string.ascii_letters + string.digits)
        longest = max(length for length in (128, 256) if rule.fullmatch("a" * length))
        empty = [""] if rule.fullmatch("") else []
        tried += ["a" * longest, *empty]
        assert [why for text in tried if (why := refused(service, name, text))] == []


def test_image_builders_machines_have_room_for_all_tags() -> None:
    most = model("imagebuilder").shape_for("ResourceTagMap").metadata["max"]
    assert most >= platform.MOST_TAGS + 3
