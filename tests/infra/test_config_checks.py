"""Every impossible combination is one mistake, at its path, which says what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from cli.local import site
from infra.config.checks.jobs import MOST_LOCAL_PORTS
from tests.support.stack_values import BENCHMARK, CLUSTER, REMOVE, mistakes, values

EFA = {"instance_type": "m5.xlarge", "aws": {"efa": True}}
GROUP = "arn:aws:resource-groups:us-east-1:123456789012:group/MyCRGroup"
SHARED_CR = "arn:aws:ec2:us-east-1:999999999999:capacity-reservation/cr-9876543210"
KEY = "arn:aws:kms:us-east-1:123456789012:key/12345678-1234-1234-1234-123456789012"
BLOCK: dict[str, Any] = {
    "name": "block", "instance_type": "p4d.24xlarge", "reservation": "cr-0123456789abcdef0",
    "zones": ["us-east-1a"], "aws": {"capacity_block": True},
}  # fmt: skip
CLOSE: dict[str, Any] = {"name": "close", "instance_type": "m5.xlarge", "aws": {"placement_group": "lab p4d"}}
VPC = {"vpc": "vpc-12345678", "public_subnet": "subnet-12345678", "private_subnets": ["subnet-12345679"]}
ENROOT_DEB = "https://github.com/NVIDIA/enroot/releases/download/v4.1.2/enroot_4.1.2-1_amd64.deb"


def pyxis(source: str, sha256: str = "0" * 64, **more: Any) -> dict[str, Any]:
    return {"runtime": "pyxis", "packages": [{"source": source, "sha256": sha256}], **more}


def ours(**variables: Any) -> dict[str, Any]:
    """A Batch job with this project's container. A variable that is `None` is left out."""
    said = {"JOB_DIR": "/data/run", "SCRATCH_DIR": "/scratch"} | variables
    return {
        "batch.container.image": REMOVE,
        "storage.scratch": {"kind": "fsx_lustre", "size_gib": 1200},
        "batch.container.volumes": [{"source": "/scratch"}, {"source": "/fsx", "path": "/data"}],
        "batch.container.environment": {key: value for key, value in said.items() if value is not None},
    }


# stack, changes, path of the one mistake, words that its message must have
REFUSED: list[tuple[str, dict[str, Any], str, list[str]]] = [
    # partitions
    ("local", {"partitions": []}, "partitions", ["at least one partition"]),
    (
        "local",
        {"partitions[1]": {"name": "debug", "instance_type": "local.small"}},
        "partitions[1].name",
        ["rename one"],
    ),
    ("local", {"partitions[0].name": "login"}, "partitions[0].name", ["any name but controller, login"]),
    ("local", {"partitions[0].name": "default"}, "partitions[0].name", ["any name but"]),
    (
        "local",
        {"name": "c" * 40, "partitions[0].name": "p" * 20, "partitions[0].nodes.max": 101},
        "partitions[0].name",
        ["at most 63", "has 65", "by 2"],
    ),
    (
        "local",
        {"name": "c" * 40, "partitions[0].name": "p" * 20, "partitions[0].nodes.max": 11},
        "partitions[0].name",
        [f"{'p' * 20}-10 has 64", "by 1"],
    ),
    ("local", {"partitions[0].nodes.min": 5}, "partitions[0].nodes", ["min up to max"]),
    (
        "local",
        {
            "partitions": [
                {"name": f"p{i}", "instance_type": "local.small", "nodes": {"max": 4000}} for i in range(4)
            ]
        },
        "partitions",
        ["16128", "15700 ports for nodes", "lower nodes.max"],
    ),
    # slurmctld's longest timeouts have to cover them.
    (
        "local",
        {"hooks": [{"role": "all", "source": f"h{i}.sh", "timeout": 7200} for i in range(9)]},
        "hooks",
        ["64800", "60000 seconds together"],
    ),
    (
        "aws",
        {"partitions[0].default": True, "partitions[1].default": True},
        "partitions[1].default",
        ["one default"],
    ),
    # keys that only AWS has
    ("aws", {"partitions[0].aws": {"neuron_cores": True}}, "partitions[0].aws.neuron_cores", ["trainium"]),
    ("gcp", {"aws": {"nat": False}}, "aws", ["settings of gcp", "remove aws:"]),
    (
        "aws",
        {"aws": {"kms_key": KEY.replace("us-east-1", "eu-west-1")}},
        "aws.kms_key",
        ["a key of us-east-1"],
    ),
    ("aws", {"aws": {"kms_key": "alias/disks"}}, "aws.kms_key", ["ARN of a KMS key", "no alias"]),
    ("aws", {"aws": {"nat": False}, "network": {"aws": VPC}}, "aws.nat", ["with an existing VPC"]),
    (
        "aws",
        {"aws": {"nat": False}, "partitions[0]": {**BLOCK, "reservation": None, "aws": {"efa": True}}},
        "aws.nat",
        ["p4d.24xlarge (partition block)", "4 EFA interfaces"],
    ),
    ("aws", {"partitions[0]": {**BLOCK, "reservation": None}}, "partitions[0].reservation", ["cr-…"]),
    ("aws", {"partitions[0]": {**BLOCK, "reservation": GROUP}}, "partitions[0].reservation", ["own id"]),
    ("aws", {"partitions[0]": {**BLOCK, "spot": True}}, "partitions[0].reservation", ["or spot"]),
    ("aws", {"partitions[0]": {**BLOCK, "zones": None}}, "partitions[0].zones", ["one zone", "us-east-1a"]),
    (
        "aws",
        {"partitions[0]": {**BLOCK, "placement": "cluster"}},
        "partitions[0].placement",
        ["close together already"],
    ),
    (
        "aws",
        {"partitions[0]": {**BLOCK, "aws": {"capacity_block": True, "placement_group": "lab"}}},
        "partitions[0].aws.placement_group",
        ["close together already"],
    ),
    (
        "aws",
        {"partitions[0]": {**BLOCK, "instance_type": "m5.xlarge"}},
        "partitions[0].aws.capacity_block",
        ["m5.xlarge has no accelerators"],
    ),
    (
        "aws",
        {"partitions[0]": {**CLOSE, "placement": "none"}},
        "partitions[0].placement",
        ["with a placement group by name"],
    ),
    (
        "aws",
        {"partitions[0]": {**CLOSE, "aws": {"placement_group": "pg-0123456789abcdef0"}}},
        "partitions[0].aws.placement_group",
        ["name of a placement group, not its id"],
    ),
    (
        "aws",
        {"partitions[0]": {**CLOSE, "zones": ["us-east-1a", "us-east-1b"]}},
        "partitions[0].aws.placement_group",
        ["one zone only"],
    ),
    (
        "aws",
        {"partitions[0]": {**CLOSE, "instance_type": "t3.medium"}},
        "partitions[0].aws.placement_group",
        ["does not take a cluster placement group", "remove it"],
    ),
    ("gcp", {"partitions[0].aws": {"efa": True}}, "partitions[0].aws", ["settings of gcp"]),
    ("aws", {"partitions[0].gcp": {"secure_boot": True}}, "partitions[0].gcp", ["settings of aws"]),
    ("aws", {"partitions[0].local": {"price_hour": 1.0}}, "partitions[0].local", ["settings of aws"]),
    # machines
    (
        "aws",
        {"partitions[0].instance_type": "p3.2xlarge"},
        "partitions[0].instance_type",
        ["retired", "p3dn.24xlarge", "g4dn.xlarge"],
    ),
    ("aws", {"controller.instance_type": "p3.16xlarge"}, "controller.instance_type", ["retired"]),
    ("aws", {"partitions[0].instance_type": "g6f.large"}, "partitions[0].instance_type", ["a part of a GPU"]),
    (
        "aws",
        {"partitions[0].instance_type": "mac-m4.metal"},
        "partitions[0].instance_type",
        ["ARM processors"],
    ),
    (
        "gcp",
        {"partitions[1].instance_type": "n4-standard-2"},
        "partitions[1].instance_type",
        ["Hyperdisks only"],
    ),
    (
        "aws",
        {
            "aws:region": "us-east-2",
            "partitions": [{"name": "h", "instance_type": "hpc7a.96xlarge", "spot": True}],
        },
        "partitions[0].spot",
        ["never a spot machine"],
    ),
    (
        "aws",
        {"partitions[0].instance_type": "m5.xlarg"},
        "partitions[0].instance_type",
        ["did you mean m5.xlarge"],
    ),
    ("aws", {"login": {"count": 1, "instance_type": "zx9"}}, "login.instance_type", [f"{CLUSTER}.machines"]),
    (
        "aws",
        {"partitions[0].instance_type": "n1-standard-2"},
        "partitions[0].instance_type",
        ["n1-standard-2 is a machine of gcp"],
    ),
    (
        "aws",
        {"aws:region": "eu-central-1"},
        "partitions[1].instance_type",
        ["eu-central-1", "ap-northeast-1, eu-west-1, us-east-1, us-west-2"],
    ),
    (
        "aws",
        {
            "partitions[0].instance_type": "m7g.large",
            "machines": {"m7g.large": {"vcpus": 2, "memory_mib": 8192}},
        },
        "partitions[0].instance_type",
        ["x86-64 processors", "m7g.large has ARM processors", "training environment"],
    ),
    (
        "gcp",
        {
            "controller.instance_type": "t2a-standard-4",
            "machines": {"t2a-standard-4": {"vcpus": 4, "memory_mib": 16384}},
        },
        "controller.instance_type",
        ["t2a-standard-4 has ARM processors"],
    ),
    ("aws", {"machines": {"new.large": {"vcpus": 2}}}, 'machines["new.large"]', ["vcpus and memory_mib"]),
    # accelerators
    (
        "aws",
        {"partitions[0].accelerator": {"type": "v100"}},
        "partitions[0].accelerator",
        ["m5.xlarge has none", "machines with some: p3dn.24xlarge, "],
    ),
    ("aws", {"partitions[1].accelerator": {"type": "a100"}}, "partitions[1].accelerator.type", ["v100"]),
    (
        "aws",
        {"partitions[1].accelerator": {"type": "v100", "count": 9}},
        "partitions[1].accelerator.count",
        ["at most 8"],
    ),
    (
        "gcp",
        {"partitions[1].accelerator": {"type": "v100"}},
        "partitions[1].accelerator",
        ["N1 machines only", "n1-standard"],
    ),
    ("gcp", {"partitions[0].accelerator.type": "a100"}, "partitions[0].accelerator.type", ["v100, t4"]),
    ("gcp", {"partitions[0].accelerator.count": 3}, "partitions[0].accelerator.count", ["1, 2, 4, 8"]),
    (
        "gcp",
        {"partitions[0].accelerator": {"type": "t4", "count": 8}},
        "partitions[0].accelerator.count",
        ["1, 2, 4 of t4"],
    ),
    (
        "gcp",
        {"partitions[0].instance_type": "n1-standard-16"},
        "partitions[0].accelerator.count",
        ["at most 12 vCPUs", "has 16"],
    ),
    (
        "local",
        {"partitions[0].accelerator": {"type": "v100", "count": 9}},
        "partitions[0].accelerator.count",
        ["at most 8 simulated"],
    ),
    # EFA, placement, zones
    (
        "aws",
        {"partitions[0].aws.efa": True},
        "partitions[0].aws.efa",
        ["m5.xlarge has no EFA", "m5n.24xlarge", " and 193 others"],
    ),
    (
        "aws",
        {"partitions[0].instance_type": "g4dn.xlarge", "partitions[0].aws.efa": True},
        "partitions[0].aws.efa",
        ["g4dn.8xlarge"],
    ),
    ("gcp", {"partitions[0].placement": "cluster"}, "partitions[0].placement", ["compact", "N1"]),
    (
        "aws",
        {"partitions[0].instance_type": "t3.medium", "partitions[0].placement": "cluster"},
        "partitions[0].placement",
        ["cluster placement group"],
    ),
    (
        "gcp",
        {"partitions[1].placement": "cluster", "partitions[1].nodes.max": 151},
        "partitions[1].placement",
        ["at most 150"],
    ),
    (
        "aws",
        {"partitions[0].placement": "cluster", "partitions[0].zones": ["us-east-1a", "us-east-1b"]},
        "partitions[0].placement",
        ["one zone"],
    ),
    (
        "aws",
        {"partitions[1].aws.efa": True, "network.zones": ["us-east-1a", "us-east-1b"]},
        "partitions[1].aws.efa",
        ["one zone"],
    ),
    ("aws", {"network.zones": ["eu-west-1a"]}, "network.zones[0]", ["us-east-1a"]),
    ("gcp", {"partitions[0].zones": ["europe-west4a"]}, "partitions[0].zones[0]", ["europe-west4-a"]),
    ("local", {"partitions[0].zones": ["a", "B"]}, "partitions[0].zones[1]", ["a zone's name"]),
    ("local", {"partitions[0].zones": ["a", "b", "a"]}, "partitions[0].zones[2]", ["each zone once"]),
    # spot and reservations
    (
        "aws",
        {"partitions[0].spot": True, "partitions[0].reservation": "cr-0123456789abcdef0"},
        "partitions[0].reservation",
        ["spot"],
    ),
    ("aws", {"partitions[0].reservation": "PLACEHOLDER"}, "partitions[0].reservation", ["cr-"]),
    (
        "aws",
        {"partitions[0].reservation": "arn:aws:resource-groups:eu-west-1:123456789012:group/ours"},
        "partitions[0].reservation",
        ["a group of us-east-1"],
    ),
    (
        "aws",
        {"partitions[0].reservation": 7},
        "partitions[0].reservation",
        ["one reservation as text", "list"],
    ),
    ("aws", {"partitions[0].reservation": []}, "partitions[0].reservation", ["a list of several"]),
    ("aws", {"partitions[0].reservation": ["cr-0123456789", 7]}, "partitions[0].reservation", ["list of"]),
    (
        "aws",
        {"partitions[0].reservation": ["cr-0123456789", "cr_1"]},
        "partitions[0].reservation[1]",
        ["cr-…", "capacity-reservation/cr-… if another account shares it"],
    ),
    (
        "aws",
        {"partitions[0].reservation": ["cr-0123456789", GROUP]},
        "partitions[0].reservation[1]",
        ["a group holds no other group"],
    ),
    (
        "aws",
        {"partitions[0].reservation": ["cr-0123456789", SHARED_CR.replace("cr-9876543210", "cr-0123456789")]},
        "partitions[0].reservation[1]",
        ["each reservation once"],
    ),
    (
        "aws",
        {"partitions[0].reservation": ["cr-0123456789", SHARED_CR.replace("us-east-1", "eu-west-1")]},
        "partitions[0].reservation[1]",
        ["a reservation of us-east-1", "of no use here"],
    ),
    (
        "aws",
        {"partitions[0].reservation": ["cr-0123456789", SHARED_CR], "partitions[0].spot": True},
        "partitions[0].reservation",
        ["or spot"],
    ),
    (
        "aws",
        {"partitions[0]": {**BLOCK, "reservation": ["cr-0123456789", "cr-9876543210"]}},
        "partitions[0].reservation",
        ["own id", "another block is another partition"],
    ),
    (
        "gcp",
        {"partitions[0].reservation": ["a", "b"]},
        "partitions[0].reservation",
        ["one reservation on Goo"],
    ),
    (
        "gcp",
        {"partitions[0].reservation": "projects/lab/zones/z/reservations/a"},
        "partitions[0].reservation",
        ["projects/<project>/reservations/<name>", "another project shares"],
    ),
    ("gcp", {"partitions[0].reservation": "cr_1"}, "partitions[0].reservation", ["reservation in the zone"]),
    ("local", {"partitions[0].reservation": "cr-0123456789"}, "partitions[0].reservation", ["reserves no"]),
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
    # network
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
        ["IPv4"],
    ),
    ("gcp", {"name": "my-google-lab"}, "name", ["'google'", "buckets"]),
    ("gcp", {"name": "goog-lab"}, "name", ["'goog'"]),
    ("gcp", {"partitions[0].name": "login-gpu", "@partition": "login-gpu"}, "partitions[0].name", ["login-"]),
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
    # hooks, local, login
    ("aws", {"hooks[0]": {"role": "all", "source": "/root/x.sh"}}, "hooks[0].source", ["this project"]),
    ("aws", {"hooks[0]": {"role": "all", "source": "a/../../x"}}, "hooks[0].source", ["this project"]),
    ("aws", {"hooks[0]": {"role": "all", "source": "gs://b/x"}}, "hooks[0].source", ["s3://"]),
    ("local", {"hooks[0]": {"role": "all", "source": "https://b/x"}}, "hooks[0].source", ["this project"]),
    ("gcp", {"hooks[0]": {"role": "all", "source": "http://b/x"}}, "hooks[0].source", ["not protected"]),
    ("gcp", {"hooks[0]": {"role": "all", "source": "gs://My_Bucket/x"}}, "hooks[0].source", ["My_Bucket is"]),
    ("gcp", {"hooks[0]": {"role": "all", "source": "gs://10.0.0.1/x"}}, "hooks[0].source", ["10.0.0.1 is"]),
    ("gcp", {"hooks[0]": {"role": "all", "source": "gs://googol/x"}}, "hooks[0].source", ["googol is"]),
    ("gcp", {"hooks[0]": {"role": "all", "source": "gs://ab/x"}}, "hooks[0].source", ["3 to 63"]),
    ("gcp", {"hooks[0]": {"role": "all", "source": "gs:///x"}}, "hooks[0].source", ["nothing is none"]),
    ("gcp", {"hooks[0]": {"role": "all", "source": "gs://bucket"}}, "hooks[0].source", ["one object"]),
    ("local", {"hooks[0]": {"role": "all"}}, "hooks[0]", ["either source or script"]),
    ("local", {"containers": {"runtime": "oci"}}, "containers.runtime", ["isolation: container"]),
    ("aws", {"containers": {"runtime": "docker"}}, "containers.runtime", ["oci"]),
    ("aws", {"containers": {"runtime": "oci", "image": "x"}}, "containers.image", []),
    ("aws", {"containers": {"runtime": "oci", "packages": []}}, "containers.packages", ["runtime: pyxis"]),
    ("aws", {"containers": {"runtime": "pyxis"}}, "containers.packages", ["Enroot", "image"]),
    ("local", {"containers": pyxis(ENROOT_DEB)}, "containers.runtime", ["isolation: container"]),
    ("aws", {"containers": pyxis("https://h/enroot.rpm")}, "containers.packages[0].source", [".deb"]),
    ("aws", {"containers": pyxis("gs://b/e.deb")}, "containers.packages[0].source", ["s3://", "https://"]),
    ("aws", {"containers": pyxis("http://h/e.deb")}, "containers.packages[0].source", ["not protected"]),
    ("aws", {"containers": pyxis("/e.deb")}, "containers.packages[0].source", ["inside this project"]),
    ("aws", {"containers": pyxis(ENROOT_DEB, "A" * 64)}, "containers.packages[0].sha256", ["sha256sum"]),
    ("aws", {"containers": pyxis(ENROOT_DEB, images="enroot")}, "containers.images", ["absolute path"]),
    ("gcp", {"containers": pyxis("gs://b/f/")}, "containers.packages[0].source", [".deb"]),
    ("batch", {"@enabled": False, "containers": {"runtime": "oci"}}, "containers", ["under `batch`"]),
    (
        "local",
        {"hooks[0]": {"role": "all", "source": "a.sh", "script": "#!/bin/sh"}},
        "hooks[0]",
        ["source and script"],
    ),
    ("aws", {"hooks[0]": {"role": "all", "script": "echo\n"}}, "hooks[0].script", ["begin with #!/bin/bash"]),
    ("gcp", {"hooks[0]": {"role": "all", "source": "gs://bucket/f/"}}, "hooks[0].source", ["one object"]),
    ("gcp", {"hooks[0]": {"role": "all", "source": "gs://bucket/a\nb"}}, "hooks[0].source", ["line breaks"]),
    ("local", {"health": {"enabled": True}}, "health.enabled", ["there is nothing to check"]),
    ("aws", {"health": {"enabled": False, "skip": ["efa"]}}, "health.skip", ["remove one of them"]),
    ("aws", {"health": {"skip": ["gpu"]}}, "health.skip[0]", ["memory_rows"]),
    ("aws", {"health": {"interval_seconds": 1}}, "health.interval_seconds", ["5"]),
    ("batch", {"@enabled": False, "health": {"skip": ["efa"]}}, "health", ["no Slurm"]),
    ("gcp", {"slurm.prolog": {"source": "gs://b/a.sh"}}, "slurm.prolog.source", ["a path in this project"]),
    ("local", {"slurm.epilog": {"source": "/a.sh"}}, "slurm.epilog.source", ["inside this project"]),
    ("batch", {"@enabled": False, "slurm.prolog": {"source": "a.sh"}}, "slurm", ["no slurm"]),
    ("local", {"login.count": 1}, "login.count", ["this machine"]),
    ("aws", {"local": {"boot_delay": 1.0}}, "local", ["settings of aws"]),
    (
        "local",
        {"partitions[0].nodes.min": 3, "local.quota_nodes": 2},
        "local.quota_nodes",
        ["3 or more"],
    ),
    (
        "local",
        {
            "partitions[0].accelerator": {"type": "v100", "count": 4},
            "partitions[0].nodes.min": 2,
            "local.quota_gpus": 7,
        },
        "local.quota_gpus",
        ["8 or more", "devices"],
    ),
    ("local", {"local.capacity": {"debig": 2}}, "local.capacity.debig", ["the pools debug", "mean debug?"]),
    (
        "local",
        {"partitions[0].zones": ["a", "b"], "local.capacity": {"debug/c": 2}},
        'local.capacity["debug/c"]',
        ["debug, debug/a, debug/b"],
    ),
    (
        "local",
        {"partitions[0].nodes.min": 3, "local.capacity": {"debug": 2}},
        "local.capacity.debug",
        ["3 or more", "debug are static"],
    ),
    (
        "local",
        {
            "partitions[0].zones": ["a", "b"],
            "partitions[0].nodes.min": 3,
            "local.capacity": {"debug/a": 1, "debug/b": 1},
        },
        "local.capacity",
        ["3 or more in its zones together"],
    ),
    # budgets with unknown prices, and budgets that nothing watches
    (
        "aws",
        {"partitions[0].instance_type": "t8i.medium", "budget.max_usd": 100},
        "budget.max_usd",
        ["there is none for t8i.medium", "machines: {t8i.medium: {price_hour: …}}", "max_hours"],
    ),
    # AWS Batch
    ("aws", {"batch": values("batch")[CLUSTER]["batch"]}, "scheduler", ["batch, where"]),
    ("batch", {"batch": REMOVE}, "batch", ["the section `batch`"]),
    ("gcp", {"scheduler": "batch", "@enabled": False}, "scheduler", ["slurm on gcp", "AWS Batch"]),
    (
        "batch",
        {"partitions": [{"name": "cpu", "instance_type": "m5.large"}]},
        "partitions",
        ["no partitions"],
    ),
    ("batch", {"batch.instance_types": ["p3.16xlarge"]}, "batch.instance_types[0]", ["retired"]),
    ("batch", {"batch.vcpus.desired": 5000}, "batch.vcpus", ["min up to desired up to max"]),
    ("batch", {"batch.vcpus.max": 200}, "batch.vcpus.max", ["384 or more"]),
    ("batch", {"batch.container.vcpus": 97}, "batch.container.vcpus", ["at most 96"]),
    ("batch", {"batch.container.memory_mib": 786432}, "batch.container.memory_mib", ["less than"]),
    ("batch", {"batch.container.gpus": 9}, "batch.container.gpus", ["at most 8"]),
    (
        "batch",
        {"batch.container.environment": {"MPI_GPUS": 160}},
        "batch.container.environment.MPI_GPUS",
        ["32: 4 nodes with 8 GPUs"],
    ),
    (
        "batch",
        {"batch.container.environment": {"AWS_BATCH_X": "1"}},
        "batch.container.environment.AWS_BATCH_X",
        ["do not start with AWS_BATCH"],
    ),
    ("batch", {"image": REMOVE}, "image.id", ["no driver", "580", "bake: true"]),
    ("batch", {"batch.efa": True}, "batch.efa", ["placement group"]),
    (
        "batch",
        {
            "batch.efa": True,
            "batch.placement_group": "g",
            "batch.instance_types": ["g4dn.xlarge"],
            "batch.container": {"image": "train", "vcpus": 4, "memory_mib": 8000},
        },
        "batch.efa",
        ["no Elastic Fabric Adapter"],
    ),
    ("batch", {"batch.container.repository": "own"}, "batch.container.repository", ["beside `image`"]),
    ("batch", {"batch.container.repository": "Own"}, "batch.container.repository", ["a name in ECR"]),
    ("batch", {"batch.container.command": ["a", "Ref::manifest"]}, "batch.container.command", ["start_on"]),
    (
        "batch",
        {"batch.container.environment": {"LONG": "x" * 24600}},
        "batch.container.environment",
        ["24576 bytes", "job definition"],
    ),
    ("batch", {"hooks": [{"role": "all", "script": "#!/bin/sh"}]}, "hooks", ["container"]),
    ("batch", {"login": {"count": 1}}, "login", ["no login machine"]),
    ("batch", {"storage.home": {"kind": "nfs"}}, "storage.home.kind", ["fsx_lustre or efs"]),
    ("batch", {"storage.local_scratch": {}}, "storage.local_scratch", ["batch.volumes"]),
    ("batch", {"batch.file_system": "job"}, "batch.file_system", ["s3_import"]),
    ("batch", {"storage.buckets": [{"bucket": "s3://abc", "path": "/b"}]}, "storage.buckets", ["s3_import"]),
    ("batch", {"batch.instance_types": ["trn1.32xlarge"]}, "batch.instance_types[0]", ["NVIDIA"]),
    (
        "batch",
        {"batch.tags": {"aws:x": "1"}},
        "slurm-stacks:cluster.batch.tags.aws:x",
        ["do not start with aws:"],
    ),
    (
        "batch",
        {"batch.container.shared_memory_mib": 424001},
        "batch.container.shared_memory_mib",
        ["at most 424000"],
    ),
    (
        "batch",
        {"batch.container.environment": {"A B": "1"}},
        'batch.container.environment["A B"]',
        ["letters, digits and underscores"],
    ),
    (
        "batch",
        {"batch.container.volumes": [{"source": "/a"}, {"source": "/b", "path": "/a"}]},
        "batch.container.volumes[1].path",
        ["each folder once"],
    ),
    (
        "batch",
        {"batch.instance_types": ["r5.24xlarge"], "batch.container.environment": {"MPI_GPUS": 4}},
        "batch.container.environment.MPI_GPUS",
        ["r5.24xlarge has no GPU"],
    ),
    (
        "batch",
        {"batch.container.environment": {"MPI_GPUS": 33, "SLURM_STACKS_LAUNCH": "mpi"}},
        "batch.container.environment.MPI_GPUS",
        ["at most 32"],
    ),
    *(
        ("batch", ours(**variables), f"batch.container.{path}", words)
        for variables, path, words in (
            ({"JOB_DIR": None}, "environment.JOB_DIR", ["/fsx/resized"]),
            ({"JOB_DIR": "/scratch/x"}, "environment.JOB_DIR", ["all nodes see"]),
            ({"SCRATCH_DIR": "x"}, "environment.SCRATCH_DIR", ["absolute"]),
            ({"BATCH_SIZE": 0}, "environment.BATCH_SIZE", ["1 or more"]),
            ({"SLURM_STACKS_LAUNCH": "srun"}, "environment.SLURM_STACKS_LAUNCH", ["processes, mpi"]),
            ({"SLURM_STACKS_LAUNCH": "mpi"}, "command", ["does not use MPI"]),
        )
    ),
    ("batch", {"batch.container.cached": True}, "batch.container.cached", ["image: {bake: true}"]),
    (
        "batch",
        {"batch.container.cached": True, "image": {"bake": True}, "batch.disk_gib": 40},
        "batch.disk_gib",
        ["48 or more"],
    ),
    (
        "batch",
        {
            "batch.file_system": "job",
            "storage.scratch": {
                "kind": "fsx_lustre",
                "size_gib": 1200,
                "deployment": "PERSISTENT_2",
                "throughput": 125,
                "s3_import": "s3://data/train",
            },
        },
        "storage.scratch.deployment",
        ["SCRATCH_2"],
    ),
    ("batch", {"@enabled": True}, "@enabled", ["scheduler batch"]),
    # benchmark
    ("local", {"@partition": "gpu"}, "@partition", ["debug"]),
    ("local", {"@nodes": 5}, "@nodes", ["at most 4", "debug"]),
    ("local", {"local.quota_nodes": 1}, "@nodes", ["at most 1", "quota"]),
    # a training that would run on the CPUs of Trainium's or Inferentia's machines
    (
        "aws",
        {"partitions[0].instance_type": "trn1.32xlarge"},
        "@partition",
        ["default partition, cpu", "run on the CPUs", "16 idle devices of type trainium", "enabled: false"],
    ),
    (
        "aws",
        {"partitions[0].instance_type": "inf2.xlarge", "@partition": "cpu"},
        "@partition",
        ["beside 1 idle device of type inferentia2", "docs/examples/neuron.sh"],
    ),
    (
        "local",
        {"partitions[0].accelerator": {"type": "v100"}, "@gpus_per_node": 1},
        "@gpus_per_node",
        ["simulated"],
    ),
    ("gcp", {"@gpus_per_node": 2}, "@gpus_per_node", ["at most 1"]),
    ("aws", {"@gpus_per_node": 1}, "@gpus_per_node", ["at most 0"]),
    ("aws", {"partitions[1].default": True, "@gpus_per_node": 9}, "@gpus_per_node", ["at most 8"]),
]


@pytest.mark.parametrize(
    ("stack", "changes", "path", "words"),
    REFUSED,
    ids=[f"{stack}-{path}-{i}" for i, (stack, _, path, _) in enumerate(REFUSED)],
)
def test_refused(stack: str, changes: dict[str, Any], path: str, words: list[str]) -> None:
    found = mistakes(values(stack, changes))
    whole = path if ":" in path else f"{BENCHMARK}.{path[1:]}" if path[0] == "@" else _in_cluster(path)
    assert [m.path for m in found] == [whole]
    for word in words:
        assert word in str(found[0])


def _in_cluster(path: str) -> str:
    return CLUSTER + ("" if path.startswith("[") else ".") + path


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
    ("aws", {"access": {"mode": "ssh", "ssh_cidrs": ["203.0.113.7/32", "2001:db8::/32"], "key": "my key"}}),
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
            "machines": {"p3.2xlarge": {"vcpus": 8, "memory_mib": 62464}},
            "controller.instance_type": "p3.2xlarge",
        },
    ),
    ("aws", {"machines": {"m5.xlarge": {"efa": 1}}, "partitions[0].aws.efa": True}),
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
    ("local", {"partitions[0].accelerator": {"type": "v100", "count": 8}, "partitions[0].time_limit": "1-0"}),
    ("local", {"hooks[0]": {"role": "all", "source": "hooks/x.sh"}, "budget.max_usd": 5}),
    ("aws", {"containers": {"runtime": "oci"}}),
    ("aws", {"containers": pyxis(ENROOT_DEB, images="/fsx/enroot")}),
    ("gcp", {"containers": pyxis("gs://bucket/enroot.deb")}),
    ("aws", {"containers": {"runtime": "pyxis"}, "image": {"id": "ami-0123456789abcdef0"}}),
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
            "machines": {"t8i.medium": {"price_hour": 30}},
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
]


@pytest.mark.parametrize(("stack", "changes"), ACCEPTED, ids=range(len(ACCEPTED)))
def test_accepted(stack: str, changes: dict[str, Any]) -> None:
    assert mistakes(values(stack, changes)) == []


def test_login_machines_need_machines_of_their_own() -> None:
    (found,) = mistakes(values("local", {"login.count": 1}))
    assert found.path == f"{CLUSTER}.login.count"
    assert "isolation: container" in found.advice
    assert mistakes(values("local", {"login.count": 1, "local.isolation": "container"})) == []


def test_machines_of_an_older_version_are_refused_with_what_they_are_now() -> None:
    (found,) = mistakes(values("local", {"local.isolation": "namespace"}))
    assert found.path == f"{CLUSTER}.local.isolation"
    assert "write container" in found.advice


def test_another_release_needs_machines_that_boot() -> None:
    (found,) = mistakes(values("local", {"local.suite": "trixie"}))
    assert found.path == f"{CLUSTER}.local.suite"
    assert "isolation: container" in found.advice
    assert mistakes(values("local", {"local.suite": "trixie", "local.isolation": "container"})) == []


def test_all_ports_that_are_allowed_can_be_had() -> None:
    assert MOST_LOCAL_PORTS < site.LAST_PORT - site.FIRST_PORT
