"""What platform teams set reaches every resource: tags, roles' boundary and path, groups, names, parents."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from infra.config.rules import platform
from tests.support import replacements, whole_stacks
from tests.support.replacements import Declared, Run
from tests.support.stack_values import CLUSTER
from tests.support.whole_stacks import EDITED, GROUP, SHIPPED

AWS_TAGS = {"cost-center": "4711", "acme:owner": "ML team", "env": ""}
LABELS = {"cost-center": "4711", "owner": "ml-team", "env": ""}
BOUNDARY = "arn:aws:iam::123456789012:policy/platform/boundary"
ROLES = {"permissions_boundary": BOUNDARY, "role_path": "/platform/ml/"}
NAMES = [*EDITED, *(pytest.param(name, marks=pytest.mark.wide) for name in SHIPPED)]
WITHOUT = {
    # An object has ten tags at most, and each costs; bills are by bucket.
    "aws:s3/bucketObjectv2:BucketObjectv2": "tags",
}
"""Types that the stack gives no tags, although they may have some."""
ONLY_IDENTIFYING = {"aws:imagebuilder/imageRecipe:ImageRecipe": "amiTags"}
"""Properties with only the cluster's own tags: with others the image would be built anew."""


def tags_of(cloud: str) -> dict[str, str]:
    return LABELS if cloud == "gcp" else AWS_TAGS


@functools.cache
def run(name: str, *, plain: bool = False) -> Run:
    """Run a stack with everything that platform teams set, or with nothing of it."""
    config = whole_stacks.config(name)
    cluster = config[CLUSTER]
    if not plain:
        cluster["tags"] = tags_of(cluster["provider"])
        if cluster["provider"] == "aws":
            cluster["aws"] = {**(cluster.get("aws") or {}), **ROLES}
    with tempfile.TemporaryDirectory() as folder:
        return replacements.run(config, Path(folder))


def of_clouds(name: str) -> Iterator[Declared]:
    return (one for one in run(name).declared.values() if one.type.partition(":")[0] in ("aws", "gcp"))


def properties(kind: str) -> set[str]:
    """Return what a resource of the provider's SDK takes, by the type's token `aws:ec2/vpc:Vpc`."""
    cloud, module, name = kind.split(":")
    part = importlib.import_module(f"pulumi_{cloud}.{module.partition('/')[0]}")
    return set(inspect.signature(getattr(part, f"{name}Args").__init__).parameters)


def maps(value: Any, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every map in a resource's inputs that has the cluster's tag, also in JSON, with its path."""
    if isinstance(value, str) and value[:1] in "{[":
        try:
            yield from maps(json.loads(value), path)
        except ValueError:
            return
    elif isinstance(value, Mapping):
        if {"slurm-stacks:cluster", "slurm-stacks-cluster"} & value.keys():
            yield path, value
        for key, inner in value.items():
            yield from maps(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        if value and all(isinstance(item, Mapping) and item.keys() == {"Key", "Value"} for item in value):
            yield from maps({item["Key"]: item["Value"] for item in value}, path)
        for item in value:
            yield from maps(item, path)


@pytest.mark.parametrize("name", NAMES)
def test_every_resource_that_takes_tags_has_the_stack_files(name: str) -> None:
    """Which take some, the providers' schemas say: the arguments of their SDKs are made of these."""
    found = 0
    for resource in of_clouds(name):
        key = "labels" if resource.type.startswith("gcp:") else "tags"
        # On Compute Engine an instance's `tags` are network tags.
        if key not in properties(resource.type) or WITHOUT.get(resource.type) == key:
            assert key not in resource.inputs or resource.type.startswith("gcp:compute/instance"), (
                resource.name
            )
            continue
        found += 1
        tags = resource.inputs.get(key) or {}
        wanted = tags_of(resource.type.partition(":")[0])
        assert wanted.items() <= tags.items(), resource.name
        assert tags.keys() & {"slurm-stacks:cluster", "slurm-stacks-cluster"}, resource.name
        assert len(tags) <= (64 if key == "labels" else 50)
    assert found > 8


@pytest.mark.parametrize("name", NAMES)
def test_wherever_the_clusters_tags_are_the_stack_files_are_too(name: str) -> None:
    """Volumes and interfaces of templates, what a state machine makes, backups, images, Batch's machines."""
    seen = set()
    for resource in of_clouds(name):
        for path, tags in maps(resource.inputs):
            if ONLY_IDENTIFYING.get(resource.type) == path or resource.name.endswith(
                ("-settings", "-images")
            ):
                continue
            seen.add((resource.type.rpartition(":")[2], path))
            assert tags_of(resource.type.partition(":")[0]).items() <= tags.items(), (
                f"{resource.name}: {path}"
            )
    if name == "everything on AWS":
        assert {
            ("LaunchTemplate", "tagSpecifications.tags"), ("Instance", "rootBlockDevice.tags"),
            ("DistributionConfiguration", "distributions.amiDistributionConfiguration.amiTags"),
            ("InfrastructureConfiguration", "resourceTags"), ("NetworkInterface", "tags"),
        } <= seen  # fmt: skip
    if name == "Batch with its own events":
        assert ("ComputeEnvironment", "computeResources.tags") in seen
        assert any(kind == "StateMachine" and path != "tags" for kind, path in seen)
    if name == "everything on Google Cloud":
        assert {("InstanceTemplate", "disks.labels"), ("Disk", "labels"), ("Image", "labels")} <= seen


def test_the_rules_count_the_clusters_own_tags() -> None:
    """A node has what its template has, and the labels or tags that its launch adds."""
    most = {"aws": 0, "gcp": 0}
    for name in EDITED:
        for one in of_clouds(name):
            cloud = one.type.partition(":")[0]
            # Pulumi's provider adds its own label to what it makes, and the driver the template's name.
            more = 1 + one.type.endswith("InstanceTemplate") if cloud == "gcp" else 0
            for _, tags in maps(one.inputs):
                most[cloud] = max(most[cloud], len(tags.keys() - tags_of(cloud).keys()) + more)
    assert most["aws"] <= 50 - platform.MOST_TAGS
    assert most["gcp"] == platform.GOOGLE_OURS


@pytest.mark.parametrize("name", [name for name in EDITED if "Google" not in name])
def test_every_role_has_the_boundary_and_the_path(name: str) -> None:
    made = [one for one in of_clouds(name) if one.type == "aws:iam/role:Role"]
    profiles = [one for one in of_clouds(name) if one.type == "aws:iam/instanceProfile:InstanceProfile"]
    assert len(made) >= 2
    assert {one.inputs["permissionsBoundary"] for one in made} == {BOUNDARY}
    assert {one.inputs["path"] for one in [*made, *profiles]} == {"/platform/ml/"}
    before = [one.inputs["name"] for one in run(name, plain=True).declared.values() if "/role:" in one.type]
    assert not {one.inputs["name"] for one in made} & set(before), "a role at another path is another role"
    with mock_aws():
        iam = boto3.client("iam", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
        for one in made:
            iam.create_role(
                RoleName=one.inputs["name"],
                Path=one.inputs["path"],
                PermissionsBoundary=one.inputs["permissionsBoundary"],
                AssumeRolePolicyDocument=one.inputs["assumeRolePolicy"],
                Description=one.inputs["description"],
                Tags=[{"Key": key, "Value": value} for key, value in one.inputs["tags"].items()],
            )
            role = iam.get_role(RoleName=one.inputs["name"])["Role"]
            assert role["PermissionsBoundary"]["PermissionsBoundaryArn"] == BOUNDARY
            assert role["Arn"].startswith("arn:aws:iam::123456789012:role/platform/ml/")


def test_security_groups_are_those_of_the_machine() -> None:
    made = run("an existing VPC")
    for name in ("-addresses-controller", "-addresses-login-0"):
        own, more = made.named(name).inputs["securityGroups"]
        assert (own[:1], more) == ("<", GROUP)
    (interface,) = made.named("-launch-templates-cpu").inputs["networkInterfaces"]
    assert interface["securityGroups"][1:] == [GROUP]
    policy = json.loads(made.named("-identity-controller-policy").inputs["policy"])
    (into,) = (one for one in policy["Statement"] if one["Sid"] == "LaunchInto")
    assert any(arn.endswith(f":security-group/{GROUP}") for arn in into["Resource"]), (
        "or EC2 refuses launches"
    )


def test_machines_of_batch_have_the_stack_files_groups() -> None:
    (interface,) = run("Batch with its own events").named("-launch-template").inputs["networkInterfaces"]
    own, more = interface["securityGroups"]
    assert (own[:1], more) == ("<", GROUP)


def test_a_launch_template_has_the_stack_files_fields_beside_ours() -> None:
    template = run("an existing VPC").named("-launch-templates-cpu").inputs
    assert template["cpuOptions"] == {"coreCount": 2, "threadsPerCore": 1}
    assert template["ebsOptimized"] == "true"
    assert template["monitoring"] == {"enabled": True}
    assert template["placement"] == {"tenancy": "dedicated"}
    assert template["instanceMarketOptions"]["spotOptions"] == {
        "maxPrice": "0.5", "spotInstanceType": "one-time", "instanceInterruptionBehavior": "terminate",
    }  # fmt: skip
    root, more = template["blockDeviceMappings"]
    assert root["ebs"]["volumeSize"] == 50
    assert more == {
        "deviceName": "/dev/sdb",
        "ebs": {"volumeSize": 100, "volumeType": "gp3", "encrypted": "true", "deleteOnTermination": "true"},
    }
    assert template["userData"]
    assert template["metadataOptions"]["httpTokens"] == "required"


def test_slurm_counts_the_cpus_that_are_left() -> None:
    design = run("an existing VPC").published(None)  # type: ignore[arg-type]
    assert design.partition("cpu").cpus == 2


def test_an_instance_template_has_the_stack_files_fields_beside_ours() -> None:
    made = run("everything on Google Cloud")
    template = made.named("-instance-templates-new").inputs
    assert template["advancedMachineFeatures"] == {"threadsPerCore": 1, "turboMode": "ALL_CORE_MAX"}
    assert template["metadata"]["agent-key"] == "x"
    assert template["metadata"]["enable-oslogin"] == "TRUE"
    (interface,) = template["networkInterfaces"]
    assert (interface["nicType"], bool(interface["subnetwork"])) == ("GVNIC", True)
    assert template["networkPerformanceConfig"] == {"totalEgressBandwidthTier": "TIER_1"}
    assert (template["scheduling"]["minNodeCpus"], template["scheduling"]["automaticRestart"]) == (2, False)
    assert template["shieldedInstanceConfig"]["enableVtpm"] is False
    assert template["shieldedInstanceConfig"]["enableIntegrityMonitoring"] is True
    assert template["tags"] == ["no-egress"]
    assert made.named("-head-controller").inputs["tags"] == ["head"]
    assert made.named("-head-login-0").inputs["tags"] == ["bastion"]
    assert "tags" not in made.named("-instance-templates-debug").inputs


COMPONENTS = tuple(f"slurm-stacks:index:{name}" for name in ("AwsCluster", "BatchCluster", "GcpCluster"))
PARTS = {("aws:iam/rolePolicy:RolePolicy", "name"), ("gcp:storage/bucketObject:BucketObject", "name")}
PREFIXES = re.compile(r"^(/slurm-stacks/|/aws/imagebuilder/|slurm-stacks-|slurm_stacks_[a-z_]+_<)")
"""What is before the cluster's name: of log groups, of budgets, and of Google's custom roles, whose ids have
no hyphens and name the cluster's account by its number."""
GIVEN = {
    "aws:batch/computeEnvironment:ComputeEnvironment", "aws:batch/jobDefinition:JobDefinition",
    "aws:batch/jobQueue:JobQueue", "aws:ec2/placementGroup:PlacementGroup", "aws:ecr/repository:Repository",
}  # fmt: skip
"""Types whose names a stack file with AWS Batch may give itself."""


@pytest.mark.parametrize("name", NAMES)
def test_every_name_begins_with_the_clusters(name: str) -> None:
    """So the cluster's name is a prefix of everything, by which a policy may allow or refuse."""
    made = run(name)
    cluster = next(one.name for one in made.declared.values() if one.type in COMPONENTS)
    for one in of_clouds(name):
        for key in ("name", "namePrefix", "bucket", "accountId", "roleId"):
            value = one.inputs.get(key)
            # Another resource's, or the name of a part of one.
            if not isinstance(value, str) or value.startswith("<") or (one.type, key) in PARTS:
                continue
            begins = PREFIXES.sub("", value)
            assert begins.startswith(cluster) or one.type in GIVEN, f"{one.name}: {key} {value}"


@pytest.mark.parametrize("name", NAMES)
def test_transforms_of_the_component_reach_every_resource(name: str) -> None:
    """A transform applies to what is below its resource: all are below the cluster's component."""
    for resource in of_clouds(name):
        assert resource.urn.split("::")[2].split("$")[0] == "slurm-stacks:index:SlurmCluster", resource.urn


@pytest.mark.parametrize("name", list(EDITED))
def test_tags_replace_no_data(name: str) -> None:
    """`tags` says: only nodes are replaced, when their jobs are over."""
    before, after = run(name, plain=True), run(name)
    assert before.declared.keys() == after.declared.keys()
    for urn, one in after.declared.items():
        # These cannot change at all but for their tags: with another value there would be another image.
        if one.type in ("aws:imagebuilder/imageRecipe:ImageRecipe", "aws:imagebuilder/component:Component"):
            assert {**one.inputs, "tags": {}} == {**before.declared[urn].inputs, "tags": {}}
    assert replacements.lost(before, after) == {}
