"""The warnings of a plan: each one appears when it should, and only then."""

from __future__ import annotations

import re
from typing import Any

import pytest

from infra.config import parse
from infra.config.advice import warnings
from infra.design import design
from infra.instance_types.catalog import catalog
from tests.support import sentences
from tests.support.stack_values import REMOVE, values

FACTS = catalog()
KEY = "arn:aws:kms:us-east-1:123456789012:key/12345678-1234-1234-1234-123456789012"


def said(name: str, changes: dict[str, Any]) -> list[str]:
    # The fixture's m5, of a previous generation, would add a line to each answer: an m7i replaces it.
    quiet = {"storage": REMOVE, "partitions[0].instance_type": "m7i.xlarge"}
    config = parse(values(name, quiet | changes if name == "aws" else changes), "t")
    found = warnings(config, design(config, FACTS), FACTS)
    return [line for line in found if not line.startswith("cost: disks and file systems")]


def others(name: str, changes: dict[str, Any]) -> list[str]:
    """Return the warnings without those about what nodes install at their start, which many stacks have."""
    return [line for line in said(name, changes) if "at every start" not in line]


def test_warnings() -> None:
    assert others("aws", {}) == []
    (pretended,) = said("local", {"partitions[0].accelerator": {"type": "v100"}})
    sentences.sentence(pretended, "partition debug", "v100")
    (static,) = others("aws", {"partitions[0].nodes.min": 2})
    sentences.sentence(static, "2 static nodes", "0.40 USD")
    (old,) = others("aws", {"partitions[0].instance_type": "m4.large"})
    sentences.sentence(old, "m4.large")
    (paid,) = others("aws", {"partitions[1].accelerator": {"type": "v100", "count": 1}})
    sentences.sentence(paid, "partition gpu", "p3dn.24xlarge", 8)
    (group,) = others(
        "aws", {"partitions[0].reservation": "cr-0123456789", "partitions[0].placement": "cluster"}
    )
    sentences.sentence(group, "partition cpu", "InsufficientInstanceCapacity", "aws: {placement_group: …}")
    own = {"reservation": "cr-0123456789", "aws": {"placement_group": "lab"}}
    assert others("aws", {f"partitions[0].{key}": value for key, value in own.items()}) == []
    block = {
        "name": "b",
        "instance_type": "p4d.24xlarge",
        "reservation": "cr-0123456789",
        "zones": ["us-east-1a"],
    }
    (paid,) = others("aws", {"partitions[0]": {**block, "aws": {"capacity_block": True, "efa": True}}})
    sentences.sentence(paid, "partition b", "Capacity Block")
    near = {"name": "b", "instance_type": "p4d.24xlarge", "topology": True, "nodes": {"min": 0, "max": 4}}
    near["aws"] = {"efa": True}
    (elastic,) = others("aws", {"partitions[0]": near})
    sentences.sentence(elastic, "partition b", "nodes: {min: 4, max: 4}")
    (one_card,) = others("aws", {"partitions[0]": {**near, "topology": False, "aws": {}}})
    sentences.sentence(one_card, "p4d.24xlarge", "aws: {efa: true}")
    (out,) = others("aws", {"aws": {"nat": False}})
    sentences.sentence(out, "cluster.aws.nat")
    (spot,) = others("aws", {"aws": {"kms_key": KEY}, "partitions[0].spot": True})
    sentences.sentence(spot, f"aws kms create-grant --region us-east-1 --key-id {KEY} ")
    always = {"name": "s", "instance_type": "t8i.medium", "nodes": {"min": 2, "max": 2}}
    up, blind = others("aws", {"partitions[0]": always, "budget.max_usd": 1})
    sentences.sentence(up, "2 static nodes", "t8i.medium")
    sentences.sentence(blind, "cluster.budget.max_usd", "static nodes of s")
    _, soon = others("aws", {"partitions[0].nodes.min": 2, "budget.max_usd": 2})
    sentences.sentence(soon, "2 USD in 4 h 58 min")
    _, soon = others("aws", {"partitions[0].nodes.min": 2, "budget.max_hours": 47.9})
    sentences.sentence(soon, "47.9 node-hours in 23 h 57 min")
    assert len(others("aws", {"partitions[0].nodes.min": 2, "budget": {"max_hours": 48, "max_usd": 10}})) == 1
    (free,) = said("local", {"budget.max_usd": 2})
    sentences.sentence(free, "local.price_hour")
    assert said("local", {"budget.max_usd": 2, "local.price_hour": 1}) == []
    team = {"slurm.accounting": True, "accounts": [{"name": "rest", "budget": {"max_usd": 2}}]}
    (uncounted,) = said("local", team)
    sentences.sentence(uncounted, "rest: budget.max_usd", "max_hours")
    assert said("local", {**team, "local.price_hour": 1}) == []
    (scratch,) = others("aws", {"storage": {"scratch": {"kind": "fsx_lustre", "size_gib": 1200}}})
    sentences.sentence(scratch, "cluster.storage.scratch", "SCRATCH_2")
    open_door = {"mode": "ssh", "ssh_cidrs": ["0.0.0.0/0"], "allow_ssh_from_anywhere": True}
    (door,) = others("gcp", {"access": open_door})
    sentences.sentence(door, "cluster.access")
    head: dict[str, Any] = {"image": {"id": "ami-0123456789abcdef0"}, "state": "kept"}
    (blind,) = others("aws", {"controller": head, "image.source": "ubuntu-24.04"})
    sentences.sentence(blind, "cluster.controller.image", "ami-0123456789abcdef0", "the queue is not changed")
    assert others("aws", {"controller": {**head, "state": "machine"}}) == []


@pytest.mark.parametrize(
    ("nodes", "machine", "cores", "expected"),
    [
        (2, "local.small", 2, None),
        (2, "local.small", 1, "2 × local.small need 2 cores, and this machine has 1 core:"),
        (2, "local.medium", 2, "2 × local.medium need 4 cores, and this machine has 2 cores:"),
        (1, "local.medium", 2, None),  # one node shares with nobody
        (1, "local.medium", 1, "a node of local.medium has 2 CPUs, and this machine has 1 core: it gets no"),
        (2, "local.small", None, None),
    ],
)
def test_local_nodes_that_will_share_cores(
    nodes: int, machine: str, cores: int | None, expected: str | None
) -> None:
    changes = {"partitions[0].instance_type": machine, "@nodes": nodes, "partitions[0].nodes.max": 2}
    config = parse(values("local", changes), "t")
    found = [s for s in warnings(config, design(config, FACTS), FACTS, cores) if "benchmark.nodes" in s]
    assert len(found) == (expected is not None)
    assert all(str(expected) in text for text in found)


def test_a_zone_without_the_gpus_is_pointed_out_with_those_that_have_them() -> None:
    assert others("gcp", {"gcp:zone": "europe-west4-b"}) == []
    (elsewhere,) = others("gcp", {"gcp:zone": "europe-west1-b"})
    sentences.sentence(elsewhere, "2026-07-30", "nvidia-tesla-v100", "europe-west4-a", "europe-west1-b")
    (near,) = others("gcp", {"gcp:zone": "us-east1-b"})
    sentences.sentence(near, "us-east1-c", "us-east1-b")
    (one,) = others("gcp", {"partitions[0].zones": ["europe-west4-a", "europe-west4-d"]})
    sentences.sentence(one, "europe-west4-d")
    assert others("gcp", {"partitions[0].accelerator.type": "t4"}) == []


def test_who_installs_at_every_start_is_told_what_an_image_saves() -> None:
    (gpus,) = said("aws", {"partitions[1].aws": {"efa": True}})
    sentences.sentence(gpus, "partition gpu", "EFA", "image: {bake: true}")
    assert said("aws", {"image": {"bake": True}}) == []
    assert said("aws", {"partitions[1].image": {"id": "ami-0123456789abcdef0"}}) == []
    lustre = {"storage": {"scratch": {"kind": "fsx_lustre", "size_gib": 1200}}}
    cpu, gpu, _ = said("aws", lustre)
    sentences.sentence(cpu, "partition cpu", "Lustre")
    sentences.sentence(gpu, "partition gpu", "accelerators", "kernel")


def test_who_gives_nodes_up_while_they_may_still_install_is_told_so() -> None:
    own = {"slurm": {"resume_timeout": 1200}, "image": {"bake": True}}
    cpu, gpu = said("aws", own)
    sentences.sentence(cpu, "partition cpu", "cluster.slurm.resume_timeout", "1200 s")
    sentences.sentence(gpu, "partition gpu")
    (longest,) = re.findall(r"may take (\d+) s", gpu)
    assert said("aws", {**own, "slurm": {"resume_timeout": int(longest)}}) == []
    assert said("aws", {**own, "slurm": {"resume_timeout": int(longest) - 1}}) != []
    assert said("local", {"slurm": {"resume_timeout": 9}}) == []


def test_where_the_prices_of_storage_are_another_regions_is_said() -> None:
    def told(name: str, **changes: str) -> list[str]:
        config = parse(values(name, changes), "t")
        return [line for line in warnings(config, design(config, FACTS), FACTS) if line.startswith("cost: ")]

    assert told("gcp") == [
        "cost: disks and file systems are counted at us-central1's prices, europe-west4's are not known"
    ]
    assert told("gcp", **{"gcp:zone": "us-central1-a"}) == []
    assert told("aws") == []
    assert told("local") == []


@pytest.mark.parametrize(
    ("machine", "nodes", "told"),
    [
        ("a3-highgpu-8g", 2, "reaches 1,000 Gbit/s by GPUDirect-TCPX over 4 network cards of its own"),
        ("a3-megagpu-8g", 2, "reaches 1,800 Gbit/s by GPUDirect-TCPXO over 8 network cards of its own"),
        ("a3-highgpu-8g", 1, ""),
        ("a2-highgpu-8g", 2, ""),
    ],
)
def test_googles_h100s_are_told_apart_from_their_network(machine: str, nodes: int, told: str) -> None:
    """88 to 118 USD an hour a node, and a hundredth of the bandwidth between them."""
    partition = {"name": "h", "instance_type": machine, "nodes": {"min": 0, "max": nodes}}
    changes = {"partitions[0]": partition, "image.bake": True, "@enabled": False}
    found = [line for line in said("gcp", changes) if "NCCL" in line]
    assert len(found) == bool(told)
    assert told in "".join(found)
    assert not found or "NCCL then moves about 4 GB/s" in found[0]
