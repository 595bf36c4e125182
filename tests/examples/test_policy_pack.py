"""The example of a policy pack passes what the stacks make, and refuses each thing that it is there for."""

from __future__ import annotations

import functools
import runpy
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pulumi_policy
import pytest
from pulumi_policy import PolicyCustomTimeouts, PolicyResourceOptions, ResourceValidationArgs, proxy

from tests.support import replacements, whole_stacks
from tests.support.checkout import ROOT
from tests.support.replacements import Declared
from tests.support.stack_values import CLUSTER
from tests.support.whole_stacks import EDITED, SHIPPED

TAGS = {"cost-center": "4711", "owner": "ml-platform"}
STACKS = [*EDITED, *(pytest.param(name, marks=pytest.mark.wide) for name in SHIPPED)]
INGRESS = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
EGRESS = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
DEFAULT_GROUP = "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup"
FIREWALL = "gcp:compute/firewall:Firewall"
VOLUME = "aws:ebs/volume:Volume"
FILES = "aws:efs/fileSystem:FileSystem"
INSTANCE = "aws:ec2/instance:Instance"
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
COMPONENT = "slurm-stacks:index:SlurmCluster"
AWS, GOOGLE = "everything on AWS", "everything on Google Cloud"


@functools.cache
def rules() -> dict[str, pulumi_policy.ResourceValidationPolicy]:
    """Return the pack's policies by name; a pack that runs serves the engine and does not return."""
    packs: list[tuple[Any, ...]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pulumi_policy, "PolicyPack", lambda *arguments: packs.append(arguments))
        runpy.run_path(str(ROOT / "examples" / "policy" / "__main__.py"))
    ((_name, policies, level),) = packs
    assert level == pulumi_policy.EnforcementLevel.MANDATORY
    return {policy.name: policy for policy in policies}


@functools.cache
def declared(name: str, *, plain: bool = False) -> tuple[Declared, ...]:
    """Return a stack's resources, with the tags and the budget that the pack asks for."""
    config = whole_stacks.config(name)
    if not plain:
        config[CLUSTER] |= {"tags": TAGS, "budget": {"max_usd": 1000}}
    with tempfile.TemporaryDirectory() as folder:
        return tuple(replacements.run(config, Path(folder)).declared.values())


def refusals(kind: str, props: Mapping[str, Any], name: str = "x") -> dict[str, str]:
    """Return policy -> message for a resource, of which the policies see what the engine shows them."""
    opts = PolicyResourceOptions(False, [], None, [], PolicyCustomTimeouts(0, 0, 0), [])
    seen = proxy.unknown_checking_proxy(dict(props))
    args = ResourceValidationArgs(kind, seen, f"urn:{name}", name, opts, None)
    found: dict[str, str] = {}
    for name_of_rule, policy in rules().items():

        def report(text: str, _urn: str | None = None, rule: str = name_of_rule) -> None:
            found[rule] = text

        policy.validate(args, report)
    return found


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_with_tags_and_a_budget_passes(stack: str) -> None:
    found = {one.name: refused for one in declared(stack) if (refused := refusals(one.type, one.inputs))}
    assert found == {}


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_without_them_is_refused_for_nothing_else(stack: str) -> None:
    cluster = next(one for one in declared(stack, plain=True) if one.type == COMPONENT)
    found = {rule for one in declared(stack, plain=True) for rule in refusals(one.type, one.inputs)}
    budget = set() if "budget" in cluster.inputs else {"budget-of-a-cluster"}
    assert found == {"required-tags"} | budget


def mapping(encrypted: str | None) -> dict[str, Any]:
    disk = {"volumeSize": 50, **({"encrypted": encrypted} if encrypted else {})}
    return {"blockDeviceMappings": [{"deviceName": "/dev/sda1", "ebs": disk}]}


@pytest.mark.parametrize(
    ("rule", "stack", "kind", "change"),
    [
        ("no-open-port", AWS, INGRESS, {"cidrIpv4": "0.0.0.0/0"}),
        ("no-open-port", AWS, INGRESS, {"cidrIpv6": "::/0"}),
        ("no-open-port", AWS, DEFAULT_GROUP, {"ingress": [{"cidrBlocks": ["10.0.0.0/8", "0.0.0.0/0"]}]}),
        ("no-open-port", AWS, DEFAULT_GROUP, {"ingress": [{"ipv6CidrBlocks": ["::/0"]}]}),
        ("no-open-port", GOOGLE, FIREWALL, {"sourceRanges": ["0.0.0.0/0"]}),
        ("encrypted-disks", AWS, VOLUME, {"encrypted": False}),
        ("encrypted-disks", AWS, FILES, {"encrypted": None}),
        ("encrypted-disks", AWS, INSTANCE, {"rootBlockDevice": {"volumeSize": 50}}),
        ("encrypted-disks", AWS, INSTANCE, {"ebsBlockDevices": [{"encrypted": False}]}),
        ("encrypted-disks", AWS, TEMPLATE, mapping("false")),
        ("encrypted-disks", AWS, TEMPLATE, mapping(None)),
        ("metadata-by-token", AWS, INSTANCE, {"metadataOptions": {"httpTokens": "optional"}}),
        ("metadata-by-token", AWS, TEMPLATE, {"metadataOptions": None}),
        ("required-tags", AWS, INSTANCE, {"tags": {"owner": "ml-platform"}}),
        ("required-tags", GOOGLE, "gcp:compute/disk:Disk", {"labels": {}}),
        ("required-tags", AWS, COMPONENT, {"tags": {}}),
        ("budget-of-a-cluster", AWS, COMPONENT, {"budget": {"runningJobs": "keep"}}),
        ("budget-of-a-cluster", GOOGLE, COMPONENT, {"budget": None}),
    ],
)
def test_each_violation_is_refused_by_its_rule_alone(
    rule: str, stack: str, kind: str, change: dict[str, Any]
) -> None:
    one = next(one for one in declared(stack) if one.type == kind)
    assert refusals(kind, one.inputs) == {}
    assert refusals(kind, {**one.inputs, **change}).keys() == {rule}


def test_what_leaves_the_cluster_is_no_open_port() -> None:
    out = {"direction": "EGRESS", "sourceRanges": ["0.0.0.0/0"]}
    assert refusals(FIREWALL, out) == {}
    assert refusals(EGRESS, {"cidrIpv4": "0.0.0.0/0"}) == {}
