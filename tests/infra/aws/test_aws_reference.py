"""Every policy of every plan on AWS, against the service authorization reference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.aws_plans import SUBJECTS, planned
from tests.support.aws_rules import allowed_statements, several
from tests.support.iam_reference import mistakes

FSX = "arn:aws:fsx:eu-west-1:111122223333"
EC2 = "arn:aws:ec2:eu-west-1:111122223333"
OBJECT = "arn:aws:s3:::bucket/key"


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_action_exists_and_is_asked_for_what_the_statement_names(subject: str, tmp_path: Path) -> None:
    plan = planned(subject, tmp_path)
    statements = list(allowed_statements(plan))
    assert statements
    assert {
        name: wrong
        for name, statement in statements
        if (
            wrong := list(
                mistakes(several(statement["Action"]), several(statement["Resource"]), plan.resources)
            )
        )
    } == {}


@pytest.mark.parametrize(
    ("actions", "resources", "count"),
    [
        pytest.param(["s3:GetObject"], [OBJECT], 0, id="right"),
        pytest.param(["s3:GetObject"], ["arn:aws:s3:::bucket/*"], 0, id="right-with-a-wildcard"),
        pytest.param(["s3:GetObjects"], [OBJECT], 2, id="misspelt"),
        pytest.param(["ecs:SubmitAttachmentStateChange"], ["*"], 2, id="in-the-singular"),
        pytest.param(["fsx:DescribeFileSystems"], [f"{FSX}:file-system/*"], 2, id="takes-no-resource"),
        pytest.param(["fsx:DescribeFileSystems"], ["*"], 0, id="takes-everything-only"),
        pytest.param(["ec2:RunInstances"], [f"{EC2}:vpc/*"], 2, id="another-kind"),
        pytest.param(["ec2:RunInstances"], [f"{EC2}:instance/*", f"{EC2}:vpc/*"], 1, id="one-of-two-kinds"),
        pytest.param(["s3:GetObject", "ec2:DescribeInstances"], [OBJECT], 1, id="one-of-two-actions"),
    ],
)
def test_a_statement_without_effect_is_named(
    actions: Sequence[str], resources: Sequence[str], count: int
) -> None:
    assert len(list(mistakes(actions, resources, []))) == count
