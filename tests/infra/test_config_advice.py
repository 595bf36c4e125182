"""The warnings of a plan: each when it should, none otherwise."""

from __future__ import annotations

from typing import Any

from stack_values import REMOVE, values

from infra.config import parse
from infra.config.advice import warnings
from infra.design import design
from infra.machines import catalog

FACTS = catalog()


def test_warnings() -> None:
    def said(name: str, changes: dict[str, Any]) -> list[str]:
        config = parse(values(name, {"storage": REMOVE} | changes if name == "aws" else changes), "t")
        return warnings(config, design(config, FACTS), FACTS)

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
    (blind,) = said("aws", {"partitions[0].machine": "p4d.24xlarge", "budget.max_usd": 1})
    assert "no price is known for cpu" in blind
    (scratch,) = said("aws", {"storage": {"scratch": {"kind": "fsx_lustre", "size_gib": 1200}}})
    assert "one copy" in scratch
    open_door = {"mode": "ssh", "ssh_cidrs": ["0.0.0.0/0"], "allow_ssh_from_anywhere": True}
    (door,) = said("gcp", {"access": open_door})
    assert "whole internet" in door
