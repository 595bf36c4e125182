"""A network or an environment of Batch that is replaced: what stands on it goes first.

For a network the head goes, then the nodes are ended, then the old subnets go.

The order follows from the plan, by the engine's rule (`tests.support.replacements.deletions`).
`tests/engine/test_engine_semantics.py` has the real engine carry such resources out.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

from infra.aws.batch import access
from infra.config.jobs import BatchConfig
from tests.support import replacements
from tests.support.replacements import Run, of_stack

VPC = {"vpc": "vpc-11111111", "public_subnet": "subnet-1111111a", "private_subnets": ["subnet-2222222a"]}
HERE = {"network": "lan", "subnetwork": "here"}
TERMINATIONS = {"aws": "amazon-termination", "gcp": "lab-termination", "batch": "batch-termination"}


@functools.cache
def up(stack: str) -> Run:
    return of_stack(stack, {})


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
    before, after = up(stack), of_stack(stack, changes)
    termination = before.named(TERMINATIONS[stack])
    assert "triggers" in replacements.forced(
        termination, after.declared[termination.urn], replacements.replaced(before, after)
    )
    assert termination.deleted_first


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
    changed = replacements.replaced(before, of_stack(stack, changes))
    assert before.named(TERMINATIONS[stack]).urn not in changed


@pytest.mark.parametrize("stack", ["aws", "gcp"])
def test_the_head_goes_before_the_nodes_are_ended_and_nothing_of_theirs_does(stack: str) -> None:
    before = up(stack)
    termination = before.named(TERMINATIONS[stack])
    *first, last = replacements.deletions(before, termination.urn)
    assert last == termination.urn
    assert before.named("-head-controller").urn in first
    assert set(first).isdisjoint(replacements.needs(before, termination.urn))
    kinds = {
        before.declared[urn].type.rpartition(":")[2] for urn in replacements.needs(before, termination.urn)
    }
    stands_on = {"aws": {"Vpc", "Subnet", "SecurityGroup", "LaunchTemplate", "Role"}}
    stands_on["gcp"] = {"Network", "Subnetwork", "InstanceTemplate", "Account"}
    assert kinds >= stands_on[stack], "these go after it"


def test_a_subnetwork_that_is_deleted_first_waits_for_the_head_and_the_nodes() -> None:
    """Its name is given, so the provider asks for that order: no two subnetworks have one name."""
    before = up("gcp")
    order = replacements.deletions(before, before.named("-network-subnetwork").urn)
    head, termination = before.named("-head-controller").urn, before.named("-termination").urn
    templates = [urn for urn in order if "InstanceTemplate" in urn]
    assert templates
    assert order.index(head) < order.index(termination) < min(map(order.index, templates))
    assert termination != order[-1] == before.named("-network-subnetwork").urn


# --- an environment of AWS Batch ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change", [{"batch.placement_group": "other"}, {"batch.compute_environment": "other"}]
)
def test_an_environment_that_is_made_anew_goes_after_its_queue_and_that_after_the_jobs(
    change: dict[str, Any],
) -> None:
    """Batch deletes no environment that a queue refers to, and sees a change late (pulumi-aws, 6233)."""
    before = up("batch")
    after = of_stack("batch", change)
    environment = before.named("-environment-compute")
    assert environment.urn in replacements.replaced(before, after)
    order = [before.declared[urn].name for urn in replacements.deletions(before, environment.urn)]
    assert order == ["batch-termination", "batch-environment-queue", "batch-environment-compute"]
    assert all(after.named(name).deleted_first for name in ("-environment-compute", "batch-termination"))


EDITS: dict[str, Any] = {
    "nodes": 2,
    "parameters": {"rate": "0.1"},
    "instance_types": ["p3dn.24xlarge", "p4d.24xlarge"],
    "vcpus": {"max": 960},
    "container": {"image": "other", "vcpus": 62, "memory_mib": 400000},
    "compute_environment": "other",
    "queue": "other",
    "job_definition": "other",
    "placement_group": "other",
    "efa": True,
    "file_system": "job",
    "start_on_manifest": True,
    "disk_gib": 100,
    "attempts": 2,
    "timeout": 3600,
    "tags": {"Team": "vision"},
    "security_groups": ["sg-0123456789abcdef0"],
}
"""Key of `batch` -> another value."""
WITH: dict[str, dict[str, Any]] = {
    "security_groups": {"network.aws": VPC},
    "efa": {"batch.placement_group": "group"},
    "parameters": {
        "batch.container": {"image": "t", "vcpus": 62, "memory_mib": 424000, "command": ["t", "Ref::rate"]},
        "batch.parameters": {"rate": "0.2"},
    },
    "file_system": {
        "storage": {"scratch": {"kind": "fsx_lustre", "size_gib": 1200, "s3_import": "s3://lab/in"}}
    },
}
"""What else must be in the stack, before and after."""
QUICK = ("compute_environment", "placement_group", "queue", "instance_types")


@pytest.mark.parametrize(
    "key", [pytest.param(key, marks=[] if key in QUICK else pytest.mark.wide) for key in EDITS]
)
def test_up_asks_batch_about_each_key_that_makes_an_environment_anew(key: str) -> None:
    more = WITH.get(key, {})
    before, after = of_stack("batch", more), of_stack("batch", {**more, f"batch.{key}": EDITS[key]})
    assert before.declared != after.declared
    changed = replacements.replaced(before, after)
    anew = before.named("-environment-compute").urn in changed
    assert anew == (key in access.ANEW)
    assert (before.named("-environment-queue").urn in changed) == (anew or key == "queue")


def test_no_key_of_batch_is_left_out() -> None:
    assert set(EDITS) == set(BatchConfig.model_fields)
