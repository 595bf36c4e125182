"""The fields of nodes' templates: those of the clouds' own models, all of them, and of Pulumi's SDK."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import botocore.session
import pulumi_aws
import pulumi_gcp
import pytest
from google.cloud import compute_v1
from pydantic import BaseModel

from infra.config import overrides
from infra.config.fields import Overrides

Fields = dict[str, Any]
AWS_TYPES = {"boolean": bool, "integer": int, "string": str}
GOOGLE_TYPES = {5: int, 8: bool, 9: str}
"""Numbers of protobuf's FieldDescriptor.Type: int32, bool, string."""
PULUMI_ONLY = {
    # Groups of an interface, in the words of the provider.
    "vpc_security_group_ids", "security_group_names",
    "instance_description", "metadata_startup_script", "name", "name_prefix", "service_account",
    "subnetwork_project", "local_ssd_recovery_timeouts",
}  # fmt: skip
"""Reserved fields that only Pulumi's SDK calls so."""
BEYOND_PULUMI = {
    # Compute Engine's and EC2's fields for which Pulumi's types have no place: there is no way to give them.
    "network_interfaces.fingerprint", "network_interfaces.kind",
    "scheduling.expose_host_topology", "scheduling.location_hint",
    "local_ssd_encryption_mode", "private_ipv6_google_access",
    "monitoring.metric_category_ids", "placement.availability_zone_id",
    "block_device_mappings.ebs.ebs_card_index",
}  # fmt: skip


@cache
def ec2() -> Any:
    return botocore.session.get_session().get_service_model("ec2")


def snake(name: str) -> str:
    """`EnableResourceNameDnsAAAARecord` -> `enable_resource_name_dns_aaaa_record`."""
    name = re.sub("([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("aaaarecord", "aaaa_record")


def of_ec2(shape: Any) -> Fields:
    """Return the members of a shape: a type, an enumeration's values, or the members in it."""
    found: Fields = {}
    for name, member in shape.members.items():
        inner = member.member if member.type_name == "list" else member
        known = (
            of_ec2(inner)
            if inner.type_name == "structure"
            else (inner.type_name, tuple(getattr(inner, "enum", ())))
        )
        found[snake(name)] = known
    return found


def of_google(message: Any) -> Fields:
    found: Fields = {}
    for name, field in message.meta.fields.items():
        inner = field.message
        deeper = isinstance(inner, type) and name in ("scheduling", "network_interfaces", "node_affinities")
        deeper = deeper or (name.endswith(("_config", "_features")) and inner is not None)
        found[name.replace("network_i_p", "network_ip")] = (
            of_google(inner) if deeper else (field.proto_type, ())
        )
    return found


def models(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and section of a model and of the sections in it."""
    yield path, model
    for name, field in model.model_fields.items():
        if (inner := inner_model(field.annotation)) is not None:
            yield from models(inner, f"{path}{name}.")


def inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    parts = (part for part in typing.get_args(annotation) if not isinstance(part, types.EllipsisType))
    return next((found for part in parts if (found := inner_model(part)) is not None), None)


def at(fields: Fields, path: str) -> Fields:
    for part in path.split(".")[:-1]:
        fields = fields[part]
    return fields


def args(sdk: Any, section: str, path: str) -> set[str]:
    """Return what a class of Pulumi's SDK takes: `LaunchTemplateCpuOptionsArgs` for `cpu_options.`."""
    words = [part.rstrip(".") for part in path.split(".") if part]
    names = ["".join(word.capitalize() for word in part.split("_")) for part in words]
    singular = {
        "BlockDeviceMappings": "BlockDeviceMapping", "LicenseSpecifications": "LicenseSpecification",
        "NetworkInterfaces": "NetworkInterface", "NodeAffinities": "NodeAffinity",
    }  # fmt: skip
    cls = getattr(sdk, f"{section}{''.join(singular.get(name, name) for name in names)}Args")
    return set(inspect.signature(cls.__init__).parameters) - {"self", "__self__"}


CLOUDS: dict[str, tuple[type[Overrides], Callable[[], Fields], Callable[[str], set[str]]]] = {
    "EC2": (
        overrides.LaunchTemplateOverrides,
        lambda: of_ec2(ec2().shape_for("RequestLaunchTemplateData")),
        lambda path: args(pulumi_aws.ec2, "LaunchTemplate", path),
    ),
    "Compute Engine": (
        overrides.InstanceTemplateOverrides,
        lambda: of_google(compute_v1.InstanceProperties),
        lambda path: args(pulumi_gcp.compute, "InstanceTemplate", path),
    ),
}
SECTIONS = [(cloud, path, model) for cloud, (top, *_) in CLOUDS.items() for path, model in models(top)]


@pytest.mark.parametrize(("cloud", "path", "model"), SECTIONS, ids=[f"{c}-{p}" for c, p, _ in SECTIONS])
def test_a_section_has_every_field_of_the_clouds_model_or_says_why_not(
    cloud: str, path: str, model: type[Overrides]
) -> None:
    _, cloud_model, pulumi_takes = CLOUDS[cloud]
    theirs = set(at(cloud_model(), path))
    ours, reserved = set(model.model_fields), set(model.RESERVED)
    assert not ours & reserved
    assert ours <= theirs, "a field that the cloud does not know"
    assert reserved <= theirs | PULUMI_ONLY
    left = {f"{path}{name}" for name in theirs - ours - reserved}
    assert left <= BEYOND_PULUMI, "new in the cloud's model: give it a field, or a reason in RESERVED"
    assert ours <= pulumi_takes(path), "Pulumi's SDK would refuse it"
    assert not {name.rpartition(".")[2] for name in left} & pulumi_takes(path)


@pytest.mark.parametrize(("cloud", "path", "model"), SECTIONS, ids=[f"{c}-{p}" for c, p, _ in SECTIONS])
def test_a_field_has_the_type_and_the_values_of_the_clouds(
    cloud: str, path: str, model: type[Overrides]
) -> None:
    theirs = at(CLOUDS[cloud][1](), path)
    for name, field in model.model_fields.items():
        if isinstance(theirs[name], dict) or inner_model(field.annotation) is not None:
            continue
        kind, values = theirs[name]
        wanted = AWS_TYPES.get(kind) or GOOGLE_TYPES.get(kind)
        if wanted is None:
            assert name in ("metadata", "resource_manager_tags"), name
            continue
        literals = list(_literals(field.annotation))
        assert (
            {type(value) for value in literals} == {wanted}
            if literals
            else wanted in _plain(field.annotation)
        )
        if values:
            assert set(literals) == set(values), name


def _literals(annotation: Any) -> Iterator[Any]:
    if typing.get_origin(annotation) is typing.Literal:
        yield from typing.get_args(annotation)
    else:
        for part in typing.get_args(annotation):
            yield from _literals(part)


def _plain(annotation: Any) -> set[Any]:
    parts = typing.get_args(annotation)
    return {annotation} if not parts else {inner for part in parts for inner in _plain(part)}


ENUMERATIONS = [
    (compute_v1.AdvancedMachineFeatures, "PerformanceMonitoringUnit", "performance_monitoring_unit"),
    (compute_v1.ConfidentialInstanceConfig, "ConfidentialInstanceType", "confidential_instance_type"),
    (compute_v1.NetworkInterface, "NicType", "nic_type"),
    (compute_v1.NetworkInterface, "IgmpQuery", "igmp_query"),
    (compute_v1.NetworkPerformanceConfig, "TotalEgressBandwidthTier", "total_egress_bandwidth_tier"),
    (compute_v1.SchedulingNodeAffinity, "Operator", "operator"),
    (compute_v1.InstanceProperties, "KeyRevocationActionType", "key_revocation_action_type"),
]


@pytest.mark.parametrize(("message", "enumeration", "name"), ENUMERATIONS, ids=[e[2] for e in ENUMERATIONS])
def test_values_are_those_of_compute_engine(message: Any, enumeration: str, name: str) -> None:
    """The client has no enumeration for `turbo_mode`, of which its documentation has the one value."""
    known = set(vars(getattr(message, enumeration))["_member_names_"])
    (field,) = {m.model_fields[name] for _, _, m in SECTIONS if name in m.model_fields}
    assert set(_literals(field.annotation)) <= known
