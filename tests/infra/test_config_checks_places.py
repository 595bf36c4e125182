"""Impossible images, places, access, networks and storage: one mistake each, at its path."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.stack_parts import (
    VPC,
    check_refusal,
)
from tests.support.stack_values import REMOVE

# stack, changes, path of the one mistake, words that its message must have
REFUSED: list[tuple[str, dict[str, Any], str, list[str]]] = [
    # images
    (
        "aws",
        {
            "image.bake": True,
            "controller.image": {"id": "ami-01234567"},
            "partitions[0].image": {"id": "ami-01234567"},
            "partitions[1].image": {"id": "ami-01234567"},
        },
        "image.bake",
        ["every machine has an image of its own", "remove bake"],
    ),
    ("aws", {"image": {"id": "ami-01234567", "source": "ubuntu-24.04"}}, "image.source", ["not both"]),
    ("aws", {"image.id": "my-image"}, "image.id", ["ami-"]),
    ("gcp", {"controller.image": {"id": "ami-01234567!"}}, "controller.image.id", ["global/images"]),
    ("gcp", {"image.id": "ami-0123456789abcdef0"}, "image.id", ["global/images"]),
    ("local", {"image.bake": True}, "image.bake", ["boot from no image"]),
    ("local", {"partitions[0].image.id": "ami-01234567"}, "partitions[0].image.id", ["boot from no image"]),
    ("aws", {"partitions[0].image": {"id": "x"}}, "partitions[0].image.id", ["ami-"]),
    # place
    ("aws", {"aws:region": REMOVE}, "aws:region", ["missing", "eu-central-1"]),
    ("aws", {"aws:region": "us-east-1a"}, "aws:region", ["us-east-1a is a zone of us-east-1"]),
    ("aws", {"aws:region": "Frankfurt"}, "aws:region", ["an AWS region"]),
    ("aws", {"aws:region": "eu-cental-1"}, "aws:region", ["did you mean eu-central-1?"]),
    ("aws", {"aws:region": "eu-moon-1"}, "aws:region", ["an AWS region"]),
    ("aws", {"aws:region": 1}, "aws:region", ["text"]),
    ("gcp", {"gcp:zone": REMOVE}, "gcp:zone", ["missing", "europe-west4-a"]),
    ("gcp", {"gcp:project": REMOVE}, "gcp:project", ["missing", "gcp:project: my-project"]),
    ("gcp", {"gcp:project": "My Project"}, "gcp:project", ["not its name"]),
    ("gcp", {"gcp:zone": "europe-west4"}, "gcp:zone", ["like europe-west4-a"]),
    ("gcp", {"gcp:region": "us-east1"}, "gcp:region", ["europe-west4"]),
    # access
    ("aws", {"access.mode": "iap"}, "access.mode", ["ssm or ssh on aws"]),
    ("gcp", {"access.mode": "ssm"}, "access.mode", ["iap or ssh on gcp"]),
    ("aws", {"access": {"mode": "ssh", "key": "mine"}}, "access.ssh_cidrs", ["may log in", "mode: ssm"]),
    (
        "aws",
        {"access": {"mode": "ssh", "ssh_cidrs": ["203.0.113.0/24"]}},
        "access.key",
        ["EC2 key pair", "nobody can log in", "mode: ssm"],
    ),
    ("aws", {"access.ssh_cidrs": ["203.0.113.0/24"]}, "access.ssh_cidrs", ["with mode: ssh only"]),
    (
        "aws",
        {"access": {"mode": "ssh", "ssh_cidrs": ["203.0.113.0/24", "0.0.0.0/0"], "key": "mine"}},
        "access.ssh_cidrs[1]",
        ["say so twice", "allow_ssh_from_anywhere"],
    ),
    (
        "aws",
        {"access": {"mode": "ssh", "ssh_cidrs": ["::/0"], "key": "mine"}},
        "access.ssh_cidrs[0]",
        ["say so twice"],
    ),
    (
        "aws",
        {"access": {"mode": "ssh", "ssh_cidrs": ["128.0.0.0/1"], "key": "mine"}},
        "access.ssh_cidrs[0]",
        ["twice"],
    ),
    (
        "gcp",
        {"access": {"mode": "ssh", "ssh_cidrs": ["203.0.113.0/24"], "key": "mine"}},
        "access.key",
        ["OS Login"],
    ),
    ("local", {"access.mode": "ssh"}, "access.mode", ["this machine"]),
    # the metadata address
    (
        "aws",
        {"login.open_metadata": True},
        "login.open_metadata",
        ["log in on the controller", "read the munge key", "write login: {count: 1}"],
    ),
    ("gcp", {"login": {"count": 0, "open_metadata": True}}, "login.open_metadata", ["on the controller"]),
    (
        "local",
        {"partitions[0].open_metadata": True},
        "partitions[0].open_metadata",
        ["no metadata address", "remove it"],
    ),
    # network
    (
        "gcp",
        {"network.cidr": "10.0.0.0/24", "partitions[0].nodes.max": 251},
        "network.cidr",
        ["256 addresses", "controller and login (1) and debug (251) and new (4)", "it has 252", "/23 has"],
    ),
    ("aws", {"network.cidr": "8.8.0.0/16"}, "network.cidr", ["private IPv4"]),
    ("aws", {"network.cidr": "0.0.0.0/16"}, "network.cidr", ["0.0.0.0/8 is nobody's"]),
    ("gcp", {"network.cidr": "127.0.0.0/16"}, "network.cidr", ["127.0.0.0/8 is each machine's own loopback"]),
    ("gcp", {"network.cidr": "169.254.0.0/16"}, "network.cidr", ["the metadata server answers there"]),
    ("gcp", {"network.cidr": "255.255.255.0/24"}, "network.cidr", ["255.255.255.255/32 is everybody's"]),
    ("aws", {"network.cidr": "10.0.0.0/8"}, "network.cidr", ["/16 to /24"]),
    ("aws", {"network.public_cidr": "10.1.0.0/24"}, "network.public_cidr", ["10.0.0.0/16"]),
    (
        "aws",
        {"network.public_cidr": "10.0.0.0/20", "network.private_cidr": "10.0.8.0/21"},
        "network.private_cidr",
        ["apart from", "10.0.0.0/20"],
    ),
    ("aws", {"network.public_cidr": "10.0.128.0/24"}, "network.public_cidr", ["10.0.128.0/17"]),
    ("gcp", {"network.peers": ["192.168.0.0/16", "10.0.3.0/24"]}, "network.peers[1]", ["10.0.0.0/16"]),
    ("aws", {"network": {"aws": VPC, "cidr": "10.5.0.0/16"}}, "network.cidr", ["existing network"]),
    (
        "aws",
        {"network.aws": {"vpc": "vpc-12345678", **VPC, "public_subnet": None}},
        "network.aws.public_subnet",
        ["all of vpc"],
    ),
    ("gcp", {"network.gcp": {"network": "lab"}}, "network.gcp.subnetwork", ["both of"]),
    (
        "gcp",
        {"network.gcp": {"network": "projects/host/global/networks/lab", "subnetwork": "nodes"}},
        "network.gcp.network",
        ["name of a network in gcp:project", "write lab"],
    ),
    (
        "gcp",
        {"network.gcp": {"network": "lab", "subnetwork": "Nodes"}},
        "network.gcp.subnetwork",
        ["small letters"],
    ),
    ("gcp", {"network.private_cidr": "10.0.4.0/24"}, "network.private_cidr", ["one subnetwork has all"]),
    (
        "gcp",
        {"access": {"mode": "ssh", "ssh_cidrs": ["203.0.113.0/24", "2001:db8::/32"]}},
        "access.ssh_cidrs[1]",
        ["IPv4 addresses only"],
    ),
    (
        "aws",
        {"access": {"mode": "ssh", "ssh_cidrs": ["2001:db8::/32"], "key": "k"}},
        "access.ssh_cidrs[0]",
        ["IPv4 addresses only", "from which you log in"],
    ),
    ("gcp", {"name": "my-google-lab"}, "name", ["'google'", "buckets"]),
    ("gcp", {"name": "goog-lab"}, "name", ["'goog'"]),
    ("gcp", {"partitions[0].name": "login-gpu", "@partition": "login-gpu"}, "partitions[0].name", ["login-"]),
    ("aws", {"partitions[0].name": "image", "@partition": "image"}, "partitions[0].name", ["image-"]),
    ("aws", {"partitions[0].name": "image-compute"}, "partitions[0].name", ["begin with image-"]),
    ("gcp", {"partitions[0].name": "image", "@partition": "image"}, "partitions[0].name", ["image-"]),
    (
        "gcp",
        {"partitions[0].reservation": "v100s", "network.zones": ["europe-west4-a", "europe-west4-b"]},
        "partitions[0].reservation",
        ["one zone only", "europe-west4-a, europe-west4-b"],
    ),
    ("gcp", {"network.aws": VPC}, "network.aws", ["settings of gcp"]),
    ("local", {"network.cidr": "10.0.0.0/16"}, "network.cidr", ["loopback"]),
    # storage
    ("local", {"storage.home": {"kind": "nfs"}}, "storage.home", ["own directories"]),
    ("gcp", {"storage.home": {"kind": "efs"}}, "storage.home.kind", ["nfs, filestore on gcp"]),
    ("aws", {"storage.home": {"kind": "filestore"}}, "storage.home.kind", ["nfs, efs, fsx_lustre on aws"]),
    ("aws", {"storage.home": {"kind": "efs", "size_gib": 100}}, "storage.home.size_gib", ["no settings"]),
    ("aws", {"storage.apps": {"deployment": "SCRATCH_2"}}, "storage.apps.deployment", ["size_gib"]),
    ("aws", {"storage.home.size_gib": 20000}, "storage.home.size_gib", ["at most 16384"]),
    ("aws", {"storage.scratch.size_gib": 3600}, "storage.scratch.size_gib", ["2400", "take 2400 or 4800"]),
    ("aws", {"storage.scratch.size_gib": 1000}, "storage.scratch.size_gib", ["take 1200"]),
    ("aws", {"storage.scratch.size_gib": REMOVE}, "storage.scratch.size_gib", ["missing", "1200"]),
    (
        "aws",
        {"storage.scratch": {"kind": "fsx_lustre", "deployment": "SCRATCH_1", "size_gib": 4800}},
        "storage.scratch.size_gib",
        ["multiples of 3600", "3600 or 7200"],
    ),
    *(
        (
            "aws",
            {
                "storage.scratch": {
                    **{"kind": "fsx_lustre", "deployment": "SCRATCH_1", "size_gib": 3600},
                    **{"s3_export": "s3://data/x", **linked},
                }
            },
            "storage.scratch.s3_export",
            ["the bucket of s3_import", "SCRATCH_2"],
        )
        for linked in ({}, {"s3_import": "s3://other/x"})
    ),
    ("aws", {"storage.scratch.throughput": 250}, "storage.scratch.throughput", ["no throughput"]),
    ("aws", {"storage.scratch.deployment": "PERSISTENT_2"}, "storage.scratch.throughput", ["125, 250"]),
    (
        "aws",
        {"storage.scratch.deployment": "PERSISTENT_2", "storage.scratch.throughput": 200},
        "storage.scratch.throughput",
        ["125, 250, 500, 1000"],
    ),
    ("aws", {"storage.scratch.storage_type": "HDD"}, "storage.scratch.storage_type", ["PERSISTENT_1"]),
    (
        "aws",
        {
            "storage.scratch": {
                "kind": "fsx_lustre",
                "deployment": "PERSISTENT_1",
                "storage_type": "HDD",
                "throughput": 40,
                "size_gib": 2400,
            }
        },
        "storage.scratch.size_gib",
        ["multiples of 1800"],
    ),
    ("gcp", {"storage.scratch": {"kind": "filestore"}}, "storage.scratch.size_gib", ["1024", "BASIC_HDD"]),
    (
        "gcp",
        {"storage.scratch": {"kind": "filestore", "tier": "ZONAL", "size_gib": 11000}},
        "storage.scratch.size_gib",
        ["100 to 10239", "10240 to 102400 in steps of 2560", "take 12800"],
    ),
    (
        "gcp",
        {"storage.scratch": {"kind": "filestore", "size_gib": 70000}},
        "storage.scratch.size_gib",
        ["1024 to 65433 GiB with BASIC_HDD", "take 65433"],
    ),
    ("gcp", {"storage.home": {"size_gib": 5}}, "storage.home.size_gib", ["at least 10 GiB", "write 10"]),
    (
        "gcp",
        {"storage.scratch": {"kind": "filestore", "tier": "BASIC_SSD", "size_gib": 1024}},
        "storage.scratch.size_gib",
        ["2560"],
    ),
    (
        "gcp",
        {
            "partitions[0].instance_type": "e2-standard-2",
            "partitions[0].accelerator": None,
            "partitions[1].instance_type": "e2-standard-4",
            "storage.local_scratch": {},
        },
        "storage.local_scratch",
        ["NVMe", "n1-standard-1"],
    ),
    (
        "aws",
        {"partitions[1].instance_type": "m5.large", "storage.local_scratch": {"kind": "nvme"}},
        "storage.local_scratch",
        ["m5d.xlarge", " others"],
    ),
    ("aws", {"storage.apps.path": "/home"}, "storage.apps.path", ["home is mounted there"]),
    ("aws", {"storage.scratch.path": "/apps"}, "storage.scratch.path", ["apps is mounted there"]),
    ("aws", {"storage.scratch.path": "/home/data"}, "storage.scratch.path", ["apart from home's"]),
    (
        "aws",
        {"storage.home.path": "/data/home", "storage.scratch.path": "/data"},
        "storage.scratch.path",
        ["apart from home's, /data/home"],
    ),
    ("aws", {"storage.scratch.path": "/usr/local"}, "storage.scratch.path", ["not the system's"]),
    (
        "gcp",
        {"partitions[1].placement": "cluster", "partitions[1].reservation": "close"},
        "partitions[1].placement",
        ["none with a reservation", "a policy that close was made with", "placement_policy"],
    ),
    (
        "gcp",
        {"partitions[1].gcp": {"placement_policy": "mine"}},
        "partitions[1].gcp.placement_policy",
        ["nothing without a reservation", "placement: cluster"],
    ),
    # A disk of Google's has the name of its directory, and a machine's that of the machine.
    (
        "gcp",
        {"storage.scratch": {"kind": "nfs", "path": "/controller"}},
        "storage.scratch.path",
        ["not spelled like a machine", "-controller, and so is that of the machine controller"],
    ),
    (
        "gcp",
        {"storage.scratch": {"kind": "nfs", "path": "/login-0"}},
        "storage.scratch.path",
        ["-login-0, and so is that of the machine login-0"],
    ),
    (
        "gcp",
        {"storage.scratch": {"kind": "nfs", "path": "/image-cpu"}},
        "storage.scratch.path",
        ["that of the machine image-cpu"],
    ),
    (
        "gcp",
        {"storage.apps": {"kind": "nfs", "path": "/debug/0"}},
        "storage.apps.path",
        ["-debug-0, and so is that of the machine debug-0"],
    ),
    (
        "gcp",
        {"storage.home": {"kind": "nfs", "path": "/a/b"}, "storage.apps": {"kind": "nfs", "path": "/a-b"}},
        "storage.apps.path",
        ["not spelled like /a/b", "both disks would be called", "-a-b"],
    ),
    (
        "gcp",
        {
            "storage.home": {"kind": "filestore", "size_gib": 1024, "path": "/a/b"},
            "storage.scratch": {"kind": "filestore", "size_gib": 1024, "path": "/a-b"},
        },
        "storage.scratch.path",
        ["not spelled like /a/b", "both file systems would be called lab-a-b"],
    ),
    (
        "aws",
        {"storage.home": {"kind": "nfs", "path": "/a/b"}, "storage.apps": {"kind": "nfs", "path": "/a-b"}},
        "storage.apps.path",
        ["not spelled like /a/b", "both disks would be called amazon-a-b"],
    ),
    (
        "aws",
        {"storage.home": {"kind": "efs", "path": "/a/b"}, "storage.apps": {"kind": "efs", "path": "/a-b"}},
        "storage.apps.path",
        ["both file systems would be called amazon-a-b"],
    ),
]


@pytest.mark.parametrize(
    ("stack", "changes", "path", "words"),
    REFUSED,
    ids=[f"{stack}-{path}-{i}" for i, (stack, _, path, _) in enumerate(REFUSED)],
)
def test_refused(stack: str, changes: dict[str, Any], path: str, words: list[str]) -> None:
    check_refusal(stack, changes, path, words)
