"""Impossible tags, roles, security groups, network tags and fields of templates: one mistake each."""

from __future__ import annotations

from typing import Any

import pytest

from infra.config.rules.platform import MOST_LABELS, MOST_TAGS
from tests.support import sentences
from tests.support.stack_parts import KEY, VPC, check_refusal
from tests.support.stack_values import CLUSTER, mistakes, values

LAUNCH = "partitions[0].aws.launch_template_overrides"
INSTANCE = "partitions[0].gcp.instance_template_overrides"
EBS = f"{LAUNCH}.block_device_mappings[0].ebs"
BOUNDARY = "arn:aws:iam::123456789012:policy/platform/boundary"
GROUP = "sg-0123456789abcdef0"
T2D = {"name": "t", "instance_type": "t2d-standard-4"}


def tags(count: int) -> dict[str, str]:
    return {f"k{number}": "v" for number in range(count)}


# stack, changes, path and code of the one mistake
REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    # tags
    ("local", {"tags": {"team": "ml"}}, "tags", "tags.local"),
    ("aws", {"tags": {"cost center": "7"}}, 'tags["cost center"]', "tags.key"),
    ("aws", {"tags": {"acme/owner": "7"}}, 'tags["acme/owner"]', "tags.key"),
    ("aws", {"tags": {"k" * 129: "7"}}, f"tags.{'k' * 79}…", "tags.key"),
    ("aws", {"tags": {"_index": "7"}}, "tags._index", "tags.key"),
    ("aws", {"tags": {"aws:team": "7"}}, f"{CLUSTER}.tags.aws:team", "tags.reserved"),
    ("aws", {"tags": {"AWS:team": "7"}}, f"{CLUSTER}.tags.AWS:team", "tags.reserved"),
    ("aws", {"tags": {"team": "a" * 257}}, "tags.team", "tags.value"),
    ("aws", {"tags": {"team": "a;b"}}, "tags.team", "tags.value"),
    ("aws", {"tags": {"team": True}}, "tags.team", "value.type"),
    ("aws", {"tags": {"Name": "n"}}, "tags.Name", "tags.ours"),
    ("aws", {"tags": {"name": "n"}}, "tags.name", "tags.ours"),
    ("aws", {"tags": {"slurm-stacks:role": "login"}}, f"{CLUSTER}.tags.slurm-stacks:role", "tags.ours"),
    ("aws", {"tags": {"Slurm-Stacks:mine": "x"}}, f"{CLUSTER}.tags.Slurm-Stacks:mine", "tags.ours"),
    ("aws", {"tags": {"Team": "a", "team": "b"}}, "tags.team", "tags.case"),
    ("aws", {"tags": tags(MOST_TAGS + 1)}, "tags", "tags.too-many"),
    (
        "batch",
        {"tags": tags(25), "batch.tags": {f"b{n}": "v" for n in range(21)}},
        "batch.tags",
        "tags.too-many",
    ),
    ("batch", {"batch.tags": {"acme/owner": "7"}}, 'batch.tags["acme/owner"]', "tags.key"),
    ("batch", {"batch.security_groups": [GROUP]}, "batch.security_groups", "groups.own-vpc"),
    ("aws", {"tags": {"CreatedBy": "me"}, "image.bake": True}, "tags.CreatedBy", "tags.image-builder"),
    ("gcp", {"tags": {"Team": "ml"}}, "tags.Team", "tags.label-key"),
    ("gcp", {"tags": {"1st": "ml"}}, "tags.1st", "tags.label-key"),
    ("gcp", {"tags": {"team": "Deep Learning"}}, "tags.team", "tags.label-value"),
    ("gcp", {"tags": {"goog-team": "ml"}}, "tags.goog-team", "tags.reserved"),
    ("gcp", {"tags": {"slurm-stacks-role": "ml"}}, "tags.slurm-stacks-role", "tags.ours"),
    ("gcp", {"tags": tags(MOST_LABELS + 1)}, "tags", "tags.too-many"),
    # roles
    ("aws", {"aws.permissions_boundary": "boundary"}, "aws.permissions_boundary", "value.form"),
    (
        "aws",
        {"aws.permissions_boundary": "arn:aws:iam::123456789012:role/boundary"},
        "aws.permissions_boundary",
        "value.form",
    ),
    ("aws", {"aws.role_path": "platform"}, "aws.role_path", "value.form"),
    ("aws", {"aws.role_path": "/platform"}, "aws.role_path", "value.form"),
    ("gcp", {"aws": {"permissions_boundary": BOUNDARY}}, "aws", "provider.other-settings"),
    # groups
    ("aws", {"controller.security_groups": [GROUP]}, "controller.security_groups", "groups.own-vpc"),
    (
        "aws",
        {"partitions[0].aws.security_groups": [GROUP]},
        "partitions[0].aws.security_groups",
        "groups.own-vpc",
    ),
    ("gcp", {"controller.security_groups": [GROUP]}, "controller.security_groups", "groups.provider"),
    ("local", {"controller.network_tags": ["ssh"]}, "controller.network_tags", "groups.provider"),
    ("aws", {"login.network_tags": ["ssh"], "login.count": 1}, "login.network_tags", "groups.provider"),
    ("aws", {"controller.security_groups": ["web"]}, "controller.security_groups[0]", "value.form"),
    ("gcp", {"partitions[0].gcp.network_tags": ["A"]}, "partitions[0].gcp.network_tags[0]", "value.form"),
    # launch templates
    ("aws", {LAUNCH: {"user_data": "x"}}, f"{LAUNCH}.user_data", "override.reserved"),
    ("aws", {LAUNCH: {"UserData": "x"}}, f"{LAUNCH}.UserData", "override.reserved"),
    ("aws", {LAUNCH: {"tag_specifications": []}}, f"{LAUNCH}.tag_specifications", "override.reserved"),
    ("aws", {LAUNCH: {"network_interfaces": []}}, f"{LAUNCH}.network_interfaces", "override.reserved"),
    (
        "aws",
        {LAUNCH: {"disable_api_termination": True}},
        f"{LAUNCH}.disable_api_termination",
        "override.reserved",
    ),
    (
        "aws",
        {LAUNCH: {"placement": {"group_name": "x"}}},
        f"{LAUNCH}.placement.group_name",
        "override.reserved",
    ),
    ("aws", {LAUNCH: {"CpuOptions": {}}}, f"{LAUNCH}.CpuOptions", "key.unknown"),
    ("aws", {LAUNCH: {"Monitoring": {}}}, f"{LAUNCH}.Monitoring", "key.unknown"),
    ("aws", {LAUNCH: {"monitoring": {"enabled": "yes"}}}, f"{LAUNCH}.monitoring.enabled", "value.type"),
    ("aws", {LAUNCH: {"cpu_options": {"core_count": 2}}}, f"{LAUNCH}.cpu_options", "override.cpu-options"),
    (
        "aws",
        {LAUNCH: {"cpu_options": {"core_count": 4, "threads_per_core": 2}}},
        f"{LAUNCH}.cpu_options",
        "override.cpus",
    ),
    (
        "aws",
        {LAUNCH: {"instance_market_options": {"spot_options": {"max_price": "0.5"}}}},
        f"{LAUNCH}.instance_market_options",
        "override.not-spot",
    ),
    (
        "aws",
        {LAUNCH: {"block_device_mappings": [{"device_name": "/dev/sdb"}]}},
        f"{LAUNCH}.block_device_mappings[0]",
        "override.device",
    ),
    (
        "aws",
        {LAUNCH: {"block_device_mappings": [{"device_name": "/dev/sda1", "ebs": {"volume_size": 8}}]}},
        f"{LAUNCH}.block_device_mappings[0].device_name",
        "value.form",
    ),
    (
        "aws",
        {LAUNCH: {"block_device_mappings": [{"device_name": "/dev/xvda", "ebs": {"volume_size": 8}}]}},
        f"{LAUNCH}.block_device_mappings[0].device_name",
        "value.form",
    ),
    (
        "aws",
        {LAUNCH: {"block_device_mappings": [{"device_name": "/dev/sdb", "ebs": {}}]}},
        f"{LAUNCH}.block_device_mappings[0].ebs",
        "override.volume-size",
    ),
    *(
        (
            "aws",
            {LAUNCH: {"block_device_mappings": [{"device_name": "/dev/sdb", "ebs": ebs}]}},
            f"{EBS}.{key}",
            f"override.{code}",
        )
        for ebs, key, code in (
            ({"volume_size": 100, "volume_type": "io1"}, "volume_type", "volume-iops"),
            ({"volume_size": 100, "volume_type": "io2"}, "volume_type", "volume-iops"),
            ({"volume_size": 3, "volume_type": "io1", "iops": 100}, "volume_size", "volume-range"),
            ({"volume_size": 124, "volume_type": "st1"}, "volume_size", "volume-range"),
            ({"volume_size": 2000, "volume_type": "standard"}, "volume_size", "volume-range"),
            ({"volume_size": 17000, "volume_type": "gp2"}, "volume_size", "volume-range"),
            ({"volume_size": 100, "volume_type": "gp2", "iops": 3000}, "iops", "volume-range"),
            ({"volume_size": 200, "volume_type": "sc1", "iops": 3000}, "iops", "volume-range"),
            ({"volume_size": 100, "iops": 2999}, "iops", "volume-range"),
            ({"volume_size": 100, "volume_type": "io1", "iops": 64001}, "iops", "volume-range"),
            ({"volume_size": 100, "volume_type": "gp2", "throughput": 125}, "throughput", "volume-range"),
            ({"volume_size": 100, "throughput": 2001}, "throughput", "volume-range"),
            (
                {"volume_size": 100, "volume_initialization_rate": 100},
                "volume_initialization_rate",
                "volume-rate",
            ),
        )
    ),
    (
        "aws",
        {LAUNCH: {"cpu_options": {"amd_sev_snp": "enabled"}}},
        f"{LAUNCH}.cpu_options.amd_sev_snp",
        "override.cpu-family",
    ),
    (
        "aws",
        {LAUNCH: {"cpu_options": {"nested_virtualization": "enabled"}}},
        f"{LAUNCH}.cpu_options.nested_virtualization",
        "override.cpu-family",
    ),
    # instance templates
    *(
        (
            "gcp",
            {
                "partitions[0]": {"name": "t", "instance_type": machine},
                INSTANCE: {"confidential_instance_config": {"confidential_instance_type": kind}},
            },
            f"{INSTANCE}.confidential_instance_config.confidential_instance_type",
            "override.confidential",
        )
        for machine, kind in (
            ("n2d-standard-4", "TDX"),
            ("n2-standard-4", "TDX"),
            ("c3-standard-4", "SEV"),
            ("n2-standard-4", "SEV_SNP"),
        )
    ),
    (
        "gcp",
        {INSTANCE: {"confidential_instance_config": {"enable_confidential_compute": True}}},
        f"{INSTANCE}.confidential_instance_config.confidential_instance_type",
        "override.confidential",
    ),
    (
        "gcp",
        {INSTANCE: {"metadata": {"startup-script": "x"}}},
        f"{INSTANCE}.metadata.startup-script",
        "override.metadata",
    ),
    ("gcp", {INSTANCE: {"serviceAccounts": []}}, f"{INSTANCE}.serviceAccounts", "override.reserved"),
    ("gcp", {INSTANCE: {"labels": {"a": "b"}}}, f"{INSTANCE}.labels", "override.reserved"),
    (
        "gcp",
        {INSTANCE: {"scheduling": {"max_run_duration": {}}}},
        f"{INSTANCE}.scheduling.max_run_duration",
        "override.reserved",
    ),
    (
        "gcp",
        {INSTANCE: {"resource_manager_tags": {"env": "tagValues/1"}}},
        f"{INSTANCE}.resource_manager_tags.env",
        "override.resource-tag",
    ),
    (
        "gcp",
        {"partitions[0]": T2D, INSTANCE: {"advanced_machine_features": {"threads_per_core": 1}}},
        f"{INSTANCE}.advanced_machine_features.threads_per_core",
        "override.one-thread",
    ),
    (
        "gcp",
        {INSTANCE: {"advanced_machine_features": {"visible_core_count": 2}}},
        f"{INSTANCE}.advanced_machine_features",
        "override.cpus",
    ),
]  # fmt: skip
ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    *(
        (
            "gcp",
            {
                "partitions[0]": {"name": "t", "instance_type": machine},
                INSTANCE: {"confidential_instance_config": {"confidential_instance_type": kind}},
            },
        )
        for machine, kind in (
            ("n2d-standard-4", "SEV"),
            ("n2d-standard-4", "SEV_SNP"),
            ("c2d-standard-4", "SEV"),
            ("c3-standard-4", "TDX"),
        )
    ),
    *(
        ("aws", {LAUNCH: {"block_device_mappings": [{"device_name": "/dev/sdb", "ebs": ebs}]}})
        for ebs in (
            {"volume_size": 4, "volume_type": "io1", "iops": 100},
            {"volume_size": 65536, "volume_type": "io2", "iops": 256000},
            {"volume_size": 100, "iops": 80000, "throughput": 2000},
            {"snapshot_id": "snap-0123456789abcdef0", "volume_initialization_rate": 100},
            {"volume_size": 125, "volume_type": "st1"},
        )
    ),
    (
        "aws",
        {
            "partitions[0]": {"name": "t", "instance_type": "m6a.large"},
            LAUNCH: {"cpu_options": {"amd_sev_snp": "enabled"}},
        },
    ),
    ("aws", {"tags": {"cost-center": 7, "acme:owner": "ML team", "env": ""}}),
    ("aws", {"tags": tags(MOST_TAGS)}),
    ("aws", {"tags": {"CreatedBy": "me"}}),
    ("gcp", {"tags": {"cost-center": 7, "owner": ""}}),
    ("gcp", {"tags": tags(MOST_LABELS)}),
    ("aws", {"aws": {"permissions_boundary": BOUNDARY, "role_path": "/platform/ml/"}}),
    ("aws", {"aws.permissions_boundary": "arn:aws-us-gov:iam::aws:policy/PowerUserAccess"}),
    (
        "aws",
        {
            "network.aws": VPC,
            "controller.security_groups": [GROUP],
            "login": {"count": 1, "security_groups": [GROUP]},
            "partitions[0].aws.security_groups": [GROUP],
        },
    ),
    ("batch", {"network.aws": VPC, "batch.security_groups": [GROUP]}),
    ("gcp", {"controller.network_tags": ["bastion"], "partitions[0].gcp.network_tags": ["no-egress"]}),
    (
        "aws",
        {
            "partitions[0].spot": True,
            LAUNCH: {
                "cpu_options": {"core_count": 2, "threads_per_core": 1},
                "instance_market_options": {"spot_options": {"max_price": "0.5"}},
                "placement": {"tenancy": "dedicated"},
                "block_device_mappings": [
                    {"device_name": "/dev/sdb", "ebs": {"volume_size": 100, "kms_key_id": KEY}},
                    {"device_name": "/dev/sdc", "virtual_name": "ephemeral0"},
                ],
            },
        },
    ),
    (
        "gcp",
        {
            INSTANCE: {
                "network_performance_config": {"total_egress_bandwidth_tier": "TIER_1"},
                "network_interfaces": [{"nic_type": "GVNIC"}],
                "metadata": {"agent-key": "x"},
                "resource_manager_tags": {"tagKeys/1": "tagValues/2"},
            }
        },
    ),
]


@pytest.mark.parametrize(
    ("stack", "changes", "path", "code"),
    REFUSED,
    ids=[f"{stack}-{code}-{i}" for i, (stack, _, _, code) in enumerate(REFUSED)],
)
def test_refused(stack: str, changes: dict[str, Any], path: str, code: str) -> None:
    check_refusal(stack, changes, path, code)


@pytest.mark.parametrize(("stack", "changes"), ACCEPTED, ids=range(len(ACCEPTED)))
def test_accepted(stack: str, changes: dict[str, Any]) -> None:
    assert mistakes(values(stack, changes)) == []


def test_the_sentences(pytestconfig: pytest.Config) -> None:
    sentences.check(
        pytestconfig,
        __file__,
        (str(m) for stack, changes, *_ in REFUSED for m in mistakes(values(stack, changes))),
    )
