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
    check_refusal,
)
from tests.support.stack_values import CLUSTER

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
    # where the cloud tells nobody the places of nodes
    ("aws", {"partitions[0].topology": True}, "partitions[0].topology", ["EC2 does not tell", "https://"]),
    ("gcp", {"partitions[0].topology": True}, "partitions[0].topology", ["write placement: cluster"]),
    ("local", {"partitions[0].topology": True}, "partitions[0].topology", ["on one host"]),
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
    ("aws", {"partitions[0].gcp": {"disk_type": "pd-ssd"}}, "partitions[0].gcp", ["settings of aws"]),
    ("gcp", {"partitions[0].gcp": {"disk_type": "gp3"}}, "partitions[0].gcp.disk_type", ["pd-ssd"]),
    (
        "gcp",
        {"partitions[1].instance_type": "g2-standard-4", "partitions[1].gcp": {"disk_type": "pd-standard"}},
        "partitions[1].gcp.disk_type",
        ["pd-balanced or pd-ssd on G2 machines"],
    ),
    (
        "gcp",
        {"partitions[0].gcp": {"min_cpu_platform": "Intel Ice Lake"}},
        "partitions[0].gcp.min_cpu_platform",
        ["Intel Haswell, Intel Broadwell, Intel Skylake on N1"],
    ),
    (
        "gcp",
        {
            "partitions[1].instance_type": "e2-standard-4",
            "partitions[1].gcp": {"min_cpu_platform": "AMD Rome"},
        },
        "partitions[1].gcp.min_cpu_platform",
        ["nothing on E2 machines"],
    ),
    (
        "gcp",
        {"partitions[0].gcp": {"min_cpu_platform": "skylake"}},
        "partitions[0].gcp.min_cpu_platform",
        ["as Compute Engine names it: Intel Skylake"],
    ),
    ("aws", {"partitions[0].instance_type": "p3"}, "partitions[0].instance_type", ["retired", "p3dn.24xl"]),
    ("aws", {"partitions[0].instance_type": "p3 family"}, "partitions[0].instance_type", ["take p3dn.24xl"]),
    (
        "aws",
        {"partitions[0].instance_type": "m5.*"},
        "partitions[0].instance_type",
        ["not a family", "m5.large"],
    ),
    ("gcp", {"partitions[0].instance_type": "n1"}, "partitions[0].instance_type", ["take one of it: n1-"]),
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
    (
        "aws",
        {"login": {"count": 1, "instance_type": "zx9"}},
        "login.instance_type",
        [f"{CLUSTER}.instance_types"],
    ),
    (
        "aws",
        {"partitions[0].instance_type": "n1-standard-2"},
        "partitions[0].instance_type",
        ["n1-standard-2 is an instance type of gcp"],
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
            "instance_types": {"m7g.large": {"vcpus": 2, "memory_mib": 8192}},
        },
        "partitions[0].instance_type",
        ["x86-64 processors", "m7g.large has ARM processors", "training environment"],
    ),
    (
        "gcp",
        {
            "controller.instance_type": "t2a-standard-4",
            "instance_types": {"t2a-standard-4": {"vcpus": 4, "memory_mib": 16384}},
        },
        "controller.instance_type",
        ["t2a-standard-4 has ARM processors"],
    ),
    (
        "aws",
        {"instance_types": {"new.large": {"vcpus": 2}}},
        'instance_types["new.large"]',
        ["vcpus and memory_mib"],
    ),
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
]


@pytest.mark.parametrize(
    ("stack", "changes", "path", "words"),
    REFUSED,
    ids=[f"{stack}-{path}-{i}" for i, (stack, _, path, _) in enumerate(REFUSED)],
)
def test_refused(stack: str, changes: dict[str, Any], path: str, words: list[str]) -> None:
    check_refusal(stack, changes, path, words)
