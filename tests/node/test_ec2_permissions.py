"""The head's policy allows exactly the calls of the driver, and nothing else."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from infra.aws import policies
from node.design.model import Access, Partition, Settings, Site
from node.elastic.driver import LaunchGroup
from node.elastic.drivers.ec2 import launches as ec2_launch
from tests.support import doubles
from tests.support.cloud_faults import Fault
from tests.support.fake_ec2 import ACCOUNT, FakeEc2, fake_ec2
from tests.support.fake_ec2_iam import ROLE_ARN, Question, questions
from tests.support.iam import allowed

COMPUTE = Partition("compute", "c4.2xlarge", 8, 100, 0, 50, topology=True)
SPOT = Partition("spot", "c4.2xlarge", 8, 100, 0, 10, spot=True)
CLOSE = Partition("close", "c4.2xlarge", 8, 100, 0, 10, placement="cluster", reservation="cr-1")
MEMBERS = ("cr-2", "arn:aws:ec2:eu-central-1:999999999999:capacity-reservation/cr-3")
POOLED = Partition("pooled", "c4.2xlarge", 8, 100, 0, 10, reservations=MEMBERS)
POOL = f"arn:aws:resource-groups:eu-central-1:{ACCOUNT}:group/t-pooled"
DESIGN = doubles.design(
    COMPUTE, SPOT, CLOSE, POOLED, provider="aws", isolation="vm", access=Access(key="ada")
)
TEMPLATE: dict[str, Any] = {
    "KeyName": "ada",
    "Placement": {"GroupName": "t-close"},
    "CapacityReservationSpecification": {"CapacityReservationTarget": {"CapacityReservationId": "cr-1"}},
}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEc2]:
    monkeypatch.setattr(ec2_launch, "PAUSES", (0.01,))
    monkeypatch.setattr(ec2_launch, "CALL_NODES", 3)
    with fake_ec2(("compute", "spot")) as made:
        made.template("close", **TEMPLATE)
        made.template(
            "pooled",
            CapacityReservationSpecification={
                "CapacityReservationTarget": {"CapacityReservationResourceGroupArn": POOL}
            },
        )
        made.pools[POOL] = (f"arn:aws:ec2:eu-central-1:{ACCOUNT}:capacity-reservation/cr-2", MEMBERS[1])
        made.groups["t-close"] = {"slurm-stacks:cluster": "t"}
        yield made


@pytest.fixture
def asked(fake: FakeEc2) -> list[Question]:
    """Everything that IAM is asked while the driver does all that it can do."""
    site = Site("/", "slurm", "head", "10.0.0.1", **fake.site())
    driver = fake.driver(Settings(DESIGN, site))
    fake.capacity = {"eu-central-1a": 3}
    nodes = tuple(f"compute-{n}" for n in range(5))
    fake.faults = [Fault("RunInstances", "InsufficientInstanceCapacity", 500, skip=1, times=1)]
    assert len(driver.launch(LaunchGroup("compute", nodes, True, "whole")).launched) == 5
    assert len(driver.launch(LaunchGroup("spot", ("spot-0", "spot-1"), False, "some")).launched) == 2
    assert len(driver.launch(LaunchGroup("close", ("close-0",), True, "close")).launched) == 1
    assert len(driver.launch(LaunchGroup("pooled", ("pooled-0",), True, "pooled")).launched) == 1
    driver.places(driver.list())
    driver.terminate([machine.id for machine in driver.list()])
    return [question for call in fake.calls for question in questions(fake, call)]


@pytest.fixture
def document(fake: FakeEc2) -> Any:
    scope = policies.Scope(
        partition="aws",
        region=fake.region,
        account=ACCOUNT,
        bucket="arn:aws:s3:::t-bucket",
        secret="arn:aws:secretsmanager:eu-central-1:123456789012:secret:t-munge-x",
        log_group="arn:aws:logs:eu-central-1:123456789012:log-group:/slurm-stacks/t",
        compute_role=ROLE_ARN,
        subnets=list(fake.subnets.values()),
        groups=["sg-12345678"],
    )
    return policies.controller(scope, replace(DESIGN, name="t"))


def test_every_call_of_the_driver_is_allowed(asked: list[Question], document: Any) -> None:
    assert {question.action for question in asked} == {
        "ec2:DescribeInstances", "ec2:DescribeInstanceStatus", "ec2:DescribeLaunchTemplateVersions",
        "ec2:DescribeInstanceTopology", "ec2:DescribeSpotInstanceRequests",
        "ec2:RunInstances", "ec2:CreateTags", "ec2:TerminateInstances",
        "iam:PassRole",
    }  # fmt: skip
    assert [q for q in asked if not allowed(document, q.action, q.resource, q.context)] == []


def test_nothing_of_ec2_is_allowed_that_the_driver_does_not_do(asked: list[Question], document: Any) -> None:
    used = {(q.action, q.resource) for q in asked}
    for statement in document["Statement"]:
        for action in statement["Action"]:
            if not action.startswith(("ec2:", "iam:")):
                continue
            resources = statement["Resource"]
            for resource in [resources] if isinstance(resources, str) else resources:
                # Only EC2 knows which snapshots an image has.
                if "snapshot/" in resource:
                    continue
                assert any(a == action and fnmatch.fnmatchcase(r, resource) for a, r in used), (
                    f"{statement['Sid']}: {action} on {resource} is never asked for"
                )


@pytest.mark.parametrize("action", ["ec2:RunInstances", "ec2:TerminateInstances", "ec2:CreateTags"])
def test_the_same_calls_for_another_cluster_are_refused(
    asked: list[Question], document: Any, action: str
) -> None:
    """With another cluster's tags no machine can be ended, and none launched from its templates."""
    tagged = [q for q in asked if q.action == action and any("slurm-stacks:cluster" in k for k in q.context)]
    assert tagged
    for q in tagged:
        other = {key: "other" if "slurm-stacks:cluster" in key else value for key, value in q.context.items()}
        assert not allowed(document, q.action, q.resource, other), q
