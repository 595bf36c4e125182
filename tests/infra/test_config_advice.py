"""The warnings of a plan: each when it should, none otherwise."""

from __future__ import annotations

from typing import Any

from stack_values import REMOVE, values

from infra.config import parse
from infra.config.advice import warnings
from infra.design import design
from infra.machines import catalog

FACTS = catalog()
KEY = "arn:aws:kms:us-east-1:123456789012:key/12345678-1234-1234-1234-123456789012"


def said(name: str, changes: dict[str, Any]) -> list[str]:
    config = parse(values(name, {"storage": REMOVE} | changes if name == "aws" else changes), "t")
    return warnings(config, design(config, FACTS), FACTS)


def test_warnings() -> None:
    assert said("aws", {}) == []
    (pretended,) = said("local", {"partitions[0].accelerator": {"type": "v100"}})
    assert "v100 devices are simulated" in pretended
    (static,) = said("aws", {"partitions[0].nodes.min": 2})
    assert "2 static nodes" in static
    assert "0.38 USD an hour" in static
    (old,) = said("aws", {"partitions[0].machine": "m4.large"})
    assert "previous generation" in old
    (paid,) = said("aws", {"partitions[1].accelerator": {"type": "v100", "count": 1}})
    assert "always has 8" in paid
    (group,) = said(
        "aws", {"partitions[0].reservation": "cr-0123456789", "partitions[0].placement": "cluster"}
    )
    assert "InsufficientInstanceCapacity" in group
    assert "aws: {placement_group: …}" in group
    own = {"reservation": "cr-0123456789", "aws": {"placement_group": "lab"}}
    assert said("aws", {f"partitions[0].{key}": value for key, value in own.items()}) == []
    block = {"name": "b", "machine": "p4d.24xlarge", "reservation": "cr-0123456789", "zones": ["us-east-1a"]}
    (paid,) = said("aws", {"partitions[1]": {**block, "aws": {"capacity_block": True}}})
    assert "partition b: a Capacity Block is paid for as it is bought" in paid
    (out,) = said("aws", {"aws": {"nat": False}})
    assert "cluster.aws.nat: machines have public addresses" in out
    (spot,) = said("aws", {"aws": {"kms_key": KEY}, "partitions[0].spot": True})
    assert f"aws kms create-grant --region us-east-1 --key-id {KEY} " in spot
    always = {"name": "s", "machine": "p4d.24xlarge", "nodes": {"min": 2, "max": 2}}
    up, blind = said("aws", {"partitions[0]": always, "budget.max_usd": 1})
    assert "2 static nodes run as long as the cluster is up, price of p4d.24xlarge unknown" in up
    assert "no price is known for the static nodes of s" in blind
    _, soon = said("aws", {"partitions[0].nodes.min": 2, "budget.max_usd": 2})
    assert "use up the 2 USD in 5.21 h" in soon
    _, soon = said("aws", {"partitions[0].nodes.min": 2, "budget.max_hours": 47.9})
    assert "use up the 47.9 node-hours in 23.9 h" in soon
    assert len(said("aws", {"partitions[0].nodes.min": 2, "budget": {"max_hours": 48, "max_usd": 10}})) == 1
    (free,) = said("local", {"budget.max_usd": 2})
    assert "local.price_hour" in free
    assert said("local", {"budget.max_usd": 2, "local.price_hour": 1}) == []
    (scratch,) = said("aws", {"storage": {"scratch": {"kind": "fsx_lustre", "size_gib": 1200}}})
    assert "one copy" in scratch
    open_door = {"mode": "ssh", "ssh_cidrs": ["0.0.0.0/0"], "allow_ssh_from_anywhere": True}
    (door,) = said("gcp", {"access": open_door})
    assert "whole internet" in door


def test_a_zone_without_the_gpus_is_pointed_out_with_those_that_have_them() -> None:
    assert said("gcp", {"gcp:zone": "europe-west4-b"}) == []
    (elsewhere,) = said("gcp", {"gcp:zone": "europe-west1-b"})
    assert elsewhere.startswith("partition debug: on 2026-11-21 Google Cloud offered nvidia-tesla-v100 in ")
    assert "europe-west4-a" in elsewhere
    assert elsewhere.endswith("not in europe-west1-b")
    (near,) = said("gcp", {"gcp:zone": "us-east1-b"})
    assert "in us-east1-c of us-east1, not in us-east1-b" in near
    (one,) = said("gcp", {"partitions[0].zones": ["europe-west4-a", "europe-west4-d"]})
    assert one.endswith("not in europe-west4-d")
    assert said("gcp", {"partitions[0].accelerator.type": "t4"}) == []
