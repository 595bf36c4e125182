"""A network that is replaced: the head goes, then the nodes are ended, then the old subnets go.

The order follows from the plan, by the engine's rule (`tests.support.replacements.deletions`). The embedded
runner, which the engine's tests compare with the real engine, carries the same resources out.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from infra.clouds import commands
from tests.support import replacements
from tests.support.replacements import Run
from tests.support.stack_values import values
from tests.support.tiny_project import make

VPC = {"vpc": "vpc-11111111", "public_subnet": "subnet-1111111a", "private_subnets": ["subnet-2222222a"]}
HERE = {"network": "lan", "subnetwork": "here"}
SWEEPS = {"aws": "amazon-sweep", "gcp": "lab-sweep", "batch": "batch-end"}


def answer(token: str, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
    match token.rpartition(":")[2]:
        case "getInstanceTypeOfferings":
            return {"locations": ["us-east-1a", "us-east-1b"]}
        case "getSubnets":
            return {"ids": []}
        case "getSubnet":
            return {"id": arguments["id"], "availabilityZone": f"us-east-1{arguments['id'][-1]}"}
    return None


def run(stack: str, changes: dict[str, Any]) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        return replacements.run(values(stack, changes), Path(folder), canned=answer)


@functools.cache
def up(stack: str) -> Run:
    return run(stack, {})


@pytest.mark.parametrize(
    ("stack", "changes"),
    [
        ("aws", {"network": {"cidr": "10.9.0.0/16"}}),
        ("aws", {"network": {"public_cidr": "10.0.0.0/17", "private_cidr": "10.0.192.0/18"}}),
        pytest.param("aws", {"network": {"aws": VPC}}, marks=pytest.mark.wide),
        ("gcp", {"network": {"cidr": "10.9.0.0/16"}}),
        pytest.param("gcp", {"network": {"gcp": HERE}}, marks=pytest.mark.wide),
        ("batch", {"network": {"cidr": "10.9.0.0/16"}}),
    ],
)
def test_what_ends_nodes_is_replaced_with_their_network(stack: str, changes: dict[str, Any]) -> None:
    before, after = up(stack), run(stack, changes)
    sweep = before.named(SWEEPS[stack])
    assert "triggers" in replacements.forced(
        sweep, after.declared[sweep.urn], replacements.replaced(before, after)
    )
    assert sweep.deleted_first


@pytest.mark.parametrize(
    ("stack", "changes"),
    [
        ("aws", {"network": {"zones": ["us-east-1a", "us-east-1b", "us-east-1c"]}, "login": {"count": 1}}),
        ("aws", {"aws": {"nat": False}, "image": {"bake": True}}),
        (
            "gcp",
            {
                "network": {"zones": ["europe-west4-a", "europe-west4-b"]},
                "access": {"mode": "ssh", "ssh_cidrs": ["198.51.100.0/24"]},
            },
        ),
    ],
)
def test_nothing_else_ends_nodes(stack: str, changes: dict[str, Any]) -> None:
    before = up(stack)
    changed = replacements.replaced(before, run(stack, changes))
    assert before.named(SWEEPS[stack]).urn not in changed


@pytest.mark.parametrize("stack", ["aws", "gcp"])
def test_the_head_goes_before_the_nodes_are_ended_and_nothing_of_theirs_does(stack: str) -> None:
    before = up(stack)
    sweep = before.named(SWEEPS[stack])
    *first, last = replacements.deletions(before, sweep.urn)
    assert last == sweep.urn
    assert before.named("-head-controller").urn in first
    assert set(first).isdisjoint(replacements.needs(before, sweep.urn))
    kinds = {before.declared[urn].type.rpartition(":")[2] for urn in replacements.needs(before, sweep.urn)}
    stands_on = {"aws": {"Vpc", "Subnet", "SecurityGroup", "LaunchTemplate", "Role"}}
    stands_on["gcp"] = {"Network", "Subnetwork", "InstanceTemplate", "Account"}
    assert kinds >= stands_on[stack], "these go after it"


def test_a_subnetwork_that_is_deleted_first_waits_for_the_head_and_the_nodes() -> None:
    """Its name is given, so the provider asks for that order: no two subnetworks have one name."""
    before = up("gcp")
    order = replacements.deletions(before, before.named("-network-subnetwork").urn)
    head, sweep = before.named("-head-controller").urn, before.named("-sweep").urn
    templates = [urn for urn in order if "InstanceTemplate" in urn]
    assert templates
    assert order.index(head) < order.index(sweep) < min(map(order.index, templates))
    assert sweep != order[-1] == before.named("-network-subnetwork").urn


def test_the_embedded_runner_carries_it_out_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = make(tmp_path, monkeypatch)
    program = """
        from infra.clouds.termination import behind, terminate_on_destroy
        from tests.support.aws_mocks import aws_design

        subnet = command("subnet", triggers=[{cidr!r}])
        sweep = terminate_on_destroy("sweep", "module", aws_design(), [subnet.id], [subnet], None)
        command("head", triggers=[behind(sweep, subnet.id)], opts={{"depends_on": [sweep]}})
    """
    monkeypatch.setattr(commands, "line", lambda *_words: f"echo sweep- >> '{tiny.log}'")
    tiny.write(program.format(cidr="10.0.0.0/16"))
    tiny.up()
    assert tiny.words == ["subnet+", "head+"]
    tiny.up()
    assert tiny.words == []
    tiny.write(program.format(cidr="10.9.0.0/16"))
    tiny.up()
    assert tiny.words == ["subnet+", "head-", "sweep-", "head+", "subnet-"]
    tiny.destroy()
    assert tiny.words == ["head-", "sweep-", "subnet-"]
