"""Stacks that together make every kind of resource: some that tests put together, and the shipped ones."""

from __future__ import annotations

from typing import Any

import yaml

from tests.support.stack_parts import VPC
from tests.support.stack_values import BENCHMARK, CLUSTER, filled_in, stack_file, values

GROUP = "sg-0123456789abcdef0"
OVERRIDES = {
    "cpu_options": {"core_count": 2, "threads_per_core": 1},
    "ebs_optimized": True,
    "monitoring": {"enabled": True},
    "placement": {"tenancy": "dedicated"},
    "instance_market_options": {"spot_options": {"max_price": "0.5"}},
    "block_device_mappings": [{"device_name": "/dev/sdb", "ebs": {"volume_size": 100}}],
}
LINKED = {"kind": "fsx_lustre", "size_gib": 4800, "s3_import": "s3://lab/in", "s3_export": "s3://lab/out"}
EDITED: dict[str, tuple[str, dict[str, Any]]] = {
    "everything on AWS": (
        "aws",
        {
            "storage": {
                "scratch": LINKED,
                "home": {"kind": "nfs", "snapshot": True},
                "apps": {"kind": "efs", "keep": True},
            },
            "image": {"bake": True},
            "login": {"count": 1},
            "budget": {"max_usd": 100},
            "partitions[0].placement": "cluster",
            "partitions[1].reservation": ["cr-0123456789", "cr-1234567890"],
        },
    ),
    "an existing VPC": (
        "aws",
        {
            "network.aws": VPC,
            "controller.security_groups": [GROUP],
            "login": {"count": 1, "security_groups": [GROUP]},
            "partitions[0]": {
                "name": "cpu", "instance_type": "m5.xlarge", "spot": True,
                "aws": {"security_groups": [GROUP], "launch_template_overrides": OVERRIDES},
            },
        },
    ),
    "Batch with its own events": (
        "batch",
        {
            "batch.start_on_manifest": True, "batch.file_system": "job", "storage": {"scratch": LINKED},
            "budget": {"max_usd": 100, "running_jobs": "cancel"}, "batch.placement_group": "g",
            "batch.tags": {"job": "resnet"}, "network.aws": VPC, "batch.security_groups": [GROUP],
        },
    ),
    "everything on Google Cloud": (
        "gcp",
        {
            "storage": {
                "scratch": {"kind": "filestore", "path": "/scratch", "tier": "ZONAL", "size_gib": 1024},
                "home": {"kind": "nfs", "keep": True},
            },
            "image": {"bake": True},
            "login": {"count": 1, "network_tags": ["bastion"]},
            "access": {
                "mode": "ssh", "ssh_cidrs": ["203.0.113.0/24"], "users": ["group:lab@example.com"],
            },
            "controller.network_tags": ["head"],
            "partitions[1].placement": "cluster",
            "partitions[1].threads_per_core": 1,
            "partitions[1].gcp": {
                "network_tags": ["no-egress"],
                "instance_template_overrides": {
                    "advanced_machine_features": {"turbo_mode": "ALL_CORE_MAX"},
                    "metadata": {"agent-key": "x"},
                    "network_interfaces": [{"nic_type": "GVNIC"}],
                    "network_performance_config": {"total_egress_bandwidth_tier": "TIER_1"},
                    "scheduling": {"min_node_cpus": 2},
                    "shielded_instance_config": {"enable_vtpm": False},
                },
            },
        },
    ),
}  # fmt: skip
SHIPPED = (
    *("aws-batch", "aws-cpu", "aws-gpu", "aws-p4de", "aws-p4de-containers", "aws-p4de-inference", "aws-trn1"),
    *("gcp-cpu", "gcp-gpu"),
)


def config(name: str) -> dict[str, Any]:
    """The settings of one of these stacks, without a benchmark and without hooks."""
    if name in EDITED:
        return values(*EDITED[name])
    found = yaml.safe_load(filled_in(stack_file(name).read_text()))["config"]
    found = {key: value for key, value in found.items() if key != BENCHMARK}
    found[CLUSTER].pop("hooks", None)
    return dict(found)
