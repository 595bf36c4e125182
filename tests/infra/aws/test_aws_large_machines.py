"""The largest present machines: their network cards as EC2 describes them, and a plan of each.

`described` is EC2's DescribeInstanceTypes, which moto brings along (it refreshes its copy from an account):
for each card how many interfaces it takes and of which types. The layout is that of the EC2 user guide
("Maximize network bandwidth with EFA"): an ordinary interface on the first card, and on every card one for
the fabric alone.
"""

from __future__ import annotations

import copy
import functools
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import moto
import pytest
import yaml

from cli.commands.operate import make_plan
from infra.aws.launch_templates import interfaces
from infra.config import load_file
from infra.instance_types.catalog import catalog
from infra.program.stack import Stack
from tests.support.checkout import ROOT
from tests.support.stack_values import CLUSTER, mistakes, values

LARGE = {
    "p5.48xlarge": (8, "gpu:h100", 32),
    "p5e.48xlarge": (8, "gpu:h200", 32),
    "p5en.48xlarge": (8, "gpu:h200", 16),
    "p6-b200.48xlarge": (8, "gpu:b200", 8),
    "trn1.32xlarge": (16, "neuron:trainium", 8),
    "trn1n.32xlarge": (16, "neuron:trainium", 16),
    "trn2.48xlarge": (16, "neuron:trainium2", 16),
}
"""Type -> its devices, Slurm's name for them, its EFA cards."""
PLANNED = ("p5.48xlarge", "p5en.48xlarge", "p6-b200.48xlarge", "trn1n.32xlarge", "trn2.48xlarge")
EFA = sorted(name for name in catalog().names("aws") if catalog().machines[name].efa)
OWN_IMAGE = "ami-12356790abcd"


@functools.cache
def described() -> dict[str, Any]:
    path = Path(moto.__file__).parent / "ec2" / "resources" / "instance_types.json.gz"
    return dict(json.loads(gzip.decompress(path.read_bytes())))


def unlike(name: str, made: list[dict[str, Any]]) -> list[str]:
    """Return how the interfaces differ from what the machine's cards take."""
    network = described()[name]["NetworkInfo"]
    cards = {card["NetworkCardIndex"]: card for card in network["NetworkCards"]}
    found = []
    if made[0]["network_card_index"] != network["DefaultNetworkCardIndex"] or made[0]["device_index"] != 0:
        found.append("the first interface is not on the default card")
    if made[0].get("interface_type") == "efa-only":
        found.append("the first interface has no address")
    for card, count in Counter(one["network_card_index"] for one in made).items():
        if card not in cards or count > cards[card]["MaximumNetworkInterfaces"]:
            found.append(f"card {card}: {count} interfaces")
    for one in made:
        kind, card = one.get("interface_type", "interface"), one["network_card_index"]
        if kind not in (cards.get(card, {}).get("InterfaceTypes") or ["interface", "efa"]):
            found.append(f"card {card}: {kind}")
    if len({(one["network_card_index"], one["device_index"]) for one in made}) != len(made):
        found.append("two interfaces in one place")
    fabric = sum("efa" in one.get("interface_type", "") for one in made)
    if fabric != network["EfaInfo"]["MaximumEfaInterfaces"]:
        found.append(f"{fabric} EFA interfaces")
    return found


@pytest.mark.parametrize("name", EFA)
def test_the_interfaces_are_those_that_the_cards_take(name: str) -> None:
    assert unlike(name, interfaces(catalog().machines[name].efa)) == []


def test_another_layout_would_be_found() -> None:
    right = interfaces(32)
    changes: list[dict[int, dict[str, Any]]] = [
        {5: {"network_card_index": 40}},
        {5: {"network_card_index": 0, "device_index": 2}},
        {5: {"interface_type": "interface"}},
        {0: {"interface_type": "efa-only"}},
        {0: {"network_card_index": 1}},
        {6: {"network_card_index": 4}},
    ]
    for change in changes:
        wrong = copy.deepcopy(right)
        for place, keys in change.items():
            wrong[place].update(keys)
        assert unlike("p5.48xlarge", wrong), change


@pytest.mark.parametrize("name", LARGE)
def test_the_facts_are_ec2s(name: str) -> None:
    count, kind, cards = LARGE[name]
    machine = catalog().machines[name]
    assert machine.accelerator is not None
    assert (machine.accelerator.count, machine.accelerator.type) == (count, kind.partition(":")[2])
    assert (machine.network_cards, machine.efa) == (cards, cards)


@pytest.mark.parametrize("name", PLANNED)
def test_a_plan_of_a_large_machine(name: str, tmp_path: Path) -> None:
    region = (catalog().machines[name].regions or ("us-east-1",))[0]
    content = values(
        "aws", {"partitions": [], "aws:region": region, "image.id": OWN_IMAGE, "@enabled": False}
    )
    content[CLUSTER]["partitions"] = [
        {
            "name": "large",
            "instance_type": name,
            "nodes": {"max": 2},
            "placement": "cluster",
            "aws": {"efa": True},
        }
    ]
    for needed in ("Pulumi.yaml", "__main__.py"):
        (tmp_path / needed).write_bytes((ROOT / needed).read_bytes())
    file = tmp_path / "Pulumi.large.yaml"
    file.write_text(yaml.safe_dump({"config": content}))
    plan = make_plan(Stack(tmp_path, "large"), load_file(file))
    (template,) = [r["inputs"] for r in plan["resources"] if r["type"].endswith(":LaunchTemplate")]
    count, kind, cards = LARGE[name]
    assert template["instanceType"] == name
    fabric = [
        network_interface["networkCardIndex"]
        for network_interface in template["networkInterfaces"]
        if network_interface["interfaceType"] == "efa-only"
    ]
    assert fabric == list(range(cards))
    assert not any(
        "associatePublicIpAddress" in network_interface for network_interface in template["networkInterfaces"]
    )
    (partition,) = plan["outputs"]["cluster"]["partitions"]
    gres, _, model = kind.partition(":")
    assert (partition["accelerator"]["type"], partition["accelerator"]["count"]) == (model, count)
    (settings,) = [
        json.loads(r["inputs"]["content"])
        for r in plan["resources"]
        if r["name"].endswith("-bundle-settings")
    ]
    assert settings["design"]["partitions"][0]["accelerator"]["gres"] == gres
    assert settings["design"]["partitions"][0]["aws"]["efa"] == cards


def test_b200s_need_an_image_with_their_subnet_manager() -> None:
    changes: dict[str, Any] = {"partitions[1]": {"name": "b", "instance_type": "p6-b200.48xlarge"}}
    assert [m.code for m in mistakes(values("aws", changes))] == ["image.no-subnet-manager"]
    for own in ({"image.id": OWN_IMAGE}, {"partitions[1].image": {"id": OWN_IMAGE}}):
        assert mistakes(values("aws", {**changes, **own})) == []
