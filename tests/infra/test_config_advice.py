"""The warnings of a plan: each when it should, none otherwise."""

from __future__ import annotations

from typing import Any

from stack_values import REMOVE, values

from infra.config import parse
from infra.config.advice import warnings
from infra.design import design
from infra.machines import catalog

FACTS = catalog()


def said(name: str, changes: dict[str, Any]) -> list[str]:
    # The fixture's m5 is of a previous generation, and one line of its own in each answer.
    quiet = {"storage": REMOVE, "partitions[0].machine": "m7i.xlarge"}
    config = parse(values(name, quiet | changes if name == "aws" else changes), "t")
    return warnings(config, design(config, FACTS), FACTS)


def test_warnings() -> None:
    assert said("aws", {}) == []
    (pretended,) = said("local", {"partitions[0].accelerator": {"type": "v100"}})
    assert "v100 devices are simulated" in pretended
    (static,) = said("aws", {"partitions[0].nodes.min": 2})
    assert "2 static nodes" in static
    assert "0.40 USD an hour" in static
    (old,) = said("aws", {"partitions[0].machine": "m4.large"})
    assert "previous generation" in old
    (paid,) = said("aws", {"partitions[1].accelerator": {"type": "v100", "count": 1}})
    assert "always has 8" in paid
    (group,) = said(
        "aws", {"partitions[0].reservation": "cr-0123456789", "partitions[0].placement": "cluster"}
    )
    assert "InsufficientInstanceCapacity" in group
    always = {"name": "s", "machine": "t8i.medium", "nodes": {"min": 2, "max": 2}}
    up, blind = said("aws", {"partitions[0]": always, "budget.max_usd": 1})
    assert "2 static nodes run as long as the cluster is up, price of t8i.medium unknown" in up
    assert "no price is known for the static nodes of s" in blind
    _, soon = said("aws", {"partitions[0].nodes.min": 2, "budget.max_usd": 2})
    assert "use up the 2 USD in 4.96 h" in soon
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
    assert elsewhere.startswith("partition debug: on 2026-07-30 Google Cloud offered nvidia-tesla-v100 in ")
    assert "europe-west4-a" in elsewhere
    assert elsewhere.endswith("not in europe-west1-b")
    (near,) = said("gcp", {"gcp:zone": "us-east1-b"})
    assert "in us-east1-c of us-east1, not in us-east1-b" in near
    (one,) = said("gcp", {"partitions[0].zones": ["europe-west4-a", "europe-west4-d"]})
    assert one.endswith("not in europe-west4-d")
    assert said("gcp", {"partitions[0].accelerator.type": "t4"}) == []
