"""No edit of a stack file deletes files unasked: the effects of keys are held to what an engine replaces.

Two plans of a stack, before and after an edit, show which resources that hold data are replaced or deleted,
by the providers' own rules (`tests.support.replacements`). What they show, `up` must refuse.
"""

from __future__ import annotations

import functools
import tempfile
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel

from cli.changes import table
from cli.providers.aws import changes as aws_changes
from cli.providers.gcp import changes as gcp_changes
from infra.config import parse
from infra.config.changes import section_of
from infra.config.cluster import ClusterConfig
from infra.design import design
from infra.effects import Kind
from infra.errors import UserError
from infra.instance_types.catalog import catalog
from node.design.model import ClusterDesign
from tests.support import replacements
from tests.support.replacements import Run
from tests.support.replacing_rules import HOLDS, REPLACED_BY
from tests.support.stack_parts import UNMAINTAINED
from tests.support.stack_values import REMOVE, values

RULES = {"aws": aws_changes.RULES, "gcp": gcp_changes.RULES}
VPC = {"vpc": "vpc-11111111", "public_subnet": "subnet-1111111a", "private_subnets": ["subnet-2222222a"]}
LUSTRE = {"kind": "fsx_lustre", "size_gib": 4800, "deployment": "PERSISTENT_1", "throughput": 100}
LINKED = {"kind": "fsx_lustre", "size_gib": 3600, "deployment": "SCRATCH_1", "s3_import": "s3://lab/in"}
FILESTORE = {"kind": "filestore", "path": "/scratch", "tier": "ZONAL", "size_gib": 1024}
REGIONAL = {"kind": "filestore", "tier": "REGIONAL", "size_gib": 1024}
KEPT = {"slurm.accounting": True, **UNMAINTAINED}
BASES: dict[str, tuple[str, dict[str, Any]]] = {
    "aws": ("aws", {"storage.scratch": LUSTRE, "login": {"count": 1}}),
    "aws linked": ("aws", {"storage.scratch": LINKED, "storage.apps": {"kind": "efs"}}),
    "aws there": ("aws", {"storage.scratch": LUSTRE, "storage.apps": {"kind": "efs"}, "network.aws": VPC}),
    "gcp": ("gcp", {"storage.scratch": FILESTORE, "storage.apps": REGIONAL, "login": {"count": 1}}),
    "gcp there": (
        "gcp", {"storage.scratch": FILESTORE, "network.gcp": {"network": "lan", "subnetwork": "here"}},
    ),
    "aws kept": ("aws", KEPT),
    "aws there kept": ("aws", {**KEPT, "network.aws": VPC}),
    "gcp kept": ("gcp", KEPT),
}  # fmt: skip
"""Name -> a small stack that is up. `there` is in a network of somebody's; `kept` is Slurm's state."""
KEY = "arn:aws:kms:us-east-1:123456789012:key/12345678-1234-1234-1234-123456789012"
EDITS: dict[str, list[dict[str, Any]]] = {
    "aws": [
        {"aws:region": "us-west-2"},
        {"name": "other"},
        {"access": {"mode": "ssh", "key": "k", "ssh_cidrs": ["198.51.100.0/24"]}},
        {"login.count": 0},
        {"controller.disk_gib": 60},
        {"network.cidr": "10.9.0.0/16"},
        {"network.public_cidr": "10.0.0.0/17", "network.private_cidr": "10.0.192.0/18"},
        {"network.public_cidr": "10.0.8.0/24", "network.private_cidr": "10.0.128.0/17"},
        {"network.zones": ["us-east-1a"]},
        {"network.zones": ["us-east-1b", "us-east-1c"]},
        {"network.aws": VPC},
        {"network.aws": {**VPC, "public_subnet": "subnet-1111111c"}},
        {"aws": {"kms_key": KEY}},
        {"aws": {"nat": False}},
        {"image": {"bake": True}},
        {"storage.scratch.size_gib": 7200},
        {"storage.scratch.size_gib": 2400},
        {"storage.scratch.throughput": 200},
        {"storage.scratch": {**LUSTRE, "deployment": "PERSISTENT_2", "throughput": 250}},
        {"storage.scratch": {**LUSTRE, "storage_type": "HDD", "size_gib": 6000, "throughput": 12}},
        {"storage.scratch.snapshot": True},
        {"storage.scratch.restore": "backup-0123456789abcdef0"},
        {"storage.scratch.s3_import": "s3://lab/in"},
        {"storage.scratch": REMOVE},
        {"storage.scratch.path": "/data"},
        {"storage.scratch": {"kind": "efs"}},
        {"storage.home": {"kind": "nfs", "size_gib": 100}},
        {"storage.home": {"kind": "nfs", "size_gib": 20}},
        {"storage.home": {"kind": "nfs", "gp3": {"iops": 6000}}},
        {"storage.home": {"kind": "nfs", "path": "/users"}},
        {"storage.home": {"kind": "nfs", "existing": "vol-0123456789abcdef0"}},
        {"storage.home": {"kind": "nfs", "keep": True, "snapshot": False}},
        {"storage.home": {"kind": "nfs", "restore": "snap-0123456789abcdef0"}},
        {"storage.home": {"kind": "efs"}},
        {"budget": {"max_usd": 100}},
    ],
    "aws linked": [
        {"network.cidr": "10.9.0.0/16"},
        {"storage.scratch.size_gib": 7200},
        {"storage.scratch.s3_import": "s3://lab/else"},
        {"storage.scratch.s3_export": "s3://lab/out"},
        {"storage.apps.keep": True},
        {"storage.apps": {"kind": "nfs"}},
    ],
    "aws there": [
        {"network.aws": REMOVE},
        {"network.aws": {**VPC, "vpc": "vpc-22222222"}},
        {"network.aws": {**VPC, "public_subnet": "subnet-1111111b"}},
        {"network.aws": {**VPC, "private_subnets": ["subnet-2222222a", "subnet-2222222b"]}},
        {"storage.scratch.keep": True},
    ],
    "gcp": [
        {"gcp:project": "other-lab"},
        {"gcp:zone": "europe-west4-b"},
        {"gcp:zone": "europe-west1-b"},
        {"name": "other"},
        {"network.cidr": "10.9.0.0/16"},
        {"network.gcp": {"network": "lan", "subnetwork": "here"}},
        {"network.zones": ["europe-west4-a", "europe-west4-b"]},
        {"access": {"mode": "ssh", "ssh_cidrs": ["198.51.100.0/24"]}},
        {"controller.disk_gib": 60},
        {"image": {"bake": True}},
        {"storage.scratch.tier": "HIGH_SCALE_SSD", "storage.scratch.size_gib": 10240},
        {"storage.scratch.size_gib": 2048},
        {"storage.scratch.path": "/data"},
        {"storage.scratch": REMOVE},
        {"storage.home": {"kind": "nfs", "size_gib": 100}},
        {"storage.home": {"kind": "nfs", "size_gib": 20}},
        {"storage.home": {"kind": "nfs", "snapshot": True}},
        {"storage.home": {"kind": "nfs", "restore": "snap"}},
        {"storage.home": {"kind": "nfs", "existing": "disk-1"}},
    ],
    "gcp there": [
        {"network.gcp": REMOVE},
        {"network.gcp": {"network": "wan", "subnetwork": "here"}},
        {"network.gcp": {"network": "lan", "subnetwork": "there"}},
        {"storage.scratch.keep": True},
    ],
    "aws kept": [
        {"network.zones": ["us-east-1b", "us-east-1c"]},
        {"network.cidr": "10.9.0.0/16"},
        {"aws": {"kms_key": KEY}},
        {"controller.state": "machine"},
    ],
    "aws there kept": [{"network.aws": {**VPC, "public_subnet": "subnet-1111111b"}}],
    "gcp kept": [{"gcp:zone": "europe-west4-b"}, {"controller.state": "machine"}],
}  # fmt: skip
ZONES = [("aws kept", 0), ("aws there kept", 0), ("gcp kept", 0)]
"""The edits that put the head into another zone."""
AT_ONCE = {
    "aws": ("network.cidr", "network.aws"),
    "aws there": ("network.aws",),
    "gcp": ("gcp:zone", "network.gcp"),
}
"""Keys that reach what holds data through others. The edits of all other keys are for the wide run."""
CASES = [
    pytest.param(base, edit, marks=() if next(iter(edit)) in AT_ONCE.get(base, ()) else pytest.mark.wide)
    for base, edits in EDITS.items()
    for edit in edits
]
CONSTANT = {
    # No key of the stack file reaches these: they never change, or `ignore_changes` names them.
    "aws:fsx/lustreFileSystem:LustreFileSystem": {"fileSystemTypeVersion", "subnetIds", "backupId"},
    "aws:ebs/volume:Volume": {"encrypted", "snapshotId"},
    "aws:efs/fileSystem:FileSystem": {"encrypted"},
    "aws:ec2/instance:Instance": {"ami", "rootBlockDevice.encrypted"},
    "aws:dynamodb/table:Table": {"name", "hashKey"},
    "aws:ecr/repository:Repository": {"name", "encryptionConfigurations"},
    "gcp:compute/disk:Disk": {"image", "type", "snapshot"},
    "gcp:filestore/instance:Instance": {"fileShares.name"},
}
NAMED = {"name", "project", "zone", "location", "secretId", "replication", "description"}
"""Properties that follow from the name or the place of the cluster or of a directory."""
SERVICES = {"batch": "Batch", "ebs": "EC2", "secretsmanager": "SecretsManager"}
CLOUDFORMATION: dict[str, tuple[str, dict[str, str]]] = {
    "aws:fsx/lustreFileSystem:LustreFileSystem": ("AWS::FSx::FileSystem", {}),
    "aws:ec2/vpc:Vpc": ("AWS::EC2::VPC", {}),
    "aws:ec2/securityGroup:SecurityGroup": (
        "AWS::EC2::SecurityGroup", {"description": "GroupDescription", "name": "GroupName"},
    ),
    "aws:ec2/instance:Instance": (
        "AWS::EC2::Instance", {
            "ami": "ImageId",
            "placementGroup": "PlacementGroupName",
            "primaryNetworkInterface": "NetworkInterfaces",
        },
    ),
    "aws:ec2/volumeAttachment:VolumeAttachment": ("AWS::EC2::VolumeAttachment", {"deviceName": "Device"}),
    "aws:s3/bucket:Bucket": ("AWS::S3::Bucket", {"bucket": "BucketName", "bucketPrefix": "BucketNamePrefix"}),
    "aws:cloudwatch/logGroup:LogGroup": ("AWS::Logs::LogGroup", {"name": "LogGroupName"}),
    "aws:dynamodb/table:Table": (
        "AWS::DynamoDB::Table", {"name": "TableName", "importTable": "ImportSourceSpecification"},
    ),
    "aws:ecr/repository:Repository": (
        "AWS::ECR::Repository",
        {"name": "RepositoryName", "encryptionConfigurations": "EncryptionConfiguration"},
    ),
}  # fmt: skip
"""Type of ours -> AWS's name of it, and those of its properties that are not ours with a capital letter."""
UNSURE = "unless"
"""The word of a change that only the cloud can judge; it is refused although the plans may show no loss."""


def account(head: str | None) -> replacements.Canned:
    """AWS with three zones in each region; a subnet's last letter is its zone's.

    Args:
        head: the zone in which the cluster's own public subnet is already.
    """

    def answer(token: str, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
        match token.rpartition(":")[2]:
            case "getInstanceTypeOfferings":
                return {"locations": [f"us-east-1{letter}" for letter in "abc"]}
            case "getSubnets":
                return {"ids": [] if head is None else [f"subnet-3333333{head[-1]}"]}
            case "getSubnet":
                return {"id": arguments["id"], "availabilityZone": f"us-east-1{arguments['id'][-1]}"}
            case "getVolume":
                return {"availabilityZone": "us-east-1a"}
        return None

    return answer


def run(base: str, edit: Mapping[str, Any], head: str | None) -> tuple[Run, ClusterDesign]:
    stack, own = BASES[base]
    config = values(stack, own)
    for path, value in edit.items():
        config = _changed(config, path, value)
    with tempfile.TemporaryDirectory() as folder:
        made = replacements.run(config, Path(folder), canned=account(head))
    return made, design(parse(config, "test"), catalog())


def _changed(config: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    made: dict[str, Any] = {**config}
    steps = [path] if ":" in path else ["slurm-stacks:cluster", *path.split(".")]
    owner = made
    for step in steps[:-1]:
        owner[step] = {**(owner.get(step) or {})}
        owner = owner[step]
    if value is REMOVE:
        del owner[steps[-1]]
    else:
        owner[steps[-1]] = value
    return made


@functools.cache
def up(base: str) -> tuple[Run, ClusterDesign, str | None]:
    """The stack that is up, the design that it has published, and the head's zone in a network of its own."""
    made, wanted = run(base, {}, None)
    own = [one for one in made.declared.values() if one.name.endswith("-network-public")]
    zone = str(own[0].inputs["availabilityZone"]) if own else None
    return made, made.published(wanted), zone


@functools.cache
def edited(base: str, number: int) -> tuple[dict[str, list[str]], list[table.Change]]:
    """What an edit would lose, by the plans, and the changes by the provider's table."""
    before, published, zone = up(base)
    edit = EDITS[base][number]
    elsewhere = {"name", "aws:region"} & edit.keys()
    after, wanted = run(base, edit, None if elsewhere else zone)
    gone = replacements.lost(before, after)
    if {"aws:region", "gcp:project"} & edit.keys():
        # Another region or project of the provider: nothing of what is there is of it.
        gone = {urn: ["provider"] for urn, one in before.declared.items() if one.type in HOLDS}
    return gone, table.compare(published, wanted, RULES[base.partition(" ")[0]])


def ids(case: Any) -> str:
    return case if isinstance(case, str) else ",".join(case)


@pytest.mark.parametrize(("base", "edit"), CASES, ids=ids)
def test_an_edit_that_deletes_data_is_refused(base: str, edit: dict[str, Any]) -> None:
    judge(base, *edited(base, EDITS[base].index(edit)))


@pytest.mark.parametrize(("base", "number"), ZONES, ids=[base for base, _ in ZONES])
def test_another_zone_is_refused_with_the_way_by_a_snapshot_of_slurms_state(base: str, number: int) -> None:
    gone, found = edited(base, number)
    (state,) = (why for urn, why in gone.items() if urn.endswith("-storage-state"))
    assert state == ["availabilityZone" if base.startswith("aws") else "zone"]
    for why in (table.refusal(found, []), table.refusal(found, None)):
        assert why is not None
        assert why.code == "change.deletes-files"
        (line,) = (line for line in why.text.splitlines() if line.startswith("  /state ("))
        assert line == (
            "  /state (Slurm's state: queue and accounting, 20 GiB): add `snapshot: true`, put the old "
            "values back, run `up` and then `down`, which makes a snapshot (snap-…, or its name); then make "
            "this change, name it with `restore`, and run `up`"
        )


def judge(base: str, gone: Mapping[str, list[str]], found: list[table.Change]) -> None:
    """Check that the changes say and refuse what goes, and that they say no more."""
    before, published, _ = up(base)
    kinds = {change.kind for change in found}
    why = str(table.refusal(found, []))
    paths = {f"-storage-{mount.path.strip('/').replace('/', '-')}": mount for mount in published.mounts}
    for urn, forced in gone.items():
        one = before.declared[urn]
        what = f"{one.name}: {forced}; {[change.line() for change in found]}"
        match HOLDS[one.type]:
            case "files" if "this is not possible" not in why:
                assert "this deletes files" in why, what
                # The disks that are no directory's are the root disks of Google's machines.
                mount = next((mount for end, mount in paths.items() if one.name.endswith(end)), None)
                assert mount is not None or "-head-" in one.name, what
                assert mount is None or f"\n  {mount.path} (" in why, what
            case "head" if "-head-controller" in one.name:
                assert kinds & {Kind.HEAD, Kind.DATA, Kind.NEVER}, what
            case "state":
                assert Kind.DATA in kinds, what
    names = {before.declared[urn].name for urn in gone}
    named = {change.part for change in found if change.kind is Kind.DATA and UNSURE not in change.note}
    for end, mount in paths.items():
        if mount.path in named and not mount.keep:
            assert any(name.endswith(end) for name in names), f"a false alarm: {mount.path}, {why}"


@pytest.mark.wide
def test_every_property_that_replaces_data_is_reached_by_an_edit_or_never_changes() -> None:
    reached: dict[str, set[str]] = {one: set() for one in HOLDS}
    there: dict[str, set[str]] = {one: set() for one in HOLDS}
    for base, edits in EDITS.items():
        before, _, _ = up(base)
        for one in before.declared.values():
            if one.type in HOLDS:
                there[one.type].update(one.forcing())
        for number in range(len(edits)):
            for urn, forced in edited(base, number)[0].items():
                kind = before.declared[urn].type
                # A resource that another name or path makes anew is lost with all that it is.
                reached[kind].update(forced or there[kind] & NAMED)
    open_ = {kind: there[kind] - reached[kind] - CONSTANT.get(kind, set()) for kind in HOLDS}
    assert {kind: names for kind, names in open_.items() if names} == {}
    assert {kind: names & reached[kind] for kind, names in CONSTANT.items() if names & reached[kind]} == {}


@pytest.mark.parametrize("kind", [one for one in REPLACED_BY if one.startswith("aws:")])
def test_the_facts_are_those_of_aws_own_schemas(kind: str) -> None:
    """CloudFormation's registry says of each property whether it is fixed when a resource is made."""
    service, name = kind[4:].partition("/")[0], kind.rpartition(":")[2]
    usual = f"AWS::{SERVICES.get(service, service.upper())}::{name}"
    of_cloud, renamed = CLOUDFORMATION.get(kind, (usual, {}))
    # Late, because every worker that collects the tests imports this file, and cfn-lint takes it a second.
    from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER  # type: ignore[import-untyped]

    schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-east-1", of_cloud).schema
    fixed = {one.split("/")[2] for one in schema.get("createOnlyProperties", [])}

    def there(ours: str) -> str:
        return renamed.get(ours, ours[:1].upper() + ours[1:])

    said = set(REPLACED_BY[kind].get("cloud", []))
    assert {there(ours) for ours in said} - fixed == set()
    runs = [up(base)[0] for base in BASES if base.startswith("aws")]
    alike = [one for run in runs for one in run.declared.values() if one.type == kind]
    assert {name for one in alike for name in one.inputs if there(name) in fixed} - said == set()


def leaves(model: type[BaseModel], steps: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every key that a stack file may have, as its steps, with its annotation."""
    for name, known in model.model_fields.items():
        deeper = section_of(known.annotation)
        if deeper is not None and "list[" not in str(known.annotation):
            yield from leaves(deeper, (*steps, name))
        elif deeper is None:
            yield (*steps, name), known.annotation


def candidates(annotation: Any) -> Iterator[Any]:
    """Values that a key of this annotation may take."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        yield from arguments
    elif annotation in (int, float):
        yield from (3, 60, 7200)
    elif annotation is bool:
        yield from (True, False)
    elif origin in (typing.Union, types.UnionType, Annotated):
        for argument in arguments:
            yield from candidates(argument)


@pytest.mark.wide
@pytest.mark.parametrize("base", ["aws", "gcp"])
def test_no_key_at_all_deletes_data_unasked(base: str) -> None:
    """Each key of the schema with each value that its type names and the checks accept."""
    before, published, zone = up(base)
    _, wanted = run(base, {}, zone)
    tried = set()
    for steps, annotation in leaves(ClusterConfig):
        for value in candidates(annotation):
            try:
                after, edited_design = run(base, {".".join(steps): value}, zone)
            except UserError:
                continue
            if edited_design != wanted:
                tried.add(steps)
                found = table.compare(published, edited_design, RULES[base])
                judge(base, replacements.lost(before, after), found)
    assert len(tried) > 20, tried
