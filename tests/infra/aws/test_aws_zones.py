"""The zones of a cluster on AWS, and the addresses of its subnets."""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra import addresses
from infra.addresses import Need
from infra.aws.network import AwsNetwork, Zones, find_zones
from infra.aws.storage import AwsStorage
from node.design.model import ClusterDesign
from tests.support import sentences
from tests.support.aws_mocks import (
    CONTROLLER,
    CPU,
    EFS,
    EXISTING,
    GPU,
    LOGIN,
    OWN,
    Aws,
    aws_design,
    declare,
)

# --- zones ------------------------------------------------------------------------------------------------


def find(design: Any, aws: Aws | None = None) -> tuple[Zones, list[str]]:
    found: list[Zones] = []
    cloud = aws or Aws()
    declare(lambda: found.append(find_zones(design)), aws=cloud)
    return found[0], cloud.calls


def test_zones_are_where_the_machines_are_offered() -> None:
    found, calls = find(aws_design())
    # Zones b and c fit both partitions, and a fits one. The controller goes where most nodes can be.
    assert found == Zones(
        "eu-west-1b",
        {"cpu": ("eu-west-1b", "eu-west-1c", "eu-west-1a"), "gpu": ("eu-west-1b", "eu-west-1c")},
    )
    assert found.private == ("eu-west-1b", "eu-west-1c", "eu-west-1a")
    assert len(calls) == 4, "a question a machine, and whether the cluster is there already"


def test_a_head_stays_where_it_is() -> None:
    """When AWS offers a machine type in one more zone, `up` must not replace the controller, with empty
    disks."""
    places = {"subnet-x": "eu-west-1c"}
    found, _ = find(aws_design(), Aws(subnets=places, kept=["subnet-x"]))
    assert found.head == "eu-west-1c"
    assert found.compute[0] == "eu-west-1b", "only the head stays"
    design = aws_design(network=dataclasses.replace(OWN, zones=("eu-west-1b", "eu-west-1c")))
    assert find(design, Aws(subnets=places, kept=["subnet-x"]))[0].head == "eu-west-1c"
    moved = aws_design(network=dataclasses.replace(OWN, zones=("eu-west-1a",)))
    assert find(moved, Aws(subnets=places, kept=["subnet-x"]))[0].head == "eu-west-1a", "by an explicit word"
    assert find(aws_design(), Aws(kept=["<getSubnets.ids[0]>"]))[0].head == "eu-west-1b", "a plan knows none"


def test_zones_that_are_said_are_not_asked_for() -> None:
    said = dataclasses.replace(OWN, zones=("eu-west-1c", "eu-west-1a"))
    own = dataclasses.replace(GPU, zones=("eu-west-1b",))
    found, calls = find(aws_design(network=said, partitions=(CPU, own)))
    assert found.partitions == {"cpu": ("eu-west-1c", "eu-west-1a"), "gpu": ("eu-west-1b",)}
    assert (found.head, calls) == ("eu-west-1c", ["aws:ec2/getSubnets:getSubnets"])


def test_a_controller_that_its_nodes_zones_do_not_have_is_in_another() -> None:
    offered = {"m5.xlarge": ["eu-west-1b"], "p3dn.24xlarge": ["eu-west-1b"], "m5.large": ["eu-west-1c"]}
    found, _ = find(aws_design(), Aws(offered=offered))
    assert found.head == "eu-west-1c"
    assert found.compute == ("eu-west-1b",)
    assert found.private == ("eu-west-1b", "eu-west-1c")


@pytest.mark.parametrize(
    ("machine", "code", "named"),
    [
        ("p3dn.24xlarge", "zones.no-machine", ["partition gpu", "eu-west-1"]),
        ("m5.large", "zones.no-head", ["eu-west-1", "controller and login"]),
    ],
)
def test_a_machine_that_is_nowhere_is_one_message(machine: str, code: str, named: list[str]) -> None:
    everything = {"m5.xlarge": ["eu-west-1a"], "p3dn.24xlarge": ["eu-west-1a"], "m5.large": ["eu-west-1a"]}
    with sentences.raises(code, machine, *named):
        find(aws_design(), Aws(offered={**everything, machine: []}))


def test_an_existing_networks_zones_are_its_subnets() -> None:
    found, _ = find(aws_design(network=EXISTING))
    assert found == Zones(
        "eu-west-1a",
        {"cpu": ("eu-west-1a", "eu-west-1b"), "gpu": ("eu-west-1b",)},
        {"eu-west-1a": "subnet-a", "eu-west-1b": "subnet-b"},
    )


@pytest.mark.parametrize(
    ("subnets", "zones", "code", "named"),
    [
        ({"subnet-b": "eu-west-1a"}, (), "subnets.same-zone", ["subnet-a", "subnet-b", "eu-west-1a"]),
        (
            {"subnet-b": "eu-west-1d"},
            (),
            "subnets.machine",
            ["partition gpu", "p3dn.24xlarge", "eu-west-1b, eu-west-1c"],
        ),
        (
            {},
            ("eu-west-1c",),
            "subnets.zones",
            ["partition cpu", "eu-west-1c", "network.aws.private_subnets"],
        ),
    ],
)
def test_an_existing_network_that_does_not_fit(
    subnets: dict[str, str], zones: tuple[str, ...], code: str, named: list[str]
) -> None:
    places = {"subnet-p": "eu-west-1a", "subnet-a": "eu-west-1a", "subnet-b": "eu-west-1b", **subnets}
    design = aws_design(network=dataclasses.replace(EXISTING, zones=zones))
    with sentences.raises(code, *named):
        find(design, Aws(subnets=places))


def test_unknown_zones_are_told_apart() -> None:
    """An offline plan answers every question with a placeholder."""
    blank = {"m5.xlarge": ["<x>"], "p3dn.24xlarge": ["<x>"], "m5.large": ["<x>"]}
    own, _ = find(aws_design(), Aws(offered=blank))
    assert own.private == ("<x>",)
    assert addresses.private_cidrs("10.0.128.0/17", own.private) == {"<x>": "10.0.128.0/20"}
    there, _ = find(
        aws_design(network=EXISTING),
        Aws(offered=blank, subnets=dict.fromkeys(["subnet-p", "subnet-a", "subnet-b"], "<z>")),
    )
    assert list(there.existing.values()) == ["subnet-a", "subnet-b"]
    assert list(addresses.labels(list(there.existing)).values()) == ["a", "b"]


def test_a_zones_label_is_its_letter_and_no_two_zones_have_the_same() -> None:
    assert addresses.labels(["us-east-1b", "us-east-1a"]) == {"us-east-1b": "b", "us-east-1a": "a"}
    assert addresses.labels(["<x>", "us-east-1a", "<y>", "us-east-1c"]) == {
        "<x>": "b", "us-east-1a": "a", "<y>": "d", "us-east-1c": "c",
    }  # fmt: skip
    assert addresses.labels(["us-west-2a", "us-west-2-lax-1a"]) == {
        "us-west-2a": "a",
        "us-west-2-lax-1a": "b",
    }


NAMED = [(), ("eu-west-1a",), ("eu-west-1b", "eu-west-1a"), ("eu-west-1c",)]
MIXES = [((), *mix) for mix in itertools.product(NAMED, repeat=2)] + [(zone, (), ()) for zone in NAMED[1:]]


@pytest.mark.parametrize(("network", "cpu", "gpu"), MIXES)
def test_any_mix_of_zones_that_are_named_and_not_gives_each_resource_its_own_name(
    network: tuple[str, ...], cpu: tuple[str, ...], gpu: tuple[str, ...]
) -> None:
    design = aws_design(
        network=dataclasses.replace(OWN, zones=network),
        partitions=(dataclasses.replace(CPU, zones=cpu), dataclasses.replace(GPU, zones=gpu)),
        mounts=(EFS,),
    )
    blank = {machine: ["<x>"] for machine in ("m5.xlarge", "p3dn.24xlarge", "m5.large")}

    def program() -> None:
        made = AwsNetwork("n", design, find_zones(design))
        AwsStorage("s", design, made)

    # The recorder refuses a name that two resources have.
    made = declare(program, aws=Aws(offered=blank))
    wanted = {zone for zones_of in (cpu or network, gpu or network) for zone in zones_of or ["<x>"]}
    private = [name for name in made.types() if re.fullmatch("n-private-[a-z]", name)]
    assert wanted <= {made.inputs(name)["availabilityZone"] for name in private}


# --- addresses --------------------------------------------------------------------------------------------


def test_a_zone_more_moves_no_other() -> None:
    few = addresses.private_cidrs("10.0.128.0/17", ["eu-west-1b"])
    more = addresses.private_cidrs("10.0.128.0/17", ["eu-west-1c", "eu-west-1b", "eu-west-1a"])
    assert few == {"eu-west-1b": "10.0.144.0/20"}
    assert more["eu-west-1b"] == few["eu-west-1b"]
    assert len(set(more.values())) == 3


def test_small_networks() -> None:
    assert addresses.private_cidrs("10.0.0.128/27", ["eu-west-1c", "eu-west-1a"]) == {
        "eu-west-1c": "10.0.0.128/28",
        "eu-west-1a": "10.0.0.144/28",
    }
    with sentences.raises("network.too-small", "network.private_cidr", "10.0.0.128/28"):
        addresses.private_cidrs("10.0.0.128/28", ["eu-west-1c", "eu-west-1a"])
    with sentences.raises("network.too-small"):
        addresses.private_cidrs("10.0.0.128/29", ["eu-west-1c"])


def test_the_nodes_of_all_partitions_have_addresses_together() -> None:
    """Each alone fits into a subnet of 11 addresses: 10 and 9 nodes, and a login machine."""
    small = dataclasses.replace(OWN, private_cidr="10.0.128.0/28", zones=("eu-west-1a",))
    nine, hosts = dataclasses.replace(GPU, max=9), (CONTROLLER, LOGIN)
    machines = ["cpu (10)", "gpu (9)", "login (1)"]
    with sentences.raises("subnets.addresses", "network.private_cidr", "eu-west-1a", 11, 20, *machines):
        declare(lambda: network_of(aws_design(network=small, partitions=(CPU, nine), hosts=hosts)))
    declare(lambda: network_of(aws_design(network=small, partitions=(CPU,), hosts=hosts)))


def network_of(design: ClusterDesign) -> None:
    AwsNetwork("n", design, find_zones(design))


ZONE_NAMES = ("a", "b", "c")


@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.frozensets(st.sampled_from(ZONE_NAMES), min_size=1)), max_size=4
    ),
    st.fixed_dictionaries({zone: st.integers(0, 8) for zone in ZONE_NAMES}),
)
def test_there_is_no_shortage_just_where_every_node_finds_a_place(
    wanted: list[tuple[int, frozenset[str]]], free: dict[str, int]
) -> None:
    needs = [Need(f"p{number}", nodes, own) for number, (nodes, own) in enumerate(wanted)]
    short = addresses.shortage(needs, free)
    assert (short is None) == _placed([(own) for nodes, own in wanted for _ in range(nodes)], free)
    if short is not None:
        assert short.nodes > short.free == sum(free[zone] for zone in short.zones)
        assert all(need.zones <= set(short.zones) for need in short.needs)


def _placed(nodes: list[frozenset[str]], free: dict[str, int]) -> bool:
    """Place nodes one by one, and move others where that makes room (augmenting paths)."""
    held: dict[str, list[int]] = {zone: [] for zone in free}

    def place(node: int, seen: set[str]) -> bool:
        for zone in nodes[node] - seen:
            seen.add(zone)
            if len(held[zone]) < free[zone]:
                held[zone].append(node)
                return True
            for other in list(held[zone]):
                if place(other, seen):
                    held[zone].remove(other)
                    held[zone].append(node)
                    return True
        return False

    return all(place(node, set()) for node in range(len(nodes)))
