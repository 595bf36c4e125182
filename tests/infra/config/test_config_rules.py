"""Impossible partitions, instance types and accelerators: one mistake each, at its path."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.stack_parts import (
    BLOCK,
    CLOSE,
    GROUP,
    KEY,
    SHARED_CR,
    VPC,
    Refused,
    check_refusal,
    check_sentences,
    each_refusal,
)

# stack, changes, path and code of the one mistake
REFUSED: list[Refused] = [
    # partitions
    ("local", {"partitions": []}, "partitions", "partition.none"),
    (
        "local",
        {"partitions[1]": {"name": "debug", "instance_type": "local.small"}},
        "partitions[1].name",
        "partition.name-twice",
    ),
    ("local", {"partitions[0].name": "login"}, "partitions[0].name", "partition.name-reserved"),
    ("local", {"partitions[0].name": "default"}, "partitions[0].name", "partition.name-reserved"),
    (
        "local",
        {"name": "c" * 40, "partitions[0].name": "p" * 20, "partitions[0].nodes.max": 101},
        "partitions[0].name",
        "partition.name-too-long",
    ),
    (
        "local",
        {"name": "c" * 40, "partitions[0].name": "p" * 20, "partitions[0].nodes.max": 11},
        "partitions[0].name",
        "partition.name-too-long",
    ),
    ("local", {"partitions[0].nodes.min": 5}, "partitions[0].nodes", "partition.nodes-order"),
    (
        "local",
        {
            "partitions": [
                {"name": f"p{i}", "instance_type": "local.small", "nodes": {"max": 4000}} for i in range(4)
            ]
        },
        "partitions",
        "local.too-many-ports",
    ),
    # slurmctld's longest timeouts have to cover them.
    (
        "local",
        {"hooks": [{"role": "all", "source": f"h{i}.sh", "timeout": 7200} for i in range(9)]},
        "hooks",
        "hook.timeouts",
    ),
    (
        "aws",
        {"partitions[0].default": True, "partitions[1].default": True},
        "partitions[1].default",
        "partition.default-twice",
    ),
    # NVLink of several B200s needs NVIDIA's subnet manager in the image.
    (
        "aws",
        {"partitions[1]": {"name": "b", "instance_type": "p6-b200.48xlarge"}},
        "partitions[1].image",
        "image.no-subnet-manager",
    ),
    # keys that only AWS has
    (
        "aws",
        {"partitions[0].aws": {"neuron_cores": True}},
        "partitions[0].aws.neuron_cores",
        "partition.no-neuron-cores",
    ),
    # where the cloud tells nobody the places of nodes
    ("aws", {"partitions[0].topology": True}, "partitions[0].topology", "topology.unknown"),
    ("gcp", {"partitions[0].topology": True}, "partitions[0].topology", "topology.unknown"),
    ("local", {"partitions[0].topology": True}, "partitions[0].topology", "topology.unknown"),
    ("gcp", {"aws": {"nat": False}}, "aws", "provider.other-settings"),
    (
        "aws",
        {"aws": {"kms_key": KEY.replace("us-east-1", "eu-west-1")}},
        "aws.kms_key",
        "aws.kms-key-region",
    ),
    ("aws", {"aws": {"kms_key": "alias/disks"}}, "aws.kms_key", "value.form"),
    ("aws", {"aws": {"nat": False}, "network": {"aws": VPC}}, "aws.nat", "aws.nat-with-vpc"),
    (
        "aws",
        {"aws": {"nat": False}, "partitions[0]": {**BLOCK, "reservation": None, "aws": {"efa": True}}},
        "aws.nat",
        "aws.nat-with-interfaces",
    ),
    (
        "aws",
        {"partitions[0]": {**BLOCK, "reservation": None}},
        "partitions[0].reservation",
        "capacity-block.no-reservation",
    ),
    (
        "aws",
        {"partitions[0]": {**BLOCK, "reservation": GROUP}},
        "partitions[0].reservation",
        "capacity-block.not-one",
    ),
    ("aws", {"partitions[0]": {**BLOCK, "spot": True}}, "partitions[0].reservation", "reservation.spot"),
    ("aws", {"partitions[0]": {**BLOCK, "zones": None}}, "partitions[0].zones", "capacity-block.zones"),
    (
        "aws",
        {"partitions[0]": {**BLOCK, "placement": "cluster"}},
        "partitions[0].placement",
        "capacity-block.placement",
    ),
    (
        "aws",
        {"partitions[0]": {**BLOCK, "aws": {"capacity_block": True, "placement_group": "lab"}}},
        "partitions[0].aws.placement_group",
        "capacity-block.placement",
    ),
    (
        "aws",
        {"partitions[0]": {**BLOCK, "instance_type": "m5.xlarge"}},
        "partitions[0].aws.capacity_block",
        "capacity-block.no-accelerator",
    ),
    (
        "aws",
        {"partitions[0]": {**CLOSE, "placement": "none"}},
        "partitions[0].placement",
        "placement-group.placement-none",
    ),
    (
        "aws",
        {"partitions[0]": {**CLOSE, "aws": {"placement_group": "pg-0123456789abcdef0"}}},
        "partitions[0].aws.placement_group",
        "placement-group.id",
    ),
    (
        "aws",
        {"partitions[0]": {**CLOSE, "zones": ["us-east-1a", "us-east-1b"]}},
        "partitions[0].aws.placement_group",
        "placement.several-zones",
    ),
    (
        "aws",
        {"partitions[0]": {**CLOSE, "instance_type": "t3.medium"}},
        "partitions[0].aws.placement_group",
        "placement.unsupported",
    ),
    ("gcp", {"partitions[0].aws": {"efa": True}}, "partitions[0].aws", "provider.other-settings"),
    ("aws", {"partitions[0].gcp": {"secure_boot": True}}, "partitions[0].gcp", "provider.other-settings"),
    ("aws", {"partitions[0].gcp": {"disk_type": "pd-ssd"}}, "partitions[0].gcp", "provider.other-settings"),
    ("gcp", {"partitions[0].gcp": {"disk_type": "gp3"}}, "partitions[0].gcp.disk_type", "value.choice"),
    (
        "gcp",
        {"partitions[1].instance_type": "g2-standard-4", "partitions[1].gcp": {"disk_type": "pd-standard"}},
        "partitions[1].gcp.disk_type",
        "partition.disk-type",
    ),
    (
        "gcp",
        {"partitions[0].gcp": {"min_cpu_platform": "Intel Ice Lake"}},
        "partitions[0].gcp.min_cpu_platform",
        "partition.cpu-platform",
    ),
    (
        "gcp",
        {
            "partitions[1].instance_type": "e2-standard-4",
            "partitions[1].gcp": {"min_cpu_platform": "AMD Rome"},
        },
        "partitions[1].gcp.min_cpu_platform",
        "partition.no-cpu-platform",
    ),
    (
        "gcp",
        {"partitions[0].gcp": {"min_cpu_platform": "skylake"}},
        "partitions[0].gcp.min_cpu_platform",
        "value.form",
    ),
    ("aws", {"partitions[0].instance_type": "p3"}, "partitions[0].instance_type", "instance-type.family"),
    (
        "aws",
        {"partitions[0].instance_type": "p3 family"},
        "partitions[0].instance_type",
        "instance-type.family",
    ),
    (
        "aws",
        {"partitions[0].instance_type": "m5.*"},
        "partitions[0].instance_type",
        "instance-type.family",
    ),
    ("gcp", {"partitions[0].instance_type": "n1"}, "partitions[0].instance_type", "instance-type.family"),
    ("aws", {"partitions[0].local": {"price_hour": 1.0}}, "partitions[0].local", "provider.other-settings"),
    # machines
    (
        "aws",
        {"partitions[0].instance_type": "p3.2xlarge"},
        "partitions[0].instance_type",
        "instance-type.retired",
    ),
    ("aws", {"controller.instance_type": "p3.16xlarge"}, "controller.instance_type", "instance-type.retired"),
    (
        "aws",
        {"partitions[0].instance_type": "g6f.large"},
        "partitions[0].instance_type",
        "instance-type.unusable",
    ),
    (
        "aws",
        {"partitions[0].instance_type": "mac-m4.metal"},
        "partitions[0].instance_type",
        "instance-type.arm",
    ),
    (
        "gcp",
        {"partitions[1].instance_type": "n4-standard-2"},
        "partitions[1].instance_type",
        "instance-type.unusable",
    ),
    (
        "aws",
        {
            "aws:region": "us-east-2",
            "partitions": [{"name": "h", "instance_type": "hpc7a.96xlarge", "spot": True}],
        },
        "partitions[0].spot",
        "partition.no-spot",
    ),
    (
        "aws",
        {"partitions[0].instance_type": "m5.xlarg"},
        "partitions[0].instance_type",
        "instance-type.unknown",
    ),
    (
        "aws",
        {"login": {"count": 1, "instance_type": "zx9"}},
        "login.instance_type",
        "instance-type.unknown",
    ),
    (
        "aws",
        {"partitions[0].instance_type": "n1-standard-2"},
        "partitions[0].instance_type",
        "instance-type.other-provider",
    ),
    (
        "aws",
        {"aws:region": "eu-central-1"},
        "partitions[1].instance_type",
        "instance-type.other-region",
    ),
    (
        "aws",
        {
            "partitions[0].instance_type": "m7g.large",
            "instance_types": {"m7g.large": {"vcpus": 2, "memory_mib": 8192}},
        },
        "partitions[0].instance_type",
        "instance-type.arm",
    ),
    (
        "gcp",
        {
            "controller.instance_type": "t2a-standard-4",
            "instance_types": {"t2a-standard-4": {"vcpus": 4, "memory_mib": 16384}},
        },
        "controller.instance_type",
        "instance-type.arm",
    ),
    (
        "aws",
        {"instance_types": {"new.large": {"vcpus": 2}}},
        'instance_types["new.large"]',
        "instance-type.incomplete",
    ),
    # accelerators
    (
        "aws",
        {"partitions[0].accelerator": {"type": "v100"}},
        "partitions[0].accelerator",
        "accelerator.none",
    ),
    (
        "aws",
        {"partitions[1].accelerator": {"type": "a100"}},
        "partitions[1].accelerator.type",
        "accelerator.type",
    ),
    (
        "aws",
        {"partitions[1].accelerator": {"type": "v100", "count": 9}},
        "partitions[1].accelerator.count",
        "accelerator.count",
    ),
    (
        "gcp",
        {"partitions[1].accelerator": {"type": "v100"}},
        "partitions[1].accelerator",
        "accelerator.attached-machine",
    ),
    (
        "gcp",
        {"partitions[0].accelerator.type": "a100"},
        "partitions[0].accelerator.type",
        "accelerator.attached-type",
    ),
    (
        "gcp",
        {"partitions[0].accelerator.count": 3},
        "partitions[0].accelerator.count",
        "accelerator.attached-count",
    ),
    (
        "gcp",
        {"partitions[0].accelerator": {"type": "t4", "count": 8}},
        "partitions[0].accelerator.count",
        "accelerator.attached-count",
    ),
    (
        "gcp",
        {"partitions[0].instance_type": "n1-standard-16"},
        "partitions[0].accelerator.count",
        "accelerator.attached-vcpus",
    ),
    (
        "local",
        {"partitions[0].accelerator": {"type": "v100", "count": 9}},
        "partitions[0].accelerator.count",
        "accelerator.simulated-count",
    ),
    # EFA, placement, zones
    (
        "aws",
        {"partitions[0].aws.efa": True},
        "partitions[0].aws.efa",
        "partition.no-efa",
    ),
    (
        "aws",
        {"partitions[0].instance_type": "g4dn.xlarge", "partitions[0].aws.efa": True},
        "partitions[0].aws.efa",
        "partition.no-efa",
    ),
    ("gcp", {"partitions[0].placement": "cluster"}, "partitions[0].placement", "placement.unsupported"),
    (
        "aws",
        {"partitions[0].instance_type": "t3.medium", "partitions[0].placement": "cluster"},
        "partitions[0].placement",
        "placement.unsupported",
    ),
    (
        "gcp",
        {"partitions[1].placement": "cluster", "partitions[1].nodes.max": 151},
        "partitions[1].placement",
        "placement.too-many-nodes",
    ),
    (
        "aws",
        {"partitions[0].placement": "cluster", "partitions[0].zones": ["us-east-1a", "us-east-1b"]},
        "partitions[0].placement",
        "placement.several-zones",
    ),
    (
        "aws",
        {"partitions[1].aws.efa": True, "network.zones": ["us-east-1a", "us-east-1b"]},
        "partitions[1].aws.efa",
        "placement.several-zones",
    ),
    ("aws", {"network.zones": ["eu-west-1a"]}, "network.zones[0]", "zone.region"),
    ("gcp", {"partitions[0].zones": ["europe-west4a"]}, "partitions[0].zones[0]", "zone.region"),
    ("local", {"partitions[0].zones": ["a", "B"]}, "partitions[0].zones[1]", "zone.form"),
    ("local", {"partitions[0].zones": ["a", "b", "a"]}, "partitions[0].zones[2]", "zone.twice"),
    # spot and reservations
    (
        "aws",
        {"partitions[0].spot": True, "partitions[0].reservation": "cr-0123456789abcdef0"},
        "partitions[0].reservation",
        "reservation.spot",
    ),
    (
        "aws",
        {"partitions[0].reservation": "PLACEHOLDER"},
        "partitions[0].reservation",
        "reservation.aws-form",
    ),
    (
        "aws",
        {"partitions[0].reservation": "arn:aws:resource-groups:eu-west-1:123456789012:group/ours"},
        "partitions[0].reservation",
        "reservation.region",
    ),
    (
        "aws",
        {"partitions[0].reservation": 7},
        "partitions[0].reservation",
        "reservation.type",
    ),
    ("aws", {"partitions[0].reservation": []}, "partitions[0].reservation", "reservation.type"),
    (
        "aws",
        {"partitions[0].reservation": ["cr-0123456789", 7]},
        "partitions[0].reservation",
        "reservation.type",
    ),
    (
        "aws",
        {"partitions[0].reservation": ["cr-0123456789", "cr_1"]},
        "partitions[0].reservation[1]",
        "reservation.aws-form",
    ),
    (
        "aws",
        {"partitions[0].reservation": ["cr-0123456789", GROUP]},
        "partitions[0].reservation[1]",
        "reservation.aws-form",
    ),
    (
        "aws",
        {"partitions[0].reservation": ["cr-0123456789", SHARED_CR.replace("cr-9876543210", "cr-0123456789")]},
        "partitions[0].reservation[1]",
        "reservation.twice",
    ),
    (
        "aws",
        {"partitions[0].reservation": ["cr-0123456789", SHARED_CR.replace("us-east-1", "eu-west-1")]},
        "partitions[0].reservation[1]",
        "reservation.region",
    ),
    (
        "aws",
        {"partitions[0].reservation": ["cr-0123456789", SHARED_CR], "partitions[0].spot": True},
        "partitions[0].reservation",
        "reservation.spot",
    ),
    (
        "aws",
        {"partitions[0]": {**BLOCK, "reservation": ["cr-0123456789", "cr-9876543210"]}},
        "partitions[0].reservation",
        "capacity-block.not-one",
    ),
    (
        "gcp",
        {"partitions[0].reservation": ["a", "b"]},
        "partitions[0].reservation",
        "reservation.one-on-gcp",
    ),
    (
        "gcp",
        {"partitions[0].reservation": "projects/lab/zones/z/reservations/a"},
        "partitions[0].reservation",
        "reservation.gcp-form",
    ),
    ("gcp", {"partitions[0].reservation": "cr_1"}, "partitions[0].reservation", "reservation.gcp-form"),
    (
        "local",
        {"partitions[0].reservation": "cr-0123456789"},
        "partitions[0].reservation",
        "reservation.local",
    ),
]


@each_refusal(REFUSED)
def test_refused(stack: str, changes: dict[str, Any], path: str, code: str) -> None:
    check_refusal(stack, changes, path, code)


def test_the_sentences(pytestconfig: pytest.Config) -> None:
    check_sentences(pytestconfig, __file__, REFUSED)
