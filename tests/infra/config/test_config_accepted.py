"""Combinations that the checks must accept, and messages that need more than one comparison."""

from __future__ import annotations

from typing import Any

import pytest

from infra.config.rules.local import MOST_LOCAL_PORTS
from operations.local import run_directory
from tests.support.stack_parts import (
    BLOCK,
    CLOSE,
    ENROOT_DEB,
    GROUP,
    KEY,
    SHARED_CR,
    UNMAINTAINED,
    VPC,
    ours,
    pyxis,
)
from tests.support.stack_values import mistakes, values

ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    (
        "aws",
        {
            "access": {
                "mode": "ssh",
                "ssh_cidrs": ["0.0.0.0/0"],
                "allow_ssh_from_anywhere": True,
                "key": "k",
            }
        },
    ),
    ("aws", {"access": {"mode": "ssh", "ssh_cidrs": ["203.0.113.7/32"]}, "image.id": "ami-01234567"}),
    ("aws", {"aws:region": "ca-west-1", "partitions": [{"name": "cpu", "instance_type": "m5.xlarge"}]}),
    (
        "aws",
        {
            "access": {"mode": "ssh", "ssh_cidrs": ["203.0.113.7/32", "2001:db8::/32"], "key": "my key"},
            "network.aws": {
                "vpc": "vpc-0123456789",
                "public_subnet": "subnet-0123456789",
                "private_subnets": ["subnet-1234567890"],
            },
        },
    ),
    ("aws", {"partitions[0].reservation": "cr-12356790abcd"}),
    # The last of ten nodes is number 9: its machine's name has 63 characters.
    ("local", {"name": "c" * 40, "partitions[0].name": "p" * 20, "partitions[0].nodes.max": 10}),
    ("aws", {"partitions[0].reservation": GROUP}),
    ("aws", {"partitions[0].reservation": SHARED_CR}),
    ("aws", {"partitions[0].reservation": ["cr-0123456789", SHARED_CR]}),
    (
        "aws",
        {"partitions[0]": {**CLOSE, "placement": "cluster", "reservation": ["cr-0123456789", SHARED_CR]}},
    ),
    ("gcp", {"partitions[0].reservation": "projects/other-lab/reservations/v100s"}),
    ("aws", {"partitions[1].aws.efa": True, "partitions[1].placement": "cluster"}),
    ("aws", {"partitions[1].aws.efa": True, "network.zones": ["us-east-1c"]}),
    ("aws", {"partitions[1].accelerator": {"type": "v100", "count": 1}}),
    ("aws", {"@partition": "gpu", "@gpus_per_node": 8}),
    ("aws", {"partitions[1].image": {"id": "ami-01234567"}}),
    ("aws", {"partitions[1].instance_type": "g4dn.xlarge"}),
    ("aws", {"network.aws": VPC}),
    ("aws", {"network.peers": ["192.168.0.0/16", "fd00::/8"]}),
    ("aws", {"network.cidr": "172.20.0.0/16", "network.public_cidr": "172.20.0.0/20"}),
    ("aws", {"storage.scratch.size_gib": 2400}),
    ("aws", {"storage.scratch": {"kind": "fsx_lustre", "deployment": "SCRATCH_1", "size_gib": 3600}}),
    ("aws", {"storage.home": {"kind": "efs"}, "storage.local_scratch": {}}),
    (
        "aws",
        {
            "instance_types": {"p3.2xlarge": {"vcpus": 8, "memory_mib": 62464}},
            "controller.instance_type": "p3.2xlarge",
        },
    ),
    ("aws", {"instance_types": {"m5.xlarge": {"efa": 1}}, "partitions[0].aws.efa": True}),
    ("aws", {"hooks[0]": {"role": "compute", "source": "s3://b/x.sh", "args": ["a"], "timeout": 60}}),
    ("aws", {"@enabled": False, "@nodes": 100}),
    ("aws", {"azure:location": "x", "pulumi:tags": {"a": "b"}, "aws:profile": "lab"}),
    ("gcp", {"partitions[0].accelerator": {"type": "nvidia-tesla-v100", "count": 4}}),
    ("gcp", {"partitions[1].placement": "cluster"}),
    ("gcp", {"gcp:region": "europe-west4", "gcp:project": "example.com:my-lab"}),
    ("gcp", {"network.gcp": {"network": "lab", "subnetwork": "nodes"}}),
    ("gcp", {"storage.scratch": {"kind": "filestore", "tier": "ZONAL", "size_gib": 100}}),
    ("gcp", {"storage.local_scratch": {}}),
    # A file system's name is no disk's.
    (
        "gcp",
        {"storage.scratch": {"kind": "filestore", "path": "/controller", "size_gib": 1024}},
    ),
    ("gcp", {"storage.scratch": {"kind": "nfs", "path": "/debug-x"}}),
    # The names of these differ: the path is in a digest, or one is a disk and the other is not.
    (
        "gcp",
        {"storage.home": {"kind": "nfs", "path": "/A/b"}, "storage.apps": {"kind": "nfs", "path": "/A-b"}},
    ),
    (
        "aws",
        {"storage.home": {"kind": "nfs", "path": "/a/b"}, "storage.apps": {"kind": "efs", "path": "/a-b"}},
    ),
    ("gcp", {"hooks[0]": {"role": "all", "source": "gs://my_bucket.example.com/it's/a \\ b.sh"}}),
    ("gcp", {"image.id": "projects/lab/global/images/slurm-1"}),
    ("gcp", {"image.id": "projects/lab/global/images/family/slurm"}),
    ("gcp", {"partitions[0].reservation": "v100s", "login.count": 2}),
    ("gcp", {"partitions[1].reservation": "close", "partitions[1].gcp": {"placement_policy": "its"}}),
    ("aws", {"users": [{"name": "ada", "id": 2001, "groups": ["docker", "lab:3001"], "sudo": True}]}),
    ("aws", {"users": [{"name": "ada", "id": 200001}, {"name": "ada.from.the.directory"}]}),
    ("local", {"local": {"isolation": "container"}, "users": [{"name": "ada", "id": 2001}]}),
    ("gcp", {"users": [{"name": "ada_example_com"}]}),
    (
        "aws",
        {
            "access.directory": {
                "domain": "corp.example.com",
                "uris": ["ldaps://a.example.com", "ldaps://10.0.0.9:636"],
                "search_base": "dc=corp,dc=example,dc=com",
                "ldap_schema": "ad",
                "bind_dn": "CN=Reader, DC=corp",
                "password_secret": "arn:aws:secretsmanager:eu-west-1:123456789012:secret:reader-AbCdEf",
                "access_filter": "(memberOf=CN=hpc,DC=corp)",
                "ca_certificate": "ca.pem",
            },
        },
    ),
    ("gcp", {"access.directory": {"domain": "a", "uris": ["ldaps://a"], "search_base": "dc=a"}}),
    ("local", {"users": [{"name": "ada"}]}),
    ("local", {"partitions[0].placement": "cluster", "partitions[0].spot": True}),
    ("local", {"local": {"isolation": "process", "boot_delay": 5, "quota_nodes": 4, "price_hour": 1}}),
    (
        "local",
        {
            "partitions[0].zones": ["a", "b"],
            "partitions[0].nodes.min": 3,
            "local": {"capacity": {"debug": 3, "debug/a": 0}, "api_error": None},
        },
    ),
    ("gcp", {"partitions[0].gcp": {"disk_type": "pd-standard", "min_cpu_platform": "Intel Skylake"}}),
    ("gcp", {"partitions[1].gcp": {"disk_type": "pd-ssd", "min_cpu_platform": "Intel Cascade Lake"}}),
    (
        "batch",
        {
            "batch.container.command": ["train", "--lr=Ref::lr", "Ref::manifest"],
            "batch.parameters": {"lr": 0.1},
            "batch.start_on_manifest": True,
        },
    ),
    ("local", {"partitions[0].accelerator": {"type": "v100", "count": 8}, "partitions[0].time_limit": "1-0"}),
    ("local", {"hooks[0]": {"role": "all", "source": "hooks/x.sh"}, "budget.max_usd": 5}),
    ("aws", UNMAINTAINED | {"containers": {"runtime": "oci"}}),
    ("aws", UNMAINTAINED | {"containers": pyxis(ENROOT_DEB, images="/fsx/enroot")}),
    ("gcp", UNMAINTAINED | {"containers": pyxis("gs://bucket/enroot.deb")}),
    ("aws", UNMAINTAINED | {"containers": {"runtime": "pyxis"}, "image": {"id": "ami-0123456789abcdef0"}}),
    ("gcp", {"slurm.packages": pyxis("gs://bucket/slurmd.deb")["packages"]}),
    ("gcp", {"slurm.source": "debian-13", "image.bake": True, "image.revision": "2026-11-26"}),
    ("local", {"slurm.source": "debian-13", "local.isolation": "container"}),
    ("local", {"slurm.prolog": {"source": "site/a.sh", "timeout": 5}, "health.enabled": False}),
    ("batch", ours()),
    ("batch", ours(SLURM_STACKS_LAUNCH="mpi", MPI_GPUS=4) | {"batch.container.command": ["train"]}),
    ("local", {"containers": {"runtime": "oci"}, "local.isolation": "container"}),
    ("gcp", {"hooks[0]": {"role": "login", "script": "#!/usr/bin/env python3\nprint(1)\n", "args": ["a"]}}),
    ("aws", {"partitions[0].instance_type": "t8i.medium", "budget.max_hours": 100}),
    (
        "aws",
        {
            "partitions[0].instance_type": "t8i.medium",
            "budget": {"max_usd": 100, "running_jobs": "cancel"},
            "instance_types": {"t8i.medium": {"price_hour": 30}},
        },
    ),
    (
        "aws",
        {
            "partitions[0]": {"name": "s", "instance_type": "t8i.medium", "nodes": {"min": 2, "max": 2}},
            "budget.max_usd": 9,
        },
    ),
    ("aws", {"partitions[0]": BLOCK, "aws": {"kms_key": KEY, "nat": True}}),
    ("aws", {"partitions[0]": CLOSE, "aws": {"nat": False}}),
    ("aws", {"partitions[0]": {**CLOSE, "placement": "cluster", "reservation": "cr-0123456789"}}),
    ("batch", {"@enabled": False, "batch.container.environment": {"MPI_GPUS": 32}}),
    ("batch", {"batch.container.gpus": 1, "batch.container.environment": {"MPI_GPUS": "4"}}),
    ("local", {"login.count": 1, "local.isolation": "container"}),
    ("local", {"local.suite": "trixie", "local.isolation": "container"}),
]


@pytest.mark.parametrize(("stack", "changes"), ACCEPTED, ids=range(len(ACCEPTED)))
def test_accepted(stack: str, changes: dict[str, Any]) -> None:
    assert mistakes(values(stack, changes)) == []


def test_all_ports_that_are_allowed_can_be_had() -> None:
    assert MOST_LOCAL_PORTS < run_directory.LAST_PORT - run_directory.FIRST_PORT
