"""The zones in which nodes may start, and what happens where a zone lacks what the snapshot says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infra.errors import UserError
from infra.gcp.network import check_zones, with_zones
from node.model import ClusterDesign, Network
from tests.support.gcp_machines import Machines
from tests.support.gcp_mocks import CPU, GPU, declare, gcp_design

A, B, C = "europe-west4-a", "europe-west4-b", "europe-west4-c"


def placed_zones(design: ClusterDesign) -> dict[str, tuple[str, ...]]:
    return {p.name: p.zones for p in with_zones(design).partitions}


def test_a_zone_that_nobody_names_is_the_stacks_own() -> None:
    assert placed_zones(gcp_design()) == {"cpu": (A,), "gpu": (A,)}


def test_a_partitions_zones_win_over_the_networks_and_keep_their_order() -> None:
    partitions = (replace(CPU, zones=(C, B)), GPU)
    design = gcp_design(partitions=partitions, network=Network(cidr="10.0.0.0/16", zones=(B, A)))
    assert placed_zones(design) == {"cpu": (C, B), "gpu": (B, A)}


def test_nodes_close_together_are_in_one_zone() -> None:
    close = replace(CPU, placement="cluster", zones=(B, A))
    assert placed_zones(gcp_design(partitions=(close,))) == {"cpu": (B,)}


def compared(design: ClusterDesign, **offered: dict[str, int]) -> list[str]:
    known = {zone.replace("_", "-"): machines for zone, machines in offered.items()}
    gcp = Machines(machines=known or None)
    declare(lambda: check_zones(with_zones(design)), gcp=gcp)
    return gcp.calls


def test_each_zone_is_asked_once() -> None:
    design = gcp_design(partitions=(replace(CPU, zones=(A, B)), replace(GPU, zones=(B,))))
    assert compared(design) == ["gcp:compute/getMachineTypes:getMachineTypes"] * 2


def test_a_machine_that_a_zone_does_not_offer_is_named_with_it() -> None:
    both = {"n1-standard-2": 2, "n1-standard-8": 8}
    design = gcp_design(partitions=(CPU, replace(GPU, zones=(B,))))
    with pytest.raises(UserError, match=rf"partition gpu: .* does not offer n1-standard-8 in {B}"):
        compared(design, europe_west4_a=both, europe_west4_b={"n1-standard-2": 2})
    with pytest.raises(UserError, match=rf"controller: .* does not offer n1-standard-2 in {A}"):
        compared(design, europe_west4_a={"n1-standard-8": 8}, europe_west4_b=both)


def test_a_machine_that_is_not_what_the_snapshot_says_is_named() -> None:
    """Otherwise Slurm would drain the nodes one after another."""
    offered = {"n1-standard-2": 2, "n1-standard-8": 6}
    with pytest.raises(
        UserError, match=r"n1-standard-8 has 6 vCPUs .* and the snapshot says 8.*\.instance_types\."
    ):
        compared(gcp_design(), europe_west4_a=offered)


def test_an_offline_plan_compares_nothing() -> None:
    compared(gcp_design(), europe_west4_a={"<getMachineTypes.machineTypes[0].name>": 0})
